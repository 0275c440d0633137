"""The trace of a run: which answer each step belongs to.

Lines of an answer are held back until the answer is in the results, so that a trace has no answer
twice and none that the results lack, whenever a run is stopped and gone on with; and so that no
file is written while an answer is timed.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

from outdraft.bench.questions import Question
from outdraft.generate import Outdraft
from outdraft.text.detokenizer import text_decoder, token_shower
from outdraft.trace import StepRecord, StepTrace, Tracer, TraceWriter


class BenchTrace:
    """An observer of all requests of a run; those between `begin` and `end` are kept.

    Args:
        writer: takes the lines.
    """

    def __init__(self, llm: Outdraft, writer: TraceWriter) -> None:
        self._decode = text_decoder(llm.tokenizer)
        self._show = token_shower(llm.tokenizer)
        self._writer = writer
        self._traces: list[StepTrace] = []
        self._tracer: Tracer | None = None

    def __call__(self, record: StepRecord) -> None:
        if self._tracer is not None:
            self._tracer(record)

    def begin(self, questions: Seq[Question], method: str, repeat: int) -> None:
        """Some questions are about to be answered together, turn by turn."""
        places = [
            (question.question_id, turn)
            for turn in range(max(len(question.turns) for question in questions))
            for question in questions
            if turn < len(question.turns)
        ]
        left = iter(places)
        place_of: dict[int, tuple[str, int]] = {}

        def keep(traces: list[StepTrace]) -> None:
            for trace in traces:
                if trace.request_id not in place_of:
                    # Requests are admitted in the order in which questions are put.
                    place_of[trace.request_id] = next(left)
                asked, turn = place_of[trace.request_id]
                placed = replace(trace, question_id=asked, method=method, repeat=repeat, turn=turn)
                self._traces.append(placed)

        self._traces = []
        self._tracer = Tracer(self._decode, self._show, keep)

    def end(self) -> None:
        """They are answered, and the answers are kept; so are their lines."""
        self._writer(self._traces)
        self._traces = []
        self._tracer = None
