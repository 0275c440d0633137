from __future__ import annotations

import json
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from outdraft.check import (
    Comparison,
    check,
    chosen_drafters,
    damaged,
    read_prompts,
    shipped_prompts,
)
from outdraft.check.judge import Judge
from outdraft.draft.registry import drafter_names
from outdraft.errors import SettingsError
from outdraft.generate import Outdraft
from outdraft.interfaces import TargetModel
from outdraft.models.table import TableTarget
from outdraft.sampling import keyed_noise, to_probs
from outdraft.settings import EngineSettings, GenerationSettings
from outdraft.types import Rows
from support.checks import PROMPTS, Reworked, make_llm, nan_in_wide_passes, tied
from support.tiny_models import tiny_target
from support.toys import LetterTokenizer

DRAFTERS = ["prompt-lookup", "suffix"]


def run(llm: Outdraft, **options: Any) -> list[Comparison]:
    options = {"drafters": DRAFTERS, "max_new_tokens": 24, **options}
    return check(llm, options.pop("prompts", PROMPTS), **options)


# --- nothing wrong --------------------------------------------------------------------------------


@pytest.mark.parametrize("is_batched", [False, True])
def test_equal_runs_are_identical(table: TableTarget, is_batched: bool) -> None:
    comparisons = run(make_llm(table), temperatures=[0.0, 0.8], is_batched=is_batched)
    assert [(c.drafter, c.temperature) for c in comparisons] == [
        (drafter, temperature) for temperature in (0.0, 0.8) for drafter in DRAFTERS
    ]
    for comparison in comparisons:
        assert (comparison.identical, comparison.ties, comparison.faults) == (len(PROMPTS), 0, 0)
        assert comparison.compared == comparison.tokens > len(PROMPTS)
        assert 0 < comparison.accepted < comparison.drafted
        assert comparison.tokens_per_step == comparison.tokens / comparison.passes > 1.0


def test_plain_runs_are_shared_and_work_is_reported(table: TableTarget) -> None:
    done: list[int] = []
    run(make_llm(table), on_run=done.append)
    assert done == [1] * len(PROMPTS) * (1 + len(DRAFTERS))
    done.clear()
    run(make_llm(table), on_run=done.append, is_batched=True)
    assert done == [1] * len(PROMPTS) + [len(PROMPTS)] * len(DRAFTERS)


def test_the_chat_template_is_used_where_there_is_one(table: TableTarget) -> None:
    seen: list[int] = []

    def note(logits: Tensor, rows: Rows) -> Tensor:
        seen.append(rows.token_ids[0, 0].item())
        return logits

    bare = Outdraft(Reworked(note), LetterTokenizer(has_template=False))
    check(bare, ["cc"], drafters=DRAFTERS, max_new_tokens=1)
    assert set(seen) == {0}  # the tokenizer's own start, then "cc"
    seen.clear()
    check(make_llm(Reworked(note)), ["cc"], drafters=DRAFTERS, max_new_tokens=1)
    assert set(seen) == {1}  # the template's turn


# --- faults ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_batched", [False, True])
@pytest.mark.parametrize("kind", ["table", "llama", "mistral-window"])
def test_a_wrong_cache_is_found(kind: str, is_batched: bool) -> None:
    target: TargetModel = TableTarget(16) if kind == "table" else tiny_target(kind)
    llm = make_llm(target, eos_ids=())
    options: dict[str, Any] = {
        "prompts": PROMPTS[:2],
        "temperatures": [0.0, 1.0],
        "is_batched": is_batched,
    }
    assert all(comparison.faults == 0 for comparison in run(llm, **options))
    for comparison in run(llm, drafted_llm=damaged(llm, "cache"), **options):
        assert comparison.faults > 0
        for difference in comparison.differences.values():
            assert difference.plain != difference.drafted


def test_a_fault_says_which_token_is_how_far_behind(table: TableTarget) -> None:
    llm = make_llm(table)
    comparisons = run(llm, drafted_llm=damaged(llm, "cache"), drafters=["suffix"])
    prompt_idx, difference = next(iter(comparisons[0].differences.items()))
    assert difference.plain is not None
    assert difference.drafted is not None
    plain = llm.generate(
        [{"role": "user", "content": PROMPTS[prompt_idx]}], drafter="none", max_new_tokens=24
    )
    assert difference.plain.token_id == plain.token_ids[difference.position]
    assert difference.plain.text == f"<{difference.plain.token_id}>"
    assert difference.gap == difference.plain.score - difference.drafted.score
    assert difference.tolerance is not None
    assert 0.0 < difference.tolerance < 1e-12 < difference.gap
    assert difference.fault is not None
    assert difference.fault.startswith("the drafted run's token lies")
    before_it = sum(difference.position + 1 for difference in comparisons[0].differences.values())
    whole = comparisons[0].compared - before_it
    assert whole <= 24 * comparisons[0].identical


def test_tokens_behind_a_difference_are_not_compared(table: TableTarget) -> None:
    llm = make_llm(table, eos_ids=())
    (comparison,) = run(llm, drafted_llm=damaged(llm, "cache"), drafters=["suffix"])
    positions = [difference.position for difference in comparison.differences.values()]
    in_part = sum(position + 1 for position in positions)
    assert comparison.compared == in_part + 24 * comparison.identical < comparison.tokens


def test_an_unknown_fault_is_refused(table: TableTarget) -> None:
    with pytest.raises(SettingsError, match="no fault 'mask' to inject; known are cache"):
        damaged(make_llm(table), "mask")


def test_a_target_that_reads_rows_together_differently_is_no_excuse() -> None:
    """A spread that is measured, but far beyond rounding, must not widen the tolerance."""

    def rework(logits: Tensor, rows: Rows) -> Tensor:
        return logits.flip(-1) if rows.num_rows in range(2, 17) else logits

    llm = make_llm(Reworked(rework), eos_ids=())
    comparisons = run(llm, prompts=["abcabcabcabcabcabcabc"])
    assert all(comparison.faults == 1 for comparison in comparisons)
    faults = [d.fault for comparison in comparisons for d in comparison.differences.values()]
    assert all("reading rows together moves" in str(fault) for fault in faults)


def test_logits_that_are_no_numbers_are_a_fault() -> None:
    llm = make_llm(Reworked(nan_in_wide_passes), eos_ids=())
    comparisons = run(llm, prompts=["abcabcabcabcabcabcabc"])
    assert all(comparison.faults == 1 for comparison in comparisons)


def test_equal_tokens_with_another_text_or_end_are_a_fault(table: TableTarget) -> None:
    llm = make_llm(table, eos_ids=())
    wrong = make_llm(table, eos_ids=(), decode=lambda ids: "x" * len(ids))
    (text, *_) = run(llm, drafted_llm=wrong)
    assert text.faults == len(PROMPTS)
    assert "text is" in str(text.differences[0].fault)
    eos = llm.generate([{"role": "user", "content": PROMPTS[0]}], max_new_tokens=3).token_ids[2]
    (early, *_) = run(llm, drafted_llm=make_llm(table, eos_ids=[eos]), prompts=PROMPTS[:1])
    assert "the plain run ends after 24 tokens and the drafted one after" in str(
        early.differences[0].fault
    )
    (reason, *_) = run(
        llm,
        drafted_llm=make_llm(table, eos_ids=[eos]),
        prompts=PROMPTS[:1],
        max_new_tokens=early.compared,
    )
    assert "finish_reason is 'length'" in str(reason.differences[0].fault)
    assert reason.differences[0].plain is None


# --- ties -----------------------------------------------------------------------------------------


def test_two_tokens_a_step_apart_are_a_tie() -> None:
    llm = make_llm(Reworked(tied(2**-4, torch.bfloat16)), eos_ids=())
    for comparison in run(llm, prompts=["ddd", "hhh"]):
        assert (comparison.ties, comparison.faults) == (2, 0)
        for difference in comparison.differences.values():
            assert difference.plain is not None
            assert difference.drafted is not None
            assert {difference.plain.token_id, difference.drafted.token_id} == {3, 7}
            assert difference.gap == 2**-4
            assert difference.tolerance == 2 * 2**-4
            assert difference.fault is None


def test_the_tolerance_is_the_move_that_was_measured() -> None:
    """Three steps: more than the last rounding alone, as the errors of many layers are."""
    llm = make_llm(Reworked(tied(3 * 2**-4, torch.bfloat16)), eos_ids=())
    for comparison in run(llm, prompts=["ddd"]):
        assert (comparison.ties, comparison.faults) == (1, 0)
        assert comparison.differences[0].gap == 3 * 2**-4
        assert comparison.differences[0].tolerance == 3 * 2**-4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_move_that_the_format_cannot_explain_is_a_fault(dtype: torch.dtype) -> None:
    llm = make_llm(Reworked(tied(4.0, dtype)), eos_ids=())
    assert all(comparison.faults == 1 for comparison in run(llm, prompts=["ddd"]))


# --- the judge ------------------------------------------------------------------------------------


def judge_of(target: TargetModel, **settings: int) -> Judge:
    return Judge(target, EngineSettings(**settings))


IDS = [1, 2, 3, 4, 5, 6, 7, 8, 9] * 5
GREEDY = GenerationSettings()


def logits_after(ids: Seq[int]) -> Tensor:
    target = TableTarget(16)
    cache = target.new_cache()
    cache.add()
    return target.forward(Rows.chain(ids, 0, target.device), cache)[0, -1]


@pytest.mark.parametrize("chunk", [1, 7, 512])
def test_greedy_scores_are_logits(chunk: int) -> None:
    logits = logits_after(IDS)
    best, second = logits.topk(2).indices.tolist()
    verdict = judge_of(TableTarget(16), prompt_chunk=chunk).judge(IDS, (best, second), GREEDY, 0)
    assert verdict.scores == pytest.approx((float(logits[best]), float(logits[second])))
    assert verdict.fault is not None
    assert judge_of(TableTarget(16)).judge(IDS, (best, best), GREEDY, 0).fault is None


def test_sampled_scores_hold_the_noise_of_seed_and_position() -> None:
    settings = GenerationSettings(temperature=0.7)
    probs = to_probs(logits_after(IDS)[None], settings)[0]
    noise = keyed_noise(5, [len(IDS)], 16, probs.device)[0]
    best, second = (probs / noise).topk(2).indices.tolist()
    verdict = judge_of(TableTarget(16)).judge(IDS, (best, second), settings, 5)
    expected = probs.log() - noise.log()
    assert verdict.scores == pytest.approx((float(expected[best]), float(expected[second])))
    assert verdict.fault is not None
    assert judge_of(TableTarget(16)).judge(IDS, (best, best), settings, 5).fault is None


def test_both_tokens_have_to_be_near_the_best_and_not_only_each_other() -> None:
    def rework(logits: Tensor, rows: Rows) -> Tensor:
        logits = torch.zeros_like(logits)
        logits[..., 1] = 5.0
        return logits

    verdict = judge_of(Reworked(rework)).judge(IDS, (2, 3), GREEDY, 0)
    assert verdict.gap == 0.0
    assert verdict.fault is not None
    assert verdict.fault.startswith("the plain run's token lies 5 behind")


def test_a_reading_that_is_no_number_is_a_fault_even_where_the_tokens_are_equal() -> None:
    verdict = judge_of(Reworked(nan_in_wide_passes)).judge(IDS, (3, 3), GREEDY, 0)
    assert verdict.fault is not None


def test_a_colder_draw_has_a_wider_tolerance() -> None:
    """Scores are logits divided by the temperature, and so are their errors."""
    judge = judge_of(Reworked(tied(2**-4, torch.bfloat16)))
    cold, hot = (
        judge.judge(IDS, (3, 7), GenerationSettings(temperature=temperature), 0).tolerance
        for temperature in (0.5, 2.0)
    )
    assert cold == 4 * hot


def test_one_token_of_text_is_enough_to_judge() -> None:
    best = int(logits_after([3]).argmax())
    assert judge_of(TableTarget(16)).judge([3], (best, best), GREEDY, 0).fault is None


def test_a_text_is_read_once_for_all_its_judgements(table: TableTarget) -> None:
    passes = 0

    def count(logits: Tensor, rows: Rows) -> Tensor:
        nonlocal passes
        passes += 1
        return logits

    judge = judge_of(Reworked(count), max_draft_nodes=15)
    judge.judge(IDS, (1, 2), GREEDY, 0)
    assert passes == 1 + (1 + 2) + (1 + 32)  # together, 16 rows a pass, one by one
    judge.judge(IDS, (1, 3), GREEDY, 0)
    assert passes == 1 + (1 + 2) + (1 + 32)


# --- prompts and drafters -------------------------------------------------------------------------


def test_twenty_different_prompts_come_with_the_package() -> None:
    prompts = shipped_prompts()
    assert len(prompts) == len({str(prompt) for prompt in prompts}) == 20
    assert all(isinstance(prompt, str) for prompt in prompts)


def test_a_text_file_has_a_prompt_per_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text('one\n\n  two \n{"prompt": "three"}\n', "utf-8")
    assert read_prompts(path) == ["one", "  two ", '{"prompt": "three"}']


def test_a_jsonl_file_has_texts_or_chats(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "hi"}]
    path = tmp_path / "prompts.jsonl"
    lines = [{"prompt": "one\u2028two", "id": 7}, {"messages": chat}]
    path.write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in lines), "utf-8")
    assert read_prompts(path) == ["one\u2028two", chat]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no prompts"),
        (b"\n \n", "holds no prompts"),
        (b'{"prompt": "a"}\n{"prompt": "b"', "line 2: not JSON"),
        (b'{"prompt": ""}', "line 1: expected"),
        (b'{"prompt": 3}', "line 1: expected"),
        (b'{"text": "a"}', "line 1: expected"),
        (b'{"messages": []}', "line 1: expected"),
        (b'{"messages": [{"role": "user"}]}', "line 1: expected"),
        (b'{"messages": "a"}', "line 1: expected"),
        (b'{"prompt": "a", "messages": []}', "line 1: expected"),
        (b"[1]", "line 1: expected"),
        (b"\xff\xfe", "not UTF-8"),
    ],
)
def test_a_file_that_is_not_as_described_is_refused(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match=message):
        read_prompts(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"cannot read the prompts in .*nowhere"):
        read_prompts(tmp_path / "nowhere")


def test_a_prompt_that_cannot_be_run_is_named(table: TableTarget) -> None:
    with pytest.raises(SettingsError, match=r"prompt 2: .*no tokens"):
        check(make_llm(table), ["a", []], drafters=DRAFTERS)
    small = TableTarget(16, max_context=8)
    with pytest.raises(SettingsError, match="prompt 2 has 9 tokens and the target reads 8"):
        check(make_llm(small), ["a", "abcdefgh"], drafters=DRAFTERS)


def test_drafters_are_chosen_by_name() -> None:
    assert chosen_drafters("all") == [name for name in drafter_names() if name != "none"]
    assert chosen_drafters("suffix, prompt-lookup,suffix") == ["suffix", "prompt-lookup"]
    for names in ("none", "oracle", "", "suffix,none"):
        with pytest.raises(SettingsError, match="cannot be held against plain decoding"):
            chosen_drafters(names)
