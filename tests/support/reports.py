"""A traced bench run of a toy, and a reader of the page that is made of it."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from outdraft.bench.methods import make_methods
from outdraft.bench.questions import Question
from outdraft.bench.run import BenchSettings, describe_run, open_results, run_bench
from outdraft.bench.trace import BenchTrace
from outdraft.generate import Outdraft
from outdraft.models.table import TableTarget
from outdraft.settings import GenerationSettings
from outdraft.trace import TraceWriter
from support.command_line import TABLE, ToyTokenizer
from support.toys import EOS

SCRIPT = "<script>document.title = 'taken'</script>"
IMAGE = '"><img src="x" onerror="document.title = 1">'
QUESTIONS = [
    Question("q1", "writing", ("the cat sat", "on the mat")),
    Question("q2", "qa", (f"who ran? {SCRIPT}", "where to?")),
    Question("q3", "qa", ("and why?",)),
]
_VOID = {"meta", "link", "br", "img", "hr", "input"}


class HostileTokenizer(ToyTokenizer):
    """Two of its tokens are markup."""

    def decode(self, token_ids: Seq[int], **options: Any) -> str:
        text = super().decode(token_ids, **options)
        return text.replace(" cat", SCRIPT).replace(" dog", IMAGE)


def toy_llm(tokenizer: ToyTokenizer | None = None) -> Outdraft:
    tokenizer = tokenizer or ToyTokenizer()
    return Outdraft(TableTarget(**TABLE), tokenizer, name="toy", eos_ids=[EOS])


def run_traced(
    folder: Path,
    llm: Outdraft | None = None,
    *,
    drafters: Seq[str] = ("suffix", "prompt-lookup"),
    baselines: Seq[str] = ("plain",),
    questions: Seq[Question] = QUESTIONS,
    max_new_tokens: int = 24,
    temperature: float = 0.0,
    is_traced: bool = True,
    **settings: Any,
) -> Path:
    """Runs a bench over the toy, with a trace in its folder; returns the folder."""
    llm = llm or toy_llm()
    generation = GenerationSettings(max_new_tokens=max_new_tokens, temperature=temperature, seed=0)
    bench = BenchSettings(generation, **settings)
    folder.mkdir(parents=True, exist_ok=True)
    goes_on = (folder / "results.jsonl").exists()
    with TraceWriter(folder / "trace.jsonl", goes_on=goes_on) as writer:
        trace = BenchTrace(llm, writer) if is_traced else None
        methods = make_methods(llm, drafters=drafters, baselines=baselines, on_step=trace)
        run = describe_run(llm, methods, questions, bench, source="toy", command=["outdraft", "x"])
        results = open_results(folder, run, questions)
        run_bench(llm, methods, questions, bench, results, on_progress=lambda _: None, trace=trace)
    if not is_traced:
        (folder / "trace.jsonl").unlink()
    return folder


class Element:
    """A tag with its attributes, its place in the page and the text inside."""

    def __init__(self, tag: str, attributes: dict[str, str], parent: Element | None) -> None:
        self.tag = tag
        self.attributes = attributes
        self.parent = parent
        self.children: list[Element] = []
        self.text = ""

    @property
    def classes(self) -> list[str]:
        return self.attributes.get("class", "").split()

    def find(self, tag: str = "", class_: str = "", **attributes: str) -> list[Element]:
        """All elements inside, in order, that are of this kind."""
        found = []
        for child in self.children:
            is_wanted = (
                (not tag or child.tag == tag)
                and (not class_ or class_ in child.classes)
                and all(child.attributes.get(name) == value for name, value in attributes.items())
            )
            found += [child] if is_wanted else []
            found += child.find(tag, class_, **attributes)
        return found


class Page(HTMLParser):
    """A page as a tree; tags that are not closed, or closed twice, are errors."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.root = self._open = Element("", {}, None)
        self.feed(html)
        self.close()
        assert self._open is self.root, f"<{self._open.tag}> is not closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = self._add(tag, attrs)
        if tag not in _VOID:
            self._open = element

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._add(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert tag == self._open.tag, f"</{tag}> closes <{self._open.tag}>"
        assert self._open.parent is not None
        self._open = self._open.parent

    def handle_data(self, data: str) -> None:
        element: Element | None = self._open
        while element is not None:
            element.text += data
            element = element.parent

    def _add(self, tag: str, attrs: list[tuple[str, str | None]]) -> Element:
        element = Element(tag, {name: value or "" for name, value in attrs}, self._open)
        self._open.children.append(element)
        return element
