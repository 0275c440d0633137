from __future__ import annotations

import gc
from collections.abc import Sequence as Seq
from typing import Any

import pytest

import outdraft
from outdraft.draft.prompt_lookup import PromptLookup
from outdraft.errors import DrafterError, SettingsError
from outdraft.generate import Outdraft
from outdraft.interfaces import Drafter
from outdraft.models.table import TableTarget
from outdraft.sequence import Sequence
from outdraft.settings import AUTO_DRAFTER, EngineSettings
from outdraft.types import Budget, DraftTree
from support.toys import LetterTokenizer, decode_letters, decode_pairs

DRAFTERS = ["none", "prompt-lookup", "suffix"]


def make_llm(table: TableTarget, **options: Any) -> Outdraft:
    return Outdraft(table, LetterTokenizer(), name="table", **options)


@pytest.fixture
def llm(table: TableTarget) -> Outdraft:
    return make_llm(table)


class Counting(PromptLookup):
    """Notes which requests it let go."""

    name = "counting"

    def __init__(self) -> None:
        super().__init__()
        self.finished: list[int] = []

    def finish(self, sequence: Sequence) -> None:
        super().finish(sequence)
        self.finished.append(sequence.request_id)


# --- one prompt -----------------------------------------------------------------------------------


def test_a_result_says_what_was_written_and_how(llm: Outdraft) -> None:
    result = llm.generate("bcd", max_new_tokens=20, drafter="suffix", seed=4)
    assert result.text == decode_letters(result.token_ids)
    assert len(result.token_ids) == result.stats.tokens == 20
    assert (result.prompt_tokens, result.finish_reason) == (4, "length")
    assert (result.drafter, result.seed) == ("suffix", 4)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_every_drafter_writes_the_same_text(llm: Outdraft, temperature: float) -> None:
    results = [
        llm.generate("bcdbcd", max_new_tokens=40, temperature=temperature, seed=3, drafter=drafter)
        for drafter in DRAFTERS
    ]
    assert len({(result.text, result.token_ids, result.finish_reason) for result in results}) == 1
    assert [result.drafter for result in results] == DRAFTERS
    assert results[0].stats.drafted == 0 < results[1].stats.accepted


def test_text_ids_and_chats_are_prompts(llm: Outdraft) -> None:
    by_text = llm.generate("bcd", max_new_tokens=9)
    by_ids = llm.generate([0, 1, 2, 3], max_new_tokens=9)
    by_chat = llm.generate([{"role": "assistant", "content": "bcd"}], max_new_tokens=9)
    assert by_text.token_ids == by_ids.token_ids == by_chat.token_ids


def test_a_stop_string_is_not_part_of_the_text_and_its_tokens_are_part_of_the_ids(
    table: TableTarget,
) -> None:
    llm = Outdraft(table, LetterTokenizer(decode=decode_pairs))
    whole = llm.generate("bcd", max_new_tokens=30)
    stop = whole.text[9:12]
    for drafter in DRAFTERS:
        result = llm.generate("bcd", max_new_tokens=30, stop=stop, drafter=drafter)
        assert result.text == whole.text[: whole.text.index(stop)]
        assert result.finish_reason == "stop"
        written = decode_pairs(result.token_ids)
        assert stop in written
        assert stop not in decode_pairs(result.token_ids[:-1])


def test_an_end_token_stops_the_text_and_ignore_eos_does_not(table: TableTarget) -> None:
    llm = make_llm(table)
    free = llm.generate("bcd", max_new_tokens=30)
    end = free.token_ids[7]
    llm = make_llm(table, eos_ids=[end])
    ended = llm.generate("bcd", max_new_tokens=30)
    length = free.token_ids.index(end) + 1
    assert (ended.token_ids, ended.finish_reason) == (free.token_ids[:length], "stop")
    assert llm.generate("bcd", max_new_tokens=30, ignore_eos=True).token_ids == free.token_ids


# --- seeds ----------------------------------------------------------------------------------------


def test_the_seed_of_an_unseeded_result_repeats_its_text(llm: Outdraft) -> None:
    first = llm.generate("bcd", max_new_tokens=30, temperature=1.5)
    again = llm.generate("bcd", max_new_tokens=30, temperature=1.5, seed=first.seed)
    assert again.token_ids == first.token_ids


def test_unseeded_requests_do_not_share_their_randomness(llm: Outdraft) -> None:
    results = llm.generate(["bcd"] * 4, max_new_tokens=30, temperature=1.5)
    assert len({result.seed for result in results}) == 4
    assert len({result.token_ids for result in results}) == 4


def test_a_greedy_text_does_not_depend_on_the_seed(llm: Outdraft) -> None:
    texts = {llm.generate("bcd", max_new_tokens=30, seed=seed).token_ids for seed in range(4)}
    assert len(texts) == 1


# --- batches --------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_batch_is_its_single_runs(table: TableTarget, drafter: str, temperature: float) -> None:
    llm = make_llm(table, settings=EngineSettings(max_batch=3, max_draft_nodes=5, prompt_chunk=4))
    prompts = ["b", "cdefghcdefgh", "dd", "efgefgefg", "m"]
    options = {"max_new_tokens": 25, "temperature": temperature, "seed": 8, "drafter": drafter}
    batch = llm.generate(prompts, **options)
    singles = [llm.generate(prompt, **options) for prompt in prompts]
    assert [result.token_ids for result in batch] == [result.token_ids for result in singles]
    assert [result.text for result in batch] == [result.text for result in singles]
    assert [result.prompt_tokens for result in batch] == [2, 13, 3, 10, 2]


def test_a_list_of_one_prompt_gives_a_list_of_one_result(llm: Outdraft) -> None:
    assert len(llm.generate(["bcd"], max_new_tokens=3)) == 1


# --- streams --------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("stop", [(), ("ab",), ("c", "de")])
def test_pieces_join_to_the_result(table: TableTarget, drafter: str, stop: tuple[str, ...]) -> None:
    llm = Outdraft(table, LetterTokenizer(decode=decode_pairs), drafter=drafter)
    options = {"max_new_tokens": 30, "temperature": 1.0, "seed": 2, "stop": stop}
    stream = llm.stream("bcd", **options)
    pieces = list(stream)
    result = stream.result
    whole = llm.generate("bcd", **options)
    assert "".join(piece.text for piece in pieces) == result.text == whole.text
    assert sum((piece.token_ids for piece in pieces), ()) == result.token_ids == whole.token_ids
    assert result.finish_reason == whole.finish_reason
    origins = [origin for piece in pieces for origin in piece.origins]
    assert len(origins) == len(result.token_ids)
    assert origins.count("drafted") == result.stats.accepted


def test_origins_tell_guesses_from_the_targets_own_tokens(llm: Outdraft) -> None:
    options = {"max_new_tokens": 60, "temperature": 0.7, "seed": 1}
    pieces = list(llm.stream("bcdbcdbcd", drafter="prompt-lookup", **options))
    assert pieces[0].origins == ("plain",)
    for piece in pieces[1:-1]:
        *drafted, own = piece.origins
        assert set(drafted) <= {"drafted"}
        assert own in ("bonus", "corrected", "plain")
    origins = {origin for piece in pieces for origin in piece.origins}
    assert origins == {"plain", "drafted", "corrected", "bonus"}


def test_the_result_before_the_end_is_an_error(llm: Outdraft) -> None:
    stream = llm.stream("bcd", max_new_tokens=5)
    with pytest.raises(SettingsError, match="has not ended"):
        _ = stream.result
    next(stream)
    with pytest.raises(SettingsError, match="has not ended"):
        _ = stream.result


def test_a_cancelled_stream_has_a_result_and_no_more_pieces(llm: Outdraft) -> None:
    stream = llm.stream("bcd", max_new_tokens=50)
    pieces = [next(stream), next(stream)]
    stream.cancel()
    assert list(stream) == []
    assert stream.result.finish_reason == "cancelled"
    assert stream.result.token_ids == sum((piece.token_ids for piece in pieces), ())
    assert stream.result.text == "".join(piece.text for piece in pieces)


def test_leaving_the_with_block_cancels(table: TableTarget) -> None:
    drafter = Counting()
    llm = make_llm(table, drafter=drafter)
    with llm.stream("bcd", max_new_tokens=50) as stream:
        next(stream)
    assert stream.result.finish_reason == "cancelled"
    assert len(drafter.finished) == 1


def test_deleting_a_stream_frees_what_its_drafter_kept(table: TableTarget) -> None:
    drafter = Counting()
    llm = make_llm(table, drafter=drafter)
    stream = llm.stream("bcd", max_new_tokens=50)
    next(stream)
    del stream
    gc.collect()
    assert len(drafter.finished) == 1


def test_cancelling_after_the_end_changes_nothing(llm: Outdraft) -> None:
    stream = llm.stream("bcd", max_new_tokens=5)
    list(stream)
    stream.cancel()
    assert stream.result.finish_reason == "length"


def test_two_streams_at_once_do_not_mix(llm: Outdraft) -> None:
    prompts = ["bcdbcd", "edcedc"]
    expected = [llm.generate(prompt, max_new_tokens=20) for prompt in prompts]
    streams = [llm.stream(prompt, max_new_tokens=20) for prompt in prompts]
    pieces: list[list[int]] = [[], []]
    is_open = [True, True]
    while any(is_open):
        for i, stream in enumerate(streams):
            piece = next(stream, None)
            is_open[i] = piece is not None
            pieces[i] += piece.token_ids if piece else ()
    assert [tuple(ids) for ids in pieces] == [result.token_ids for result in expected]


class Failing(Drafter):
    """Guesses once and then fails."""

    name = "failing"

    def __init__(self) -> None:
        self.finished: list[int] = []

    def propose(self, batch: Seq[Sequence], budget: Budget) -> list[DraftTree]:
        raise RuntimeError("no idea")

    def finish(self, sequence: Sequence) -> None:
        self.finished.append(sequence.request_id)


def test_an_error_in_a_stream_ends_it(table: TableTarget) -> None:
    drafter = Failing()
    stream = make_llm(table, drafter=drafter).stream("bcd", max_new_tokens=5)
    next(stream)
    with pytest.raises(RuntimeError, match="no idea"):
        next(stream)
    assert stream.result.finish_reason == "cancelled"
    assert len(drafter.finished) == 1


def test_an_error_in_a_batch_frees_all_requests(table: TableTarget) -> None:
    drafter = Failing()
    with pytest.raises(RuntimeError, match="no idea"):
        make_llm(table, drafter=drafter).generate(["b", "c", "d"], max_new_tokens=5)
    assert len(drafter.finished) == 3


# --- choices --------------------------------------------------------------------------------------


def test_auto_is_a_drafter_that_drafts(llm: Outdraft) -> None:
    assert llm.generate("bcdbcd", max_new_tokens=9).drafter == AUTO_DRAFTER


def test_a_call_may_name_another_drafter(table: TableTarget) -> None:
    llm = make_llm(table, drafter="none")
    assert llm.generate("b", max_new_tokens=3).drafter == "none"
    assert llm.generate("b", max_new_tokens=3, drafter="suffix").drafter == "suffix"
    assert llm.generate("b", max_new_tokens=3, drafter=Counting()).drafter == "counting"


def test_an_unknown_drafter_is_refused_when_it_is_named(table: TableTarget) -> None:
    with pytest.raises(DrafterError, match="'magic'"):
        make_llm(table, drafter="magic")
    with pytest.raises(DrafterError, match="'magic'"):
        make_llm(table).generate("b", drafter="magic")
    with pytest.raises(DrafterError, match="'magic'"):
        make_llm(table).stream("b", drafter="magic")


def test_a_drafter_lets_every_request_go(table: TableTarget) -> None:
    drafter = Counting()
    llm = make_llm(table, drafter=drafter)
    llm.generate(["b", "c"], max_new_tokens=5)
    list(llm.stream("d", max_new_tokens=5))
    assert len(set(drafter.finished)) == 3
    assert drafter._indexes == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temprature": 1}, "temprature"),
        ({"top_k": 0}, "top_k"),
        ({"max_new_tokens": 0}, "max_new"),
    ],
)
def test_bad_settings_are_refused_before_anything_runs(
    llm: Outdraft, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        llm.generate("b", **options)
    with pytest.raises(SettingsError, match=message):
        llm.stream("b", **options)


@pytest.mark.parametrize("prompts", ["", [], [[]], ["b", ""]])
def test_prompts_without_tokens_are_refused(table: TableTarget, prompts: Any) -> None:
    class Bare(LetterTokenizer):
        def __call__(self, text: str, *, add_special_tokens: bool = True) -> dict[str, list[int]]:
            return super().__call__(text, add_special_tokens=False)

    with pytest.raises(SettingsError, match="no tokens"):
        Outdraft(table, Bare()).generate(prompts)


@pytest.mark.parametrize("message", [{"role": "user"}, {"role": "user", "content": None}, {}])
def test_a_message_without_role_or_content_is_refused(llm: Outdraft, message: Any) -> None:
    llm.tokenizer.chat_template = "any"
    with pytest.raises(SettingsError, match="chat message has"):
        llm.generate([message])


@pytest.mark.parametrize("ids", [[1, 16], [-1], [10**6]])
def test_ids_outside_the_vocabulary_are_refused(llm: Outdraft, ids: list[int]) -> None:
    with pytest.raises(SettingsError, match="vocabulary has 16"):
        llm.generate(ids)


def test_broken_text_is_refused(llm: Outdraft) -> None:
    with pytest.raises(SettingsError, match="no valid Unicode"):
        llm.generate("\udcff")


def test_what_is_no_drafter_is_refused(llm: Outdraft) -> None:
    with pytest.raises(SettingsError, match="drafter=5"):
        llm.generate("b", drafter=5)  # type: ignore[call-overload]


@pytest.mark.parametrize("prompts", [None, 3, b"abc", {"role": "user", "content": "hi"}])
def test_what_is_no_list_is_no_list_of_prompts(llm: Outdraft, prompts: Any) -> None:
    with pytest.raises(SettingsError, match="a prompt is text"):
        llm.generate(prompts)


@pytest.mark.parametrize("prompts", [[1.5], [None], ["b", None], [["b"]], [True]])
def test_what_is_no_prompt_is_refused(llm: Outdraft, prompts: Any) -> None:
    with pytest.raises(SettingsError, match="a prompt is text"):
        llm.generate(prompts)


def test_a_prompt_that_fills_the_context_is_refused() -> None:
    llm = Outdraft(TableTarget(max_context=10), LetterTokenizer())
    with pytest.raises(SettingsError, match="10 tokens"):
        llm.generate("b" * 9)
    result = llm.generate("b" * 8, max_new_tokens=50)
    assert (len(result.token_ids), result.finish_reason) == (1, "length")


# --- the facade -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(outdraft.__all__) - {"custom_generate"}))
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(outdraft, name) is not None


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'magic'"):
        _ = outdraft.magic
