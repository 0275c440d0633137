"""That every way answers every prompt, and what is made of the answers."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from outdraft import tune as tune_module
from outdraft.errors import DrafterError, SettingsError
from outdraft.generate import Outdraft, Result
from outdraft.models.table import TableTarget
from outdraft.models.target import CausalLM
from outdraft.plan.cost_model import CostModel, PassSize
from outdraft.stats import Stats
from outdraft.tune import Progress, TuneSettings, tune
from support.tiny_models import tiny_target
from support.toys import LetterTokenizer, decode_letters

PROMPTS = ["bcdbcdbcd", "efgh", "ik"]
SETTINGS = TuneSettings(("prompt-lookup",), (0.0, 0.8), max_new_tokens=12)


@pytest.fixture
def llm(monkeypatch: pytest.MonkeyPatch) -> Outdraft:
    monkeypatch.setattr(tune_module, "measure_costs", lambda _: CostModel([1, 99], [1e-3, 1e-3]))
    return Outdraft(tiny_target("llama"), LetterTokenizer(decode=decode_letters), name="tiny")


def test_what_is_tried_is_auto_and_its_parts_and_what_was_named() -> None:
    settings = TuneSettings(("lookahead", "suffix", "prediction"))
    assert settings.ways == ["suffix", "recycling", "auto", "lookahead", "prediction"]


def test_every_way_has_a_finding_at_every_temperature(llm: Outdraft) -> None:
    profile = tune(llm, PROMPTS, SETTINGS)
    ways = ["suffix", "recycling", "auto", "prompt-lookup"]
    found = [(each.temperature, each.drafter) for each in profile.findings]
    assert found == [(t, way) for t in (0.0, 0.8) for way in ways]
    assert profile.num_prompts == 3
    for each in profile.findings:
        assert each.tokens_per_step >= 1.0
        assert min(each.expected_speedup, each.measured_speedup) > 0.0
    assert max(each.tokens_per_step for each in profile.findings) > 1.2


def test_what_was_judged_is_counted_and_passes_are_learnt_from(llm: Outdraft) -> None:
    profile = tune(llm, PROMPTS, SETTINGS)
    judged = profile.calibrator.reliability()
    assert all(judged[name].judged > 0 for name in ("suffix", "recycling", "prompt-lookup"))
    assert profile.costs.pace != 1.0


def test_costs_are_measured_anew_and_not_taken_from_what_the_model_had(llm: Outdraft) -> None:
    before = llm._pricing
    profile = tune(llm, PROMPTS[:1], SETTINGS)
    assert llm._pricing is before
    assert getattr(before, "costs", None) is not profile.costs
    rows = profile.costs.to_json()["rows"]
    assert rows == [1, 99]


def test_the_prompts_are_answered_in_turn_and_each_way_is_first_once(
    llm: Outdraft, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered: list[tuple[Any, str, float]] = []

    def note(self: Outdraft, prompts: Any, *, drafter: str, **settings: Any) -> list[Result]:
        if settings["max_new_tokens"] == SETTINGS.max_new_tokens:  # no warm-up
            answered.append((prompts[0], drafter, settings["temperature"]))
        return original(self, prompts, drafter=drafter, **settings)  # type: ignore[no-any-return]

    original: Any = Outdraft.generate
    monkeypatch.setattr(Outdraft, "generate", note)
    seen: list[Progress] = []
    tune(llm, PROMPTS, SETTINGS, on_progress=seen.append)
    ways = ["none", *SETTINGS.ways]
    assert Counter(answered) == Counter(
        (prompt, way, t) for prompt in PROMPTS for way in ways for t in (0.0, 0.8)
    )
    firsts = [way for _, way, _ in answered[:: len(ways)]]
    assert firsts == [*ways, ways[0]]
    assert [each.done for each in seen] == list(range(len(answered) + 1))
    assert {each.total for each in seen} == {len(answered)}
    assert [each.drafter for each in seen] == [*(way for _, way, _ in answered), ""]


def make_result(tokens: int, steps: int, seconds: float, plain_seconds: float = 0.0) -> Result:
    stats = Stats(
        tokens=tokens,
        steps=steps,
        seconds=seconds,
        first_token_seconds=1.0,
        expected_plain_seconds=plain_seconds,
    )
    return Result("", (0,) * tokens, 1, "length", 0, "any", stats)


def test_a_finding_leaves_the_prompt_out_and_goes_by_tokens() -> None:
    """An answer in half precision may be of another length where a tie fell otherwise."""
    plain, own = tune_module._Tally(), tune_module._Tally()
    plain.add(make_result(21, 20, 5.0))  # 0.2 s a token
    own.add(make_result(11, 5, 2.0, 1.5))
    own.add(make_result(11, 5, 2.0, 1.5))
    finding = own.finding("suffix", 0.0, plain)
    assert finding.tokens_per_step == pytest.approx(2.0)
    assert finding.expected_speedup == pytest.approx(1.5)
    assert finding.measured_speedup == pytest.approx(2.0)


def test_answers_of_one_token_tell_nothing() -> None:
    plain, own = tune_module._Tally(), tune_module._Tally()
    for tally in (plain, own):
        tally.add(make_result(1, 0, 1.0))
    finding = own.finding("suffix", 0.0, plain)
    assert (finding.tokens_per_step, finding.expected_speedup, finding.measured_speedup) == (1,) * 3
    assert not finding.pays


def test_what_cannot_be_tuned_is_refused(llm: Outdraft, table: TableTarget) -> None:
    with pytest.raises(SettingsError, match="no prompts"):
        tune(llm, [], SETTINGS)
    with pytest.raises(SettingsError, match="TableTarget"):
        tune(Outdraft(table, LetterTokenizer()), PROMPTS, SETTINGS)
    with pytest.raises(SettingsError, match="temperature"):
        TuneSettings(temperatures=(-1.0,))
    with pytest.raises(SettingsError, match="max_new_tokens"):
        TuneSettings(max_new_tokens=0)
    with pytest.raises(SettingsError, match="at least one"):
        TuneSettings(temperatures=())


def test_an_unfit_drafter_is_refused_before_anything_is_answered(llm: Outdraft) -> None:
    seen: list[Progress] = []
    with pytest.raises(DrafterError, match="datastore"):
        tune(llm, PROMPTS, TuneSettings(("datastore",)), on_progress=seen.append)
    assert seen == []


def test_passes_of_a_real_model_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[CausalLM] = []

    def measure(target: CausalLM) -> CostModel:
        measured.append(target)
        return original(target)

    original = tune_module.measure_costs
    monkeypatch.setattr(tune_module, "measure_costs", measure)
    llm = Outdraft(tiny_target("llama"), LetterTokenizer(decode=decode_letters))
    profile = tune(llm, PROMPTS[:1], TuneSettings(max_new_tokens=4))
    assert measured == [llm.target]
    assert profile.costs.seconds(PassSize(1, 4, 10)) > 0.0
