"""`outdraft generate`: one prompt, answered as it comes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.status import Status

from outdraft.cli import common
from outdraft.cli.explain import show as show_explanation
from outdraft.cli.writers import DraftWriter, NoWriter, TextWriter, Writer
from outdraft.errors import SettingsError

if TYPE_CHECKING:
    from outdraft.generate import Outdraft
    from outdraft.results import Result, Stream
    from outdraft.settings import GenerationSettings
    from outdraft.text.prompts import Prompt
    from outdraft.trace import OnStep, TraceWriter

EXAMPLES = common.examples(
    'outdraft generate "Why is the sky blue?"',
    "outdraft generate - --max-new-tokens 64 < question.txt",
    'outdraft generate "Tell me a story" --temperature 0.8 --top-p 0.95 --seed 7',
    'outdraft generate "def fibonacci(n):" --raw --stop "def "',
    'outdraft generate "Why is the sky blue?" --drafter none --json',
    'outdraft generate "Is water wet?" --choice yes --choice no',
    'outdraft generate "Make up a person" --json-schema person.json',
    'outdraft generate "Name a colour" --temperature 1 --n 3 --logprobs 5 --json',
    'outdraft generate "Count to thirty" --show-drafts',
    'outdraft generate "Count to thirty" --explain',
    'outdraft generate "Count to thirty" --trace steps.jsonl',
)


def generate(
    prompt: Annotated[
        str,
        typer.Argument(
            metavar="PROMPT",
            help="What to answer; - reads it from stdin, without its last newline.",
        ),
    ],
    *,
    model: common.ModelOption = common.DEFAULT_MODEL,
    drafter: common.DrafterOption = "auto",
    max_new_tokens: Annotated[
        int,
        typer.Option("--max-new-tokens", "-n", metavar="N", help="Tokens to write at most."),
    ] = common.DEFAULT_MAX_NEW_TOKENS,
    temperature: common.TemperatureOption = common.DEFAULT_TEMPERATURE,
    top_k: Annotated[
        int | None, typer.Option(metavar="K", help="Draw from the K likeliest tokens.")
    ] = None,
    top_p: common.TopPOption = None,
    min_p: Annotated[
        float | None,
        typer.Option(metavar="X", help="Draw from tokens at least X times as likely as the first."),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="S",
            help="The same seed draws the same text, whatever the drafter. Fresh if unset.",
        ),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="S", help="End before this text; may be given several times."),
    ] = None,
    json_schema: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Write JSON of the schema in this file."),
    ] = None,
    regex: Annotated[
        str | None,
        typer.Option(metavar="R", help="Write a text that matches this regular expression."),
    ] = None,
    grammar: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Follow the grammar in this file, in Lark or GBNF."),
    ] = None,
    choice: Annotated[
        list[str] | None,
        typer.Option(metavar="S", help="Write one of these texts; given once for each."),
    ] = None,
    repetition_penalty: Annotated[
        float | None,
        typer.Option(metavar="X", help="Above 1, tokens of prompt and text come back less easily."),
    ] = None,
    presence_penalty: Annotated[
        float | None,
        typer.Option(metavar="X", help="Taken off the logits of tokens that the text holds."),
    ] = None,
    frequency_penalty: Annotated[
        float | None,
        typer.Option(metavar="X", help="The same, as often as the text holds them."),
    ] = None,
    no_repeat_ngram_size: Annotated[
        int | None, typer.Option(metavar="N", help="No run of N tokens comes twice.")
    ] = None,
    min_new_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens to write at least.")
    ] = None,
    logprobs: Annotated[
        int | None,
        typer.Option(
            metavar="K",
            help="With --json: log-probabilities of each token and of the K likeliest ones.",
        ),
    ] = None,
    n: Annotated[
        int | None,
        typer.Option("--n", metavar="N", help="With --json: so many answers, each with a seed."),
    ] = None,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw", metavar="", help="Go on from the prompt as it stands, without chat template."
        ),
    ] = False,
    dtype: common.DtypeOption = "auto",
    quantize: common.QuantizeOption = None,
    threads: common.ThreadsOption = None,
    device: common.DeviceOption = "auto",
    show_drafts: Annotated[
        bool,
        typer.Option(
            "--show-drafts",
            metavar="",
            help="Colour each token by where it came from: an accepted guess, a correction, a "
            "bonus token, or a step without draft. Without colours (NO_COLOR, pipes) marks stand "
            "before the tokens: · accepted, ≠ corrected, + bonus.",
        ),
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", metavar="", help="Print one JSON object with text, token ids and statistics."
        ),
    ] = False,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", metavar="", help="Say on stderr what drafting did, and why it did not."
        ),
    ] = False,
    trace: common.TraceOption = None,
) -> None:
    """Answer a prompt.

    The text goes to stdout as it comes, and nothing else does; a summary follows on stderr if that
    is a terminal. The prompt is put to the model as a chat message unless --raw is given.
    """
    from outdraft.settings import GenerationSettings

    if as_json and show_drafts:
        raise SettingsError("--json and --show-drafts exclude each other; leave one out")
    if not as_json and (logprobs is not None or n is not None):
        raise SettingsError("--logprobs and --n are shown in JSON alone; pass --json too")
    given: dict[str, Any] = {
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "no_repeat_ngram_size": no_repeat_ngram_size,
        "min_new_tokens": min_new_tokens,
        "logprobs": logprobs,
        "n": n,
        "seed": seed,
        "stop": stop or None,
        "json_schema": _read_option(json_schema, "--json-schema"),
        "regex": regex,
        "grammar": _read_option(grammar, "--grammar"),
        "choices": choice or None,
    }
    given = {name: value for name, value in given.items() if value is not None}
    settings = GenerationSettings(**given)  # refused before a model is loaded
    text = read_prompt(prompt)
    _note_idle_filters(settings)
    with common.open_trace(trace) as lines:
        llm = common.load_llm(
            model,
            dtype=dtype,
            device=device,
            drafter=drafter,
            quantize=quantize,
            threads=threads,
        )
        prompt_read = _to_prompt(llm, text, is_raw=raw)
        writer = _make_writer(llm, is_silent=as_json, shows_drafts=show_drafts)
        tracer = _make_tracer(llm, lines)
        was_interrupted = False
        if settings.num_samples > 1:
            result = llm.generate(prompt_read, on_step=tracer, **given)
        else:
            with reading_status(common.err_console()) as on_prompt:
                stream = llm.stream(prompt_read, on_step=tracer, on_prompt=on_prompt, **given)
                was_interrupted = write_out(stream, writer)
            result = stream.result
    if as_json:
        typer.echo(to_json(result))
    else:
        _summarise(result, settings)
    if explain:
        show_explanation(common.err_console(), result.stats)
    if was_interrupted:
        raise KeyboardInterrupt


def read_prompt(prompt: str) -> str:
    """The prompt itself, or stdin's text for `-`.

    Raises:
        SettingsError: it is empty or no text.
    """
    try:
        if prompt == "-":
            if sys.stdin.isatty():
                common.note("write the prompt, then end it with Ctrl-D on a line of its own")
            # `echo question | outdraft generate -` means the question and not the newline.
            prompt = sys.stdin.read().removesuffix("\n")
        prompt.encode()  # an argument that is not UTF-8 comes with lone surrogates
    except UnicodeError:
        raise SettingsError("the prompt is not UTF-8 text; convert it first") from None
    if not prompt:
        raise SettingsError("the prompt is empty; write something to answer or to go on from")
    return prompt


def _read_option(path: Path | None, option: str) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{option} {path}: {error}; name a readable UTF-8 file") from error


@contextmanager
def reading_status(console: Console) -> Iterator[Callable[[int, int], None]]:
    """On a terminal, a line that says how much of a long prompt was read, until all of it was."""
    with ExitStack() as shown:
        status: Status | None = None

        def show(num_read: int, total: int) -> None:
            nonlocal status
            if num_read == total:
                shown.close()
                return
            if status is None and console.is_terminal:
                status = shown.enter_context(console.status(""))
            if status is not None:
                status.update(f"reading the prompt: {num_read:,} of {total:,} tokens")

        yield show


def write_out(stream: Stream, writer: Writer) -> bool:
    """Shows a stream to its end, or to where Ctrl-C cancels it.

    Whatever ends it, all text generated so far has been shown, and the request holds nothing.

    Returns:
        Whether it was interrupted.
    """
    was_interrupted = False
    try:
        with stream:
            for piece in stream:
                writer.show(piece)
    except KeyboardInterrupt:
        was_interrupted = True
    writer.end(stream.result)
    return was_interrupted


def to_json(result: Result) -> str:
    """The object that `--json` prints, on one line."""
    record = _record(result)
    if result.others:
        record["others"] = [_record(other) for other in result.others]
    can_show_all = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    return json.dumps(record, ensure_ascii=not can_show_all)


def _record(result: Result) -> dict[str, Any]:
    stats = result.stats
    record: dict[str, Any] = {
        "text": result.text,
        "token_ids": list(result.token_ids),
        "prompt_tokens": result.prompt_tokens,
        "finish_reason": result.finish_reason,
        "drafter": result.drafter,
        "seed": result.seed,
        "stats": {
            "steps": stats.steps,
            "drafted": stats.drafted,
            "accepted": stats.accepted,
            "tokens": stats.tokens,
            "tokens_per_step": round(stats.tokens_per_step, 4),
            "seconds": round(stats.seconds, 6),
            "tokens_per_second": round(stats.tokens_per_second, 3),
        },
    }
    if result.logprobs:
        record["logprobs"] = [asdict(logprob) for logprob in result.logprobs]
    return record


def _make_tracer(llm: Outdraft, lines: TraceWriter | None) -> OnStep | None:
    from outdraft.text.detokenizer import text_decoder, token_shower
    from outdraft.trace import Tracer

    if lines is None:
        return None
    return Tracer(text_decoder(llm.tokenizer), token_shower(llm.tokenizer), lines)


def _to_prompt(llm: Outdraft, text: str, *, is_raw: bool) -> Prompt:
    if is_raw:
        return text
    if llm.tokenizer.chat_template is None:
        raise SettingsError(
            f"{llm.name} has no chat template; pass --raw to go on from the prompt as it stands"
        )
    return common.chat_prompt(text)


def _make_writer(llm: Outdraft, *, is_silent: bool, shows_drafts: bool) -> Writer:
    if is_silent:
        return NoWriter()
    console = common.out_console()
    if not shows_drafts:
        return TextWriter(sys.stdout)
    from outdraft.text.detokenizer import text_decoder

    return DraftWriter(
        sys.stdout, text_decoder(llm.tokenizer), has_colours=common.has_colours(console)
    )


def _note_idle_filters(settings: GenerationSettings) -> None:
    """Says so where an option cannot matter: the likeliest token passes every filter."""
    idle = [f"--{name.replace('_', '-')}" for name in settings.model_fields_set & _FILTERS]
    if settings.is_greedy and idle:
        common.note(
            f"note: {common.listed(sorted(idle))} changes nothing at temperature 0, where the "
            "likeliest token is taken; pass --temperature too"
        )


_FILTERS = {"top_k", "top_p", "min_p"}


def _summarise(result: Result, settings: GenerationSettings) -> None:
    console = common.err_console()
    if not console.is_terminal:
        return
    stats = result.stats
    num_passes = stats.steps + 1  # the prompt's pass gives the first token
    parts = [
        f"{stats.tokens} tokens in {num_passes} target passes",
        f"{stats.tokens_per_step:.1f} tokens per step",
        f"{stats.seconds:.1f} s",
        f"{stats.tokens_per_second:.0f} tokens/s",
        f"drafter {result.drafter}",
    ]
    if not settings.is_greedy:
        parts.append(f"seed {result.seed}")
    if result.finish_reason == "length":
        parts.append("cut at the length limit")
    if result.finish_reason == "blocked":
        parts.append("ended where the options together allow no token")
    common.note(", ".join(parts))
