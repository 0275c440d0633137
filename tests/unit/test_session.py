from __future__ import annotations

import gc
from collections.abc import Sequence as Seq
from typing import Any

import pytest
import torch

from outdraft.draft.prompt_lookup import PromptLookup
from outdraft.errors import DrafterError, QueueFullError, SettingsError
from outdraft.generate import Outdraft
from outdraft.models.table import TableTarget
from outdraft.sequence import Sequence
from outdraft.session import Request, Session
from outdraft.settings import EngineSettings
from outdraft.types import Budget, DraftTree
from support.tiny_models import VOCAB, tiny_target
from support.toys import LetterTokenizer


def make_llm(table: TableTarget, **settings: Any) -> Outdraft:
    return Outdraft(table, LetterTokenizer(), settings=EngineSettings(**settings))


@pytest.fixture
def llm(table: TableTarget) -> Outdraft:
    return make_llm(table)


def drain(session: Session) -> dict[int, str]:
    """The text of all pieces of each request."""
    texts: dict[int, str] = {}
    for request, piece in session:
        texts[request.request_id] = texts.get(request.request_id, "") + piece.text
    return texts


# --- adding and stepping --------------------------------------------------------------------------


def test_requests_share_a_session_and_their_pieces_join_to_their_texts(llm: Outdraft) -> None:
    with llm.session() as session:
        one = session.add("bcd", max_new_tokens=20)
        two = session.add("efg", max_new_tokens=9, temperature=1.0, seed=3)
        told = drain(session)
    assert told == {one.request_id: one.result.text, two.request_id: two.result.text}
    assert one.result.token_ids == llm.generate("bcd", max_new_tokens=20).token_ids
    again = llm.generate("efg", max_new_tokens=9, temperature=1.0, seed=3)
    assert two.result.token_ids == again.token_ids


def test_a_step_gives_each_running_request_a_piece(llm: Outdraft) -> None:
    session = llm.session()
    requests = [session.add(prompt, max_new_tokens=9) for prompt in ("b", "c", "d")]
    for _ in range(3):
        assert [request for request, _ in session.step()] == requests


def test_a_request_tells_how_far_it_is(llm: Outdraft) -> None:
    session = llm.session(drafter="none")
    request = session.add("bcd", max_new_tokens=3)
    assert not request.is_done
    assert (request.text, request.finish_reason) == ("", None)
    ((same, piece),) = session.step()
    assert (same, request.text) == (request, piece.text)
    with pytest.raises(SettingsError, match="has not ended"):
        _ = request.result
    assert repr(request) == f"<Request {request.request_id}: 1 tokens>"
    drain(session)
    assert request.is_done
    assert (request.finish_reason, request.result.finish_reason) == ("length", "length")
    assert repr(request) == f"<Request {request.request_id}: length>"
    assert (session.requests, session.is_idle) == ([], True)


def test_the_results_drafter_is_the_sessions(llm: Outdraft) -> None:
    session = llm.session(drafter="suffix")
    request = session.add("bcd", max_new_tokens=3)
    drain(session)
    assert request.result.drafter == "suffix"


def test_observers_are_told_of_every_step(llm: Outdraft) -> None:
    batches: list[int] = []
    session = llm.session(on_step=lambda record: batches.append(len(record.batch)))
    session.add("b", max_new_tokens=4)
    session.add("c", max_new_tokens=4)
    drain(session)
    assert batches[:3] == [1, 1, 2]


@pytest.mark.parametrize(
    ("prompt", "settings", "message"),
    [
        ("b", {"temprature": 1.0}, "temprature: there is no such setting"),
        ("b", {"top_k": 0}, "top_k"),
        ([], {}, "no tokens"),
        ([99], {}, "vocabulary has 16"),
        ("b" * 5000, {}, "shorten the prompt"),
    ],
)
def test_what_cannot_be_run_is_refused_when_it_is_added(
    llm: Outdraft, prompt: Any, settings: dict[str, Any], message: str
) -> None:
    session = llm.session()
    with pytest.raises(SettingsError, match=message):
        session.add(prompt, **settings)
    assert session.is_idle


def test_an_unknown_drafter_is_refused(llm: Outdraft) -> None:
    with pytest.raises(DrafterError, match="magic"):
        llm.session(drafter="magic")


# --- limits ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("max_batch", "max_waiting"), [(1, 0), (2, 0), (2, 3)])
def test_no_more_requests_wait_than_may(
    table: TableTarget, max_batch: int, max_waiting: int
) -> None:
    session = make_llm(table, max_batch=max_batch, max_waiting=max_waiting).session()
    limit = max_batch + max_waiting
    requests = [session.add("b", max_new_tokens=5) for _ in range(limit)]
    message = f"{limit} requests have not ended.*max_waiting={max_waiting} .*EngineSettings"
    with pytest.raises(QueueFullError, match=message):
        session.add("b")
    session.step()
    with pytest.raises(QueueFullError):
        session.add("b")
    session.cancel(requests[0])
    session.add("b", max_new_tokens=5)
    with pytest.raises(QueueFullError):
        session.add("b")
    drain(session)
    session.add("b")


# --- leaving --------------------------------------------------------------------------------------


def test_cancelling_leaves_the_others_alone(llm: Outdraft) -> None:
    session = llm.session()
    requests = [session.add(prompt, max_new_tokens=20) for prompt in ("b", "cd", "efg")]
    session.step()
    session.step()
    session.cancel(requests[1])
    session.cancel(requests[1])
    assert session.requests == [requests[0], requests[2]]
    told = drain(session)
    assert requests[1].request_id not in told
    assert requests[1].result.finish_reason == "cancelled"
    for request, prompt in zip(requests[::2], ("b", "efg"), strict=True):
        assert request.result.token_ids == llm.generate(prompt, max_new_tokens=20).token_ids


class Counting(PromptLookup):
    """Notes which requests it let go, and fails when told to."""

    name = "counting"

    def __init__(self) -> None:
        super().__init__()
        self.finished: list[int] = []
        self.fails = False

    def propose(self, batch: Seq[Sequence], budget: Budget) -> list[DraftTree]:
        if self.fails:
            raise RuntimeError("no idea")
        return super().propose(batch, budget)

    def finish(self, sequence: Sequence) -> None:
        super().finish(sequence)
        self.finished.append(sequence.request_id)


def test_leaving_the_block_cancels_what_runs_and_forgets_what_was_kept(llm: Outdraft) -> None:
    drafter = Counting()
    with llm.session(drafter=drafter) as session:
        ended = session.add("b", max_new_tokens=1)
        running = session.add("c", max_new_tokens=50)
        session.step()
        session.step()
        kept = session._engine._kept
        assert kept is not None
        assert kept.num_tokens > 0
    assert (ended.finish_reason, running.finish_reason) == ("length", "cancelled")
    assert len(drafter.finished) == 2
    assert session.is_idle
    assert kept.num_tokens == 0


def test_after_an_error_the_requests_go_on(llm: Outdraft) -> None:
    drafter = Counting()
    session = llm.session(drafter=drafter)
    requests = [session.add(prompt, max_new_tokens=12) for prompt in ("b", "cd")]
    told = dict.fromkeys([request.request_id for request in requests], "")
    for num_steps in range(30):
        drafter.fails = num_steps in (1, 3)
        try:
            for request, piece in session.step():
                told[request.request_id] += piece.text
        except RuntimeError:
            assert session.requests == requests
    for request, prompt in zip(requests, ("b", "cd"), strict=True):
        assert request.result.token_ids == llm.generate(prompt, max_new_tokens=12).token_ids
        assert told[request.request_id] == request.result.text


class Broken:
    """A processor that fails at the `num_calls`-th token."""

    is_stateless = True

    def __init__(self, num_calls: int) -> None:
        self.num_calls = num_calls

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if input_ids.shape[1] >= self.num_calls + 2:
            raise RuntimeError("broken processor")
        return scores


def broken_rule(num_calls: int) -> Any:
    def stop(token_ids: list[int], text: str) -> bool:
        if len(token_ids) >= num_calls:
            raise RuntimeError("broken rule")
        return False

    return stop


def broken(kind: str, num_calls: int) -> dict[str, Any]:
    if kind == "processor":
        return {"logits_processors": [Broken(num_calls)]}
    return {"stop_when": broken_rule(num_calls)}


every_kind = pytest.mark.parametrize("kind", ["processor", "rule"])


@every_kind
@pytest.mark.parametrize("num_calls", [0, 1, 6])
def test_an_error_in_what_a_request_brings_along_ends_it_alone(
    llm: Outdraft, kind: str, num_calls: int
) -> None:
    for drafter in ("none", "suffix", "suffix,recycling"):
        session = llm.session(drafter=drafter)
        first = session.add("b", max_new_tokens=12)
        failing = session.add("cd", max_new_tokens=12, **broken(kind, num_calls))
        last = session.add("efg", max_new_tokens=12)
        drain(session)
        assert (failing.finish_reason, str(failing.error)) == ("error", f"broken {kind}")
        with pytest.raises(RuntimeError, match=f"broken {kind}"):
            _ = failing.result
        assert (first.error, last.error) == (None, None)
        for request, prompt in ((first, "b"), (last, "efg")):
            alone = llm.generate(prompt, max_new_tokens=12, drafter="none")
            assert request.result.token_ids == alone.token_ids
        again = session.add("cd", max_new_tokens=12)
        drain(session)
        alone = llm.generate("cd", max_new_tokens=12, drafter="none")
        assert again.result.token_ids == alone.token_ids


@every_kind
def test_whoever_asked_hears_of_it(llm: Outdraft, kind: str) -> None:
    wrong = broken(kind, 3)
    with pytest.raises(RuntimeError, match="broken"):
        llm.generate(["b", "cd"], max_new_tokens=9, per_prompt=[{}, wrong])
    stream = llm.stream("cd", max_new_tokens=9, drafter="none", **wrong)
    pieces = []
    with pytest.raises(RuntimeError, match="broken"):
        pieces.extend(stream)
    with pytest.raises(RuntimeError, match="broken"):
        _ = stream.result
    assert list(stream) == []
    chat = llm.chat(max_new_tokens=9)
    chat.send("de")
    with pytest.raises(RuntimeError, match="broken"):
        chat.send("fg", **broken(kind, 3))
    assert chat.num_turns == 1
    assert chat.send("fg").finish_reason in ("length", "stop")


# --- memory ---------------------------------------------------------------------------------------


def live_bytes() -> tuple[int, int]:
    """Tensors that are alive, and the memory they take."""
    gc.collect()
    storages = {}
    tensors = [each for each in gc.get_objects() if issubclass(type(each), torch.Tensor)]
    for tensor in tensors:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
    return len(tensors), sum(storages.values())


def test_memory_is_flat_over_hundreds_of_requests() -> None:
    llm = Outdraft(
        tiny_target("llama"),
        LetterTokenizer(),
        settings=EngineSettings(adaptive=False, max_batch=4, max_kept_tokens=200),
    )
    session = llm.session(drafter="suffix,recycling")
    (drafter,) = {llm.drafter("suffix,recycling")}
    alive: list[Request] = []
    marks: list[tuple[int, int]] = []
    drafter_bytes: list[int] = []
    for i in range(300):
        prompt = [(i * 7 + k * (1 + i % 5)) % VOCAB for k in range(3 + i % 30)]
        alive.append(session.add(prompt, max_new_tokens=1 + i % 8))
        session.step()
        if i % 9 == 0:
            session.cancel(alive[-1])
        alive = [request for request in alive if not request.is_done][-4:]
        if i in (99, 299):
            drain(session)
            alive.clear()
            marks.append(live_bytes())
            drafter_bytes.append(drafter.parts[0].memory_bytes)
    (num_early, early), (num_late, late) = marks
    assert late <= early * 1.03
    assert num_late <= num_early * 1.03
    assert drafter_bytes == [0, 0]
    assert session._requests == {}
