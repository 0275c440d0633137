from __future__ import annotations

import json
import re
import shutil
from importlib.resources import files
from pathlib import Path

import pytest

from outdraft.bench.records import Results
from outdraft.report import Run, read_run, render
from outdraft.report.page import UNKNOWN, count, is_whole, number
from support.benches import make_record
from support.reports import IMAGE, SCRIPT, Element, Page, run_traced

STYLE = (files("outdraft.report") / "templates" / "report.css").read_text()


@pytest.fixture(scope="module")
def html(whole: Run) -> str:
    return render(whole)


@pytest.fixture(scope="module")
def page(html: str) -> Element:
    return Page(html).root


def words(element: Element) -> str:
    return " ".join(element.text.split())


def by_id(page: Element, name: str) -> Element:
    (found,) = page.find(id=name)
    return found


# --- figures --------------------------------------------------------------------------------------


def test_every_figure_of_the_table_is_there(page: Element, whole: Run) -> None:
    parts = by_id(page, "figures").find("tbody")
    assert len(parts) == 3
    wanted = [*whole.tables.overall, *whole.tables.groups]
    rows = [row for part in parts for row in part.find("tr") if "group" not in row.classes]
    assert len(rows) == len(wanted)
    for row, figures in zip(rows, wanted, strict=True):
        cells = [words(cell) for cell in row.find("td")]
        assert words(row.find("th")[0]) == figures.method
        assert figures.speedup is not None
        assert figures.speedup.repeats is not None
        assert cells[0] == number(figures.tokens_per_step)
        spread = figures.speedup.repeats
        assert cells[1] == (
            f"{figures.speedup.ratio_of_sums:.2f}{spread.low:.2f}–{spread.high:.2f}"
        )
        assert cells[2] == number(figures.speedup.median_of_ratios)
        assert cells[3].startswith(number(figures.tokens_per_second, 1))
        assert cells[4] == f"{1000 * (figures.first_token_seconds or 0):.0f} ms"
        assert cells[-1] == f"{figures.identical} of {figures.answers}"


def test_the_headline_is_about_drafters(page: Element, whole: Run) -> None:
    cards = page.find("ul", "headline")[0].find("li")
    assert [words(card.find("h2")[0]) for card in cards] == ["suffix", "prompt-lookup"]
    speedup = whole.tables.overall[1].speedup
    assert speedup is not None
    assert words(cards[0].find("p", "big")[0]) == f"{speedup.ratio_of_sums:.2f}×"


def test_the_header_says_where_it_was_measured(page: Element, whole: Run) -> None:
    text = words(page.find("header")[0])
    machine, versions = whole.description["machine"], whole.description["versions"]
    for fact in (
        *("toy", "float64", "greedy", "3 in 2 groups", "24 a turn at most", "outdraft x"),
        *(machine["device_name"], machine["system"], f"{machine['threads']}, on"),
        *(f"{name} {version}" for name, version in versions.items()),
    ):
        assert " ".join(fact.split()) in text


def test_bars_are_as_long_as_their_figures(page: Element, whole: Run) -> None:
    rows = by_id(page, "speedups").find("rect", "bar")
    speedups = [
        figures.speedup.ratio_of_sums
        for figures in (*whole.tables.overall, *whole.tables.groups)
        if figures.method != "plain" and figures.speedup is not None
    ]
    widths = [float(row.attributes["width"].rstrip("%")) for row in rows]
    assert [w / widths[0] for w in widths] == pytest.approx(
        [s / speedups[0] for s in speedups], rel=0.01
    )
    assert len(by_id(page, "speedups").find("g", "whisker")) == len(rows)


def test_acceptance_and_times_have_their_numbers(page: Element, whole: Run) -> None:
    suffix = whole.tables.overall[1]
    depths = by_id(page, "depths")
    rows = depths.find("tbody")[0].find("tr")
    cells = [words(cell) for cell in rows[0].find("td")]
    counts = zip(suffix.accepted_by_depth, suffix.judged_by_depth, strict=True)
    wanted = [f"{a / j:.2f}{a}/{j}" for a, j in counts][:12]
    assert cells[: len(wanted)] == wanted
    times = words(by_id(page, "times"))
    assert suffix.target_share is not None
    assert f"{100 * suffix.target_share:.1f} %" in times


def test_what_was_expected_and_each_drafter_have_their_numbers(page: Element, whole: Run) -> None:
    suffix = whole.tables.overall[1]
    rows = by_id(page, "reliability").find("tr", "m0")
    assert len(rows) == 3  # all groups, and each
    steps = suffix.passes - suffix.turns
    expected, measured = suffix.expected_tokens or 0, suffix.tokens - suffix.turns
    assert words(rows[0].find("td", "num")[0]) == (
        f"{expected / measured:.2f}{expected / steps:.2f} / {measured / steps:.2f}"
    )
    (own,) = suffix.drafters
    parts = by_id(page, "drafters").find("tbody")
    assert [words(part.find("tr", "group")[0]) for part in parts] == ["suffix", "prompt-lookup"]
    cells = [words(cell) for cell in parts[0].find("td")]
    counts = (own.asked, own.drafted, own.judged, own.accepted)
    assert cells[:5] == [*map(str, counts), f"{own.accepted / own.judged:.2f}"]


def test_the_answers_have_their_text_steps_and_trees(page: Element, whole: Run) -> None:
    answers = page.find("details", "answer")
    assert len(answers) == 4
    assert sum("open" in answer.attributes for answer in answers) == 1
    first = answers[0]
    turns = {(r.question_id, r.method): r.turns[0] for r in whole.records if r.repeat == 0}
    turn = turns["q1", "prompt-lookup"]
    assert first.find("div", "text")[0].text == turn.text
    steps = first.find("span", "step")
    assert len(steps) == turn.passes
    assert len({step.attributes["data-tip"] for step in steps}) == len(steps)
    guesses = first.find("span", "guess")
    assert len(guesses) == turn.drafted
    assert sum("accepted" in guess.classes for guess in guesses) == turn.accepted
    for step in steps:
        assert step.attributes["tabindex"] == "0"
        assert by_id(first, step.attributes["data-tip"]).find("p", "tiphead")


def test_without_a_trace_or_a_baseline_their_sections_are_not_there(tmp_path: Path) -> None:
    folder = run_traced(tmp_path, baselines=(), is_traced=False, drafters=["suffix"])
    page = Page(render(read_run(folder))).root
    assert {section.attributes["id"] for section in page.find("section")} == {
        *("figures", "depths", "times", "drafters", "reliability"),
    }
    assert "no speed-up" in words(page.find("header")[0])
    assert "speed-up" not in words(by_id(page, "figures"))


def test_a_run_of_plain_decoding_alone_has_a_page(tmp_path: Path) -> None:
    folder = run_traced(tmp_path, drafters=())
    page = Page(render(read_run(folder))).root
    ids = {section.attributes["id"] for section in page.find("section")}
    assert ids == {"figures", "times", "trace"}
    assert words(page.find("ul", "headline")[0].find("h2")[0]) == "plain"


def test_a_run_that_is_not_done_says_so(folder: Path, whole: Run, tmp_path: Path) -> None:
    assert is_whole(whole)
    half = tmp_path / "half"
    shutil.copytree(folder, half)
    lines = (half / "results.jsonl").read_text().splitlines(keepends=True)
    (half / "results.jsonl").write_text("".join(lines[:7]))
    run = read_run(half)
    assert not is_whole(run)
    assert "has not come to its end" in render(run)
    assert "has not come to its end" not in render(whole)


def test_failures_and_differences_are_listed(folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    failed = make_record("q9", "suffix", turns=(), error=f"ValueError: {SCRIPT}", group="qa")
    Results(broken).append([failed], {})
    lines = [json.loads(line) for line in (broken / "results.jsonl").read_text().splitlines()]
    other = next(line for line in lines if line["method"] == "suffix" and line["turns"])
    other["turns"][0]["token_ids"][3] = 99
    (broken / "results.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    section = by_id(Page(render(read_run(broken))).root, "figures")
    shown = words(section)
    assert f"suffix, question q9, repeat 0: ValueError: {SCRIPT}" in shown
    assert f"suffix, question {other['question_id']}, repeat 0, turn 0: from token 3 on" in shown
    assert not section.find("script")


def test_counts_have_their_plural() -> None:
    assert [count(n, "row") for n in (0, 1, 2)] == ["0 rows", "1 row", "2 rows"]
    assert [count(n, "pass", "passes") for n in (1, 2)] == ["1 pass", "2 passes"]


def test_figures_that_are_unknown_are_dashes() -> None:
    assert number(None) == UNKNOWN
    assert number(1.005, 1) == "1.0"


# --- one file, and nothing but text in it ---------------------------------------------------------


def test_hostile_texts_are_text(html: str, page: Element) -> None:
    assert SCRIPT in by_id(page, "trace").text
    assert IMAGE in by_id(page, "trace").text
    assert len(page.find("script")) == 1
    assert page.find("img") == []
    assert SCRIPT not in html
    assert "<img" not in html


def test_nothing_is_loaded(html: str, page: Element) -> None:
    for element in page.find():
        for name in ("src", "href", "srcset", "action", "data", "poster"):
            value = element.attributes.get(name)
            assert value is None or value.startswith(("data:", "#")), f"{name}={value}"
    assert "http:" not in html
    assert "https:" not in html
    assert "@import" not in STYLE
    assert "url(" not in STYLE
    (policy,) = page.find("meta", **{"http-equiv": "Content-Security-Policy"})
    assert policy.attributes["content"].startswith("default-src 'none'")


def test_headings_and_ids_are_in_order(page: Element) -> None:
    ids = [element.attributes["id"] for element in page.find() if "id" in element.attributes]
    assert len(set(ids)) == len(ids)
    levels = [int(e.tag[1]) for e in page.find() if re.fullmatch(r"h[1-6]", e.tag)]
    assert levels.count(1) == 1
    for element in page.find():
        for name in ("aria-labelledby", "aria-controls"):
            assert element.attributes.get(name, ids[0]) in ids
    assert all(table.find("th") for table in page.find("table"))


# --- colours --------------------------------------------------------------------------------------

PAIRS = [
    *(("ink", "page"), ("ink", "card"), ("soft", "page"), ("soft", "card")),
    *(("drafted", "drafted-bg"), ("corrected", "corrected-bg"), ("bonus", "bonus-bg")),
    *(("drafted", "card"), ("corrected", "card")),
]


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
@pytest.mark.parametrize(("text", "ground"), PAIRS)
def test_text_stands_out_from_its_ground(scheme: int, text: str, ground: str) -> None:
    block = STYLE.split(":root {")[1 + scheme].split("}")[0]
    named = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
    lighter, darker = sorted((luminance(named[text]), luminance(named[ground])), reverse=True)
    assert (lighter + 0.05) / (darker + 0.05) >= 4.5  # WCAG 2, AA


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
