"""Processors made of settings: what transformers' own calls would give, row by row."""

from __future__ import annotations

import threading
from collections.abc import Sequence as Seq
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from outdraft.errors import SettingsError
from outdraft.models.processors import HistoryProcessor, PathProcessor, in_rows, make_processors
from outdraft.processing import RowProcessor, row_paths
from outdraft.sampling import to_probs
from outdraft.settings import GenerationSettings
from outdraft.types import DraftTree

CPU = torch.device("cpu")
VOCAB = 12
IDS = [1, 2, 3, 1, 2]
#   root ─▶ 3 ─▶ 1    and    root ─▶ 6 ─▶ 1 ─▶ 2
TREE = DraftTree((3, 1, 6, 1, 2), (-1, 0, -1, 2, 3), (0.9,) * 5)


def some_logits(rows: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(rows)
    return 4 * torch.randn(rows, VOCAB, generator=generator, dtype=torch.float64)


def made(prompt_len: int = 3, end_ids: Seq[int] = (11,), **settings: Any) -> list[RowProcessor]:
    processors, reason = make_processors(
        GenerationSettings(**settings),
        prompt_len=prompt_len,
        end_ids=end_ids,
        bad_words=[word for word in settings.get("bad_words", ()) if not isinstance(word, str)],
        vocab_size=VOCAB,
        device=CPU,
    )
    assert reason is None
    return processors


def processed(processors: Seq[RowProcessor], logits: Tensor, tree: DraftTree = TREE) -> Tensor:
    scores = logits.clone()
    for processor in processors:
        scores = processor.process(IDS, tree, scores)
    return scores


def test_settings_that_ask_for_nothing_make_no_processor() -> None:
    assert made() == []
    assert made(min_new_tokens=5, end_ids=()) == []
    assert made(temperature=0.7, top_k=3, typical_p=0.5) == []


@pytest.mark.parametrize(
    "settings",
    [
        {"repetition_penalty": 1.7},
        {"repetition_penalty": 0.4},
        {"presence_penalty": 0.7},
        {"frequency_penalty": -0.7},
        {"no_repeat_ngram_size": 2},
        {"no_repeat_ngram_size": 3},
        {"bad_words": [[4], [1, 5], [1, 2, 3]]},
        {"suppress_ids": [0, 7]},
        {"logit_bias": {2: 5.0, 9: -3.0}},
        {"min_new_tokens": 4},
        {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "logit_bias": {2: 5.0}},
    ],
)
def test_every_row_of_a_tree_gets_what_it_gets_alone(settings: dict[str, Any]) -> None:
    logits = some_logits()
    together = processed(made(**settings), logits)
    for row, path in enumerate(row_paths(TREE)):
        alone = logits[row : row + 1].clone()
        for processor in made(**settings):
            alone = processor.process([*IDS, *path], DraftTree(), alone)
        assert torch.equal(together[row], alone[0])
    assert not torch.equal(together, logits)


def test_transformers_order_is_kept() -> None:
    logits = some_logits(1)
    expected = RepetitionPenaltyLogitsProcessor(2.0)(
        torch.tensor([IDS]), logits + torch.nn.functional.one_hot(torch.tensor(2), VOCAB) * 5.0
    )
    settings = {"repetition_penalty": 2.0, "logit_bias": {2: 5.0}}
    assert torch.equal(processed(made(**settings), logits, DraftTree()), expected)


def test_presence_and_frequency_count_the_text_and_not_the_prompt() -> None:
    logits = torch.zeros(3, VOCAB)
    tree = DraftTree.chain([2, 4])
    scores = processed(made(presence_penalty=0.5, frequency_penalty=0.25), logits, tree)
    # the text is 1, 2 and then the path: 2, 4
    taken = [{1: 0.75, 2: 0.75}, {1: 0.75, 2: 1.0}, {1: 0.75, 2: 1.0, 4: 0.75}]
    for row, penalties in zip(scores, taken, strict=True):
        assert row.tolist() == [-penalties.get(token_id, 0.0) for token_id in range(VOCAB)]


def test_ends_are_banned_until_enough_tokens_are_there_on_each_path() -> None:
    scores = processed(made(min_new_tokens=4, end_ids=[3, 11]), torch.zeros(6, VOCAB))
    # two new tokens stand before row 0
    assert scores.isneginf()[:, 11].tolist() == [True, True, False, True, False, False]
    assert torch.equal(scores[:, 3], scores[:, 11])


@pytest.mark.parametrize("name", ["logit_bias", "suppress_ids", "stop_ids", "bad_words"])
def test_tokens_the_target_does_not_have_are_refused(name: str) -> None:
    value = {"logit_bias": {VOCAB: 1.0}, "bad_words": [[1, VOCAB]]}.get(name, [VOCAB])
    with pytest.raises(SettingsError, match=f"{name} names token 12.*has 12"):
        made(**{name: value})


# --- temperature and filters behind them ----------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "warpers"),
    [
        ({"typical_p": 0.6}, [TypicalLogitsWarper(0.6)]),
        ({"epsilon_cutoff": 0.05}, [EpsilonLogitsWarper(0.05)]),
        ({"epsilon_cutoff": 0.99}, [EpsilonLogitsWarper(0.99)]),
        ({"eta_cutoff": 0.1}, [EtaLogitsWarper(0.1)]),
        ({"eta_cutoff": 0.9}, [EtaLogitsWarper(0.9)]),
        (
            {
                "top_k": 9,
                "top_p": 0.97,
                "min_p": 0.01,
                "typical_p": 0.9,
                "epsilon_cutoff": 0.01,
                "eta_cutoff": 0.1,
            },
            [
                TopKLogitsWarper(9),
                TopPLogitsWarper(0.97),
                MinPLogitsWarper(0.01),
                TypicalLogitsWarper(0.9),
                EpsilonLogitsWarper(0.01),
                EtaLogitsWarper(0.1),
            ],
        ),
    ],
)
def test_filters_are_those_of_transformers(
    settings: dict[str, float], warpers: list[LogitsProcessor]
) -> None:
    logits = some_logits(40)
    ids = torch.zeros(40, 1, dtype=torch.long)
    scores = LogitsProcessorList([TemperatureLogitsWarper(1.8), *warpers])(ids, logits)
    probs = to_probs(logits, GenerationSettings(temperature=1.8, **settings))
    torch.testing.assert_close(probs, scores.softmax(dim=-1))
    assert (probs == 0).any()


# --- processors of users --------------------------------------------------------------------------


class NoLastToken(LogitsProcessor):
    """Bans the last token; like most processors people write, in place."""

    is_stateless = True

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        for row, ids in enumerate(input_ids.tolist()):
            scores[row, ids[-1]] = float("-inf")
        return scores


class Counting:
    """Adds to token 0 as many as calls it had: what a call gives depends on those before it."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        assert len(input_ids) == 1
        self.calls += 1
        scores = scores.clone()
        scores[:, 0] += self.calls
        return scores


class Restored(Counting):
    def snapshot(self) -> int:
        return self.calls

    def restore(self, snapshot: int) -> None:
        self.calls = snapshot


def test_a_stateless_processor_comes_behind_those_of_the_settings() -> None:
    processors = made(logits_processors=[NoLastToken()], suppress_ids=[5])
    (only,) = processors
    assert isinstance(only, HistoryProcessor)
    scores = processed(processors, torch.zeros(6, VOCAB))
    assert [set(row.isneginf().nonzero()[:, 0].tolist()) for row in scores] == [
        {5, token_id} for token_id in (2, 3, 1, 6, 1, 2)
    ]


def test_transformers_own_classes_are_known_and_their_heirs_are_not() -> None:
    class Heir(NoRepeatNGramLogitsProcessor):
        pass

    assert in_rows([NoRepeatNGramLogitsProcessor(2)])[1] is None
    processors, reason = in_rows([Heir(2)])
    assert isinstance(processors[0], HistoryProcessor)
    assert reason is not None
    assert "Heir might notice guesses" in reason


def test_a_restorable_processor_is_walked_along_every_path() -> None:
    processors, reason = in_rows([Restored()])
    assert reason is None
    scores = processed(processors, torch.zeros(6, VOCAB))
    assert scores[:, 0].tolist() == [1 + len(path) for path in row_paths(TREE)]
    assert processed(processors, torch.zeros(6, VOCAB))[:, 0].tolist() == scores[:, 0].tolist()


@pytest.mark.parametrize("committed", [[5], [3, 5], [3, 1, 5], [6, 1, 2, 5], [6, 5]])
def test_it_goes_on_from_where_the_committed_path_left_it(committed: list[int]) -> None:
    processor = PathProcessor(Restored())
    processed([processor], torch.zeros(6, VOCAB))
    for token_id in committed:
        processor.advance(token_id)
    scores = processed([processor], torch.zeros(1, VOCAB), DraftTree())
    assert scores[0, 0] == len(committed) + 1  # one call per token


def test_a_processor_that_may_keep_state_switches_guessing_off() -> None:
    processors, reason = in_rows([NoLastToken(), Counting(), NoLastToken()])
    assert reason is not None
    assert "Counting" in reason
    assert len(processors) == 3


@pytest.mark.parametrize("kind", [Counting, Restored])
def test_every_request_starts_with_a_processor_as_it_was_given(kind: type[Counting]) -> None:
    given = kind()
    given.calls = 7
    for _ in range(2):
        processors, _ = in_rows([given])
        assert processed(processors, torch.zeros(1, VOCAB), DraftTree())[0, 0] == 8
    assert given.calls == 7


def test_one_that_cannot_be_copied_is_refused() -> None:
    class Locked(Counting):
        def __init__(self) -> None:
            super().__init__()
            self.lock = threading.Lock()

    with pytest.raises(SettingsError, match=r"Locked cannot be copied.*__deepcopy__"):
        in_rows([Locked()])
