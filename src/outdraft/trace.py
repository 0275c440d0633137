"""What steps did, for people to look at: a record for whoever watches, and JSON lines of it.

`step` hands a `StepRecord` to an observer, if there is one. `Tracer` is such an observer: it turns
records into `StepTrace`s, one per sequence, which `TraceWriter` writes and `read_trace` reads.
Their schema is in `docs/trace.md`. Nothing here costs anything while nobody watches.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence as Seq
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from outdraft.errors import SettingsError
from outdraft.sampling import to_probs
from outdraft.sequence import Sequence
from outdraft.settings import GenerationSettings
from outdraft.text.detokenizer import Detokenizer
from outdraft.types import Commit, DraftTree, FinishReason, Origin, Verdict

NUM_TOP = 3
"""Likeliest tokens that a trace keeps after each row of the path."""

_UNFILTERED = GenerationSettings(temperature=1.0)
_DIGITS = 7

TokenProb = tuple[int, float]
"""A token id and its probability."""


@dataclass(frozen=True, slots=True)
class StepSeconds:
    """Wall time of a step, which all sequences of its batch share.

    Args:
        draft, plan, target: guessing, laying out rows, the target pass.
        step: all of it, verifying and committing included, the observer not.
    """

    draft: float
    plan: float
    target: float
    step: float

    @classmethod
    def up_to_now(
        cls, started_at: float, drafted_at: float, planned_at: float, read_at: float
    ) -> Self:
        """From readings of the clock at the ends of the stages."""
        return cls(
            draft=drafted_at - started_at,
            plan=planned_at - drafted_at,
            target=read_at - planned_at,
            step=time.perf_counter() - started_at,
        )


@dataclass(frozen=True, slots=True)
class StepRecord:
    """All that one step knew, after it was committed; each field has one item per sequence.

    It lasts as long as the observer's call: batch and tensors belong to the engine. Reading a
    prompt is a record too, of one sequence whose only judged row is the prompt's last token.

    Args:
        trees: as planned; node `i` is row `i + 1`.
        row_lens: rows that the target read.
        logits: `[seqs, rows, vocab]`, after the processors of each request.
        target_ids: the token the target writes after each row, `[seqs, rows]`.
    """

    batch: Seq[Sequence]
    trees: Seq[DraftTree]
    row_lens: Seq[int]
    logits: Tensor
    target_ids: Tensor
    verdicts: Seq[Verdict]
    commits: Seq[Commit]
    seconds: StepSeconds


OnStep = Callable[[StepRecord], None]
"""An observer of steps. What it raises ends the step's call, after the commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTrace:
    """One line of a trace: what one step did for one sequence.

    The `token_ids` of a request's lines join to its answer's, and the `text`s to its text.

    Args:
        step: counted per request; 0 reads the prompt and gives the first token.
        seqs: sequences that shared the step, and its `seconds`.
        rows: that the target read for this sequence.
        path: rows it agreed with, from the root (row 0) downwards.
        target_ids: its own token after each row of the path; none after the last where nothing is
            allowed there.
        top: its likeliest tokens after each row of the path, as the request's settings make them;
            for greedy requests, at temperature 1 and without filters.
        token_ids, origins: what was committed, and where each token came from.
        pieces: the text that each of these tokens completes.
        text: the text that the step made visible; stop strings may hold some back.
        texts: of all tokens the line names, special ones included.
        question_id, method, repeat, turn: in a bench run, what is answered, counted from 0.
    """

    request_id: int
    step: int
    seqs: int
    rows: int
    tree: DraftTree
    path: tuple[int, ...]
    target_ids: tuple[int, ...]
    top: tuple[tuple[TokenProb, ...], ...]
    token_ids: tuple[int, ...]
    origins: tuple[Origin, ...]
    pieces: tuple[str, ...]
    text: str
    finish_reason: FinishReason | None
    seconds: StepSeconds
    texts: Mapping[int, str] = field(default_factory=dict)
    question_id: str | None = None
    method: str | None = None
    repeat: int | None = None
    turn: int | None = None

    def to_json(self) -> dict[str, Any]:
        """What the line holds; names without a value are left out."""
        value = {name: item for name, item in asdict(self).items() if item is not None}
        value["seconds"] = {name: round(s, _DIGITS) for name, s in value["seconds"].items()}
        return value

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The line again, from what `to_json` gave once JSON has made lists of its tuples."""
        made: dict[str, Any] = {name: _as_tuple(item) for name, item in value.items()}
        made["tree"] = DraftTree(**{name: _as_tuple(x) for name, x in value["tree"].items()})
        made["seconds"] = StepSeconds(**value["seconds"])
        made["texts"] = {int(token_id): text for token_id, text in value["texts"].items()}
        return cls(**{"finish_reason": None, **made})


class Tracer:
    """An observer that makes a `StepTrace` of each sequence's part in each step.

    Args:
        decode: from new token ids to the text a user sees.
        show: from one token id to its text, special tokens included.
        sink: takes the traces of a step.
    """

    def __init__(
        self,
        decode: Callable[[Seq[int]], str],
        show: Callable[[int], str],
        sink: Callable[[list[StepTrace]], None],
    ) -> None:
        self._decode = decode
        self._show = show
        self._sink = sink
        self._detokenizers: dict[int, Detokenizer] = {}

    def __call__(self, record: StepRecord) -> None:
        self._sink([self._trace(record, i) for i in range(len(record.batch))])

    def _trace(self, record: StepRecord, seq_idx: int) -> StepTrace:
        sequence, commit = record.batch[seq_idx], record.commits[seq_idx]
        tree, path = record.trees[seq_idx], record.verdicts[seq_idx].path
        own_ids = record.verdicts[seq_idx].token_ids
        top = _likeliest(record.logits[seq_idx, list(path[: len(own_ids)])], sequence.settings)
        named = {*tree.token_ids, *own_ids, *commit.token_ids}
        named.update(token_id for row in top for token_id, _ in row)
        return StepTrace(
            request_id=sequence.request_id,
            step=sequence.stats.steps,
            seqs=len(record.batch),
            rows=record.row_lens[seq_idx],
            tree=tree,
            path=path,
            target_ids=own_ids,
            top=top,
            token_ids=commit.token_ids,
            origins=commit.origins,
            pieces=self._pieces(commit),
            text=commit.text,
            finish_reason=commit.finish_reason,
            seconds=record.seconds,
            texts={token_id: self._show(token_id) for token_id in sorted(named)},
        )

    def _pieces(self, commit: Commit) -> tuple[str, ...]:
        detokenizer = self._detokenizers.setdefault(commit.request_id, Detokenizer(self._decode))
        pieces = [detokenizer.push(token_id) for token_id in commit.token_ids]
        if commit.finish_reason is not None:
            rest = detokenizer.flush()
            if pieces:
                pieces[-1] += rest
            del self._detokenizers[commit.request_id]
        return tuple(pieces)


class TraceWriter:
    """A file of traces, one JSON object a line; folders it lies in are made.

    Each call's lines are on disk, whole, when it returns.

    Args:
        goes_on: behind what the file holds already; else it begins anew.

    Raises:
        SettingsError: the file cannot be written.
    """

    def __init__(self, path: Path, *, goes_on: bool = False) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if goes_on and path.exists():
                _cut_torn_line(path)
            self._file = path.open("ab" if goes_on else "wb", buffering=0)
        except OSError as error:
            raise SettingsError(
                f"the trace {path} cannot be written ({error.strerror}); name another file"
            ) from error

    def __call__(self, traces: Iterable[StepTrace]) -> None:
        lines = [json.dumps(trace.to_json(), ensure_ascii=False) + "\n" for trace in traces]
        # A lone surrogate, which no UTF-8 file can hold, is none of a text that was decoded.
        self._file.write("".join(lines).encode(errors="replace"))

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def read_trace(path: Path) -> Iterator[StepTrace]:
    """The lines of a trace, in order; a last one that was torn off is left out.

    Raises:
        SettingsError: the file cannot be read, or a line is none that outdraft wrote.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SettingsError(f"the trace {path} cannot be read ({error.strerror})") from error
    whole = content[: content.rfind(b"\n") + 1]
    for number, line in enumerate(whole.split(b"\n")[:-1], start=1):
        try:
            yield StepTrace.from_json(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise SettingsError(
                f"{path}, line {number} is no line of a trace that this version of outdraft "
                f"wrote ({error}); write it again with --trace"
            ) from error


def _likeliest(logits: Tensor, settings: GenerationSettings) -> tuple[tuple[TokenProb, ...], ...]:
    probs = to_probs(logits, _UNFILTERED if settings.is_greedy else settings)
    top = probs.topk(min(NUM_TOP, probs.shape[-1]), dim=-1)
    return tuple(
        tuple((token_id, round(prob, _DIGITS)) for token_id, prob in row if prob > 0)
        for row in (
            zip(ids, values, strict=True)
            for ids, values in zip(top.indices.tolist(), top.values.tolist(), strict=True)
        )
    )


def _cut_torn_line(path: Path) -> None:
    content = path.read_bytes()
    end = content.rfind(b"\n") + 1
    if end < len(content):
        os.truncate(path, end)


def _as_tuple(value: Any) -> Any:
    """Lists within lists as tuples."""
    return tuple(_as_tuple(item) for item in value) if isinstance(value, list) else value
