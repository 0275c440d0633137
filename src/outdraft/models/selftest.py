"""A proof on the actual model, when it is loaded: k rows in one pass equal k passes of one row."""

from __future__ import annotations

import torch
from torch import Tensor

from outdraft.errors import SelfTestError
from outdraft.interfaces import KVCache, TargetModel
from outdraft.types import Rows

# Largest difference of logits, as a share of their standard deviation. Models in float64 still
# compute some normalisations in float32.
_TOLERANCE = {torch.float64: 1e-4, torch.float32: 2e-3, torch.float16: 0.1, torch.bfloat16: 0.5}


def self_test(target: TargetModel) -> float:
    """Reads a small tree on top of two contexts of different length, in one pass and row by row.

    It finds models that ignore masks or positions, or that keep state outside the cache.

    Returns:
        The largest difference of logits seen, as a share of their standard deviation.

    Raises:
        SelfTestError: the difference is beyond rounding.
    """
    contexts = [_some_ids(target, 5, salt=1), _some_ids(target, 9, salt=2)]
    root, *nodes = _some_ids(target, 5, salt=3)
    parents = [0, 1, 0, 3]  # rows; root is row 0:   root ─▶ 1 ─▶ 2   and   root ─▶ 3 ─▶ 4
    together = _read_tree(target, contexts, [root, *nodes], parents)
    differences = []
    branches = ([0, 1, 2], [0, 3, 4])  # one for each context: every row is held against its twin
    for seq_idx, (context, branch) in enumerate(zip(contexts, branches, strict=True)):
        alone = _read_one_by_one(target, context, [[root, *nodes][row] for row in branch])
        difference = (together[seq_idx, branch].double() - alone.double()).abs().max()
        differences.append(difference / alone.double().std())
    worst = float(torch.stack(differences).max())
    tolerance = _TOLERANCE[together.dtype]
    if not worst <= tolerance:  # true of nan too, which `max` of tensors passes on
        raise SelfTestError(
            "this model reads several rows in one pass differently from one by one: logits differ "
            f"by {worst:.2g} standard deviations, rounding explains {tolerance:.2g}; drafting "
            "would change its text, so decode it with transformers' own generate()"
        )
    return worst


def _some_ids(target: TargetModel, count: int, salt: int) -> list[int]:
    return [(7919 * (salt * 31 + i) + 104729) % target.vocab_size for i in range(count)]


def _read_tree(
    target: TargetModel, contexts: list[list[int]], tokens: list[int], parents: list[int]
) -> Tensor:
    cache = target.new_cache()
    for context in contexts:
        _read(target, cache, cache.add(), context)
    num_rows = len(tokens)
    ancestors = torch.eye(num_rows, dtype=torch.bool)
    depths = [0]
    for row, parent in enumerate(parents, start=1):
        ancestors[row] |= ancestors[parent]
        depths.append(depths[parent] + 1)
    device, num_seqs = target.device, len(contexts)
    lens = torch.tensor([len(context) for context in contexts])
    rows = Rows(
        token_ids=torch.tensor([tokens] * num_seqs, device=device),
        position_ids=(lens[:, None] + torch.tensor(depths)).to(device),
        ancestors=ancestors.expand(num_seqs, -1, -1).to(device),
        row_lens=(num_rows,) * num_seqs,
    )
    return target.forward(rows, cache)


def _read_one_by_one(target: TargetModel, context: list[int], tokens: list[int]) -> Tensor:
    cache = target.new_cache()
    seq_idx = cache.add()
    _read(target, cache, seq_idx, context)
    return torch.cat([_read(target, cache, seq_idx, [token])[0] for token in tokens])


def _read(target: TargetModel, cache: KVCache, seq_idx: int, tokens: list[int]) -> Tensor:
    """Reads and commits a chain; returns its logits."""
    rows = Rows.chain(tokens, start=cache.committed_lens[seq_idx], device=target.device)
    logits = target.forward(rows, cache, first_seq=seq_idx)
    cache.commit(seq_idx, range(len(tokens)))
    return logits
