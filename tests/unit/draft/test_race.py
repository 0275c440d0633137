from __future__ import annotations

import pytest
import torch

from outdraft.draft.race import Runners
from outdraft.draft.token_map import TokenMap
from outdraft.sampling import choose
from support.toys import make_sequence

CPU = torch.device("cpu")
LOGITS = 2.0 * torch.randn(6, 30, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
SAME = TokenMap.of_equal_ids(30, 30)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.8},
        {"temperature": 1.5, "top_p": 0.8},
        {"temperature": 1.0, "top_k": 3},
    ],
)
def test_the_first_guess_is_what_the_target_would_draw(settings: dict[str, float]) -> None:
    sequence = make_sequence([1, 2], seed=7, **settings)
    depths = [1, 2, 2, 3, 1, 9]
    found = Runners(SAME, CPU).race(sequence, LOGITS, depths)
    drawn = choose(LOGITS, [1 + depth for depth in depths], sequence.settings, 7)
    assert [row[0].token_id for row in found] == drawn.tolist()
    for row in found:
        shares = [guess.acceptance for guess in row]
        assert shares == sorted(shares, reverse=True)
        assert 0.0 <= min(shares) <= sum(shares) <= 1.0 + 1e-9


def test_guesses_differ_within_a_row() -> None:
    for row in Runners(SAME, CPU).race(make_sequence(temperature=1.0), LOGITS, [1] * 6):
        assert len({guess.token_id for guess in row}) == len(row) > 1


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_tokens_that_the_target_does_not_have_take_no_part(temperature: float) -> None:
    logits = LOGITS.clone()
    logits[:, [4, 29]] = 50.0
    to_target = tuple(-1 if token_id in {4, 29} else token_id for token_id in range(30))
    sequence = make_sequence(temperature=temperature)
    found = Runners(TokenMap(to_target, 30), CPU).race(sequence, logits, [1] * 6)
    without = LOGITS.clone()
    without[:, [4, 29]] = float("-inf")
    assert found == Runners(SAME, CPU).race(sequence, without, [1] * 6)


def test_a_token_has_the_noise_of_its_counterpart() -> None:
    order = torch.randperm(30, generator=torch.Generator().manual_seed(1))  # draft id -> target id
    tokens = TokenMap(tuple(order.tolist()), 30)
    sequence = make_sequence(seed=5, temperature=1.0)
    found = Runners(tokens, CPU).race(sequence, LOGITS[:, order], [1, 2, 3, 4, 5, 6])
    drawn = choose(LOGITS, [3, 4, 5, 6, 7, 8], sequence.settings, 5)
    assert [int(order[row[0].token_id]) for row in found] == drawn.tolist()
