from __future__ import annotations

import pytest
import torch

from outdraft.draft import DrafterContext, layer_skip, make_drafter
from outdraft.draft.layer_skip import LayerSkip, choose_layers, parse_layers
from outdraft.errors import DrafterError
from outdraft.models.table import TableTarget
from outdraft.models.target import CausalLM
from outdraft.types import Budget
from plain import decode_plainly, reader_of_target
from support.draft_models import Watched, small_llama
from support.runs import run
from support.tiny_models import tiny_target
from support.toys import LetterTokenizer, make_sequence
from support.two_tokenizers import byte_level

every_temperature = pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])


def idle_layer(target: CausalLM, layer: int) -> CausalLM:
    """Has a layer add nothing to what passes through it."""
    block = target.model.model.layers[layer]
    for projection in (block.self_attn.o_proj, block.mlp.down_proj):
        torch.nn.init.zeros_(projection.weight)
    return target


def run_watched(
    target: CausalLM, skipped: list[int], temperature: float
) -> tuple[int, int, set[str]]:
    """Texts must be the plain ones; returns how many guesses were made and accepted."""
    watched = Watched(LayerSkip(target, skipped))
    sequences = [
        make_sequence(
            [(7 * i + 3 * j) % target.vocab_size for j in range(3 + 6 * i)],
            request_id=i,
            seed=i + 1,
            eos_ids=[],
            max_context=target.max_context,
            max_new_tokens=30 - 8 * i,
            temperature=temperature,
            decode=lambda token_ids: "",
        )
        for i in range(4)
    ]
    commits = run(target, watched, sequences, max_batch=3)
    for sequence in sequences:
        plain = decode_plainly(
            reader_of_target(target),
            sequence.ids[: sequence.prompt_len],
            sequence.settings,
            seed=sequence.seed,
            max_context=target.max_context,
            decode=lambda token_ids: "",
        )
        assert tuple(sequence.new_ids) == plain.token_ids
    return (
        sum(sequence.stats.drafted for sequence in sequences),
        sum(sequence.stats.accepted for sequence in sequences),
        {origin for commit in commits for origin in commit.origins},
    )


@every_temperature
@pytest.mark.parametrize("skipped", [[0], [1], [0, 2]])
def test_the_text_is_the_targets_with_layers_of_mixed_types(
    skipped: list[int], temperature: float
) -> None:
    drafted, accepted, origins = run_watched(tiny_target("gemma3-mixed"), skipped, temperature)
    assert 0 < accepted < drafted
    assert {"drafted", "corrected"} <= origins


@every_temperature
def test_without_a_layer_that_does_nothing_every_guess_is_right(temperature: float) -> None:
    target = idle_layer(small_llama(), 1)
    _, accepted, origins = run_watched(target, [1], temperature)
    assert accepted > 40
    assert "corrected" not in origins


def test_it_needs_no_weights_of_its_own() -> None:
    target = small_llama()
    drafter = LayerSkip(target, [1])
    assert drafter.memory_bytes == 0
    drafter.propose([make_sequence([1, 2])], Budget(4, (4,)))
    one_layer = 2 * 2 * 8 * 256 * 8  # keys and values, heads, head_dim, positions, float64
    assert drafter.memory_bytes == 2 * one_layer


# --- which layers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "layers"),
    [("3", [3]), ("0-2", [0, 1, 2]), ("4-6+12", [4, 5, 6, 12]), ("7-7+1+9-10", [7, 1, 9, 10])],
)
def test_layers_are_numbers_and_ranges(spec: str, layers: list[int]) -> None:
    assert parse_layers(spec) == layers


@pytest.mark.parametrize("spec", ["x", "3+", "+3", "2-", "-2", "5-3", "1-2-3", "1.5", "4 - 9", "³"])
def test_anything_else_is_refused_with_an_example(spec: str) -> None:
    with pytest.raises(DrafterError, match=r"names no layers; .* such as layer-skip:4-9\+12"):
        parse_layers(spec)


@pytest.mark.parametrize("argument", ["3", "0-3", "1+17"])
def test_layers_that_are_not_there_are_refused_with_their_number(argument: str) -> None:
    context = DrafterContext(small_llama(), LetterTokenizer())
    with pytest.raises(DrafterError, match=r"the target has 3, counted from 0; .* of 0-2"):
        make_drafter(f"layer-skip:{argument}", context)


def test_not_all_layers_can_go() -> None:
    with pytest.raises(DrafterError, match="all 3 layers of the target are left out"):
        LayerSkip(small_llama(), [0, 1, 2])


def test_no_layers_are_no_choice() -> None:
    with pytest.raises(DrafterError, match="are none, but the target has 3"):
        LayerSkip(small_llama(), [])


def test_a_target_without_layers_is_refused() -> None:
    context = DrafterContext(TableTarget(), LetterTokenizer())
    for spec in ("layer-skip", "layer-skip:0"):
        with pytest.raises(DrafterError, match="TableTarget has none"):
            make_drafter(spec, context)


def test_it_is_made_of_a_target() -> None:
    with pytest.raises(DrafterError, match="is made of a target"):
        make_drafter("layer-skip")


def test_named_layers_are_left_out() -> None:
    drafter = make_drafter("layer-skip:0+2", DrafterContext(small_llama(), LetterTokenizer()))
    assert isinstance(drafter, LayerSkip)
    assert (drafter.name, drafter.skipped) == ("layer-skip:0+2", (0, 2))


# --- the search -----------------------------------------------------------------------------------


@pytest.mark.parametrize("idle", [[2], [1, 3]])
def test_the_search_finds_layers_that_do_nothing(idle: list[int]) -> None:
    target = small_llama(num_hidden_layers=5, vocab_size=280)
    for layer in idle:
        idle_layer(target, layer)
    context = DrafterContext(target, byte_level(280))
    drafter = make_drafter("layer-skip", context)
    assert isinstance(drafter, LayerSkip)
    assert (drafter.name, drafter.skipped) == ("layer-skip", tuple(idle))


def test_a_search_out_of_time_still_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    target = small_llama(num_hidden_layers=5)
    tried: list[float] = []
    rate = layer_skip._expected_speed
    monkeypatch.setattr(
        layer_skip, "_expected_speed", lambda *args: tried.append(args[1]) or rate(*args)
    )
    assert len(choose_layers(target, list(range(40)), max_seconds=0.0)) == 1
    assert len(tried) == 1
    choose_layers(target, list(range(40)), max_seconds=1e9)
    assert len(tried) > 2


def test_a_model_of_one_layer_has_none_to_spare() -> None:
    target = small_llama(num_hidden_layers=1)
    with pytest.raises(DrafterError, match="all 1 layers"):
        make_drafter("layer-skip:0", DrafterContext(target, LetterTokenizer()))
    with pytest.raises(DrafterError, match="all 1 layers"):
        LayerSkip(target, choose_layers(target, [1, 2, 3]))


@pytest.mark.parametrize(
    ("agreement", "cost", "speed"),
    [(0.0, 1.0, 0.5), (1.0, 0.0, 9.0), (1.0, 1.0, 1.0), (0.5, 0.25, 1.2), (0.8, 0.1, 2.47)],
)
def test_speed_is_tokens_per_time_of_a_pass(agreement: float, cost: float, speed: float) -> None:
    assert layer_skip._expected_speed(agreement, cost) == pytest.approx(speed, abs=0.005)
