from __future__ import annotations

import pytest

from outdraft.text.breaks import break_finder
from support.command_line import PIECES, ToyTokenizer

TEXTS = ["word", "\n", "end.\n\n", "```", " ``` ", "``", " - ", ""]


@pytest.mark.parametrize(("token_id", "is_break"), list(enumerate([0, 1, 1, 1, 1, 0, 0, 0])))
def test_lines_and_fences_are_breaks(token_id: int, is_break: int) -> None:
    assert break_finder(lambda ids: TEXTS[ids[0]])(token_id) == bool(is_break)


def test_each_token_is_decoded_once() -> None:
    decoded: list[int] = []

    def decode(token_ids: list[int]) -> str:
        decoded.extend(token_ids)
        return "\n"

    is_break = break_finder(decode)  # type: ignore[arg-type]
    assert all(is_break(token_id) for token_id in (3, 4, 3, 4, 3))
    assert decoded == [3, 4]


def test_half_a_character_is_none() -> None:
    tokenizer = ToyTokenizer()
    is_break = break_finder(
        lambda ids: tokenizer.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
    )
    assert [i for i in range(len(PIECES)) if is_break(i)] == [PIECES.index(b"\n")]
