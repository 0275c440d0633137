"""What to check with: twenty varied prompts that come with the package, or a file of one's own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from outdraft.errors import SettingsError
from outdraft.text.prompts import Prompt, Tokenizer

_SHIPPED = "prompts.jsonl"


def shipped_prompts() -> list[Prompt]:
    """Chat, code, lists, translation, extraction, repetition, JSON, sums, stories and more."""
    return _parse_jsonl((files(__package__) / _SHIPPED).read_text("utf-8"), name=_SHIPPED)


def read_prompts(path: Path) -> list[Prompt]:
    """Prompts of a file, blank lines left out.

    A `.jsonl` file has one object per line, with a text under `prompt` or the messages of a chat
    under `messages`; any other file has one text per line.

    Raises:
        SettingsError: the file cannot be read, is not UTF-8, holds no prompt, or has a line that is
            not as described.
    """
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise SettingsError(f"cannot read the prompts in {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path} is not UTF-8 text ({error.reason}); convert it") from None
    if path.suffix == ".jsonl":
        prompts = _parse_jsonl(text, str(path))
    else:
        prompts = [line for line in text.splitlines() if line.strip()]
    if not prompts:
        raise SettingsError(f"{path} holds no prompts; write one per line")
    return prompts


def to_chat(tokenizer: Tokenizer, prompt: Prompt) -> Prompt:
    """A text as the only message of a chat, where the model has a chat template."""
    if isinstance(prompt, str) and tokenizer.chat_template is not None:
        return [{"role": "user", "content": prompt}]
    return prompt


def _parse_jsonl(text: str, name: str) -> list[Prompt]:
    # Not `splitlines`: JSON strings may hold the line separators of Unicode.
    lines = enumerate(text.split("\n"), start=1)
    return [_parse_line(line, f"{name}, line {number}") for number, line in lines if line.strip()]


def _parse_line(line: str, place: str) -> Prompt:
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise SettingsError(f"{place}: not JSON ({error.msg})") from None
    prompt = _prompt_of(entry)
    if prompt is None:
        raise SettingsError(
            f'{place}: expected {{"prompt": "text"}} or {{"messages": [{{"role": "user", '
            f'"content": "text"}}]}}'
        )
    return prompt


def _prompt_of(entry: Any) -> Prompt | None:
    match entry:
        case {"prompt": str(text)} if text and "messages" not in entry:
            return text
        case {"messages": [*messages]} if messages and "prompt" not in entry:
            return messages if all(_is_message(message) for message in messages) else None
    return None


def _is_message(message: Any) -> bool:
    return isinstance(message, Mapping) and {"role", "content"} <= message.keys()
