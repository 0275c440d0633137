from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Sequence as Seq
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import outdraft.sampling
import outdraft.step
from outdraft.check import Distribution, check_distribution
from outdraft.check.distribution import MAX_DRAWS, _seeds, chi_square_tail, pearson
from outdraft.cli import app, common
from outdraft.errors import ModelError, SettingsError
from outdraft.interfaces import TargetModel
from outdraft.models.table import TableTarget
from outdraft.sequence import Sequence
from outdraft.types import DraftTree, Rows
from support.checks import Reworked, make_llm
from support.tiny_models import tiny_target

DRAWS = 640
PREFIX = [1, 2]


def flat(logits: Tensor, rows: Rows) -> Tensor:
    """Many tokens may follow, so that many are tested."""
    return 0.4 * logits


def flipped_in_drafted_steps(logits: Tensor, rows: Rows) -> Tensor:
    is_drafted = rows.num_seqs > 1 and rows.num_rows == 4
    return flat(logits.flip(-1) if is_drafted else logits, rows)


def run(target: TargetModel | None = None, **options: Any) -> Distribution:
    options = {"num_draws": DRAWS, **options}
    return check_distribution(make_llm(target or Reworked(flat)), PREFIX, **options)


def failing(found: Distribution) -> set[tuple[str, int]]:
    return {(fit.drafter, fit.position) for fit in found.fits if found.is_fault(fit)}


# --- fair draws -----------------------------------------------------------------------------------


def test_fair_draws_pass_plainly_and_drafted() -> None:
    done: list[int] = []
    found = run(temperatures=[0.8, 1.0], on_run=done.append)
    assert sum(done) == 2 * 2 * DRAWS
    assert [(f.drafter, f.temperature, f.position) for f in found.fits] == [
        (drafter, temperature, position)
        for temperature in (0.8, 1.0)
        for drafter in ("none", "recycling")
        for position in range(3)
    ]
    assert found.faults == 0
    assert found.threshold == 0.001 / found.num_tests
    for fit in found.fits:
        if fit.position < 2:
            assert fit.draws == DRAWS
            assert fit.tested > DRAWS / 2
            assert fit.freedom > 2 * fit.contexts
            assert fit.p_value == chi_square_tail(fit.statistic, fit.freedom)
        assert (fit.accepted > DRAWS / 8) == ((fit.drafter, fit.position) == ("recycling", 1))


def test_a_real_architecture_passes() -> None:
    found = run(tiny_target("llama"), num_draws=160)
    assert found.num_tests >= 4
    assert found.faults == 0


def test_the_same_call_gives_the_same_figures_and_another_seed_others() -> None:
    first, second, other = run(num_draws=100), run(num_draws=100), run(num_draws=100, seed=5)
    assert first == second != other


# --- broken on purpose ----------------------------------------------------------------------------

KEYED_NOISE = outdraft.sampling.keyed_noise


@pytest.mark.parametrize(
    ("seed_of", "position_of"),
    [
        (lambda seed: seed, lambda position: 0),
        (lambda seed: seed & 0xFFFFFFFF, lambda position: position),
        (lambda seed: seed >> 20, lambda position: position),
        (lambda seed: seed & ((1 << 52) - 1), lambda position: position),
    ],
    ids=["ignores the position", "32 bits of seed", "no low bits", "no highest bits"],
)
def test_noise_that_ignores_a_part_of_its_key_is_found(
    monkeypatch: pytest.MonkeyPatch,
    seed_of: Callable[[int], int],
    position_of: Callable[[int], int],
) -> None:
    def broken(seed: int, positions: Seq[int], *args: Any) -> Tensor:
        return KEYED_NOISE(seed_of(seed), [position_of(each) for each in positions], *args)

    monkeypatch.setattr(outdraft.sampling, "keyed_noise", broken)
    found = failing(run())
    assert {("none", 1), ("recycling", 1)} <= found


def test_noise_that_is_not_exponential_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outdraft.sampling, "keyed_noise", lambda *args: KEYED_NOISE(*args).sqrt())
    assert {("none", 0), ("none", 1), ("recycling", 1)} <= failing(run())


def test_a_draft_that_is_taken_too_often_is_found_in_drafted_runs_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    choose_tokens = outdraft.step.choose_tokens

    def biased(logits: Tensor, trees: Seq[DraftTree], batch: Seq[Sequence]) -> Tensor:
        target_ids = choose_tokens(logits, trees, batch)
        for i, tree in enumerate(trees):
            if len(tree) > 0 and i % 4 == 0:
                target_ids[i, 0] = tree.token_ids[0]
        return target_ids

    monkeypatch.setattr(outdraft.step, "choose_tokens", biased)
    assert failing(run()) == {("recycling", 1)}


def test_rows_that_are_read_together_differently_are_found() -> None:
    found = failing(run(Reworked(flipped_in_drafted_steps)))
    assert ("recycling", 1) in found
    assert not any(drafter == "none" for drafter, _ in found)


def test_logits_that_are_no_numbers_are_an_error() -> None:
    with pytest.raises(ModelError, match="are not numbers"):
        run(Reworked(lambda logits, _: logits * math.nan), num_draws=32)


# --- the statistic --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statistic", "freedom", "tail"),
    [(3.841459, 1, 0.05), (18.307038, 10, 0.05), (0.0, 7, 1.0), (149.449, 100, 0.001)],
)
def test_the_tail_is_that_of_tables(statistic: float, freedom: int, tail: float) -> None:
    assert chi_square_tail(statistic, freedom) == pytest.approx(tail, rel=1e-3)


def test_rare_tokens_share_a_cell() -> None:
    counts = Counter({0: 60, 1: 30, 2: 4, 3: 6})
    statistic, freedom = pearson(counts, {0: 0.5, 1: 0.4, 2: 0.04, 3: 0.04})
    assert statistic == pytest.approx(100 / 50 + 100 / 40 + 0 / 10)
    assert freedom == 2


def test_what_is_rare_even_together_goes_to_the_rarest_other() -> None:
    statistic, freedom = pearson(Counter({0: 50, 1: 48, 2: 2}), {0: 0.6, 1: 0.38})
    assert statistic == pytest.approx(100 / 60 + 100 / 40)
    assert freedom == 1
    assert pearson(Counter({0: 10}), {0: 0.99}) == (0.0, 0)


def test_a_token_that_is_never_expected_counts_against_the_draw() -> None:
    assert pearson(Counter({9: 100}), {0: 0.5, 1: 0.5})[0] > 90


def test_seeds_are_distinct_and_differ_in_every_part() -> None:
    seeds = _seeds(2**63 - 1, MAX_DRAWS)
    assert len(set(seeds)) == MAX_DRAWS
    assert 0 <= min(seeds) <= max(seeds) < 2**63
    for shift in range(0, 60, 13):
        assert len({seed >> shift & 0xFF for seed in _seeds(0, 1000)}) > 100


# --- what cannot be tested ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperatures": [1.0, 0.0]}, "temperature=0.0: nothing is drawn at 0"),
        ({"num_draws": 0}, "draws=0: takes 1 to"),
        ({"num_draws": MAX_DRAWS + 1}, "takes 1 to"),
        ({"target": TableTarget(16, max_context=4)}, "the prefix has 2 tokens and the target"),
    ],
)
def test_what_cannot_be_tested_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        run(**options)


def test_too_few_draws_are_no_test() -> None:
    found = run(num_draws=8)
    assert (found.num_tests, found.faults) == (0, 0)
    assert all(fit.p_value is None for fit in found.fits)


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., tuple[int, str, str]]:
    """Runs `outdraft check --distribution`; returns exit code, stdout and stderr."""
    path = tmp_path / "prefix.txt"
    path.write_text("bc", "utf-8")

    def invoke(*args: str, target: TargetModel | None = None) -> tuple[int, str, str]:
        llm = make_llm(target or Reworked(flat), name="table")
        monkeypatch.setattr(common, "load_llm", lambda *_, **__: llm)
        monkeypatch.setenv("COLUMNS", "120")
        with pytest.raises(SystemExit) as exit_info:
            app(["check", "--distribution", "--prompts", str(path), *args])
        out, err = capsys.readouterr()
        return int(exit_info.value.code or 0), out, err

    return invoke


def test_the_command_shows_p_values_and_exits_with_0(command: Any) -> None:
    code, out, err = command("--draws", "320")
    assert (code, err) == (0, "")
    for text in ("plain", "recycling", "p-value", "none with a p-value below"):
        assert text in out


def test_the_command_exits_with_1_if_a_test_fails(command: Any) -> None:
    target = Reworked(flipped_in_drafted_steps)
    code, out, _ = command("--draws", "320", "--json", target=target)
    report = json.loads(out)
    assert (code, report["is_clean"]) == (1, False)
    assert report["faults"] == sum(test["is_fault"] for test in report["tests"]) > 0


def test_the_command_says_what_was_not_tested(command: Any) -> None:
    code, _, err = command("--draws", "4", "--temperature", "0.5")
    assert code == 0
    assert "nothing was tested" in err
    assert "no guess of recycling was accepted" in err


@pytest.mark.parametrize(
    "args",
    [
        ["--temperature", "0"],
        ["--draws", "0"],
        ["--batch"],
        ["-n", "5"],
        ["--inject-fault", "cache"],
        ["--drafter", "oracle"],
        ["--seed", "-1"],
    ],
    ids=" ".join,
)
def test_bad_usage_exits_with_2(command: Any, args: list[str]) -> None:
    code, out, err = command(*args)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")


def test_draws_without_distribution_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        app(["check", "--draws", "5"])
    assert exit_info.value.code == 2
    assert "--draws is for --distribution alone" in capsys.readouterr().err
