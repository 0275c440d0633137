"""Prices of every kind, changing at every step: what is read changes, and no token of the text.

Costs are random and unlike those of the step before, drafters are asked or left out by chance, and
the budget is another one each time. The text stays that of plain decoding.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence as Seq
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings as hypothesis_settings, strategies as st

from contract.drafters import ADVERSE, Maker
from outdraft.draft import make_drafter
from outdraft.draft.draft_model import DraftModel
from outdraft.draft.several import Several
from outdraft.generate import Outdraft
from outdraft.interfaces import Drafter, TargetModel
from outdraft.models.table import TableTarget
from outdraft.plan import Priced
from outdraft.plan.calibration import Calibrator
from outdraft.plan.cost_file import key_of
from outdraft.plan.cost_model import CostModel
from outdraft.plan.offer import Offer
from outdraft.plan.profile import Profile, save_profile
from outdraft.sequence import Sequence
from outdraft.settings import AUTO_DRAFTER, GenerationSettings
from plain import Plain, Read, decode_plainly, reader_of_model, reader_of_target
from support.runs import run
from support.tiny_models import CONTEXT, tiny_model, tiny_target
from support.toys import EOS, TABLE, LetterTokenizer, decode_letters, make_sequence

AUTO = AUTO_DRAFTER


class Whims(Priced):
    """Prices without rhyme or reason.

    Attributes:
        widths: guesses per sequence that were found worth reading, of each step.
    """

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(seed)
        self.widths: list[int] = []
        super().__init__(self._some_costs())

    def ask(self, drafter: Drafter, batch: Seq[Sequence], max_nodes: int) -> Offer:
        self.costs = self._some_costs()
        offer = super().ask(drafter, batch, self._rng.randint(0, max_nodes))
        self.widths.append(offer.width)
        return offer

    def _wants(self, drafter: str, sequence: Sequence) -> bool:
        return self._rng.random() < 0.8

    def _min_level_tokens(self, drafter: str, asked: Seq[Sequence]) -> float:
        return self._rng.choice([0.0, 0.1, 0.4, math.inf])

    def _some_costs(self) -> CostModel:
        """From passes that cost nothing next to a proposal to those that take a minute."""
        rng = self._rng
        base = [10 ** rng.uniform(-6, 2)]
        for _ in range(5):
            base.append(base[-1] * rng.choice([1.0, 1.0, 1.1, 1.5, 3.0]))
        return CostModel([1, 2, 4, 8, 16, 64], base, per_pair=rng.choice([0.0, base[0] / 50]))


def _several(*makers: Maker) -> Maker:
    return lambda target, texts: Several([make(target, texts) for make in makers])


def _auto(target: TargetModel, texts: Any) -> Drafter:
    return make_drafter(AUTO)


def _model(target: TargetModel, texts: Any) -> Drafter:
    """Mostly wrong, and now and then right."""
    return DraftModel(TableTarget(target.vocab_size, fade=0.8, seed=56), target)


DRAFTERS: dict[str, Maker] = {
    AUTO: _auto,
    "model": _model,
    "suffix,model": _several(lambda *_: make_drafter("suffix"), _model),
    **ADVERSE,
    "Wild,prompt-lookup": _several(ADVERSE["Wild"], lambda *_: make_drafter("prompt-lookup")),
    "suffix,TooLong": _several(lambda *_: make_drafter("suffix"), ADVERSE["TooLong"]),
}
TABLE_TARGET = TableTarget(**TABLE)
WAYS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.9, "top_k": 20, "top_p": 0.95},
]
PROMPTS = [(3, 1, 4, 1, 5, 9, 2), (7,), (10, 11, 12, 10, 11, 12, 10, 11, 12, 13), (2, 2)]

every_drafter = pytest.mark.parametrize("name", DRAFTERS)
every_way = pytest.mark.parametrize("way", WAYS, ids=["greedy", "sampled"])


@cache
def plain_of(
    model: str,
    prompt: tuple[int, ...],
    settings: GenerationSettings,
    eos_ids: tuple[int, ...],
    max_context: int,
) -> Plain:
    return decode_plainly(
        _reader(model),
        prompt,
        settings,
        seed=len(prompt),
        eos_ids=eos_ids,
        max_context=max_context,
        decode=decode_letters,
    )


def _reader(model: str) -> Read:
    return (
        reader_of_target(TABLE_TARGET) if model == "table" else reader_of_model(tiny_model(model))
    )


def run_priced(
    model: str,
    name: str,
    whims: Whims,
    prompts: Seq[tuple[int, ...]] = PROMPTS,
    *,
    lengths: Seq[int] = (22, 26, 9, 17),
    eos_ids: tuple[int, ...] = (),
    max_context: int = CONTEXT,
    way: dict[str, Any],
    **engine_settings: int,
) -> list[Sequence]:
    """Runs requests of different lengths as one batch and holds each against its plain run."""
    settings = [
        GenerationSettings(max_new_tokens=length, **way)
        for length, _ in zip(lengths, prompts, strict=False)
    ]
    expected = [
        plain_of(model, prompt, each, eos_ids, max_context)
        for prompt, each in zip(prompts, settings, strict=True)
    ]
    sequences = [
        make_sequence(
            prompt,
            request_id=i,
            seed=len(prompt),
            eos_ids=eos_ids,
            max_context=max_context,
            **each.model_dump(exclude={"seed"}),
        )
        for i, (prompt, each) in enumerate(zip(prompts, settings, strict=True))
    ]
    target = TABLE_TARGET if model == "table" else tiny_target(model)
    texts = {prompt: plain.token_ids for prompt, plain in zip(prompts, expected, strict=True)}
    run(target, DRAFTERS[name](target, texts), sequences, pricing=whims, **engine_settings)
    for sequence, plain in zip(sequences, expected, strict=True):
        assert tuple(sequence.new_ids) == plain.token_ids
        assert sequence.text == plain.text
        assert sequence.finish_reason == plain.finish_reason
    assert whims._requests == {}
    return sequences


@every_way
@every_drafter
@pytest.mark.parametrize("seed", range(3))
def test_prices_change_no_token_of_a_table(name: str, way: dict[str, Any], seed: int) -> None:
    run_priced("table", name, Whims(seed), way=way, max_batch=3, max_draft_nodes=12)


@every_way
@every_drafter
@pytest.mark.parametrize("model", ["llama", "mistral-window"])
def test_prices_change_no_token_of_a_model(model: str, name: str, way: dict[str, Any]) -> None:
    run_priced(model, name, Whims(len(name)), way=way, max_batch=3, max_draft_nodes=12)


@given(data=st.data())
def test_nothing_a_request_may_ask_for_changes_that(data: st.DataObject) -> None:
    prompt = st.lists(st.integers(0, 15), min_size=1, max_size=9).map(tuple)
    prompts = data.draw(st.lists(prompt, min_size=1, max_size=5, unique=True))
    way = {
        "temperature": data.draw(st.sampled_from([0.0, 0.7, 1.5])),
        "top_p": data.draw(st.sampled_from([1.0, 0.8])),
        "ignore_eos": data.draw(st.booleans()),
    }
    run_priced(
        "table",
        data.draw(st.sampled_from(list(DRAFTERS))),
        Whims(data.draw(st.integers(0, 10**6))),
        prompts,
        lengths=[data.draw(st.integers(1, 20)) for _ in prompts],
        eos_ids=data.draw(st.sampled_from([(), (EOS,), (3, 7)])),
        max_context=data.draw(st.sampled_from([4096, 10, 15])),
        way=way,
        max_draft_nodes=data.draw(st.integers(0, 32)),
        max_batch=data.draw(st.integers(1, 5)),
    )


@hypothesis_settings(max_examples=15)
@given(
    name=st.sampled_from(list(DRAFTERS)),
    seed=st.integers(0, 10**6),
    way=st.sampled_from(WAYS),
    max_batch=st.integers(1, 4),
    max_draft_nodes=st.integers(0, 20),
)
def test_nor_does_it_with_attention(
    name: str, seed: int, way: dict[str, Any], max_batch: int, max_draft_nodes: int
) -> None:
    run_priced(
        "llama",
        name,
        Whims(seed),
        way=way,
        max_batch=max_batch,
        max_draft_nodes=max_draft_nodes,
        prompt_chunk=5,
    )


def test_the_whims_are_worth_testing() -> None:
    """Steps of no, few and many guesses; all drafters asked and left out; guesses right and not."""
    whims = Whims(1)
    sequences = run_priced("table", AUTO, whims, way=WAYS[0], max_draft_nodes=12)
    sequences += run_priced("table", "RightThenWrong", whims, way=WAYS[1], max_draft_nodes=12)
    assert {0, 1} < set(whims.widths)
    assert max(whims.widths) > 5
    stats = [sequence.stats for sequence in sequences]
    assert 0 < sum(each.plain_steps for each in stats) < sum(each.steps for each in stats)
    assert 0 < sum(each.accepted for each in stats) < sum(each.drafted for each in stats)
    for name in ("suffix", "recycling"):
        asked = sum(each.drafters[name].asked for each in stats[:4])
        assert 9 < asked < sum(each.steps for each in stats[:4])


def absurd_profile(seed: int) -> Profile:
    """Costs and counts that no run on any machine would have."""
    rng = random.Random(seed)
    base = sorted(10 ** rng.uniform(-12, 12) for _ in range(4))
    if seed % 2:
        base = base[:1] * 4  # rows for nothing
    counts = []
    for method, warmth in itertools.product([*AUTO.split(","), "prompt-lookup"], range(3)):

        def bucket() -> list[float]:
            judged = 10 ** rng.uniform(-9, 9)
            return [judged, judged * rng.random(), judged * rng.uniform(1e-9, 1.0)]

        alike = [[stated, depth, 0, *bucket()] for stated in range(-5, 6) for depth in range(4)]
        counts.append({"method": method, "warmth": warmth, "form": bucket(), "alike": alike})
    per_pair = 0.0 if seed % 2 else 10 ** rng.uniform(-12, 9)
    costs = CostModel([1, 2, 8, 9], base, per_pair=per_pair)
    return Profile(costs, Calibrator.from_json(counts), (), "never", 0)


@every_way
@pytest.mark.parametrize("drafter", ["auto", "prompt-lookup"])
def test_a_profile_of_absurd_numbers_changes_no_token(
    drafter: str, way: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTDRAFT_HOME", str(tmp_path))
    options = {"max_new_tokens": 30, "seed": 3, **way}
    prompts = [list(prompt) for prompt in PROMPTS]
    target = tiny_target("llama")
    plain = Outdraft(target, LetterTokenizer()).generate(prompts, drafter="none", **options)
    drafted = []
    for seed in range(6):
        save_profile(key_of(target, "model"), absurd_profile(seed))
        llm = Outdraft(target, LetterTokenizer())
        results = llm.generate(prompts, drafter=drafter, **options)
        assert [result.token_ids for result in results] == [each.token_ids for each in plain]
        drafted.append(sum(result.stats.drafted for result in results))
    assert min(drafted) < max(drafted)  # they were used


@every_way
@pytest.mark.parametrize("drafter", ["auto", "none", AUTO, "prompt-lookup"])
def test_measured_prices_change_no_token_either(drafter: str, way: dict[str, Any]) -> None:
    """As users run it: the costs of this model on this machine."""
    llm = Outdraft(tiny_target("llama"), LetterTokenizer(decode=decode_letters))
    options = {"max_new_tokens": 30, "seed": 3, **way}
    prompts = [list(prompt) for prompt in PROMPTS]
    plain = llm.with_engine(adaptive=False).generate(prompts, drafter="none", **options)
    for _ in range(3):  # what was learnt is used in the next run
        results = llm.generate(prompts, drafter=drafter, **options)
        assert [result.token_ids for result in results] == [each.token_ids for each in plain]
