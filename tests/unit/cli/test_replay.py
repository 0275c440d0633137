from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import outdraft.models.load
from outdraft.plan.cost_file import CostKey, save_costs
from outdraft.plan.cost_model import CostModel, PassSize
from support.command_line import PIECES, Run, ToyTokenizer
from support.toys import EOS


class LogTokenizer(ToyTokenizer):
    """As a loaded one: it has a size and an end token."""

    eos_token_id = EOS

    def __len__(self) -> int:
        return len(PIECES) + 1


@pytest.fixture(autouse=True)
def tokenizers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes whose tokenizers were loaded; no costs are known."""
    asked: list[str] = []

    def load(ref: str) -> LogTokenizer:
        asked.append(ref)
        return LogTokenizer()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OUTDRAFT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(outdraft.models.load, "load_tokenizer", load)
    return asked


def write_log(path: Path) -> str:
    lines = [
        {"prompt": "the cat sat on the cat", "answer": "on the cat sat on the mat"},
        {"prompt": "the dog", "answer": "ran", "category": "short"},
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return str(path)


def ask(run: Run, *args: str) -> Any:
    result = run("replay", *args, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def totals(asked: Any) -> dict[str, Any]:
    return {p["drafter"]: p for p in asked["predictions"] if p["group"] is None}


def test_a_log_of_texts_needs_a_tokenizer_alone(
    run: Run, tmp_path: Path, tokenizers: list[str], loads: list[Any]
) -> None:
    log = write_log(tmp_path / "log.jsonl")
    found = totals(ask(run, log, "--model", "some/model"))
    assert {"prompt-lookup", "suffix"} <= set(found)
    assert "none" not in found
    for prediction in found.values():
        assert prediction["answers"] == 2
        assert prediction["tokens_per_step"] == prediction["tokens"] / prediction["passes"]
        assert prediction["measured_tokens_per_step"] is None
    assert tokenizers == ["some/model"]
    assert loads == []


def test_the_results_of_bench_are_predicted_exactly(run: Run, tokenizers: list[str]) -> None:
    drafters = ("--drafter", "suffix", "--drafter", "prompt-lookup", "--max-draft-nodes", "6")
    assert run("bench", "--limit", "1", "-n", "20", *drafters, "-o", "a").exit_code == 0
    figures = json.loads(Path("a/figures.json").read_text())["figures"]
    asked = ask(run, "a/results.jsonl")
    found = {(p["drafter"], p["group"]): p for p in asked["predictions"]}
    assert asked["max_draft_nodes"] == 15  # of the toy, which the command line cannot set
    for figure in figures["groups"] + figures["overall"]:
        if figure["method"] != "plain":
            prediction = found[figure["method"], figure["group"]]
            assert prediction["tokens_per_step"] == figure["tokens_per_step"]
            assert prediction["measured_tokens_per_step"] == figure["tokens_per_step"]
            assert prediction["drafted"] == figure["drafted"]
    assert tokenizers == ["toy"]  # of the run itself
    shown = run("replay", "a/results.jsonl").stdout
    assert "measured" in shown
    assert "all answers" in shown


def test_a_table_is_shown_per_group(run: Run, tmp_path: Path) -> None:
    shown = run("replay", write_log(tmp_path / "log.jsonl"), "--drafter", "suffix").stdout
    assert [line for line in shown.splitlines() if line.strip() in {"answers", "short"}] != []
    assert "all answers" in shown
    assert "measured" not in shown.replace("outdraft tune measures it", "")
    assert "speed-up" not in shown.replace("a speed-up is predicted too", "")
    assert "plain decoding has 1.00 token per step" in shown


@pytest.fixture
def kept(tokenizers: list[str]) -> CostKey:
    """Costs that an earlier run left."""
    key = CostKey("some/model, 9 parameters, as loaded", "bfloat16", "a chip", 2, "1")
    sizes = [PassSize(1, rows, context) for rows in (1, 2, 4, 8, 16) for context in (10, 1000)]
    save_costs(key, CostModel.fit([(size, 0.5) for size in sizes]))
    return key


def test_with_known_costs_a_speed_up_is_predicted(run: Run, tmp_path: Path, kept: CostKey) -> None:
    log = write_log(tmp_path / "log.jsonl")
    asked = ask(run, log, "--model", "some/model", "--drafter", "suffix")
    assert asked["costs"]["device"] == "a chip"
    total = totals(asked)["suffix"]
    assert total["speedup"] == total["plain_seconds"] / total["seconds"]
    shown = run("replay", log, "--model", "some/model", "--drafter", "suffix").stdout
    assert f"{total['speedup']:.2f}" in shown
    assert "in bfloat16 cost on a chip with 2 threads" in " ".join(shown.split())


@pytest.mark.parametrize(
    "args", [("--dtype", "float32"), ("--max-draft-nodes", "7"), ("--model", "some/mode")]
)
def test_costs_of_something_else_are_not_taken(
    run: Run, tmp_path: Path, kept: CostKey, args: tuple[str, ...]
) -> None:
    log = write_log(tmp_path / "log.jsonl")
    asked = ask(run, log, "--drafter", "suffix", "--model", "some/model", *args)
    assert asked["costs"] is None
    assert totals(asked)["suffix"]["speedup"] is None


def test_one_group_is_shown_once(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"prompt": "the cat", "answer": "sat"}\n')
    shown = run("replay", str(path), "--drafter", "suffix").stdout
    assert shown.count("suffix") == 1


def test_raw_prompts_go_without_template(run: Run, tmp_path: Path) -> None:
    log = write_log(tmp_path / "log.jsonl")
    chat, raw = ask(run, log), ask(run, log, "--raw")
    assert chat["predictions"] != raw["predictions"]


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("gone.jsonl",), 2, "gone.jsonl cannot be read"),
        (("log.jsonl", "--drafter", "x"), 1, "there is no drafter 'x'"),
        (("log.jsonl", "--max-draft-nodes", "-1"), 2, "max_draft_nodes"),
    ],
)
def test_what_cannot_be_replayed_is_refused(
    run: Run, tmp_path: Path, args: tuple[str, ...], code: int, message: str
) -> None:
    write_log(tmp_path / "log.jsonl")
    result = run("replay", *args)
    assert (result.exit_code, result.stdout) == (code, "")
    assert message in " ".join(result.stderr.split())


def test_help_has_examples(run: Run) -> None:
    assert "outdraft replay log.jsonl --drafter suffix" in run("replay", "--help").stdout
