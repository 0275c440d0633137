from __future__ import annotations

import pytest

from outdraft.errors import DrafterError
from outdraft.text.vocabulary import Vocabulary
from support.stores import Words
from support.tiny_files import tiny_tokenizer
from support.toys import LetterTokenizer


def test_a_vocabulary_is_the_same_whatever_the_tokenizer_is_called() -> None:
    one, other = Words("a", "b", name="here"), Words("a", "b", name="there")
    Vocabulary.of(one).check_same(Vocabulary.of(other), "it", "...")
    assert Vocabulary.of(one).name == "here"
    assert Vocabulary.of(one, "mine").name == "mine"


@pytest.mark.parametrize(
    "words", [("b", "a"), ("a",), ("a", "b", "c"), ("a", "B"), ("a b",), ("a", "\ud800")]
)
def test_another_token_for_an_id_makes_another_vocabulary(words: tuple[str, ...]) -> None:
    ours, other = Vocabulary.of(Words("a", "b")), Vocabulary.of(Words(*words, name="other"))
    with pytest.raises(DrafterError) as caught:
        ours.check_same(other, "the store x.bin", "build another")
    message = str(caught.value)
    assert message.startswith("the store x.bin holds tokens of 'words' (2 ids, fingerprint ")
    assert f"the target's tokenizer is 'other' ({len(words)} ids" in message
    assert message.endswith("; build another")


def test_the_order_in_which_tokens_are_listed_does_not_matter() -> None:
    class Reversed(Words):
        def get_vocab(self) -> dict[str, int]:
            return dict(reversed(super().get_vocab().items()))

    assert Vocabulary.of(Words("a", "b", "c")) == Vocabulary.of(Reversed("a", "b", "c"))


def test_ids_may_have_gaps_and_several_names() -> None:
    class Gaps(Words):
        def get_vocab(self) -> dict[str, int]:
            return {"a": 0, "b": 7, "B": 7}

    class OtherGaps(Words):
        def get_vocab(self) -> dict[str, int]:
            return {"a": 5, "b": 7, "B": 7}

    assert Vocabulary.of(Gaps()).size == Vocabulary.of(OtherGaps()).size == 8
    assert Vocabulary.of(Gaps()).fingerprint != Vocabulary.of(OtherGaps()).fingerprint


def test_the_tokenizers_of_transformers_have_one() -> None:
    tokenizer = tiny_tokenizer()
    assert Vocabulary.of(tokenizer).size == len(tokenizer)


def test_a_tokenizer_that_lists_nothing_is_refused() -> None:
    with pytest.raises(DrafterError, match="LetterTokenizer cannot list its tokens"):
        Vocabulary.of(LetterTokenizer())
    with pytest.raises(DrafterError, match="'empty' has no tokens"):
        Vocabulary.of(Words(name="empty"))
