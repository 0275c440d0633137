from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence as Seq
from typing import Any

import pytest

from outdraft.draft.prompt_lookup import PromptLookup
from outdraft.engine import Engine
from outdraft.errors import OutdraftError, QueueFullError, SettingsError
from outdraft.generate import Outdraft
from outdraft.models.table import TableTarget
from outdraft.results import Result
from outdraft.sequence import Sequence
from outdraft.settings import EngineSettings
from outdraft.types import Budget, Commit, DraftTree
from support.tiny_models import tiny_target
from support.toys import LetterTokenizer

PROMPTS = ["bcd", "efgefg", "b", "hijhijhij", "klm", "cdcdcd", "no", "fgh"]
LENGTHS = [20, 7, 30, 1, 15, 25, 12, 18]


class Watched(PromptLookup):
    """Notes who runs it and which requests it let go; fails when told to."""

    name = "watched"

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[str] = set()
        self.batches: list[int] = []
        self.finished: list[int] = []
        self.fails = False

    def propose(self, batch: Seq[Sequence], budget: Budget) -> list[DraftTree]:
        self.threads.add(threading.current_thread().name)
        self.batches.append(len(batch))
        if self.fails:
            raise RuntimeError("no idea")
        return super().propose(batch, budget)

    def finish(self, sequence: Sequence) -> None:
        super().finish(sequence)
        self.finished.append(sequence.request_id)


@pytest.fixture
def drafter() -> Watched:
    return Watched()


@pytest.fixture
def llm(table: TableTarget, drafter: Watched) -> Outdraft:
    settings = EngineSettings(max_batch=4, prompt_chunk=4)
    return Outdraft(table, LetterTokenizer(), drafter=drafter, settings=settings)


def run(llm: Outdraft, work: Coroutine[Any, Any, Any]) -> Any:
    """Runs a coroutine in a loop of its own, and checks that nothing is left behind."""

    async def inside() -> Any:
        async with llm:
            result = await work
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return result

    result = asyncio.run(inside())
    assert not [each for each in threading.enumerate() if each.name.startswith("outdraft")]
    return result


def settings_of(i: int) -> dict[str, Any]:
    sampled = {"temperature": 1.0, "seed": i} if i % 2 else {}
    return {"max_new_tokens": LENGTHS[i], **sampled}


def check_alone(llm: Outdraft, i: int, result: Result) -> None:
    alone = llm.generate(PROMPTS[i], drafter="none", **settings_of(i))
    assert (result.text, result.token_ids) == (alone.text, alone.token_ids)
    assert result.finish_reason == alone.finish_reason


# --- many at once ---------------------------------------------------------------------------------


def test_many_waits_share_passes_and_each_gets_its_own_text(
    llm: Outdraft, drafter: Watched
) -> None:
    async def work() -> list[Result]:
        return await asyncio.gather(
            *(llm.agenerate(PROMPTS[i], **settings_of(i)) for i in range(len(PROMPTS)))
        )

    for i, result in enumerate(run(llm, work())):
        check_alone(llm, i, result)
    assert max(drafter.batches) == 4
    assert all(name.startswith("outdraft") for name in drafter.threads)


def test_so_they_do_on_a_real_model() -> None:
    class Wide(LetterTokenizer):
        def decode(self, token_ids: Seq[int], **_: Any) -> str:
            return "".join(chr(ord("A") + token_id) for token_id in token_ids)

    llm = Outdraft(
        tiny_target("llama"),
        Wide(),
        drafter="suffix,recycling",
        settings=EngineSettings(adaptive=False, prompt_chunk=5),
    )

    async def work() -> list[Result]:
        return await asyncio.gather(
            *(llm.agenerate(PROMPTS[i], **settings_of(i)) for i in range(len(PROMPTS)))
        )

    for i, result in enumerate(run(llm, work())):
        check_alone(llm, i, result)


def test_several_answers_are_those_of_generate(llm: Outdraft) -> None:
    settings = {"temperature": 1.0, "seed": 5, "max_new_tokens": 12, "n": 2, "best_of": 5}

    async def work() -> list[Result]:
        return await asyncio.gather(llm.agenerate("bcd", **settings), llm.agenerate("efg", n=1))

    result, _ = run(llm, work())
    plain = llm.generate("bcd", drafter="none", **settings)
    assert len(result.samples) == 2
    for one, other in zip(result.samples, plain.samples, strict=True):
        assert (one.token_ids, one.seed) == (other.token_ids, other.seed)


def test_a_cancelled_wait_for_several_answers_ends_all_of_them(
    llm: Outdraft, drafter: Watched
) -> None:
    async def work() -> None:
        task = asyncio.create_task(
            llm.agenerate("bcd", temperature=1.0, n=3, max_new_tokens=100_000)
        )
        while 3 not in drafter.batches:
            await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while len(drafter.finished) < 3:
            await asyncio.sleep(0.001)

    run(llm, work())
    assert len(set(drafter.finished)) == 3


def test_several_answers_find_room_together_or_not_at_all(llm: Outdraft, drafter: Watched) -> None:
    small = llm.with_engine(max_batch=1, max_waiting=1)

    async def work() -> Result:
        with pytest.raises(QueueFullError, match="max_waiting=1"):
            await small.agenerate("bcd", temperature=1.0, n=3)
        return await small.agenerate("bcd", temperature=1.0, n=2, max_new_tokens=3)

    assert len(run(small, work()).samples) == 2
    assert len(drafter.finished) == 2


def test_a_stream_of_pieces_is_one_answer(llm: Outdraft) -> None:
    async def work() -> None:
        async for _ in llm.astream("bcd", temperature=1.0, n=2):
            pass

    with pytest.raises(SettingsError, match="one answer and not 2"):
        run(llm, work())


def test_pieces_join_to_the_text(llm: Outdraft) -> None:
    async def read(i: int) -> list[int]:
        return [
            token_id
            async for piece in llm.astream(PROMPTS[i], **settings_of(i))
            for token_id in piece.token_ids
        ]

    async def work() -> list[list[int]]:
        return await asyncio.gather(*(read(i) for i in range(4)))

    for i, token_ids in enumerate(run(llm, work())):
        alone = llm.generate(PROMPTS[i], drafter="none", **settings_of(i))
        assert tuple(token_ids) == alone.token_ids


def test_the_loop_goes_on_while_a_step_runs(llm: Outdraft, monkeypatch: pytest.MonkeyPatch) -> None:
    passed = threading.Event()
    step = Engine.step

    def slow_step(engine: Engine) -> list[Commit]:
        assert passed.wait(timeout=60)  # until the loop has done something else
        return step(engine)

    monkeypatch.setattr(Engine, "step", slow_step)

    async def work() -> Result:
        waiting = asyncio.create_task(llm.agenerate("bcd", max_new_tokens=5))
        for _ in range(3):
            await asyncio.sleep(0)
        assert not waiting.done()
        passed.set()
        return await waiting

    assert len(run(llm, work()).token_ids) == 5


def test_while_nobody_waits_nothing_runs(llm: Outdraft) -> None:
    async def work() -> None:
        await llm.agenerate("bcd", max_new_tokens=5)
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await llm.agenerate("bcd", max_new_tokens=5)  # and it begins again

    run(llm, work())


# --- cancelling -----------------------------------------------------------------------------------


@pytest.mark.parametrize("num_turns", [0, 1, 5, 20])
def test_cancelling_a_wait_leaves_the_others_right(
    llm: Outdraft, drafter: Watched, num_turns: int
) -> None:
    async def work() -> list[Any]:
        tasks = [asyncio.create_task(llm.agenerate(PROMPTS[i], **settings_of(i))) for i in range(6)]
        endless = [
            asyncio.create_task(llm.agenerate(prompt, max_new_tokens=3000)) for prompt in "bc"
        ]
        for _ in range(num_turns):
            await asyncio.sleep(0)
        endless[0].cancel()
        await asyncio.sleep(0)
        endless[1].cancel()
        results = await asyncio.gather(*tasks)
        gone = await asyncio.gather(*endless, return_exceptions=True)
        assert [type(each) for each in gone] == [asyncio.CancelledError] * 2
        return results

    for i, result in enumerate(run(llm, work())):
        check_alone(llm, i, result)
    assert len(drafter.finished) == len(set(drafter.finished))
    assert drafter._indexes == {}


def test_leaving_a_stream_early_cancels_it(llm: Outdraft, drafter: Watched) -> None:
    async def work() -> Result:
        other = asyncio.create_task(llm.agenerate(PROMPTS[0], **settings_of(0)))
        stream = llm.astream("b", max_new_tokens=3000)
        async for _ in stream:
            break
        await stream.aclose()
        return await other

    check_alone(llm, 0, run(llm, work()))
    assert len(drafter.finished) == 2


def test_closing_ends_what_runs_and_waiters_get_what_was_written(llm: Outdraft) -> None:
    async def work() -> None:
        tasks = [
            asyncio.create_task(llm.agenerate(prompt, max_new_tokens=3000)) for prompt in "bcdefg"
        ]
        async for _ in llm.astream("h", max_new_tokens=2):
            pass
        await llm.aclose()
        results = await asyncio.gather(*tasks)
        assert {result.finish_reason for result in results} == {"cancelled"}
        assert max(len(result.token_ids) for result in results) > 0
        again = await llm.agenerate(PROMPTS[0], **settings_of(0))
        check_alone(llm, 0, again)

    run(llm, work())


def test_a_loop_that_ends_in_the_middle_leaves_a_model_that_works(
    llm: Outdraft, drafter: Watched
) -> None:
    async def give_up() -> None:
        waiting = asyncio.create_task(llm.agenerate("b", max_new_tokens=3000))
        async for _ in llm.astream("c", max_new_tokens=2):
            pass
        assert not waiting.done()

    asyncio.run(give_up())  # cancels what is left, and does not wait for the text
    assert drafter._indexes == {}
    result = run(llm, llm.agenerate(PROMPTS[0], **settings_of(0)))
    check_alone(llm, 0, result)


def test_a_request_may_choose_its_drafter(llm: Outdraft, drafter: Watched) -> None:
    async def read(i: int, choice: str) -> list[int]:
        pieces = [p async for p in llm.astream(PROMPTS[i], drafter=choice, **settings_of(i))]
        return [token_id for piece in pieces for token_id in piece.token_ids]

    async def work() -> list[Any]:
        return await asyncio.gather(
            llm.agenerate(PROMPTS[0], **settings_of(0)),
            llm.agenerate(PROMPTS[1], drafter="none", **settings_of(1)),
            llm.agenerate(PROMPTS[2], drafter="suffix", **settings_of(2)),
            llm.agenerate(PROMPTS[5], drafter="suffix", **settings_of(5)),
            read(4, "none"),
        )

    *results, streamed = run(llm, work())
    for i, result in zip((0, 1, 2, 5), results, strict=True):
        check_alone(llm, i, result)
    assert [each.drafter for each in results] == ["watched", "none", "suffix", "suffix"]
    assert streamed == list(llm.generate(PROMPTS[4], drafter="none", **settings_of(4)).token_ids)
    assert len(drafter.finished) == 1


# --- errors ---------------------------------------------------------------------------------------


def test_an_error_of_the_engine_reaches_every_waiter(llm: Outdraft, drafter: Watched) -> None:
    async def read() -> None:
        async for _ in llm.astream("f", max_new_tokens=30):
            pass

    async def work() -> list[Any]:
        drafter.fails = True
        waits = [llm.agenerate(prompt, max_new_tokens=30) for prompt in "bcdeh"]
        gone = await asyncio.gather(*waits, read(), return_exceptions=True)
        drafter.fails = False
        assert [str(each) for each in gone] == ["no idea"] * 6
        return await asyncio.gather(
            *(llm.agenerate(PROMPTS[i], **settings_of(i)) for i in range(4))
        )

    for i, result in enumerate(run(llm, work())):
        check_alone(llm, i, result)


def test_an_error_in_what_a_request_brings_along_reaches_it_alone(llm: Outdraft) -> None:
    def stop(token_ids: list[int], text: str) -> bool:
        raise RuntimeError(f"no rule for {len(token_ids)}")

    async def work() -> list[Any]:
        return await asyncio.gather(
            llm.agenerate(PROMPTS[0], **settings_of(0)),
            llm.agenerate(PROMPTS[1], stop_when=stop, **settings_of(1)),
            llm.agenerate(PROMPTS[2], **settings_of(2)),
            return_exceptions=True,
        )

    first, failed, last = run(llm, work())
    assert str(failed) == "no rule for 1"
    check_alone(llm, 0, first)
    check_alone(llm, 2, last)


def test_what_cannot_be_run_is_told_to_whoever_asked(llm: Outdraft) -> None:
    async def work() -> list[Any]:
        return await asyncio.gather(
            llm.agenerate("b", temprature=1),
            llm.agenerate("", max_new_tokens=0),
            llm.agenerate(["b", "c"]),
            llm.agenerate(PROMPTS[0], **settings_of(0)),
            return_exceptions=True,
        )

    *refused, answered = run(llm, work())
    assert [type(each) for each in refused] == [SettingsError] * 3
    check_alone(llm, 0, answered)


def test_no_more_may_wait_than_the_settings_say(table: TableTarget) -> None:
    settings = EngineSettings(max_batch=2, max_waiting=1)
    llm = Outdraft(table, LetterTokenizer(), settings=settings)

    async def work() -> list[Any]:
        waits = [llm.agenerate(prompt, max_new_tokens=4) for prompt in "bcdef"]
        return await asyncio.gather(*waits, return_exceptions=True)

    results = run(llm, work())
    assert [isinstance(each, QueueFullError) for each in results] == [False] * 3 + [True] * 2


def test_a_second_loop_is_refused_while_the_first_is_busy(llm: Outdraft) -> None:
    async def other() -> None:
        await llm.agenerate("b")

    async def work() -> Result:
        waiting = asyncio.create_task(llm.agenerate(PROMPTS[0], **settings_of(0)))
        await asyncio.sleep(0)
        with pytest.raises(OutdraftError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, other())
        return await waiting

    check_alone(llm, 0, run(llm, work()))


def test_plain_calls_work_beside_waits(llm: Outdraft) -> None:
    async def work() -> list[Result]:
        waits = [asyncio.create_task(llm.agenerate(PROMPTS[i], **settings_of(i))) for i in range(4)]
        await asyncio.sleep(0)
        plain = llm.generate(PROMPTS[4], **settings_of(4))
        return [*await asyncio.gather(*waits), plain]

    for i, result in enumerate(run(llm, work())):
        check_alone(llm, i, result)
