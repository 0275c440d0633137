"""A draft tree to which likely tokens are added."""

from __future__ import annotations

from outdraft.types import DraftTree

_ROOT = -1
# Of a likely token beside guesses of drafters that leave it next to nothing.
_LEAST = 0.05


class GrowingTree:
    """A tree to which nodes are added; siblings' acceptances stay below 1 together."""

    def __init__(self, tree: DraftTree) -> None:
        self._drafter = tree.drafter
        self._token_ids, self._parents = list(tree.token_ids), list(tree.parents)
        self._acceptance = list(tree.acceptance)
        self._sums: dict[int, float] = {}
        for parent, acceptance in zip(tree.parents, tree.acceptance, strict=True):
            self._sums[parent] = self._sums.get(parent, 0.0) + acceptance
        keys = zip(tree.parents, tree.token_ids, strict=True)
        self.node_of = {key: node for node, key in enumerate(keys)}
        self.depth_of = {_ROOT: 0, **dict(enumerate(tree.depths()))}

    def raise_to(self, node: int, acceptance: float) -> None:
        parent, before = self._parents[node], self._acceptance[node]
        others = self._sums[parent] - before
        self._acceptance[node] = max(before, min(acceptance, 1.0 - others))
        self._sums[parent] = others + self._acceptance[node]

    def add(self, parent: int, token_id: int, acceptance: float) -> int:
        node = len(self._token_ids)
        others = self._sums.get(parent, 0.0)
        self._token_ids.append(token_id)
        self._parents.append(parent)
        self._acceptance.append(max(_LEAST, min(acceptance, 1.0 - others)))
        self._sums[parent] = others + self._acceptance[node]
        self.node_of[parent, token_id] = node
        self.depth_of[node] = self.depth_of[parent] + 1
        return node

    def to_tree(self) -> DraftTree:
        return DraftTree(
            tuple(self._token_ids), tuple(self._parents), tuple(self._acceptance), self._drafter
        )
