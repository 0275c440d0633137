from __future__ import annotations

import pytest
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from outdraft.draft.token_map import TokenMap, check_full, gives_back_text
from outdraft.errors import DrafterError
from support.toys import LetterTokenizer
from support.two_tokenizers import byte_level, metaspace


def words(*tokens: str) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.WordLevel({t: i for i, t in enumerate(tokens)}, unk_token=tokens[0]))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token=tokens[0])


def with_added(
    tokenizer: PreTrainedTokenizerFast, *tokens: str, special: bool = True
) -> PreTrainedTokenizerFast:
    """A copy with tokens added behind."""
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.add_tokens([AddedToken(token, special=special) for token in tokens])
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token=tokenizer.unk_token)


def test_equal_ids_are_shared_as_far_as_both_models_have_them() -> None:
    assert TokenMap.of_equal_ids(3, 5).to_target == (0, 1, 2, -1, -1)
    assert TokenMap.of_equal_ids(5, 3).to_target == (0, 1, 2)


@pytest.mark.parametrize(("target_rows", "draft_rows"), [(300, 300), (304, 320), (320, 304)])
def test_rows_without_tokens_are_shared_with_nobody(target_rows: int, draft_rows: int) -> None:
    tokens = TokenMap.between(byte_level(300), target_rows, byte_level(300), draft_rows)
    assert tokens.differing == ""
    assert tokens.target_rows == target_rows
    assert tokens.to_target == (*range(300), *[-1] * (draft_rows - 300))


def test_tokens_without_rows_are_not_shared() -> None:
    assert TokenMap.between(byte_level(300), 290, byte_level(300), 300).to_target[288:] == (
        288, 289, *[-1] * 10
    )  # fmt: skip


@pytest.mark.parametrize("special", [True, False])
def test_tokens_that_were_added_may_differ(special: bool) -> None:
    target = with_added(byte_level(300), "<a>", "<b>", special=special)
    draft = with_added(byte_level(300), "<a>", "<c>", "<d>", special=special)
    tokens = TokenMap.between(target, 302, draft, 303)
    assert tokens.differing == ""
    assert tokens.to_target[298:] == (298, 299, 300, -1, -1)


def test_other_tokens_may_not_and_the_first_are_named() -> None:
    target, draft = words("?", "a", "b", "c", "d", "e"), words("?", "a", "c", "b", "D", "E")
    differing = TokenMap.between(target, 6, draft, 6).differing
    assert differing == (
        "id 2 is 'b' for the target and 'c' for the draft model; "
        "id 3 is 'c' for the target and 'b' for the draft model; "
        "id 4 is 'd' for the target and 'D' for the draft model"
    )


def test_a_longer_vocabulary_is_another_one() -> None:
    longer = words("?", "a", "b")
    shorter = words("?", "a")
    assert (
        "id 2 is 'b' for the target and None" in TokenMap.between(longer, 3, shorter, 3).differing
    )
    assert (
        "id 2 is None for the target and 'b'" in TokenMap.between(shorter, 3, longer, 3).differing
    )


def test_tokens_are_paired_by_what_they_spell_or_begin_with() -> None:
    target = words("?", "a", "ab", "c")
    draft = words("?", "c", "abc", "ab", "x")
    assert TokenMap.between(target, 4, draft, 5).to_target == (0, 3, 2, 2, -1)


def test_an_added_token_is_its_name_and_spells_nothing() -> None:
    target, draft = words("?", "a", "<end>"), with_added(words("?", "b", "a"), "<end>")
    assert TokenMap.between(target, 3, draft, 4).to_target == (0, -1, 1, -1)
    target = with_added(words("?", "x", "a"), "<end>")
    assert TokenMap.between(target, 4, draft, 4).to_target == (0, -1, 2, 3)


@pytest.mark.parametrize(
    ("target", "draft"),
    [
        (byte_level(400), byte_level(330)),
        (byte_level(330), byte_level(400)),
        (metaspace(420), byte_level(400)),
        (byte_level(400), metaspace(420)),
    ],
)
def test_spellings_are_found_whatever_the_tokenizer_writes_them_with(
    target: PreTrainedTokenizerFast, draft: PreTrainedTokenizerFast
) -> None:
    tokens = TokenMap.between(target, len(target), draft, len(draft))
    assert tokens.differing
    for text, spelling in ((" the", " the"), (" ferry", " f"), ("x", "x"), ("\n", "\n")):
        first = draft("a" + text, add_special_tokens=False)["input_ids"][1]
        found = target.convert_ids_to_tokens(tokens.to_target[first])
        assert text_of(found).startswith(spelling)
        assert text_of(draft.convert_ids_to_tokens(first)).startswith(text_of(found))


def test_bytes_are_paired_with_bytes() -> None:
    one, other = metaspace(420), byte_level(400)
    pairs = [("<0xC3>", "Ã"), ("<0x0A>", "Ċ"), ("<0x41>", "A")]
    to_other = TokenMap.between(other, 400, one, 420).to_target
    for token, letter in pairs:
        ids = one.convert_tokens_to_ids(token), other.convert_tokens_to_ids(letter)
        assert to_other[ids[0]] == ids[1]


def text_of(token: str) -> str:
    return {"<0x0A>": "\n", "<0x78>": "x"}.get(token, token).translate(
        {ord("Ġ"): " ", ord("▁"): " ", ord("Ċ"): "\n"}
    )


def test_text_comes_back_from_some_tokenizers() -> None:
    assert gives_back_text(byte_level(300))
    assert gives_back_text(metaspace(420))
    assert not gives_back_text(words("?", "quick", "fox"))


def test_a_tokenizer_has_to_tell_its_tokens() -> None:
    check_full(byte_level(300), "the target's")
    with pytest.raises(DrafterError, match="the target's tokenizer, a LetterTokenizer, does not"):
        check_full(LetterTokenizer(), "the target's")
