"""The target guesses for itself, with some of its layers left out (`layer-skip[:LAYERS]`).

Guesses from: the text, by the target's own remaining layers. Score: the probability that they give
a token, and the token's depth. Cost: as for a draft model with that many layers, but no weights of
its own. Sources: Draft & Verify (Zhang et al. 2023), SWIFT (Xia et al. 2024); the search goes by
how little a layer turns its input (block influence, Men et al. 2024).

LAYERS names the layers to leave out, counted from 0: single ones and ranges, joined by plus signs,
as in `layer-skip:4-9+12`. Without it they are chosen when the drafter is made, by holding a few
choices against the full model on a short text. Models of a few dozen layers can seldom spare any;
large ones can.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence as Seq
from typing import TYPE_CHECKING

from torch import Tensor

from outdraft.draft.links import SameTokens
from outdraft.draft.model_drafter import ModelDrafter
from outdraft.draft.token_map import TokenMap
from outdraft.errors import DrafterError
from outdraft.interfaces import TargetModel
from outdraft.models.sizes import num_parameters
from outdraft.models.skip import LayerSkippingLM, layer_influence, num_layers
from outdraft.models.target import CausalLM
from outdraft.types import Rows

if TYPE_CHECKING:
    from outdraft.draft.registry import DrafterContext

NAME = "layer-skip"
# Shares of the layers that the search tries to leave out; it ends early rather than take longer.
_SHARES = (1 / 32, 1 / 16, 1 / 8, 1 / 4, 3 / 8, 1 / 2)
_SEARCH_SECONDS = 4.0
_MAX_CHAIN = 8
_TEXT = """\
The old bridge was closed in spring, because two of its stones had moved. A new one was built a
little further down the river. It is wide enough for cars, and there is a path for people who walk.

def average(values):
    if not values:
        return 0.0
    return sum(values) / len(values)

To make tea for two, you need:
1. Two cups of water
2. Two spoons of tea leaves
3. A pot with a lid
"""


class LayerSkip(ModelDrafter):
    """Guesses with the target's own layers, but for those left out.

    Args:
        target: a causal language model.
        skipped: layers to leave out, counted from 0.

    Raises:
        DrafterError: the target has no such layers, or none would remain.
    """

    def __init__(self, target: TargetModel, skipped: Collection[int], *, name: str = NAME) -> None:
        model = _as_causal_lm(target)
        count = num_layers(model)
        self.skipped = tuple(sorted(set(skipped)))
        if not self.skipped or not 0 <= self.skipped[0] <= self.skipped[-1] < count:
            raise DrafterError(
                f"layers to leave out are {_spelled(self.skipped) or 'none'}, but the target has "
                f"{count}, counted from 0; name one or more of 0-{count - 1}"
            )
        if len(self.skipped) == count:
            raise DrafterError(f"all {count} layers of the target are left out; keep at least one")
        tokens = TokenMap.of_equal_ids(target.vocab_size, target.vocab_size)
        link = SameTokens(name, tokens, device=target.device)
        super().__init__(name, LayerSkippingLM(model, self.skipped), link)

    @classmethod
    def from_spec(cls, argument: str, context: DrafterContext | None) -> LayerSkip:
        """The drafter `layer-skip:ARGUMENT`.

        Raises:
            DrafterError: the argument names no layers of the target, or the target has none.
        """
        if context is None:
            raise DrafterError(
                f"drafter {NAME!r} is made of a target; name it where the model is loaded or used, "
                "or pass make_drafter a DrafterContext"
            )
        target = _as_causal_lm(context.target)
        if argument:
            return cls(target, parse_layers(argument), name=f"{NAME}:{argument}")
        token_ids = list(context.tokenizer(_TEXT)["input_ids"])
        return cls(target, choose_layers(target, token_ids))


def parse_layers(spec: str) -> list[int]:
    """The layers of a list such as `4-9+12`.

    Raises:
        DrafterError: it is no such list.
    """
    layers: list[int] = []
    for part in spec.split("+"):
        first, dash, last = part.partition("-")
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last)):
            raise DrafterError(
                f"{part!r} in {NAME}:{spec} names no layers; write numbers and rising ranges "
                f"joined by plus signs, such as {NAME}:4-9+12"
            )
        layers.extend(range(int(first), int(last) + 1))
    return layers


def choose_layers(
    target: CausalLM, token_ids: Seq[int], max_seconds: float = _SEARCH_SECONDS
) -> list[int]:
    """The layers whose absence is expected to speed up drafting most, or to slow it down least.

    Layers are left out in the order of their influence, more and more of them. Each choice is held
    against the full model in one pass over the text.

    Args:
        token_ids: of a text.
        max_seconds: no further choice is tried after that; the first always is.
    """
    started_at = time.perf_counter()
    influence = layer_influence(target, list(token_ids))
    order = sorted(range(len(influence)), key=influence.__getitem__)
    wanted = _predictions(target, token_ids)
    best_speed, best = 0.0, order[:1]
    for count in sorted({max(1, round(share * len(order))) for share in _SHARES}):
        if count == len(order):
            break
        shorter = LayerSkippingLM(target, order[:count])
        agreement = float((_predictions(shorter, token_ids) == wanted).double().mean())
        speed = _expected_speed(agreement, num_parameters(shorter) / num_parameters(target))
        if speed > best_speed:
            best_speed, best = speed, order[:count]
        if time.perf_counter() - started_at > max_seconds:
            break
    return best


def _expected_speed(agreement: float, cost: float) -> float:
    """Tokens per pass of the target, with the best length of chain (Leviathan et al. 2023).

    Args:
        agreement: probability that a guess is right.
        cost: of a pass of the draft model, in passes of the target.
    """
    speeds = []
    expected = 1.0
    for length in range(1, _MAX_CHAIN + 1):
        expected += agreement**length
        speeds.append(expected / (1.0 + length * cost))
    return max(speeds)


def _predictions(model: CausalLM, token_ids: Seq[int]) -> Tensor:
    """The likeliest token behind each token of a text."""
    cache = model.new_cache()
    cache.add()
    return model.forward(Rows.chain(token_ids, 0, model.device), cache)[0].argmax(dim=-1)


def _as_causal_lm(target: TargetModel) -> CausalLM:
    if not isinstance(target, CausalLM):
        raise DrafterError(
            f"{NAME} leaves out decoder layers, and a {type(target).__name__} has none; "
            "choose another drafter"
        )
    return target


def _spelled(layers: Seq[int]) -> str:
    return "+".join(map(str, layers))
