from __future__ import annotations

from typing import Any

import pytest

from outdraft.errors import SettingsError
from outdraft.text.prompts import is_one_prompt, to_prompt_ids
from support.toys import LetterTokenizer

CHAT = [{"role": "user", "content": "cd"}, {"role": "assistant", "content": "e"}]


def test_text_is_read_as_it_stands_with_the_tokenizers_own_start() -> None:
    assert to_prompt_ids(LetterTokenizer(), "bc") == [0, 1, 2]


def test_token_ids_are_taken_as_they_are() -> None:
    assert to_prompt_ids(LetterTokenizer(), (5, 4)) == [5, 4]


def test_a_chat_goes_through_the_template_and_gets_no_second_start() -> None:
    assert to_prompt_ids(LetterTokenizer(), CHAT) == [1, 2, 3, 0, 4]


def test_a_chat_without_a_template_is_refused() -> None:
    with pytest.raises(SettingsError, match="no chat template"):
        to_prompt_ids(LetterTokenizer(has_template=False), CHAT)


@pytest.mark.parametrize("prompt", [[], ()])
def test_an_empty_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(SettingsError, match="no tokens"):
        to_prompt_ids(LetterTokenizer(), prompt)


@pytest.mark.parametrize("prompt", [[True], [1, "a"], [1.0], ["a"], [None], [{"role": "user"}, 3]])
def test_what_is_no_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(SettingsError, match="a prompt is text"):
        to_prompt_ids(LetterTokenizer(), prompt)


@pytest.mark.parametrize(
    ("prompts", "is_one"),
    [
        ("text", True),
        ([1, 2], True),
        (CHAT, True),
        (["text", "more"], False),
        ([[1, 2], [3]], False),
        ([CHAT, "text", [1]], False),
        (["text"], False),
    ],
)
def test_one_prompt_is_told_from_a_list_of_prompts(prompts: Any, is_one: bool) -> None:
    assert is_one_prompt(prompts) == is_one
