"""From what a user passes as a prompt to token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence as Seq
from typing import Any, Protocol

from outdraft.errors import SettingsError

Message = Mapping[str, Any]
Prompt = str | Seq[int] | Seq[Message]
"""Text as it is, token ids, or the messages of a chat."""


class Tokenizer(Protocol):
    """What is asked of a tokenizer; those of transformers have it."""

    chat_template: Any

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> Any:
        """Text to ids, under the key `input_ids`."""

    def decode(
        self, token_ids: Any, *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool
    ) -> Any:
        """Ids to text."""

    def apply_chat_template(
        self, conversation: Any, *, tokenize: bool, add_generation_prompt: bool
    ) -> Any:
        """Messages to the text the model was trained on."""


def to_prompt_ids(tokenizer: Tokenizer, prompt: Prompt) -> list[int]:
    """Ids of one prompt: text is read as it stands, messages go through the chat template.

    Raises:
        SettingsError: the prompt is empty or of another kind, or the model has no chat template.
    """
    if isinstance(prompt, str):
        _check_text(prompt)
        ids = list(tokenizer(prompt)["input_ids"])
    elif _is_list_of(prompt, Mapping) and prompt:
        for message in prompt:
            _check_message(message)
        if tokenizer.chat_template is None:
            raise SettingsError(
                "this model's tokenizer has no chat template; pass the prompt as text"
            )
        text = tokenizer.apply_chat_template(
            list(prompt), tokenize=False, add_generation_prompt=True
        )
        ids = list(tokenizer(text, add_special_tokens=False)["input_ids"])
    elif _is_list_of(prompt, int):
        ids = [part for part in prompt if isinstance(part, int)]
    else:
        raise SettingsError(
            "a prompt is text, a list of token ids or a list of chat messages "
            f'like {{"role": "user", "content": "..."}}; got {prompt!r}'
        )
    if not ids:
        raise SettingsError("the prompt has no tokens; give at least one")
    return ids


def bad_word_ids(
    tokenizer: Tokenizer, bad_words: Seq[str | tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """Runs of token ids that write these words: at the start of a text, and behind a space."""
    runs: list[tuple[int, ...]] = []
    for word in bad_words:
        if isinstance(word, str):
            texts = (word, f" {word.lstrip()}")
            runs += [
                tuple(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts
            ]
        else:
            runs.append(word)
    return [run for run in dict.fromkeys(runs) if run]


def is_one_prompt(prompts: object) -> bool:
    """Whether this is a single prompt and not a list of prompts."""
    return not isinstance(prompts, list | tuple) or _is_list_of(prompts, (Mapping, int))


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise SettingsError(f"the prompt is no valid Unicode text ({error}); repair it") from None


def _check_message(message: Any) -> None:
    for key in ("role", "content"):
        if not isinstance(message.get(key), str):
            raise SettingsError(
                f'a chat message has a "role" and a "content", both text; got {message!r}'
            )
        _check_text(message[key])


def _is_list_of(value: object, kinds: type | tuple[type, ...]) -> bool:
    return isinstance(value, list | tuple) and all(
        isinstance(part, kinds) and not isinstance(part, bool) for part in value
    )
