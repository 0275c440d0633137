"""Plain decoding, written out once: the slow program whose text the fast one has to write.

One token per pass. The whole text is read anew for every token: nothing is cached, so nothing can
be stale. No drafts, no batch, no incremental detokenizer. Of outdraft it uses the arithmetic of
`sampling.py` and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence as Seq
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from outdraft.interfaces import TargetModel
from outdraft.sampling import draw, greedy, keyed_noise, to_probs
from outdraft.settings import GenerationSettings
from outdraft.types import Rows

Read = Callable[[Seq[int]], Tensor]
"""From a whole text to the logits of its last token, `[1, vocab]`."""


@dataclass(frozen=True)
class Plain:
    """What plain decoding returns."""

    token_ids: tuple[int, ...]
    text: str
    finish_reason: str


def decode_plainly(
    read: Read,
    prompt_ids: Seq[int],
    settings: GenerationSettings,
    *,
    seed: int,
    eos_ids: Seq[int] = (),
    max_context: int = 4096,
    decode: Callable[[Seq[int]], str],
) -> Plain:
    """Token by token until the text ends."""
    new_ids: list[int] = []
    while True:
        new_ids.append(_next_token([*prompt_ids, *new_ids], read, settings, seed))
        if new_ids[-1] in eos_ids and not settings.ignore_eos:
            return Plain(tuple(new_ids), decode(new_ids[:-1]), "stop")
        text = decode(new_ids)
        stops = [text.find(stop) for stop in settings.stop if stop in text]
        if stops:
            return Plain(tuple(new_ids), text[: min(stops)], "stop")
        is_full = len(prompt_ids) + len(new_ids) >= max_context
        if is_full or len(new_ids) == settings.max_new_tokens:
            return Plain(tuple(new_ids), text, "length")


@torch.inference_mode()
def _next_token(ids: Seq[int], read: Read, settings: GenerationSettings, seed: int) -> int:
    logits = read(ids)
    if settings.is_greedy:
        return int(greedy(logits))
    probs = to_probs(logits, settings)
    return int(draw(probs, keyed_noise(seed, [len(ids)], probs.shape[-1], probs.device)))


def reader_of_target(target: TargetModel) -> Read:
    """Reads in one pass, through a cache that is new each time."""

    def read(ids: Seq[int]) -> Tensor:
        cache = target.new_cache()
        cache.add()
        rows = Rows.chain(ids, 0, target.device)
        return target.forward(rows, cache, logits_to_keep=1)[0]

    return read


def reader_of_model(model: Any) -> Read:
    """Reads as anybody would who has only the model: ids in, its own mask and positions."""

    def read(ids: Seq[int]) -> Tensor:
        token_ids = torch.tensor([list(ids)], device=model.device)
        return model(input_ids=token_ids, use_cache=False).logits[0, -1:]

    return read
