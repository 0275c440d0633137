from __future__ import annotations

from collections.abc import Mapping, Sequence as Seq
from typing import Any

import pytest
from torch import Tensor

from outdraft.draft.prompt_lookup import PromptLookup
from outdraft.errors import SettingsError
from outdraft.generate import Outdraft
from outdraft.interfaces import KVCache, TargetModel
from outdraft.models.table import TableTarget
from outdraft.sequence import Sequence
from outdraft.settings import EngineSettings
from outdraft.types import Budget, DraftTree, Rows
from support.tiny_models import tiny_target
from support.toys import TABLE, LetterTokenizer

ROLES = {"system": "C", "user": "B", "assistant": "A"}
QUESTIONS = ["DEFDEF", "GHG", "DEFDEFIJ"]


class Characters:
    """One character per token; in a chat, each message stands behind a letter for its role."""

    chat_template = "characters"

    def __call__(self, text: str, *, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [ord(character) - ord("A") for character in text]}

    def decode(self, token_ids: Seq[int], **_: Any) -> str:
        return "".join(chr(ord("A") + token_id) for token_id in token_ids)

    def apply_chat_template(
        self, conversation: Seq[Mapping[str, str]], *, tokenize: bool, add_generation_prompt: bool
    ) -> str:
        said = "".join(ROLES[turn["role"]] + turn["content"] for turn in conversation)
        return said + ROLES["assistant"]


class Counted(TargetModel):
    """Another target, and how many tokens of prompts it read."""

    def __init__(self, target: TargetModel) -> None:
        self._target = target
        self.vocab_size, self.max_context = target.vocab_size, target.max_context
        self.device = target.device
        self.num_read = 0

    def new_cache(self) -> KVCache:
        return self._target.new_cache()

    def forward(
        self, rows: Rows, cache: KVCache, *, first_seq: int = 0, logits_to_keep: int = 0
    ) -> Tensor:
        self.num_read += rows.num_rows if logits_to_keep else 0
        return self._target.forward(rows, cache, first_seq=first_seq, logits_to_keep=logits_to_keep)


TARGETS = {
    "table": lambda: TableTarget(**TABLE),
    "llama": lambda: tiny_target("llama"),
    "gemma3-mixed": lambda: tiny_target("gemma3-mixed"),
}


def llm_over(target: TargetModel, **settings: Any) -> Outdraft:
    return Outdraft(
        target, Characters(), settings=EngineSettings(adaptive=False, **settings), drafter="suffix"
    )


@pytest.fixture
def llm(table: TableTarget) -> Outdraft:
    return llm_over(table)


# --- what is asked for ----------------------------------------------------------------------------


def test_a_turn_takes_all_that_a_request_takes(llm: Outdraft) -> None:
    options: dict[str, Any] = {
        "temperature": 1.0,
        "seed": 3,
        "max_new_tokens": 12,
        "repetition_penalty": 1.6,
        "no_repeat_ngram_size": 3,
        "stop_when": lambda token_ids, text: len(set(token_ids)) > 8,
        "logprobs": 1,
        "prompt_logprobs": True,
    }
    chat = llm.chat(**options)
    for question in QUESTIONS:
        messages = [*chat.messages, {"role": "user", "content": question}]
        plain = llm.generate(messages, drafter="none", **options)
        result = chat.send(question)
        assert (result.text, result.token_ids) == (plain.text, plain.token_ids)
        assert (result.logprobs, result.prompt_logprobs) == (plain.logprobs, plain.prompt_logprobs)
        assert len(result.prompt_logprobs) == result.prompt_tokens


def test_a_turn_has_one_answer(llm: Outdraft) -> None:
    with pytest.raises(SettingsError, match="one answer and not 2"):
        llm.chat(temperature=1.0, n=2)
    with pytest.raises(SettingsError, match="one answer and not 3"):
        llm.chat().send("DEF", temperature=1.0, best_of=3)


# --- what is read again ---------------------------------------------------------------------------


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("system", [None, "KLM"])
@pytest.mark.parametrize("chunk", [3, 512])
def test_three_turns_are_as_from_scratch_and_later_ones_read_what_is_new(
    target: str, temperature: float, system: str | None, chunk: int
) -> None:
    counted = Counted(TARGETS[target]())
    llm = llm_over(counted, prompt_chunk=chunk)
    settings: dict[str, Any] = {"max_new_tokens": 9, "temperature": temperature, "seed": 4}
    chat = llm.chat(system=system, **settings)
    known = 0
    for question in QUESTIONS:
        messages = [*chat.messages, {"role": "user", "content": question}]
        counted.num_read = 0
        result = chat.send(question)
        assert counted.num_read == result.prompt_tokens - known
        assert result.stats.reused_prompt_tokens == known
        scratch = llm.generate(messages, drafter="none", **settings)
        assert (result.text, result.token_ids) == (scratch.text, scratch.token_ids)
        assert scratch.stats.reused_prompt_tokens == 0
        # The last token of an answer is written and never read.
        known = result.prompt_tokens + len(result.token_ids) - 1
    assert chat.num_turns == 3


def test_without_room_for_kept_texts_everything_is_read_again(table: TableTarget) -> None:
    counted = Counted(table)
    chat = llm_over(counted, max_kept_tokens=0).chat(max_new_tokens=5)
    for question in QUESTIONS:
        counted.num_read = 0
        result = chat.send(question)
        assert counted.num_read == result.prompt_tokens


def test_a_turn_that_was_undone_is_no_part_of_what_is_reused(llm: Outdraft) -> None:
    chat = llm.chat(max_new_tokens=6)
    chat.send("DEF")
    before = chat.messages
    first = chat.send("GHI")
    chat.undo()
    assert chat.messages == before
    again = chat.send("GHI")
    assert again.token_ids == first.token_ids
    assert again.stats.reused_prompt_tokens == again.prompt_tokens - 1
    chat.undo()
    other = chat.send("GHH")
    assert other.stats.reused_prompt_tokens == other.prompt_tokens - 2
    scratch = llm.generate(
        [*before, {"role": "user", "content": "GHH"}], drafter="none", max_new_tokens=6
    )
    assert other.token_ids == scratch.token_ids


def test_requests_of_a_session_share_a_beginning(table: TableTarget) -> None:
    counted = Counted(table)
    llm = llm_over(counted, max_batch=2)
    beginning = "DEFGHIJKLMNO" * 3
    with llm.session() as session:
        one = session.add(beginning + "A", max_new_tokens=30)
        session.step()
        two = session.add(beginning + "B", max_new_tokens=5)  # while the first one runs
        late = session.add(beginning + "CCD", max_new_tokens=5)  # when the second has ended
        for _ in session:
            pass
    assert [each.result.stats.reused_prompt_tokens for each in (one, two, late)] == [0, 36, 36]
    assert counted.num_read == 37 + 1 + 3
    for request, end, length in ((one, "A", 30), (two, "B", 5), (late, "CCD", 5)):
        single = llm.generate(beginning + end, drafter="none", max_new_tokens=length)
        assert request.result.token_ids == single.token_ids


# --- the conversation -----------------------------------------------------------------------------


def test_messages_are_what_was_said(llm: Outdraft) -> None:
    chat = llm.chat(system="KL", max_new_tokens=4)
    answer = chat.send("DE").text
    assert chat.messages == [
        {"role": "system", "content": "KL"},
        {"role": "user", "content": "DE"},
        {"role": "assistant", "content": answer},
    ]
    chat.messages.clear()
    assert len(chat.messages) == 3
    chat.system = None
    chat.reset()
    assert chat.messages == []


def test_a_turn_may_change_the_settings(llm: Outdraft) -> None:
    chat = llm.chat(max_new_tokens=4)
    assert len(chat.send("DE", max_new_tokens=7).token_ids) == 7
    assert len(chat.send("DE").token_ids) == 4


def test_a_streamed_answer_is_said_when_it_has_ended(llm: Outdraft) -> None:
    chat = llm.chat(max_new_tokens=8)
    turn = chat.stream("DEF")
    text = next(turn).text
    assert chat.messages == []
    with pytest.raises(SettingsError, match="has not ended"):
        _ = turn.result
    text += "".join(piece.text for piece in turn)
    assert chat.messages[-1] == {"role": "assistant", "content": text}
    assert turn.result.text == text
    assert list(turn) == []
    assert chat.num_turns == 1


def test_a_cancelled_answer_stays_as_far_as_it_was_written(llm: Outdraft) -> None:
    chat = llm.chat(max_new_tokens=50)
    with chat.stream("DEF") as turn:
        pieces = [next(turn), next(turn)]
    assert turn.result.finish_reason == "cancelled"
    assert chat.messages[-1]["content"] == "".join(piece.text for piece in pieces)
    result = chat.send("GH", max_new_tokens=5)
    assert result.stats.reused_prompt_tokens > 4
    assert chat.num_turns == 2


def test_before_its_first_token_a_cancelled_answer_was_never_asked_for(llm: Outdraft) -> None:
    chat = llm.chat(max_new_tokens=50)
    with chat.stream("DEF"):
        pass
    assert chat.messages == []


@pytest.mark.parametrize("action", ["stream", "undo", "reset"])
def test_what_is_being_written_ends_first(llm: Outdraft, action: str) -> None:
    chat = llm.chat(max_new_tokens=50)
    turn = chat.stream("DEF")
    next(turn)
    if action == "stream":
        chat.send("GH", max_new_tokens=3)
    else:
        getattr(chat, action)()
    assert turn.result.finish_reason == "cancelled"
    assert list(turn) == []
    assert chat.num_turns == (2 if action == "stream" else 0)


def test_nothing_can_be_undone_before_anything_was_said(llm: Outdraft) -> None:
    with pytest.raises(SettingsError, match="nothing to undo"):
        llm.chat().undo()


class Failing(PromptLookup):
    """Raises what it is told to."""

    name = "failing"

    def __init__(self) -> None:
        super().__init__()
        self.error: BaseException | None = None

    def propose(self, batch: Seq[Sequence], budget: Budget) -> list[DraftTree]:
        if self.error is not None:
            raise self.error
        return super().propose(batch, budget)


def test_a_turn_that_fails_was_never_said(llm: Outdraft) -> None:
    drafter = Failing()
    chat = llm.chat(drafter=drafter, max_new_tokens=8)
    chat.send("DE")
    before = chat.messages
    drafter.error = RuntimeError("no idea")
    with pytest.raises(RuntimeError, match="no idea"):
        chat.send("FG")
    assert chat.messages == before
    drafter.error = None
    assert chat.send("FG").finish_reason == "length"


def test_an_interrupted_answer_stays_as_far_as_it_was_written(llm: Outdraft) -> None:
    drafter = Failing()
    chat = llm.chat(drafter=drafter, max_new_tokens=8)
    drafter.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        chat.send("DE")
    assert chat.num_turns == 1
    assert len(chat.messages[-1]["content"]) == 1


@pytest.mark.parametrize("settings", [{"temprature": 1.0}, {"top_k": 0}])
def test_bad_settings_are_refused_at_once(llm: Outdraft, settings: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        llm.chat(**settings)
    chat = llm.chat()
    with pytest.raises(SettingsError):
        chat.send("DE", **settings)
    assert chat.messages == []


def test_a_model_without_chat_template_has_no_chat(table: TableTarget) -> None:
    llm = Outdraft(table, LetterTokenizer(has_template=False), name="bare")
    with pytest.raises(SettingsError, match="bare has no chat template"):
        llm.chat()


def test_a_closed_chat_holds_nothing(llm: Outdraft) -> None:
    with llm.chat(max_new_tokens=50) as chat:
        next(chat.stream("DEF"))
        kept = chat._session._engine._kept
    assert kept is not None
    assert kept.num_tokens == 0
    assert chat._session.is_idle
