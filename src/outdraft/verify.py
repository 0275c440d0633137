"""Where the target and the draft part ways. No model, no cache, no stop rule."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from jaxtyping import Int
from torch import Tensor

from outdraft.types import NO_TOKEN, DraftTree, Origin, Plan, Verdict


def verify(plan: Plan, target_ids: Int[Tensor, "seqs rows"]) -> list[Verdict]:
    """Walks each tree down while the target's own token is among the children.

        row         0 root     1          2          3
        reads       "the"      "cat"      "sat"      "dog"          parents: 1→0, 2→1, 3→0
        draws       "cat"      "ran"      ...        ...
                       └─ = row 1 ─┘ └─ ≠ row 2: the walk ends, "ran" is the correction

    Greedy or sampled, chain or tree: `target_ids[b, r]` is the token the target draws after row
    `r`, and an accepted guess is one the target draws itself. Reads the device once.
    """
    drawn = target_ids.tolist()
    return [walk(tree, row) for tree, row in zip(plan.trees, drawn, strict=True)]


def walk(tree: DraftTree, drawn: Seq[int]) -> Verdict:
    """One tree, and the target's own token after each of its rows."""
    children: dict[int, dict[int, int]] = {}
    for node, (parent, token_id) in enumerate(zip(tree.parents, tree.token_ids, strict=True)):
        children.setdefault(parent + 1, {})[token_id] = node + 1
    path, token_ids, judged = [0], [drawn[0]], []
    while token_ids[-1] != NO_TOKEN and (guesses := children.get(path[-1])):
        judged.append(len(guesses))
        row = guesses.get(token_ids[-1])
        if row is None:
            return _verdict(path, token_ids, "corrected", judged)
        path.append(row)
        token_ids.append(drawn[row])
    return _verdict(path, token_ids, "bonus" if judged else "plain", judged)


def _verdict(path: list[int], token_ids: list[int], origin: Origin, judged: list[int]) -> Verdict:
    written = token_ids[:-1] if token_ids[-1] == NO_TOKEN else token_ids
    return Verdict(tuple(path), tuple(written), origin, tuple(judged))
