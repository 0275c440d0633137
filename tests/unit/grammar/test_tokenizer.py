"""Which tokenizers can be used, and that grammars are compiled once."""

from __future__ import annotations

from typing import Any

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from outdraft.errors import SettingsError
from outdraft.grammar import tokenizer as module
from outdraft.grammar.source import read_source
from outdraft.grammar.tokenizer import GrammarTokenizer
from outdraft.models.byte_tokenizer import byte_tokenizer
from outdraft.types import DraftTree
from support.grammars import source_of
from support.toys import LetterTokenizer
from support.two_tokenizers import byte_level


def word_tokenizer() -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "<end>": 1}, unk_token="a"))
    )


@pytest.mark.parametrize(
    ("tokenizer", "vocab_size", "eos_ids", "says"),
    [
        (LetterTokenizer(), 16, [15], "LetterTokenizer, and 16 rows of logits"),
        (word_tokenizer(), 2, [1], "decoder type"),
        (byte_tokenizer(), 200, [1], "200 vs 257"),
        (byte_tokenizer(), 257, [], "no end-of-text token"),
    ],
)
def test_what_cannot_be_used_is_refused(
    tokenizer: Any, vocab_size: int, eos_ids: list[int], says: str
) -> None:
    with pytest.raises(SettingsError, match=says):
        GrammarTokenizer(tokenizer, vocab_size=vocab_size, eos_ids=eos_ids)


def test_the_last_grammars_stay_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = GrammarTokenizer(byte_tokenizer(), vocab_size=257, eos_ids=[256])
    compiled: list[str] = []
    real = tokenizer._matcher_class
    tokenizer._matcher_class = lambda tokens, text: compiled.append(text) or real(tokens, text)
    monkeypatch.setattr(module, "_MAX_KEPT", 2)
    sources = [read_source("regex", regex) for regex in "abc"]
    for source in (*sources, sources[1], sources[2], sources[0]):
        assert tokenizer.matcher(source).forced_ids(1) != ()
    assert compiled == [source.text for source in (*sources, sources[0])]


def test_requests_with_the_same_grammar_do_not_share_their_state() -> None:
    tokenizer = byte_level(420)
    grammars = GrammarTokenizer(tokenizer, vocab_size=420, eos_ids=[tokenizer.eos_token_id])
    first, second = (grammars.matcher(source_of("choices")) for _ in range(2))
    for token_id in tokenizer("nothing")["input_ids"]:
        first.advance(token_id)
    assert first.can_end
    assert not second.can_end


def test_any_of_several_tokens_may_end_a_text() -> None:
    tokenizer = byte_tokenizer()
    grammars = GrammarTokenizer(tokenizer, vocab_size=260, eos_ids=[256, 5])
    matcher = grammars.matcher(read_source("regex", "a"))
    matcher.advance(tokenizer("a")["input_ids"][0])
    allowed = matcher.mask_rows(DraftTree())[0]
    assert allowed.nonzero().flatten().tolist() == [5, 256]
