"""A draft model with a tokenizer of its own."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from outdraft.draft.draft_model import DraftModel
from outdraft.draft.text_bridge import TextBridge, _continue
from outdraft.draft.token_map import TokenMap
from outdraft.errors import DrafterError
from outdraft.interfaces import TargetModel
from outdraft.sequence import Sequence
from outdraft.types import Budget
from plain import decode_plainly, reader_of_target
from support.draft_models import CPU, small_llama
from support.runs import run
from support.toys import make_sequence
from support.two_tokenizers import STORY, Reciter, byte_level, metaspace

PAIRS = [
    pytest.param(byte_level(400), byte_level(330), id="draft tokens are shorter"),
    pytest.param(byte_level(330), byte_level(400), id="draft tokens are longer"),
    pytest.param(byte_level(400), metaspace(420), id="draft puts spaces first"),
    pytest.param(metaspace(420), byte_level(400), id="target puts spaces first"),
]
every_pair = pytest.mark.parametrize(("target_tokenizer", "tokenizer"), PAIRS)
every_temperature = pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])


def encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def bridge(target_tokenizer: Any, tokenizer: Any) -> TextBridge:
    tokens = TokenMap.between(target_tokenizer, len(target_tokenizer), tokenizer, len(tokenizer))
    return TextBridge("model", target_tokenizer, tokenizer, tokens, device=CPU)


def sequence_of(ids: Seq[int], request_id: int = 0, **settings: Any) -> Sequence:
    return make_sequence(
        ids, request_id=request_id, eos_ids=[], decode=lambda token_ids: "", **settings
    )


def run_both(
    target: TargetModel, drafter: DraftModel, prompts: Seq[Seq[int]], **settings: Any
) -> float:
    """The texts must be the plain ones; returns tokens per step."""
    sequences = [
        sequence_of(prompt, i, seed=i + 1, max_new_tokens=40 - 5 * i, **settings)
        for i, prompt in enumerate(prompts)
    ]
    run(target, drafter, sequences, max_batch=2)
    for sequence in sequences:
        plain = decode_plainly(
            reader_of_target(target),
            sequence.ids[: sequence.prompt_len],
            sequence.settings,
            seed=sequence.seed,
            decode=lambda token_ids: "",
        )
        assert tuple(sequence.new_ids) == plain.token_ids
    assert drafter._link._texts == {}
    assert drafter._runner._cache.committed_lens == ()
    tokens = sum(sequence.stats.tokens for sequence in sequences)
    return tokens / sum(sequence.stats.steps + 1 for sequence in sequences)


# --- from end to end ------------------------------------------------------------------------------


@every_temperature
@every_pair
def test_who_knows_the_text_guesses_it_in_other_tokens(
    target_tokenizer: Any, tokenizer: Any, temperature: float
) -> None:
    target = Reciter(target_tokenizer, confidence=12.0)
    drafter = DraftModel(
        Reciter(tokenizer, confidence=9.0),
        target,
        tokenizer=tokenizer,
        target_tokenizer=target_tokenizer,
    )
    ids = list(target_tokenizer(STORY)["input_ids"])
    prompts = [ids[:size] for size in (9, 30, 47)]
    assert run_both(target, drafter, prompts, temperature=temperature) > 3.0


@every_temperature
@pytest.mark.parametrize(("vocab", "draft_vocab"), [(400, 330), (330, 400)])
def test_text_that_is_no_text_does_no_harm(
    vocab: int, draft_vocab: int, temperature: float
) -> None:
    # random models write bytes in any order, and special tokens in the middle
    target = small_llama(vocab_size=vocab, max_position_embeddings=200)
    drafter = DraftModel(
        small_llama(1, vocab_size=draft_vocab, num_hidden_layers=1, max_position_embeddings=200),
        target,
        tokenizer=byte_level(draft_vocab),
        target_tokenizer=byte_level(vocab),
    )
    prompts = [[7 * i % vocab for i in range(size)] for size in (3, 11, 24)]
    run_both(target, drafter, prompts, temperature=temperature)


def test_tokenizers_that_lose_text_cannot_be_bridged_and_the_differing_ids_are_named() -> None:
    def words(*tokens: str) -> PreTrainedTokenizerFast:
        backend = Tokenizer(models.WordLevel({t: i for i, t in enumerate(tokens)}, unk_token="?"))
        backend.pre_tokenizer = pre_tokenizers.Whitespace()
        return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="?")

    target = small_llama()
    for target_tokenizer, tokenizer, whose in (
        (words("?", "fox", "dog"), byte_level(300), "the target's"),
        (byte_level(300), words("?", "fox", "dog"), "the draft model's"),
    ):
        with pytest.raises(
            DrafterError, match=rf"\(id 0 is .*; id 2 is .*\), and {whose} does not"
        ):
            DraftModel(target, target, tokenizer=tokenizer, target_tokenizer=target_tokenizer)


# --- the text, in the draft model's tokens --------------------------------------------------------


@every_pair
def test_a_growing_text_is_read_as_the_draft_model_would_write_it(
    target_tokenizer: Any, tokenizer: Any
) -> None:
    link = bridge(target_tokenizer, tokenizer)
    story = 4 * STORY
    ids = list(target_tokenizer(story)["input_ids"])
    sequence = sequence_of(ids[:20])
    starts = [tokenizer.bos_token_id] if tokenizer.bos_token_id is not None else []
    for token_id in ids[20:]:
        sequence.ids.append(token_id)
        read = link.read_ids(sequence)
    text = tokenizer.decode(read, skip_special_tokens=True)
    assert text == story
    assert read[: len(starts)] == starts
    assert read.count(tokenizer.bos_token_id) == len(starts)  # once, however often it is encoded
    whole = encode(tokenizer, story)
    assert len(read) - len(starts) <= 1.05 * len(whole)
    assert len(link._texts[0].tail) <= 500


def test_a_prompt_is_read_at_once_as_it_is_read_token_by_token() -> None:
    target_tokenizer, tokenizer = byte_level(400), byte_level(330)
    ids = encode(target_tokenizer, STORY)[:100]
    one, other = bridge(target_tokenizer, tokenizer), bridge(target_tokenizer, tokenizer)
    growing = sequence_of(ids[:1])
    for token_id in ids[1:]:
        growing.ids.append(token_id)
        one.read_ids(growing)
    assert one.read_ids(growing) == other.read_ids(sequence_of(ids)) == encode(
        tokenizer, target_tokenizer.decode(ids)
    )  # fmt: skip


def test_half_a_character_waits_for_the_other_half() -> None:
    target_tokenizer, tokenizer = byte_level(300), byte_level(330)
    ids = encode(target_tokenizer, "brave! 🙂!")
    link = bridge(target_tokenizer, tokenizer)
    sequence = sequence_of(ids[:-5])  # four bytes and a mark are missing
    texts = []
    for token_id in ids[-5:]:
        texts.append(tokenizer.decode(link.read_ids(sequence)))
        sequence.ids.append(token_id)
    texts.append(tokenizer.decode(link.read_ids(sequence)))
    assert texts == ["brave! "] * 4 + ["brave! 🙂", "brave! 🙂!"]


# --- guesses, in the target's tokens --------------------------------------------------------------


@pytest.mark.parametrize("tokenizer", [byte_level(300), byte_level(400), metaspace(420)])
@pytest.mark.parametrize("new_text", [" the island leaves", "ry to", "\n", "é 🙂", "x" * 9])
def test_what_follows_a_text_spells_what_was_guessed(tokenizer: Any, new_text: str) -> None:
    ids = encode(tokenizer, "The fer")
    found = _continue(tokenizer, ids, 0, new_text)
    assert tokenizer.decode(ids + found) == "The fer" + new_text


def test_it_goes_on_within_a_character() -> None:
    tokenizer = byte_level(300)
    ids = encode(tokenizer, "brave! 🙂!")
    for missing in (1, 2, 3):
        known = ids[: -1 - missing]
        assert _continue(tokenizer, known, 4 - missing, "🙂!") == ids[-1 - missing :]
    assert _continue(tokenizer, ids[:-2], 3, "no smile") == []


def test_no_text_has_no_tokens() -> None:
    assert _continue(byte_level(300), [5, 6], 0, "") == []


@every_pair
def test_guesses_keep_to_the_budget(target_tokenizer: Any, tokenizer: Any) -> None:
    target = Reciter(target_tokenizer)
    drafter = DraftModel(
        Reciter(tokenizer, confidence=9.0),
        target,
        tokenizer=tokenizer,
        target_tokenizer=target_tokenizer,
    )
    ids = list(target_tokenizer(STORY)["input_ids"])[:30]
    for max_nodes, max_depth in ((1, 1), (3, 9), (12, 2), (40, 40)):
        (tree,) = drafter.propose([sequence_of(ids)], Budget(max_nodes, (max_depth,)))
        assert 0 < len(tree) <= max_nodes
        assert max(tree.depths()) <= max_depth
        assert {len(scores) for scores in tree.scores} == {len(drafter.score_names)}


def test_paths_that_begin_alike_are_one_until_they_part() -> None:
    target_tokenizer, tokenizer = byte_level(400), byte_level(330)
    target = Reciter(target_tokenizer)
    drafter = DraftModel(
        Reciter(tokenizer, confidence=4.5),  # so that there are side branches
        target,
        tokenizer=tokenizer,
        target_tokenizer=target_tokenizer,
    )
    ids = list(target_tokenizer(STORY)["input_ids"])[:30]
    sequence = sequence_of(ids, temperature=1.0, seed=5)
    (tree,) = drafter.propose([sequence], Budget(20, (20,)))
    assert len(set(tree.parents)) < len(tree)
    assert tree.path_probs() == sorted(tree.path_probs(), reverse=True)
