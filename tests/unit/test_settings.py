from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from outdraft.errors import OutdraftError, SettingsError
from outdraft.settings import EngineSettings, GenerationSettings, settings_of_each

INF, NAN = float("inf"), float("nan")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_new_tokens", 1),
        ("temperature", 0.0),
        ("temperature", 100.0),
        ("top_k", None),
        ("top_k", 1),
        ("top_k", 10**9),
        ("top_p", 1.0),
        ("top_p", 1e-9),
        ("min_p", 0.0),
        ("min_p", 1.0),
        ("seed", None),
        ("seed", 0),
        ("seed", 2**63 - 1),
        ("stop", ("a", "bc")),
        ("ignore_eos", True),
        ("regex", "a"),
        ("grammar", 'start: "a"'),
        ("choices", ("a", "b")),
        ("repetition_penalty", 1e-9),
        ("presence_penalty", -50.0),
        ("frequency_penalty", 0.0),
        ("no_repeat_ngram_size", 0),
        ("min_new_tokens", 256),
        ("typical_p", 1.0),
        ("epsilon_cutoff", 0.0),
        ("eta_cutoff", 0.999),
        ("suppress_ids", (0, 7)),
        ("stop_ids", ()),
        ("logprobs", 0),
        ("best_of", 1),
    ],
)
def test_values_up_to_the_edge_are_taken(name: str, value: Any) -> None:
    assert getattr(GenerationSettings(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_new_tokens", 0),
        ("max_new_tokens", -1),
        ("max_new_tokens", 1.5),
        ("max_new_tokens", None),
        ("temperature", -0.1),
        ("temperature", INF),
        ("temperature", NAN),
        ("temperature", "warm"),
        ("top_k", 0),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.001),
        ("top_p", NAN),
        ("min_p", -0.1),
        ("min_p", 1.001),
        ("min_p", NAN),
        ("seed", -1),
        ("seed", 2**63),
        ("stop", ""),
        ("stop", ("a", "")),
        ("stop", 7),
        ("ignore_eos", "perhaps"),
        ("json_schema", "{"),
        ("json_schema", 7),
        ("json_schema", {"type": "strin"}),
        ("regex", ""),
        ("regex", "("),
        ("regex", 7),
        ("grammar", ""),
        ("grammar", "start: nothing"),
        ("choices", ()),
        ("choices", ("a", "")),
        ("ignore_eos", 1),
        ("max_new_tokens", "5"),
        ("max_new_tokens", True),
        ("temperature", "0.5"),
        ("repetition_penalty", 0.0),
        ("repetition_penalty", INF),
        ("presence_penalty", NAN),
        ("frequency_penalty", INF),
        ("no_repeat_ngram_size", -1),
        ("min_new_tokens", -1),
        ("typical_p", 0.0),
        ("epsilon_cutoff", 1.0),
        ("eta_cutoff", -0.1),
        ("suppress_ids", -1),
        ("stop_ids", (1, "2")),
        ("bad_words", ""),
        ("bad_words", [[]]),
        ("bad_words", [3]),
        ("logit_bias", {"4": 1.0}),
        ("logit_bias", {4: NAN}),
        ("logits_processors", "x"),
        ("stop_when", 3),
        ("logprobs", -1),
        ("prompt_logprobs", 1),
        ("n", 0),
        ("best_of", 0),
    ],
)
def test_values_over_the_edge_are_refused_by_name_and_value(name: str, value: Any) -> None:
    with pytest.raises(SettingsError) as refused:
        GenerationSettings(**{name: value})
    assert name in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("max_batch", 0), ("max_draft_nodes", -1), ("prompt_chunk", 0), ("prompt_chunk", None)],
)
def test_engine_settings_have_edges_too(name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=name):
        EngineSettings(**{name: value})


def test_engine_settings_take_their_least_values() -> None:
    settings = EngineSettings(max_batch=1, max_draft_nodes=0, prompt_chunk=1)
    assert (settings.max_batch, settings.max_draft_nodes, settings.prompt_chunk) == (1, 0, 1)


def test_an_unknown_name_is_refused_and_the_known_ones_are_listed() -> None:
    with pytest.raises(SettingsError, match="temprature: there is no such setting") as refused:
        GenerationSettings(temprature=1.0)
    for name in GenerationSettings.model_fields:
        assert name in str(refused.value)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(SettingsError) as refused:
        GenerationSettings(top_k=0, top_p=2.0, colour="red")
    for name in ("top_k=0", "top_p=2.0", "colour"):
        assert name in str(refused.value)


def test_a_settings_error_is_a_value_error_and_one_of_ours() -> None:
    assert issubclass(SettingsError, ValueError)
    assert issubclass(SettingsError, OutdraftError)


@pytest.mark.parametrize(
    ("given", "kept"), [(None, ()), ("ab", ("ab",)), (["a", "b"], ("a", "b")), ((), ())]
)
def test_stop_is_one_string_or_several(given: Any, kept: tuple[str, ...]) -> None:
    assert GenerationSettings(stop=given).stop == kept


@pytest.mark.parametrize(
    ("name", "given", "kept"),
    [
        ("bad_words", "ab", ("ab",)),
        ("bad_words", ["ab", [1, 2]], ("ab", (1, 2))),
        ("suppress_ids", 3, (3,)),
        ("stop_ids", [3, 4], (3, 4)),
        ("logit_bias", {3: 1, 4: -2.5}, ((3, 1.0), (4, -2.5))),
        ("logit_bias", [[3, 1.0]], ((3, 1.0),)),
        ("stop_when", max, (max,)),
        ("logits_processors", [max, min], (max, min)),
    ],
)
def test_one_or_several_are_kept_as_a_tuple(name: str, given: Any, kept: tuple[Any, ...]) -> None:
    settings = GenerationSettings(**{name: given})
    assert getattr(settings, name) == kept
    assert getattr(settings.replace(seed=1), name) == kept
    assert hash(settings) == hash(settings.replace())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"min_new_tokens": 9, "max_new_tokens": 8}, "min_new_tokens=9 is .* max_new_tokens=8"),
        ({"n": 3, "best_of": 2, "temperature": 1.0}, "best_of=2 is .* n=3"),
        ({"n": 2}, "temperature=0.0: "),
        ({"best_of": 2}, "temperature=0.0: "),
    ],
)
def test_settings_that_contradict_each_other_are_refused(given: dict[str, Any], words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        GenerationSettings(**given)


def test_the_settings_of_each_prompt_stand_before_the_common_ones() -> None:
    common = {"max_new_tokens": 5, "top_k": 3}
    own = [{}, {"top_k": 4}, GenerationSettings(temperature=0.5, max_new_tokens=256)]
    assert settings_of_each(3, common, own) == [
        GenerationSettings(max_new_tokens=5, top_k=3),
        GenerationSettings(max_new_tokens=5, top_k=4),
        GenerationSettings(max_new_tokens=256, top_k=3, temperature=0.5),
    ]
    assert settings_of_each(2, common, None) == [GenerationSettings(**common)] * 2
    with pytest.raises(SettingsError, match="for 3 prompts, but there are 2"):
        settings_of_each(2, common, own)


def test_settings_cannot_be_changed_in_place() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        GenerationSettings().temperature = 1.0  # type: ignore[misc]


def test_replace_keeps_the_rest_and_checks_anew() -> None:
    settings = GenerationSettings(temperature=0.5, stop="x", seed=3)
    assert settings.replace(temperature=1.0) == GenerationSettings(
        temperature=1.0, stop="x", seed=3
    )
    with pytest.raises(SettingsError, match="top_p"):
        settings.replace(top_p=0.0)
    with pytest.raises(SettingsError, match="no such setting"):
        settings.replace(topp=0.5)


def test_greedy_means_temperature_zero_alone() -> None:
    assert GenerationSettings().is_greedy
    assert not GenerationSettings(temperature=1e-6).is_greedy
    assert not GenerationSettings(temperature=1.0, top_k=1).is_greedy


def test_a_text_follows_one_grammar() -> None:
    with pytest.raises(SettingsError, match="regex and choices exclude each other"):
        GenerationSettings(regex="a", choices=["a"])
    with pytest.raises(SettingsError, match=r"ignore_eos .* and regex says where that is"):
        GenerationSettings(regex="a", ignore_eos=True)


def test_a_grammar_is_read_when_it_is_set() -> None:
    assert GenerationSettings().grammar_source is None
    settings = GenerationSettings(json_schema={"type": "integer"})
    assert settings.json_schema == '{"type": "integer"}'
    assert settings.grammar_source is not None
    assert settings.grammar_source.kind == "json_schema"
    assert settings.replace(temperature=1.0).grammar_source == settings.grammar_source
    assert settings.replace(json_schema=None).grammar_source is None
