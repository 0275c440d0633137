"""What stands between the target's logits and a request's probabilities: row processors.

    logits ──processors of the request──▶ scores ──to_probs──▶ probs ──draw──▶ token

A penalty, a ban or a grammar depends on the text before the token, and rows of one pass have
different texts before them: each row is processed as if its own path were the text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence as Seq

from torch import Tensor

from outdraft.grammar.matcher import Matcher
from outdraft.types import DraftTree


class RowProcessor(ABC):
    """Changes the logits of one request by what stands before each row.

    It belongs to one request. What a row gets is a function of the tokens before it and of nothing
    else: guesses beside the row's path, and how the text was grouped into steps, do not matter.
    """

    @abstractmethod
    def process(self, ids: Seq[int], tree: DraftTree, logits: Tensor) -> Tensor:
        """The processed logits, `[1 + nodes, vocab]`; is called once per pass.

            row        0             1 = node 0        2 = node 1
            follows    ids           ids, path to 0    ids, path to 1

        Leaves the processor where the committed text `ids` puts it: guesses are only tried.

        Args:
            ids: prompt and committed tokens; the last one is the root.
            tree: the guesses that were read; a prompt's last row comes with an empty tree.
            logits: fp32 or fp64, and the processor's to change in place.
        """

    def advance(self, token_id: int) -> None:
        """Takes note of a token that became part of the text, the one that ends it included."""
        del token_id


class GrammarMask(RowProcessor):
    """Rules out what a grammar forbids; the first of a request's processors.

    What others take away or divide up is then shared among allowed tokens alone.
    """

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher

    def process(self, ids: Seq[int], tree: DraftTree, logits: Tensor) -> Tensor:
        del ids
        is_allowed = self._matcher.mask_rows(tree).to(logits.device, non_blocking=True)
        return logits.masked_fill_(~is_allowed, float("-inf"))

    def advance(self, token_id: int) -> None:
        self._matcher.advance(token_id)


def row_paths(tree: DraftTree) -> list[tuple[int, ...]]:
    """The guessed tokens that lead to each row: none to row 0, to row `i + 1` those to node `i`."""
    paths: list[tuple[int, ...]] = [()]
    for parent, token_id in zip(tree.parents, tree.token_ids, strict=True):
        paths.append((*paths[parent + 1], token_id))
    return paths
