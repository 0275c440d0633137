from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from outdraft import Outdraft
from outdraft.bench import run as run_module
from outdraft.bench.figures import Figures, make_tables
from outdraft.bench.records import Results
from outdraft.cli.bench_table import acceptance_table, figures_tables, notes
from outdraft.results import Result
from outdraft.trace import read_trace
from support.benches import make_record, make_turn
from support.command_line import TERMINAL, Run

SMALL = ("--limit", "1", "--max-new-tokens", "12")


@pytest.fixture(autouse=True)
def away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def ask(run: Run, *args: str, code: int = 0) -> Any:
    result = run("bench", *SMALL, "--json", *args)
    assert result.exit_code == code, result.stderr
    return json.loads(result.stdout)


# --- the table and the object ---------------------------------------------------------------------


def test_the_object_sums_to_the_table(run: Run, tmp_path: Path) -> None:
    folder = str(tmp_path / "a")
    drafters = ("--drafter", "suffix", "--drafter", "prompt-lookup")
    figures = ask(run, *drafters, "-o", folder)["figures"]
    wide = {"COLUMNS": "160"}
    shown = run("bench", *SMALL, *drafters, "-o", folder, env=wide).stdout
    blocks = rows_by_group(shown)
    assert list(blocks) == [*dict.fromkeys(f["group"] for f in figures["groups"]), "all groups"]
    assert len(blocks) == 9
    for figure in figures["groups"] + figures["overall"]:
        cells = blocks[figure["group"] or "all groups"][figure["method"]]
        parts = [q for q in figures["questions"] if q["method"] == figure["method"]]
        if figure["group"] is not None:
            parts = [part for part in parts if part["group"] == figure["group"]]
        tokens, passes = (sum(part[name] for part in parts) for name in ("tokens", "passes"))
        seconds = sum(part["seconds"] for part in parts)
        assert (tokens, passes) == (figure["tokens"], figure["passes"])
        assert cells[0] == f"{tokens / seconds:.1f}"
        assert cells[1] == f"{tokens / passes:.2f}"
        assert cells[2] == f"{figure['speedup']['ratio_of_sums']:.2f}"
        assert cells[-1] == f"{len(parts)}/{len(parts)}"


def rows_by_group(shown: str) -> dict[str, dict[str, list[str]]]:
    """The table's cells: per group and method."""
    methods = ("plain", "suffix", "prompt-lookup")
    blocks: dict[str, dict[str, list[str]]] = {}
    group = ""
    for line in shown.split("accepted / judged", maxsplit=1)[0].splitlines():
        name, *cells = line.split() or [""]
        if name in methods:
            blocks.setdefault(group, {})[name] = cells
        elif name and not line.startswith(" ") and "  " not in line.strip():  # no heading either
            group = line.strip()
    return blocks


def test_the_machine_and_the_baseline_stand_below_the_table(run: Run) -> None:
    shown = run("bench", *SMALL, "--group", "qa").stdout
    assert re.search(r"1 thread, toy in float64, torch \d", shown)
    assert "speed-up: wall time of plain decoding / wall time" in shown
    assert "temperature 0, 12 tokens a turn at most, batches of 1, 1 repeat" in shown
    assert "vs hf" not in shown
    assert "peak memory of the process" in shown


def test_without_its_baseline_there_is_no_speedup(run: Run) -> None:
    shown = run("bench", *SMALL, "--group", "qa", "--baseline", "").stdout
    assert "speed-up" not in shown
    assert "same text" not in shown
    assert "tokens/s" in shown
    (figures,) = ask(run, "--group", "qa", "--baseline", "")["figures"]["overall"]
    assert figures["speedup"] is figures["speedup_vs_hf"] is figures["identical"] is None


def test_repeats_give_a_spread(run: Run) -> None:
    figures = ask(run, "--group", "qa", "--repeat", "2")["figures"]
    for figure in figures["overall"]:
        spread = figure["tokens_per_second_repeats"]
        assert figure["answers"] == 2
        assert 0 < spread["low"] <= figure["tokens_per_second"] <= spread["high"]
        assert figure["speedup"]["repeats"]["low"] <= figure["speedup"]["ratio_of_sums"]
    shown = run("bench", *SMALL, "--group", "qa", "--repeat", "2").stdout
    assert re.search(r"auto +\d+\.\d \(\d+\.\d-\d+\.\d\)", shown)


def test_the_figures_are_kept_beside_the_results(run: Run, tmp_path: Path) -> None:
    printed = ask(run, "--group", "qa", "-o", str(tmp_path / "a"))
    assert json.loads((tmp_path / "a" / "figures.json").read_text()) == printed
    assert {path.name for path in (tmp_path / "a").iterdir()} == {
        *("run.json", "questions.jsonl", "results.jsonl", "prompts.jsonl", "figures.json"),
    }


def test_a_trace_lies_where_it_was_named_and_goes_on_with_the_run(run: Run, tmp_path: Path) -> None:
    options = ("--group", "qa", "-o", "a", "--trace", "a/trace.jsonl")
    tokens = ask(run, *options)["figures"]["overall"][1]["tokens"]
    content = (tmp_path / "a" / "trace.jsonl").read_bytes()
    traces = list(read_trace(tmp_path / "a" / "trace.jsonl"))
    own = [trace for trace in traces if trace.method == "auto"]
    assert sum(len(trace.token_ids) for trace in own) == tokens
    assert {trace.question_id for trace in traces} == {"31"}
    ask(run, *options)
    assert (tmp_path / "a" / "trace.jsonl").read_bytes() == content


# --- what is asked --------------------------------------------------------------------------------


def test_auto_beside_plain_on_the_suite_is_the_default(run: Run) -> None:
    asked = ask(run)
    assert [method["name"] for method in asked["run"]["methods"]] == ["plain", "auto"]
    assert asked["run"]["questions"]["source"] == "suite default"
    assert len(asked["run"]["questions"]["groups"]) == 8
    assert {figure["identical"] for figure in asked["figures"]["overall"]} == {8}


def test_questions_come_from_a_file(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("the cat sat\nthe dog ran\n")
    asked = ask(run, "--questions", str(path), "--limit", "2")
    assert asked["run"]["questions"]["groups"] == {"text": 2}
    assert asked["run"]["questions"]["source"] == str(path)


def test_options_reach_the_run_and_the_model(
    run: Run, loads: list[tuple[str, dict[str, Any]]]
) -> None:
    options = ("--temperature", "0.7", "--seed", "5", "--batch", "9", "--max-draft-nodes", "3")
    asked = ask(run, *options, "--model", "some/model", "--dtype", "float32", "--group", "qa")
    settings = asked["run"]["settings"]
    assert (settings["temperature"], settings["seed"], settings["batch"]) == (0.7, 5, 9)
    ((ref, load_options),) = loads
    assert ref == "some/model"
    assert load_options["dtype"] == "float32"
    assert load_options["settings"].max_batch == 9
    assert load_options["settings"].max_draft_nodes == 3
    assert not load_options["settings"].adaptive
    loads.clear()
    ask(run, "--group", "qa")
    assert loads[0][1]["settings"].adaptive
    assert {figure["identical"] for figure in asked["figures"]["overall"]} == {1}


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("--group", "poetry"), "group.'poetry': the questions have no such group"),
        (("--limit", "0"), "limit.0: takes at least 1"),
        (("--suite", "x"), "suite.'x': there is no such suite"),
        (("--questions", "gone.txt"), r"gone\.txt cannot be read"),
        (("--repeat", "0"), "repeat.0: takes at least 1"),
        (("--batch", "0"), "batch.0: takes at least 1"),
        (("--temperature", "-1"), "temperature.-1.0"),
    ],
)
def test_what_cannot_be_honoured_is_refused_before_a_model_is_loaded(
    run: Run, loads: list[Any], args: tuple[str, ...], message: str
) -> None:
    result = run("bench", *args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert re.search(message, " ".join(result.stderr.split()))
    assert loads == []


def test_an_unknown_baseline_is_refused(run: Run) -> None:
    result = run("bench", "--baseline", "plain,vllm")
    assert result.exit_code == 2
    assert "'vllm': there is no such baseline" in " ".join(result.stderr.split())


# --- stopping, going on, failing ------------------------------------------------------------------


def test_ctrl_c_says_how_to_go_on_and_going_on_loses_nothing(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    converse = run_module.converse
    calls = 0

    def stop_after_six(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > 6:
            raise KeyboardInterrupt
        return converse(*args)

    with monkeypatch.context() as patch:
        patch.setattr(run_module, "converse", stop_after_six)
        stopped = run("bench", *SMALL, "-o", "a")
    assert (stopped.exit_code, stopped.stdout) == (130, "")
    assert "what was answered is in a; the same command with -o a goes on" in stopped.stderr
    first = Results(tmp_path / "a").records
    assert len(first) == 4  # two of the six were the warm-up
    done = run("bench", *SMALL, "-o", "a")
    assert done.exit_code == 0
    records = Results(tmp_path / "a").records
    assert records[:4] == first
    assert len({record.key for record in records}) == len(records) == 16


def test_another_run_is_not_gone_on_with(run: Run) -> None:
    assert run("bench", *SMALL, "--group", "qa", "-o", "a").exit_code == 0
    result = run("bench", *SMALL, "--group", "qa", "--seed", "1", "-o", "a")
    assert result.exit_code == 2
    assert "settings.seed was 0 and is 1; go on with" in " ".join(result.stderr.split())


def test_a_method_that_fails_is_reported_and_the_rest_is_shown(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate = Outdraft.generate

    def fail(self: Outdraft, prompts: Any, *, drafter: Any, **settings: Any) -> list[Result]:
        if "suffix" in drafter.name:
            raise RuntimeError("out of luck")
        return generate(self, prompts, drafter=drafter, **settings)

    monkeypatch.setattr(Outdraft, "generate", fail)
    result = run("bench", *SMALL, "--group", "qa")
    assert result.exit_code == 1
    assert re.search(r"\nplain +\d", result.stdout)
    assert re.search(r"\nauto +– .* 1\n", result.stdout)
    assert "auto failed on 1 of the answers; question 31: RuntimeError: out of luck" in (
        " ".join(result.stderr.split())
    )


def test_a_bar_on_a_terminal_shows_how_far_it_is_and_the_time_left(run: Run) -> None:
    shown = run("bench", *SMALL, "--group", "qa", env=TERMINAL).stderr
    assert re.search(r"0/2.*left.*question answering, plain", shown)
    assert re.search(r"1/2.*left.*question answering, auto", shown)
    assert "left" not in run("bench", *SMALL, "--group", "qa").stderr


def test_help_has_examples(run: Run) -> None:
    shown = run("bench", "--help").stdout
    assert "outdraft bench --limit 2 --max-new-tokens 64" in shown
    assert "--baseline" in shown


# --- narrow terminals -----------------------------------------------------------------------------


def tables_of(*methods: str) -> Any:
    records = [make_record("w1", method, make_turn()) for method in methods]
    return make_tables(records, methods)


def headings(width: int) -> tuple[list[str], list[str]]:
    (table,), dropped = figures_tables(tables_of("plain", "hf", "suffix"), width)
    return [str(column.header) for column in table.columns], dropped


def test_columns_give_way_where_there_is_no_room() -> None:
    wide, nothing = headings(150)
    narrow, dropped = headings(72)
    assert nothing == []
    assert dropped[:2] == ["median vs hf", "rows per step"]
    assert [name for name in wide if name not in dropped] == narrow
    assert {"speed-up", "vs hf", "same text"} <= set(narrow)


def test_dropped_columns_are_named() -> None:
    run = {
        "machine": {"device_name": "chip", "threads": 2},
        "versions": {"torch": "1", "transformers": "2"},
        "model": {"name": "m", "dtype": "float32"},
        "settings": {"temperature": 0.5, "max_new_tokens": 1, "batch": 3, "repeat": 2},
    }
    lines = notes(tables_of("plain", "hf"), run, ["median"])
    assert lines[0] == "chip, 2 threads, m in float32, torch 1, transformers 2"
    assert lines[1] == "temperature 0.5, 1 token a turn at most, batches of 3, 2 repeats"
    assert lines[-1] == "no room for: median; figures.json has everything"
    assert any(line.startswith("vs hf: ") for line in lines)


def test_acceptance_is_shown_for_methods_that_drafted() -> None:
    drafting = make_turn(judged_by_depth=(4, 2), accepted_by_depth=(2, 2))
    records = [make_record("w1", "plain"), make_record("w1", "suffix", drafting)]
    table = acceptance_table(make_tables(records, ["plain", "suffix"]))
    assert table is not None
    assert [list(column.cells) for column in table.columns] == [["suffix"], ["0.50"], ["1.00"]]
    assert acceptance_table(tables_of("plain")) is None


def test_figures_without_a_value_are_shown_as_unknown() -> None:
    failed = make_record("w1", "plain", turns=(), error="no")
    (table,), _ = figures_tables(make_tables([failed], ["plain"]), 200)
    (row,) = zip(*(column.cells for column in table.columns), strict=True)
    assert set(row[1:-1]) == {"–", "– – –"}
    assert row[-1] == "1"
    assert isinstance(make_tables([failed], ["plain"]).overall[0], Figures)
