"""Cuts drafts to what may pay and lays them out as rows: ids, positions and ancestors."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import numpy as np
import torch

from outdraft.errors import DrafterError
from outdraft.sequence import Sequence
from outdraft.types import DraftTree, Plan, Rows


def make_plan(
    drafts: Seq[DraftTree],
    batch: Seq[Sequence],
    max_nodes: int,
    *,
    vocab_size: int,
    device: torch.device,
) -> Plan:
    """The rows of the next target pass: every root, and each draft's best nodes.

    Of each tree the `max_nodes` nodes with the highest path probability stay. Path probabilities
    never grow downwards, so they form a tree. Nodes too deep to be committed within the
    sequence's remaining length go first, and so do all guesses for one that allows none.

    Raises:
        DrafterError: there is not one draft per sequence, or a guess is no token of the target.
    """
    if len(drafts) != len(batch):
        raise DrafterError(f"{len(drafts)} drafts for {len(batch)} sequences; need one for each")
    for tree in drafts:
        if tree and not 0 <= min(tree.token_ids) <= max(tree.token_ids) < vocab_size:
            raise DrafterError(
                f"drafter {tree.drafter!r} guessed tokens from {min(tree.token_ids)} to "
                f"{max(tree.token_ids)}; the target's vocabulary has {vocab_size}"
            )
    trees = tuple(
        _cut(tree, max_nodes, max_depth=sequence.max_draft_depth)
        for tree, sequence in zip(drafts, batch, strict=True)
    )
    return Plan(trees, _lay_out(trees, batch, device))


def _cut(tree: DraftTree, max_nodes: int, max_depth: int) -> DraftTree:
    """The likeliest nodes, each path followed to its end before the next begins.

    In that order the likeliest path takes the first rows, and accepting it moves nothing in the
    cache.
    """
    if not tree:
        return tree
    probs, depths = tree.path_probs(), tree.depths()
    fitting = [node for node in range(len(tree)) if depths[node] <= max_depth]
    kept = set(sorted(fitting, key=lambda node: -probs[node])[:max_nodes])
    order = _likeliest_path_first(tree, kept, probs)
    row_of = {node: row for row, node in enumerate(order)}
    return DraftTree(
        token_ids=tuple(tree.token_ids[node] for node in order),
        parents=tuple(row_of.get(tree.parents[node], -1) for node in order),
        acceptance=tuple(tree.acceptance[node] for node in order),
        drafter=tree.drafter,
        scores=tuple(tree.scores[node] for node in order) if tree.scores else (),
    )


def _likeliest_path_first(tree: DraftTree, kept: set[int], probs: Seq[float]) -> list[int]:
    children: dict[int, list[int]] = {}
    for node in sorted(kept, key=lambda node: probs[node]):
        children.setdefault(tree.parents[node], []).append(node)
    order: list[int] = []
    waiting = children.get(-1, [])[:]
    while waiting:
        order.append(waiting.pop())
        waiting.extend(children.get(order[-1], ()))
    return order


def _lay_out(trees: Seq[DraftTree], batch: Seq[Sequence], device: torch.device) -> Rows:
    """Row 0 is the root, row `i + 1` node `i`; rows behind a shorter tree are padding.

    A padding row repeats the root at the root's position and sees itself alone, so that it is
    valid for any model and visible to nobody.
    """
    num_seqs, num_rows = len(trees), 1 + max(len(tree) for tree in trees)
    token_ids = np.empty((num_seqs, num_rows), dtype=np.int64)
    position_ids = np.empty((num_seqs, num_rows), dtype=np.int64)
    ancestors = np.zeros((num_seqs, num_rows, num_rows), dtype=bool)
    ancestors[:] = np.eye(num_rows, dtype=bool)
    for i, (tree, sequence) in enumerate(zip(trees, batch, strict=True)):
        token_ids[i] = sequence.root_id
        position_ids[i] = sequence.root_position
        if tree:
            token_ids[i, 1 : len(tree) + 1] = tree.token_ids
            position_ids[i, 1 : len(tree) + 1] += tree.depths()
        for row, parent in enumerate(tree.parents, start=1):
            ancestors[i, row] |= ancestors[i, parent + 1]
    return Rows(
        token_ids=torch.from_numpy(token_ids).to(device, non_blocking=True),
        position_ids=torch.from_numpy(position_ids).to(device, non_blocking=True),
        ancestors=torch.from_numpy(ancestors).to(device, non_blocking=True),
        row_lens=tuple(1 + len(tree) for tree in trees),
    )
