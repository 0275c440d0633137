"""The report in Chromium, on wide and narrow screens, in the light and in the dark."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from outdraft.report import read_run, render
from support.reports import HostileTokenizer, run_traced, toy_llm

pytestmark = pytest.mark.browser

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)
WIDE, PHONE = (1200, 900), (390, 844)
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("run")
    run_traced(folder, toy_llm(HostileTokenizer()), repeat=2)
    (folder / "report.html").write_text(render(read_run(folder)))
    return (folder / "report.html").as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no chromium on the PATH; install the system's package of that name")
    sync_api = pytest.importorskip("playwright.sync_api", reason="pip install playwright")
    with sync_api.sync_playwright() as playwright:
        # The page is our own, and a sandbox cannot be had where tests run as root.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Any, uri: str) -> Iterator[Open]:
    """Opens the report; what it complains of or asks for fails the test."""
    seen: list[str] = []
    contexts: list[Any] = []

    def open_page(size: tuple[int, int] = WIDE, **options: Any) -> Any:
        viewport = {"width": size[0], "height": size[1]}
        context = browser.new_context(viewport=viewport, has_touch=size == PHONE, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: seen.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: seen.append(f"error: {error}"))
        page.on("dialog", lambda dialog: seen.append(f"dialog: {dialog.message}"))
        page.on("request", lambda request: seen.append(f"request: {request.url}"))
        page.goto(uri)
        return page

    yield open_page
    titles = {page.title() for context in contexts for page in context.pages}
    for context in contexts:
        context.close()
    assert set(seen) == {f"request: {uri}"}
    assert all(title.startswith("outdraft bench: toy on ") for title in titles)


def steps_of(page: Any) -> Any:
    return page.locator(".answer[open] .step")


def shown(page: Any) -> list[str]:
    """The ids of the tips that can be seen."""
    found: list[str] = page.evaluate(
        "[...document.querySelectorAll('.tip')].filter(t => t.checkVisibility()).map(t => t.id)"
    )
    return found


def busiest(page: Any) -> Any:
    """The step with the most guesses."""
    index = page.evaluate(
        """() => {
            const steps = [...document.querySelectorAll('.answer[open] .step')];
            const size = s => document.querySelectorAll(`#${s.dataset.tip} .guess`).length;
            return steps.map(size).reduce((best, n, i, all) => n > all[best] ? i : best, 0);
        }"""
    )
    return steps_of(page).nth(index)


@pytest.mark.parametrize("size", [WIDE, PHONE], ids=["wide", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_any_screen(open_page: Open, size: tuple[int, int], scheme: str) -> None:
    page = open_page(size, color_scheme=scheme)
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
    narrow = page.evaluate(
        "[...document.querySelectorAll('h2, p, dd, .bars th, .text, blockquote')]"
        ".filter(e => e.checkVisibility() && !e.closest('.tip') && e.clientWidth)"
        ".filter(e => e.getBoundingClientRect().width < 24 || e.scrollWidth > innerWidth)"
        ".map(e => e.outerHTML)"
    )
    assert narrow == []
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    red = int(ground.removeprefix("rgb(").split(",")[0])
    assert (red < 60) if scheme == "dark" else (red > 200)


def test_bars_are_drawn_in_proportion(open_page: Open) -> None:
    page = open_page()
    bars = page.locator("rect.bar")
    widths = [bars.nth(i).bounding_box()["width"] for i in range(bars.count())]
    shares = [float(bars.nth(i).get_attribute("width").rstrip("%")) for i in range(len(widths))]
    assert widths[0] > 100
    assert [w / widths[0] for w in widths] == pytest.approx(
        [s / shares[0] for s in shares], rel=0.05
    )


def test_pointing_at_a_step_shows_what_it_did(open_page: Open) -> None:
    page = open_page()
    step = busiest(page)
    assert shown(page) == []
    step.hover()
    assert shown(page) == [step.get_attribute("data-tip")]
    tip = page.locator(".tip.open")
    assert tip.locator(".guess").count() > 3
    assert "The target wrote" in tip.inner_text()
    assert " rows, " in tip.inner_text()
    assert " ms" in tip.inner_text()
    box = tip.bounding_box()
    assert 0 <= box["x"] <= box["x"] + box["width"] <= WIDE[0]
    assert 0 <= box["y"] <= box["y"] + box["height"] <= WIDE[1]
    page.locator("h1").hover()
    assert shown(page) == []


def test_the_keyboard_reaches_every_step(open_page: Open) -> None:
    page = open_page()
    page.locator(".answer[open] summary").focus()
    for index in range(3):
        page.keyboard.press("Tab")
        step = steps_of(page).nth(index)
        assert shown(page) == [step.get_attribute("data-tip")]
        assert step.get_attribute("aria-expanded") == "true"
    page.keyboard.press("Escape")
    assert shown(page) == []
    page.keyboard.press("Enter")
    assert len(shown(page)) == 1
    page.keyboard.press("Enter")
    assert shown(page) == []


def test_a_step_that_moves_takes_its_tip_along(open_page: Open) -> None:
    page = open_page(size=(1200, 500))
    step = steps_of(page).first
    page.locator(".answer[open] summary").focus()
    page.keyboard.press("Tab")  # scrolls
    page.wait_for_timeout(100)
    assert shown(page) == [step.get_attribute("data-tip")]
    before = step.bounding_box()["y"]
    page.evaluate("scrollBy(0, -60)")
    page.wait_for_timeout(100)
    assert step.bounding_box()["y"] == pytest.approx(before + 60, abs=1)
    box, at = page.locator(".tip.open").bounding_box(), step.bounding_box()
    gap = min(abs(box["y"] - at["y"] - at["height"]), abs(at["y"] - box["y"] - box["height"]))
    assert gap < 20


def test_a_tap_opens_a_sheet_that_stays_until_the_next(open_page: Open) -> None:
    page = open_page(PHONE)
    step = busiest(page)
    step.scroll_into_view_if_needed()
    step.tap()
    assert shown(page) == [step.get_attribute("data-tip")]
    box = page.locator(".tip.open").bounding_box()
    assert (box["x"], box["width"]) == (0, PHONE[0])
    assert box["y"] + box["height"] == pytest.approx(PHONE[1], abs=1)
    page.mouse.wheel(0, 40)
    page.wait_for_timeout(100)
    assert len(shown(page)) == 1
    page.locator("h1").evaluate("heading => heading.click()")
    assert shown(page) == []


def test_origins_differ_without_colour(open_page: Open) -> None:
    page = open_page()
    marks = page.evaluate(
        "[...document.querySelectorAll('.origins .tok')].map(e => getComputedStyle(e))"
        ".map(s => s.textDecorationLine === 'none' ? 'none' : s.textDecorationStyle)"
    )
    assert len(marks) == len(set(marks)) == 4


def test_it_prints_with_all_answers_open(open_page: Open) -> None:
    page = open_page()
    busiest(page).hover()
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.locator(".answer:not([open])").count() == 0
    assert shown(page) == []
    assert page.pdf().startswith(b"%PDF")
