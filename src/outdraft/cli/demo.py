"""`outdraft demo`: one prompt answered twice, plainly and drafted: the same text, in less time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence as Seq
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from outdraft.cli import common
from outdraft.cli.figure import choose_step, draw_step
from outdraft.cli.writers import MEANINGS, STYLES, OriginSplitter, split_space
from outdraft.errors import SettingsError

if TYPE_CHECKING:
    from outdraft.cli.recorder import Recorder
    from outdraft.generate import Outdraft
    from outdraft.interfaces import Drafter
    from outdraft.results import Result
    from outdraft.text.prompts import Prompt

EXAMPLES = common.examples(
    "outdraft demo",
    "outdraft demo --drafter prompt-lookup --max-new-tokens 64",
    "outdraft demo --model ./my-model --dtype bfloat16",
)

PROMPT = """\
Correct the grammar of this text. Return only the corrected text.

Yesterday we goes to the old market by the river. There was fresh bread, apples, honey and three \
kinds of cheese. My sister bought a basket of apples for her famous cake, and my brother eat most \
of the honey on the way home. In the evening we sat in the garden, ate the cake and listened to \
the frogs. When it was dark, our mother brought us two blankets and told us the old story of the \
lighthouse keeper and his dog."""

_WARM_UP_TOKENS = 8
_MIN_SIDE_BY_SIDE = 90  # columns
_SECONDS_PER_FRAME = 0.1
_EXACT_DTYPES = {"float32", "float64"}


@dataclass(slots=True)
class Run:
    """One of the two answers, as far as it has come.

    Attributes:
        seconds: wall time inside the stream alone; showing it does not count.
    """

    title: str
    drafter: Drafter
    recorder: Recorder
    text: Text = field(default_factory=Text)
    seconds: float = 0.0
    result: Result | None = None

    @property
    def done(self) -> Result:
        assert self.result is not None  # callers have read the stream to its end
        return self.result

    @property
    def tokens_per_second(self) -> float:
        return self.done.stats.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def num_passes(self) -> int:
        """Target passes that gave a token, the prompt's included."""
        return self.done.stats.steps + 1

    def panel(self) -> Panel:
        subtitle = ""
        if self.result is not None:
            subtitle = f"{self.result.stats.tokens} tokens, {self.tokens_per_second:.1f} tokens/s"
        return Panel(self.text, title=self.title, subtitle=subtitle, title_align="left")


def demo(
    *,
    model: common.ModelOption = common.DEFAULT_MODEL,
    drafter: common.DrafterOption = "auto",
    dtype: common.DtypeOption = "float32",
    threads: common.ThreadsOption = None,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", "-n", metavar="N", help="Tokens to write at most.")
    ] = 128,
) -> None:
    """Answer one prompt plainly and drafted, and compare: the same text, in less time.

    Shows both answers, one step of the drafted run as a picture, and the numbers of both. Exits
    with 1 if the texts differ in float32 or float64; in 16 bits two tokens may tie.
    """
    from outdraft.settings import GenerationSettings

    GenerationSettings(max_new_tokens=max_new_tokens)  # refused before a model is loaded
    if drafter == "none":
        raise SettingsError(
            "drafter='none': plain decoding is what the demo compares with; name another one"
        )
    common.check_drafter(drafter)
    console = common.out_console()
    common.note(f"loading {model}")
    llm = common.load_llm(model, dtype=dtype, drafter=drafter, threads=threads)
    runs = _make_runs(llm)
    console.print(Panel(Text(PROMPT), title="prompt", title_align="left"))
    _warm_up(llm, runs)
    _show_runs(console, llm, runs, max_new_tokens)
    _show_step(console, llm, runs[1].recorder)
    _show_numbers(console, llm, runs)


def _make_runs(llm: Outdraft) -> list[Run]:
    from outdraft.cli.recorder import Recorder

    drafter = llm.drafter()
    name = llm.default_drafter if isinstance(llm.default_drafter, str) else drafter.name
    return [
        Run("plain decoding", llm.drafter("none"), Recorder()),
        Run(f"drafted decoding ({name})", drafter, Recorder()),
    ]


def _prompt(llm: Outdraft) -> Prompt:
    has_chats = llm.tokenizer.chat_template is not None
    return common.chat_prompt(PROMPT) if has_chats else f"{PROMPT}\n\n"


def _warm_up(llm: Outdraft, runs: Seq[Run]) -> None:
    for run in runs:
        llm.generate(_prompt(llm), drafter=run.drafter, max_new_tokens=_WARM_UP_TOKENS)


# --- both answers ---------------------------------------------------------------------------------


def _show_runs(console: Console, llm: Outdraft, runs: Seq[Run], max_new_tokens: int) -> None:
    """Both panels at once where there is room, else one below the other."""
    groups = [runs] if console.width >= _MIN_SIDE_BY_SIDE else [[run] for run in runs]
    for group in groups:
        live = Live(console=console, auto_refresh=False) if console.is_interactive else None
        with live or nullcontext():
            for run in group:
                read(llm, run, max_new_tokens, _refresher(live, group))
            if live is not None:
                live.update(_side_by_side(group), refresh=True)
        if live is None:
            console.print(_side_by_side(group))
    if common.has_colours(console):
        legend = [(meaning, STYLES[origin]) for origin, meaning in MEANINGS.items()]
        console.print(Text("  ").join(Text(*part) for part in legend))


def read(llm: Outdraft, run: Run, max_new_tokens: int, on_change: Callable[[], None]) -> None:
    """Streams one answer into its run."""
    from outdraft.text.detokenizer import text_decoder

    origins = OriginSplitter(text_decoder(llm.tokenizer))
    started_at = time.perf_counter()
    with llm.stream(
        _prompt(llm), drafter=run.drafter, on_step=run.recorder, max_new_tokens=max_new_tokens
    ) as stream:
        for piece in stream:
            run.seconds += time.perf_counter() - started_at
            for part, origin in origins.split(piece.text, piece.token_ids, piece.origins):
                space, word = split_space(part)
                run.text.append(space).append(word, STYLES[origin])
            on_change()
            started_at = time.perf_counter()
        run.result = stream.result


def _refresher(live: Live | None, runs: Seq[Run]) -> Callable[[], None]:
    """Redraws, but no oftener than eyes can follow."""
    shown_at = 0.0

    def refresh() -> None:
        nonlocal shown_at
        if live is not None and time.perf_counter() - shown_at > _SECONDS_PER_FRAME:
            live.update(_side_by_side(runs), refresh=True)
            shown_at = time.perf_counter()

    return refresh


def _side_by_side(runs: Seq[Run]) -> RenderableType:
    grid = Table.grid(expand=True)
    for _ in runs:
        grid.add_column(ratio=1)
    grid.add_row(*(run.panel() for run in runs))
    return grid


# --- one step, and the numbers --------------------------------------------------------------------


def _show_step(console: Console, llm: Outdraft, recorder: Recorder) -> None:
    def show(token_id: int) -> str:
        return str(
            llm.tokenizer.decode(
                [token_id], skip_special_tokens=False, clean_up_tokenization_spaces=False
            )
        )

    step = choose_step(recorder.steps, show)
    if step is None:
        console.print("\nNothing was drafted in this run: no earlier text was there to go by.")
        return
    console.print(
        f"\n[bold]One of the {len(recorder.steps)} drafted steps, with its own tokens[/]\n"
    )
    console.print(draw_step(step, show, console.width))


def _show_numbers(console: Console, llm: Outdraft, runs: Seq[Run]) -> None:
    plain, drafted = runs
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("")
    for heading in ("tokens/s", "tokens per step", "target passes", "seconds", "speed-up"):
        table.add_column(heading, justify="right", no_wrap=" " not in heading)
    for name, run in (("plain", plain), ("drafted", drafted)):
        table.add_row(
            name,
            f"{run.tokens_per_second:.1f}",
            f"{run.done.stats.tokens_per_step:.2f}",
            str(run.num_passes),
            f"{run.seconds:.2f}",
            f"{plain.seconds / run.seconds:.2f}",
        )
    from outdraft.models.devices import device_name

    dtype = dtype_name(llm)
    position = first_difference(plain.done.token_ids, drafted.done.token_ids)
    num_tokens = plain.done.stats.tokens
    same = (
        f"same text: [bold green]yes[/], all {num_tokens} token ids are equal"
        if position is None
        else f"same text: [bold red]no[/], the token ids differ from token {position + 1} on"
    )
    baseline = (
        "speed-up against plain decoding, same engine, same session, "
        f"{device_name(llm.target.device)}, {num_threads()}, {dtype}; this prompt asks for much "
        "of its own text, which is easy to guess, and others gain less"
    )
    console.print(Group(Text(), table, Text(), Text.from_markup(same), Text(baseline, "dim")))
    if position is not None:
        _judge_difference(dtype)


def _judge_difference(dtype: str) -> None:
    way_out = "`outdraft check` tells ties from faults"
    if dtype in _EXACT_DTYPES:
        common.report(f"the texts differ in {dtype}, where they should not; {way_out}")
        raise typer.Exit(common.FAILED)
    common.note(f"in {dtype} two tokens may score the same within rounding; {way_out}")


def first_difference(one: Seq[int], other: Seq[int]) -> int | None:
    """Where two token sequences part ways; `None` if they are equal."""
    if one == other:
        return None
    pairs = zip(one, other, strict=False)
    shorter = min(len(one), len(other))
    return next((i for i, (left, right) in enumerate(pairs) if left != right), shorter)


# --- the machine ----------------------------------------------------------------------------------


def dtype_name(llm: Outdraft) -> str:
    """The precision the target computes in; targets that are no model are made for float64."""
    from outdraft.models.target import CausalLM

    dtype = llm.target.model.dtype if isinstance(llm.target, CausalLM) else "float64"
    return str(dtype).removeprefix("torch.")


def num_threads() -> str:
    """Threads that share a target pass on a CPU."""
    import torch

    number = torch.get_num_threads()
    return f"{number} thread{'s' * (number != 1)}"
