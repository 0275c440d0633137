"""Random draft trees for hypothesis.

A strategy draws the parts and the test builds the tree: run-time type checks use the `random`
module, which hypothesis allows in tests and not in strategies.
"""

from __future__ import annotations

from hypothesis import strategies as st

from outdraft.types import DraftTree

Parts = list[tuple[int, int, float]]
"""Per node its token, its parent and its acceptance."""


@st.composite
def tree_parts(draw: st.DrawFn, max_nodes: int = 12, vocab: int = 5) -> Parts:
    """Any tree: bushy or long, nodes in any order in which parents stand before their children."""
    parts: Parts = []
    taken: set[tuple[int, int]] = set()
    for _ in range(draw(st.integers(0, max_nodes))):
        node = (draw(st.integers(0, vocab - 1)), draw(st.integers(-1, len(parts) - 1)))
        if node not in taken:
            taken.add(node)
            parts.append((*node, draw(st.sampled_from([0.1, 0.5, 0.9, 1.0]))))
    return parts


def build(parts: Parts) -> DraftTree:
    """The tree made of these parts."""
    return DraftTree(
        tuple(token_id for token_id, _, _ in parts),
        tuple(parent for _, parent, _ in parts),
        tuple(acceptance for _, _, acceptance in parts),
    )
