from __future__ import annotations

from collections.abc import Sequence as Seq

import pytest

from outdraft.bench.methods import Method, make_methods
from outdraft.bench.records import Answer
from outdraft.errors import DrafterError, SettingsError
from outdraft.generate import Outdraft
from outdraft.models.table import TableTarget
from outdraft.models.target import CausalLM
from outdraft.settings import AUTO_DRAFTER, GenerationSettings
from support.benches import toy_llm
from support.tiny_models import tiny_model
from support.toys import LetterTokenizer

PROMPTS = [[1, 2, 3, 1, 2], [4, 5, 6]]
SETTINGS = GenerationSettings(max_new_tokens=24, seed=0)


@pytest.fixture
def llm(table: TableTarget) -> Outdraft:
    return toy_llm(table)


def answers(method: Method, prompts: Seq[Seq[int]] = PROMPTS) -> list[Answer]:
    return method.start()(prompts, SETTINGS)


def test_baselines_come_first_and_keep_their_names(llm: Outdraft) -> None:
    methods = make_methods(llm, drafters=["auto", "prompt-lookup,suffix"], baselines=["plain"])
    assert [(method.name, method.drafter) for method in methods] == [
        ("plain", "none"),
        ("auto", AUTO_DRAFTER),
        ("prompt-lookup,suffix", "prompt-lookup,suffix"),
    ]


def test_a_drafting_method_answers_as_generate_does(llm: Outdraft) -> None:
    (method,) = make_methods(llm, drafters=["suffix"])
    (answer,) = answers(method, PROMPTS[:1])
    result = llm.generate(PROMPTS[0], drafter="suffix", max_new_tokens=24)
    stats = result.stats
    assert (answer.token_ids, answer.text) == (result.token_ids, result.text)
    assert answer.finish_reason == result.finish_reason
    assert (answer.passes, answer.rows) == (stats.steps + 1, stats.steps + stats.drafted)
    assert (answer.drafted, answer.accepted) == (stats.drafted, stats.accepted)
    assert list(answer.judged_by_depth or ()) == stats.judged_by_depth
    assert list(answer.accepted_by_depth or ()) == stats.accepted_by_depth
    assert answer.expected_tokens == stats.expected_tokens > stats.steps
    assert answer.drafters is not None
    own, counted = answer.drafters["suffix"], stats.drafters["suffix"]
    for name in ("asked", "drafted", "judged", "accepted"):
        assert getattr(own, name) == getattr(counted, name) > 0
    assert (own.seconds or 0) > 0
    assert answer.first_token_seconds > 0
    assert (answer.draft_seconds or 0) > 0
    assert (answer.target_seconds or 0) > 0


def test_plain_drafts_nothing(llm: Outdraft) -> None:
    (method,) = make_methods(llm, baselines=["plain"])
    for answer in answers(method):
        assert answer.drafted == 0
        assert answer.passes == len(answer.token_ids) == answer.rows + 1


def test_answers_given_together_are_those_given_alone_without_times_of_their_own(
    llm: Outdraft,
) -> None:
    (method,) = make_methods(llm, drafters=["suffix"])
    alone = [answers(method, [prompt])[0] for prompt in PROMPTS]
    together = answers(method)
    assert [a.token_ids for a in together] == [a.token_ids for a in alone]
    assert all(a.draft_seconds is None and a.target_seconds is None for a in together)
    assert all((a.drafters or {})["suffix"].seconds is None for a in together)


def test_each_start_has_a_drafter_of_its_own(
    llm: Outdraft, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []
    generate = Outdraft.generate

    def watch(self: Outdraft, *args: object, drafter: object, **settings: object) -> object:
        used.append(drafter)
        return generate(self, *args, drafter=drafter, **settings)  # type: ignore[call-overload]

    monkeypatch.setattr(Outdraft, "generate", watch)
    (method,) = make_methods(llm, drafters=["suffix"])
    first, second = method.start(), method.start()
    for answer in (first, first, second):
        answer(PROMPTS, SETTINGS)
    assert used[0] is used[1] is not used[2]


def test_settings_reach_the_engine(llm: Outdraft) -> None:
    (method,) = make_methods(llm, baselines=["plain"])
    settings = GenerationSettings(max_new_tokens=24, temperature=1.2, seed=5)
    (answer,) = method.start()(PROMPTS[:1], settings)
    direct = llm.generate(PROMPTS[0], drafter="none", max_new_tokens=24, temperature=1.2, seed=5)
    assert answer.token_ids == direct.token_ids


class EndlessTokenizer(LetterTokenizer):
    """As those of transformers, for a model whose texts have no end token."""

    eos_token_id = None


def test_transformers_writes_the_same_text_on_the_same_model() -> None:
    llm = Outdraft(CausalLM(tiny_model("llama")), EndlessTokenizer())
    methods = make_methods(llm, drafters=["suffix"], baselines=["plain", "hf", "hf-lookup"])
    told = {method.name: answers(method, PROMPTS[:1])[0] for method in methods}
    assert len({(answer.token_ids, answer.text) for answer in told.values()}) == 1
    assert told["hf"].passes == told["plain"].passes == 24
    for name in ("hf", "hf-lookup"):
        assert told[name].drafted is told[name].draft_seconds is None
        assert told[name].first_token_seconds > 0
        assert (told[name].target_seconds or 0) > 0
    assert [method.drafter for method in methods] == ["none", "hf", "hf-lookup", "suffix"]


def test_a_batch_of_transformers_has_no_times_of_its_own() -> None:
    llm = Outdraft(CausalLM(tiny_model("llama")), EndlessTokenizer())
    (method,) = make_methods(llm, baselines=["hf"])
    assert [answer.target_seconds for answer in answers(method)] == [None, None]
    alone = [answers(method, [prompt])[0].token_ids for prompt in PROMPTS]
    assert [answer.token_ids for answer in answers(method)] == alone


@pytest.mark.parametrize(
    ("drafters", "baselines", "message"),
    [
        ([], [], "there is nothing to measure"),
        (["suffix", "suffix"], [], "'suffix' is named twice"),
        ([], ["plain", "plain"], "'plain' is named twice"),
        ([], ["vllm"], "baseline='vllm': .* only plain, hf, hf-lookup, hf-assistant"),
        ([], ["hf"], "baseline='hf' needs a model of transformers, not a TableTarget"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    llm: Outdraft, drafters: list[str], baselines: list[str], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        make_methods(llm, drafters=drafters, baselines=baselines)


def test_an_unknown_drafter_is_refused_at_once(llm: Outdraft) -> None:
    with pytest.raises(DrafterError, match="there is no drafter 'guess'"):
        make_methods(llm, drafters=["guess"])
