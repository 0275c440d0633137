from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence as Seq
from typing import Any

import pytest
import torch

import outdraft
from outdraft import generate, sequences
from outdraft.draft.prompt_lookup import PromptLookup
from outdraft.errors import DrafterError, SettingsError
from outdraft.generate import Outdraft
from outdraft.interfaces import Drafter
from outdraft.models.load import LoadedModel
from outdraft.models.pack import Packing
from outdraft.models.table import TableTarget
from outdraft.models.target import CausalLM
from outdraft.plan import Priced
from outdraft.plan.calibration import Calibrator
from outdraft.plan.cost_model import CostModel
from outdraft.plan.profile import Profile
from outdraft.sequence import Sequence
from outdraft.settings import AUTO_DRAFTER, EngineSettings, GenerationSettings
from outdraft.types import Budget, DraftTree
from plain import reader_of_target
from support.tiny_files import tiny_tokenizer
from support.tiny_models import tiny_model, tiny_target
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


# --- requests that differ, and several answers ----------------------------------------------------


def test_each_prompt_may_have_settings_of_its_own(llm: Outdraft) -> None:
    own: list[Any] = [{}, {"max_new_tokens": 3, "seed": 1}, GenerationSettings(top_k=1)]
    options: dict[str, Any] = {"temperature": 1.0, "seed": 5, "max_new_tokens": 9}
    results = llm.generate(["bcd", "b", "bcd"], per_prompt=own, **options)
    assert [len(result.token_ids) for result in results] == [9, 3, 9]
    assert [result.seed for result in results] == [5, 1, 5]
    assert results[0].token_ids == llm.generate("bcd", **options).token_ids
    assert results[2].token_ids == llm.generate("bcd", max_new_tokens=9).token_ids


def test_settings_per_prompt_are_for_lists(llm: Outdraft) -> None:
    with pytest.raises(SettingsError, match="a list of prompts"):
        llm.generate("bcd", per_prompt=[{}])  # type: ignore[call-overload]
    with pytest.raises(SettingsError, match="topk"):
        llm.generate(["bcd"], per_prompt=[{"topk": 3}])


def test_several_answers_have_seeds_that_repeat_them(llm: Outdraft) -> None:
    options: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 12}
    result = llm.generate("bcd", n=4, seed=6, **options)
    assert result.seed == 6
    assert len({sample.seed for sample in result.samples}) == 4
    assert len({sample.token_ids for sample in result.samples}) == 4
    for sample in result.samples:
        alone = llm.generate("bcd", seed=sample.seed, drafter="none", **options)
        assert (alone.token_ids, alone.samples) == (sample.token_ids, (alone,))
    assert llm.generate("bcd", n=2, seed=6, **options).samples[1].seed == result.samples[1].seed


def test_best_of_draws_more_answers_than_it_returns(llm: Outdraft) -> None:
    options: dict[str, Any] = {"temperature": 1.5, "max_new_tokens": 12, "seed": 6}
    drawn = llm.generate("bcd", n=5, logprobs=0, **options).samples
    means = sorted((sample.mean_logprob or 0.0 for sample in drawn), reverse=True)
    best = llm.generate("bcd", n=2, best_of=5, **options).samples
    assert [sample.mean_logprob for sample in best] == pytest.approx(means[:2])


def test_a_stream_is_one_answer(llm: Outdraft) -> None:
    with pytest.raises(SettingsError, match="give one answer and not 2"):
        llm.stream("bcd", temperature=1.0, n=2)


def test_logprobs_come_with_every_piece(llm: Outdraft) -> None:
    stream = llm.stream("bcdbcd", max_new_tokens=12, logprobs=1, prompt_logprobs=True)
    pieces = list(stream)
    result = stream.result
    assert tuple(each for piece in pieces for each in piece.logprobs) == result.logprobs
    assert [each.token_id for each in result.logprobs] == list(result.token_ids)
    assert [each and each.token_id for each in result.prompt_logprobs] == [None, 1, 2, 3, 1, 2, 3]
    for each in result.logprobs:  # a greedy token is the likeliest
        assert each.top == ((each.token_id, each.logprob),)


@pytest.mark.parametrize("chunk", [1, 3, 512])
def test_prompt_logprobs_are_those_of_each_prefix_however_the_prompt_is_read(
    table: TableTarget, chunk: int
) -> None:
    llm = make_llm(table).with_engine(prompt_chunk=chunk)
    found = llm.generate("bcdbcd", max_new_tokens=1, prompt_logprobs=True).prompt_logprobs
    ids, read = [0, 1, 2, 3, 1, 2, 3], reader_of_target(table)
    assert found[0] is None
    assert len(found) == len(ids)
    for place, each in enumerate(found[1:], start=1):
        assert each is not None
        assert each.token_id == ids[place]
        logits = read(ids[:place])[0]
        assert each.logprob == pytest.approx(float(logits.log_softmax(-1)[ids[place]]))


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


def test_a_prompt_of_many_chunks_is_one_piece(table: TableTarget) -> None:
    llm = make_llm(table, settings=EngineSettings(prompt_chunk=2))
    stream = llm.stream("bcdefghij", max_new_tokens=8)
    pieces = list(stream)
    whole = make_llm(table).generate("bcdefghij", max_new_tokens=8)
    assert all(piece.token_ids for piece in pieces)
    assert stream.result.token_ids == whole.token_ids


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


# --- prices ---------------------------------------------------------------------------------------


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[CausalLM, str]]:
    """The models whose passes were measured, and their names."""
    models: list[tuple[CausalLM, str]] = []

    def known_costs(target: CausalLM, name: str) -> CostModel:
        models.append((target, name))
        return CostModel([1, 99], [1.0, 1.0])

    monkeypatch.setattr(generate, "known_costs", known_costs)
    return models


def tiny_llm(**options: Any) -> Outdraft:
    return Outdraft(tiny_target("llama"), LetterTokenizer(), name="tiny", **options)


def test_passes_are_measured_when_they_are_first_needed(
    measured: list[tuple[CausalLM, str]],
) -> None:
    llm = tiny_llm()
    assert measured == []
    for _ in range(2):
        llm.generate("bcd", max_new_tokens=4)
        list(llm.stream("bcd", max_new_tokens=4))
    assert measured == [(llm.target, "tiny")]


def test_plain_decoding_measures_nothing(measured: list[tuple[CausalLM, str]]) -> None:
    llm = tiny_llm(drafter="none")
    plain = llm.generate("bcd", max_new_tokens=4)
    list(llm.stream("bcd", max_new_tokens=4))
    assert measured == []
    assert plain.stats.estimated_speedup is None
    assert llm.generate("bcd", max_new_tokens=4, drafter="suffix").token_ids == plain.token_ids
    assert measured == [(llm.target, "tiny")]


def test_a_pricing_that_was_handed_in_is_used(measured: list[tuple[CausalLM, str]]) -> None:
    pricing = Priced(CostModel([1, 99], [1.0, 1.0]))
    llm = tiny_llm(drafter="suffix").with_engine(pricing=pricing)
    llm.generate("bcdbcdbcd", max_new_tokens=20)
    assert pricing.calibrator.reliability()["suffix"].judged > 0
    assert measured == []


def test_a_profile_goes_before_measured_costs(
    measured: list[tuple[CausalLM, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = Profile(CostModel([1], [7.0]), Calibrator(), (), "today", 1)
    monkeypatch.setattr(generate, "load_profile", lambda _: profile)
    pricing = tiny_llm()._pricing
    assert isinstance(pricing, Priced)
    assert (pricing.costs, pricing.calibrator) == (profile.costs, profile.calibrator)
    assert measured == []


def test_all_requests_learn_for_each_other(measured: list[tuple[CausalLM, str]]) -> None:
    llm = tiny_llm(drafter="suffix")
    pricing = llm._pricing
    assert isinstance(pricing, Priced)
    llm.generate(["bcdbcdbcd", "efefef"], max_new_tokens=20)
    judged = pricing.calibrator.reliability()["suffix"].judged
    list(llm.stream("bcdbcdbcd", max_new_tokens=20))
    assert 0 < judged < pricing.calibrator.reliability()["suffix"].judged
    assert pricing._requests == {}


def test_a_request_that_is_refused_measures_nothing(measured: list[tuple[CausalLM, str]]) -> None:
    llm = tiny_llm()
    with pytest.raises(SettingsError, match="top_k"):
        llm.stream("b", top_k=0)
    with pytest.raises(SettingsError, match="top_k"):
        llm.generate("b", top_k=0)
    assert measured == []


def test_measuring_is_no_time_of_the_request_that_waited_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[str] = []

    def known_costs(target: CausalLM, name: str) -> CostModel:
        made.append("costs")
        return CostModel([1], [1.0])

    class Noted(Sequence):
        def __init__(self, *args: Any, **options: Any) -> None:
            made.append("request")  # its clock starts here
            super().__init__(*args, **options)

    monkeypatch.setattr(generate, "known_costs", known_costs)
    monkeypatch.setattr(sequences, "Sequence", Noted)
    tiny_llm().generate("b", max_new_tokens=1)
    list(tiny_llm().stream("b", max_new_tokens=1))
    assert made == ["costs", "request"] * 2


def test_where_nothing_is_adaptive_nothing_is_measured(
    table: TableTarget, measured: list[tuple[CausalLM, str]]
) -> None:
    fixed = tiny_llm(settings=EngineSettings(adaptive=False))
    for llm in (fixed, tiny_llm().with_engine(adaptive=False), make_llm(table)):
        assert llm._pricing is None
        assert llm.generate("bcdbcd", max_new_tokens=9, drafter="suffix").stats.drafted > 0
    assert measured == []


def test_another_engine_has_the_same_model_and_other_settings(table: TableTarget) -> None:
    llm = make_llm(table, eos_ids=[3, 1], drafter="suffix", settings=EngineSettings(max_batch=3))
    other = llm.with_engine(max_draft_nodes=2, adaptive=False)
    assert other.target is llm.target
    assert other.tokenizer is llm.tokenizer
    assert (other.name, other.default_drafter) == (llm.name, "suffix")
    assert other.settings == EngineSettings(max_batch=3, max_draft_nodes=2, adaptive=False)
    assert llm.settings == EngineSettings(max_batch=3)
    assert other._eos_ids == llm._eos_ids == {1, 3}
    options: dict[str, Any] = {"max_new_tokens": 30, "ignore_eos": True}
    result = other.generate("bcdbcd", **options)
    assert result.token_ids == llm.generate("bcdbcd", **options).token_ids
    assert 0 < result.stats.drafted <= 2 * result.stats.steps


def test_an_engine_setting_that_does_not_exist_is_refused(llm: Outdraft) -> None:
    with pytest.raises(SettingsError, match="adaptiv: there is no such setting"):
        llm.with_engine(adaptiv=False)


# --- loading --------------------------------------------------------------------------------------


@pytest.fixture
def loaded_with(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """How models were asked to be read, and a tiny one in their place."""
    before = torch.get_num_threads()
    asked: list[dict[str, Any]] = []

    def load_model(ref: str, **options: Any) -> LoadedModel:
        asked.append({"ref": ref, **options, "threads": torch.get_num_threads()})
        return LoadedModel(tiny_model("llama"), tiny_tokenizer(), ref, Packing("as told"))

    monkeypatch.setattr(generate, "load_model", load_model)
    yield asked
    torch.set_num_threads(before)


def test_load_passes_on_how_a_model_is_read(loaded_with: list[dict[str, Any]]) -> None:
    llm = outdraft.load("x", dtype="float32", device="cpu", pack=False, quantize="int8", threads=2)
    options = {"dtype": "float32", "device": "cpu", "pack": False, "quantize": "int8"}
    assert loaded_with == [{"ref": "x", **options, "threads": 2}]
    assert isinstance(llm.target, CausalLM)
    assert str(llm.target.packing) == "as told: nothing to replace"


def test_load_packs_and_does_not_quantise_unless_told(loaded_with: list[dict[str, Any]]) -> None:
    outdraft.load("x")
    (asked,) = loaded_with
    assert (asked["pack"], asked["quantize"]) == (True, None)


@pytest.mark.parametrize("threads", [0, -2])
def test_threads_that_cannot_be_are_refused_before_anything_is_read(
    threads: int, loaded_with: list[dict[str, Any]]
) -> None:
    with pytest.raises(SettingsError, match=f"threads='{threads}'"):
        outdraft.load("x", threads=threads)
    assert loaded_with == []


# --- the facade -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(outdraft.__all__) - {"custom_generate"}))
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(outdraft, name) is not None


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'magic'"):
        _ = outdraft.magic
