"""A draft model with the target's tokenizer; other tokenizers are in `test_text_bridge`."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path

import pytest
import torch

import outdraft
from outdraft.draft import DrafterContext, make_drafter
from outdraft.draft.draft_model import DrafterWarning, DraftModel
from outdraft.errors import DrafterError, UnknownModelError
from outdraft.interfaces import TargetModel
from outdraft.models.table import TableTarget
from outdraft.models.target import CausalLM
from outdraft.sequence import Sequence
from outdraft.types import Budget
from plain import decode_plainly, reader_of_target
from support.draft_models import Watched, small_llama
from support.runs import run
from support.tiny_files import save_folder
from support.toys import TABLE, LetterTokenizer, make_sequence

every_temperature = pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])


def no_text(token_ids: Seq[int]) -> str:
    return ""


def requests(target: TargetModel, count: int = 4, temperature: float = 0.0) -> list[Sequence]:
    """Prompts and answers of different lengths, so that requests join and leave at any time."""
    return [
        make_sequence(
            [(7 * i + 3 * j) % target.vocab_size for j in range(3 + 6 * i)],
            request_id=i,
            seed=i + 1,
            eos_ids=[],
            max_context=target.max_context,
            decode=no_text,
            max_new_tokens=34 - 7 * i,
            temperature=temperature,
        )
        for i in range(count)
    ]


def plain_ids(target: TargetModel, sequence: Sequence) -> list[int]:
    plain = decode_plainly(
        reader_of_target(target),
        sequence.ids[: sequence.prompt_len],
        sequence.settings,
        seed=sequence.seed,
        max_context=target.max_context,
        decode=no_text,
    )
    return list(plain.token_ids)


def run_watched(
    target: TargetModel, drafter: ModelDrafter, temperature: float = 0.0, max_batch: int = 3
) -> tuple[list[Sequence], list[Commit], Watched]:
    """Runs the requests; the texts must be the plain ones, and the cache in step all the time."""
    watched = Watched(drafter)
    sequences = requests(target, temperature=temperature)
    commits = run(target, watched, sequences, max_batch=max_batch)
    for sequence in sequences:
        assert sequence.new_ids == plain_ids(target, sequence)
    return sequences, commits, watched


def accepted_share(sequences: Seq[Sequence]) -> float:
    judged = sum(sum(sequence.stats.judged_by_depth) for sequence in sequences)
    return sum(sequence.stats.accepted for sequence in sequences) / judged


def max_depth(trees: Seq[DraftTree]) -> int:
    return max(max(tree.depths(), default=0) for tree in trees)


# --- how often it is right ------------------------------------------------------------------------


@every_temperature
def test_a_copy_of_the_target_is_always_right(temperature: float) -> None:
    target = small_llama()
    drafter = DraftModel(small_llama(), target)
    sequences, commits, _ = run_watched(target, drafter, temperature)
    assert "corrected" not in {origin for commit in commits for origin in commit.origins}
    assert sum(sequence.stats.accepted for sequence in sequences) > 50


@every_temperature
def test_a_model_that_knows_nothing_of_the_target_is_nearly_always_wrong(
    temperature: float,
) -> None:
    target = small_llama()
    drafter = DraftModel(small_llama(seed=1, num_hidden_layers=1), target)
    sequences, _, _ = run_watched(target, drafter, temperature)
    assert 0.0 < accepted_share(sequences) < 0.2


@every_temperature
def test_a_model_like_the_target_is_right_and_wrong(temperature: float) -> None:
    target = TableTarget(fade=0.3, seed=1)
    drafter = DraftModel(TableTarget(fade=0.2, seed=1), target)
    sequences, commits, _ = run_watched(target, drafter, temperature)
    assert {"drafted", "corrected", "bonus"} <= {o for commit in commits for o in commit.origins}
    assert 0.2 < accepted_share(sequences) < 0.9


def test_drawing_with_the_targets_noise_makes_both_draw_the_same_more_often() -> None:
    target, draft = TableTarget(fade=0.3, seed=1), TableTarget(fade=0.2, seed=1)
    shares = []
    for seed in (0, 99):  # of the noise that the draft model draws with; 0 is the request's own
        drafter = DraftModel(draft, target)
        sequences = requests(target, temperature=1.0)
        race = drafter._link._runners.race
        drafter._link._runners._noise_seed = seed
        shares.append(accepted_share(sequences))
    assert race
