"""Guesses that need no drafter: the tokens after which a grammar leaves no choice.

        drafted    `{"` ─▶ `name` ─▶ `":"` ─▶ `Ada`
        forced     `{"` ─▶ `name`                  └──▶ `",` ─▶ `age`      behind any guess, too

A forced token is certain once its parent is. Guesses that a grammar forbids never come here: they
were cut from what the drafters said.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

from outdraft.plan.blend import Blend
from outdraft.sequence import Sequence
from outdraft.types import DraftTree

FORCED = "grammar"
"""The name that forced tokens have among the drafters."""


def add_forced(merged: Blend, sequence: Sequence, max_nodes: int) -> Blend:
    """A merged tree in which every path goes on as long as the grammar leaves no choice."""
    max_depth = min(max_nodes, sequence.max_draft_depth)
    if sequence.matcher is None or max_depth < 1:
        return merged
    old, tree = merged.tree, sequence.matcher.add_forced(merged.tree, max_depth)
    sources = list(merged.sources) + [(FORCED,)] * (len(tree) - len(old))
    for node, before in enumerate(old.acceptance):
        if tree.acceptance[node] > before:  # the grammar knows better, and is first to be paid
            sources[node] = (FORCED, *sources[node])
    return _best_first(tree, sources)


def _best_first(tree: DraftTree, sources: Seq[tuple[str, ...]]) -> Blend:
    """Nodes by falling path probability; sorting is stable, so that parents stay in front."""
    probs = tree.path_probs()
    order = sorted(range(len(tree)), key=lambda node: -probs[node])
    place = {-1: -1, **{node: i for i, node in enumerate(order)}}
    names = dict.fromkeys(name for each in sources for name in each)
    return Blend(
        DraftTree(
            token_ids=tuple(tree.token_ids[node] for node in order),
            parents=tuple(place[tree.parents[node]] for node in order),
            acceptance=tuple(tree.acceptance[node] for node in order),
            drafter=",".join(names) or tree.drafter,
        ),
        tuple(sources[node] for node in order),
    )
