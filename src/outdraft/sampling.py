"""The single road from logits to the target's own token.

    logits ──to_probs──▶ probs ──draw(probs, noise)──▶ token

The noise of a token is a function of (seed, position, token id) and of nothing else, so the text
is a function of prompt, seed, settings and target: no drafter, budget or neighbour can shift it.
`argmax probs / noise` with Exp(1) noise follows `probs` exactly (the exponential race form of the
Gumbel-max trick).
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from functools import lru_cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from outdraft.settings import GenerationSettings
from outdraft.types import NO_TOKEN

_MASK64 = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_MIX_A = 0xBF58476D1CE4E5B9
_MIX_B = 0x94D049BB133111EB
_TOP_P_SHORTLIST = 1024
_ARGMAX_BLOCK = 64


def to_probs(
    logits: Float[Tensor, "rows vocab"], settings: GenerationSettings
) -> Float[Tensor, "rows vocab"]:
    """Probabilities after temperature and the filters top-k, top-p, min-p, typical, epsilon, eta.

    In that order, which is transformers'; each filter sees what those before it have left.

    Rows sum to 1. Each filter keeps every token as likely as the least likely one it must keep, so
    equal logits never depend on a sort order. Half precision is raised to fp32 first.

    Raises:
        ValueError: at temperature 0, where there is no distribution; take `greedy`.
    """
    if settings.is_greedy:
        raise ValueError("temperature 0 has no distribution; use greedy()")
    scores = at_least_fp32(logits)
    # The likeliest token is moved to 0 first, so that no temperature is too small to divide by.
    scores = (scores - scores.amax(dim=-1, keepdim=True)) / settings.temperature
    if settings.top_k is not None and settings.top_k < scores.shape[-1]:
        kth = scores.topk(settings.top_k, dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < kth, float("-inf"))
    probs = scores.softmax(dim=-1)
    is_cut = settings.top_p < 1.0 or settings.min_p > 0.0
    if settings.top_p < 1.0:
        floor = _least_prob_within(probs, settings.top_p)
        probs = probs.masked_fill(probs < floor, 0.0)
    if settings.min_p > 0.0:
        floor = settings.min_p * probs.amax(dim=-1, keepdim=True)
        probs = probs.masked_fill(probs < floor, 0.0)
    probs = probs / probs.sum(dim=-1, keepdim=True) if is_cut else probs
    return _cut_by_surprise(probs, settings)


def _cut_by_surprise(probs: Tensor, settings: GenerationSettings) -> Tensor:
    """Typical sampling (Meister et al. 2022), epsilon and eta cut-offs (Hewitt et al. 2022).

    The likeliest token passes both cut-offs.
    """
    if settings.typical_p < 1.0:
        oddity = (-probs.log() - _entropy(probs)).abs()
        nearest = oddity.sort(dim=-1, stable=True)
        reached = probs.gather(-1, nearest.indices).cumsum(dim=-1)
        last = (reached < settings.typical_p).sum(dim=-1, keepdim=True)
        bound = nearest.values.gather(-1, last.clamp(max=probs.shape[-1] - 1))
        probs = _only(probs, oddity <= bound)
    if settings.epsilon_cutoff > 0.0:
        floor = probs.amax(dim=-1, keepdim=True).clamp(max=settings.epsilon_cutoff)
        probs = _only(probs, probs >= floor)
    if settings.eta_cutoff > 0.0:
        by_entropy = math.sqrt(settings.eta_cutoff) * (-_entropy(probs)).exp()
        floor = by_entropy.clamp(max=settings.eta_cutoff)
        probs = _only(probs, probs >= floor.minimum(probs.amax(dim=-1, keepdim=True)))
    return probs


def _entropy(probs: Tensor) -> Tensor:
    entropy: Tensor = torch.special.entr(probs).sum(dim=-1, keepdim=True)
    return entropy


def _only(probs: Tensor, is_kept: Tensor) -> Tensor:
    kept = probs.masked_fill(~is_kept, 0.0)
    return kept / kept.sum(dim=-1, keepdim=True)


def choose(
    logits: Float[Tensor, "rows vocab"],
    positions: Seq[int],
    settings: GenerationSettings,
    seed: int,
) -> Int[Tensor, " rows"]:
    """The token a request's target writes after each row.

    Args:
        positions: of the tokens to be written, one per row; rows that compete for the same
            position share its noise.
    """
    if settings.is_greedy:
        return greedy(logits)
    probs = to_probs(logits, settings)
    distinct = sorted(set(positions))
    noise = keyed_noise(seed, distinct, probs.shape[-1], probs.device)
    if len(distinct) < len(positions):
        index = [distinct.index(position) for position in positions]
        noise = noise[torch.tensor(index, device=probs.device)]
    return draw(probs, noise)


def sample_seed(seed: int, index: int) -> int:
    """The seed of a request's answer number `index`, from 0 on; the first has the request's own."""
    return seed if index == 0 else _mix64(_mix64(seed) ^ index) >> 1


def at_least_fp32(logits: Float[Tensor, "... vocab"]) -> Float[Tensor, "... vocab"]:
    """Half precision raised to fp32; the logits themselves where there is nothing to raise."""
    return logits if logits.dtype == torch.float64 else logits.float()


def greedy(logits: Float[Tensor, "... vocab"]) -> Int[Tensor, "..."]:
    """The likeliest token of each row; the lowest id on ties."""
    width = math.gcd(logits.shape[-1], _ARGMAX_BLOCK)
    if logits.device.type != "cpu" or width < _ARGMAX_BLOCK:
        return logits.argmax(dim=-1)
    # On CPUs argmax is many times slower than amax: find the block first, then look inside.
    blocks = logits.unflatten(-1, (-1, width))
    best = blocks.amax(dim=-1).argmax(dim=-1, keepdim=True)
    index = best[..., None].expand(*best.shape, width)
    inside: Tensor = blocks.gather(-2, index)[..., 0, :].argmax(dim=-1)
    return inside.add_(best[..., 0], alpha=width)


def unless_blocked(
    target_ids: Int[Tensor, "..."], logits: Float[Tensor, "... vocab"]
) -> Int[Tensor, "..."]:
    """The tokens chosen by these logits, `NO_TOKEN` where every logit is -inf."""
    return target_ids.masked_fill(logits.amax(dim=-1) == float("-inf"), NO_TOKEN)


def draw(
    probs: Float[Tensor, "rows vocab"], noise: Float[Tensor, "rows vocab"]
) -> Int[Tensor, " rows"]:
    """The token each row draws with its noise."""
    return (probs / noise).argmax(dim=-1)


def keyed_noise(
    seed: int, positions: Seq[int], vocab: int, device: torch.device
) -> Float[Tensor, "positions vocab"]:
    """Exp(1) noise for the tokens at absolute `positions` of the request with this seed.

    A counter-based generator (SplitMix64, Steele et al. 2014): position and seed choose a stream,
    the token id is the counter. The same numbers come out on every device and in any order.
    """
    keys = [_signed(_mix64(_mix64(seed) ^ position)) for position in positions]
    bits = torch.tensor(keys, device=device)[:, None] + _counters(vocab, device)
    bits = _mix64_(bits)
    # 52 random bits, centred in their cell: u lies strictly inside (0, 1), also after rounding
    uniform = bits.bitwise_right_shift_(12).bitwise_and_((1 << 52) - 1).double()
    return uniform.add_(0.5).mul_(2.0**-52).log_().neg_().float()


def _least_prob_within(probs: Tensor, mass: float) -> Tensor:
    """The smallest probability that the likeliest tokens reaching `mass` contain."""
    shortlist = min(_TOP_P_SHORTLIST, probs.shape[-1])
    top = probs.topk(shortlist, dim=-1).values
    # Sorting a whole vocabulary is the slow part of sampling on CPUs; the look at the sums would
    # stall a GPU, which sorts quickly anyway.
    if probs.device.type != "cpu" or bool((top.sum(dim=-1) < mass).any()):
        top = probs.sort(dim=-1, descending=True).values
    is_kept = top.cumsum(dim=-1) - top < mass
    return torch.where(is_kept, top, torch.inf).amin(dim=-1, keepdim=True)


def _mix64(value: int) -> int:
    """SplitMix64's finaliser on a Python integer."""
    value = (value + _GOLDEN) & _MASK64
    value = ((value ^ (value >> 30)) * _MIX_A) & _MASK64
    value = ((value ^ (value >> 27)) * _MIX_B) & _MASK64
    return value ^ (value >> 31)


def _mix64_(bits: Tensor) -> Tensor:
    """The same finaliser in place on int64, whose products wrap around like unsigned ones."""
    _xor_shifted_(bits, 30).mul_(_signed(_MIX_A))
    _xor_shifted_(bits, 27).mul_(_signed(_MIX_B))
    return _xor_shifted_(bits, 31)


def _xor_shifted_(bits: Tensor, shift: int) -> Tensor:
    # int64 shifts drag the sign along; the mask makes the shift a logical one
    return bits.bitwise_xor_((bits >> shift).bitwise_and_((1 << (64 - shift)) - 1))


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


@lru_cache(maxsize=8)
def _counters(vocab: int, device: torch.device) -> Tensor:
    return torch.arange(1, vocab + 1, device=device) * _signed(_GOLDEN)
