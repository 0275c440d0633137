"""Small draft models, and a drafter that is watched while it works."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from outdraft.draft.model_drafter import ModelDrafter
from outdraft.interfaces import Drafter
from outdraft.models.target import CausalLM
from outdraft.sequence import Sequence
from outdraft.types import Budget, Commit, DraftTree, Rows

CPU = torch.device("cpu")
_TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-3}


def small_llama(seed: int = 0, dtype: torch.dtype = torch.float64, **changes: Any) -> CausalLM:
    """A random model; the same seed and sizes give the same weights."""
    sizes: dict[str, Any] = {
        "vocab_size": 56,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 96,
        "initializer_range": 0.4,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return CausalLM(LlamaForCausalLM(LlamaConfig(**{**sizes, **changes})).eval().to(dtype))


class Watched(Drafter):
    """Passes everything on; looks before each draft whether the draft model's cache is in step.

    Attributes:
        trees: of every draft, per request.
        num_passes: of the draft model, for each draft.
        num_unread: tokens that were new to the draft model, for each draft and request.
    """

    def __init__(self, drafter: ModelDrafter) -> None:
        self.name = drafter.name
        self.trees: dict[int, list[DraftTree]] = {}
        self.num_passes: list[int] = []
        self.num_unread: list[int] = []
        self._drafter = drafter
        self._runner = drafter._runner
        self._forward = self._runner.model.forward
        self._runner.model.forward = self._count

    def propose(self, batch: Seq[Sequence], budget: Budget) -> list[DraftTree]:
        self.check_cache(batch)
        self.num_passes.append(0)
        trees = self._drafter.propose(batch, budget)
        for sequence, tree in zip(batch, trees, strict=True):
            self.trees.setdefault(sequence.request_id, []).append(tree)
        return trees

    def observe(self, sequence: Sequence, commit: Commit) -> None:
        self._drafter.observe(sequence, commit)

    def finish(self, sequence: Sequence) -> None:
        self._drafter.finish(sequence)
        assert self._runner.held_ids(sequence.request_id) == ()

    def check_cache(self, batch: Seq[Sequence]) -> None:
        """It holds beginnings of the texts, and reads on from there as a fresh one does."""
        runner = self._runner
        held = [runner.held_ids(request_id) for request_id in runner._request_ids]
        assert runner._cache.committed_lens == tuple(map(len, held))
        for sequence in batch:
            ids = list(self._drafter._link.read_ids(sequence))
            known = list(runner.held_ids(sequence.request_id))
            self.num_unread.append(len(ids) - len(known))
            if known:
                assert known == ids[: len(known)]
                rows = Rows.chain([ids[len(known)]], len(known), CPU)
                seq_idx = runner._request_ids.index(sequence.request_id)
                found = self._forward(rows, runner._cache, first_seq=seq_idx)[0, 0]
                afresh = self._read_afresh([*known, ids[len(known)]])
                torch.testing.assert_close(found, afresh, rtol=0.0, atol=_TOLERANCE[found.dtype])

    def _read_afresh(self, ids: Seq[int]) -> Tensor:
        cache = self._runner.model.new_cache()
        cache.add()
        return self._forward(Rows.chain(ids, 0, CPU), cache)[0, -1]

    def _count(self, *args: Any, **options: Any) -> Tensor:
        self.num_passes[-1] += 1
        return self._forward(*args, **options)
