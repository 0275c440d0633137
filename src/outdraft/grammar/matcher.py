"""Where one request's text stands in its grammar, and where its guesses would lead.

    committed text ──▶ ● root ── `"name": ` is forced ──▶ ● ──▶ ●        one state walks over all
                       └─ `{"` ✗ the grammar forbids it                  places and is rolled back

Places that were looked at are kept until the text has left them behind: the drafters of a step
guess much the same, and the rows that are read were looked at before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence as Seq
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outdraft.errors import SettingsError
from outdraft.grammar.growing import GrowingTree
from outdraft.types import DraftTree

_ROOT = -1
# Where several tokens end a text, the model's usual one is likely, but not certain.
_LIKELY_END = 0.9
# Where the next characters are certain but not how they are cut into tokens, models mostly cut them
# as their tokenizer does; the last token may go on into what is free.
_LIKELY_CUT = 0.9
_LIKELY_LAST_CUT = 0.7


@dataclass(eq=False, slots=True)
class _Place:
    """A place in the grammar.

    Args:
        depth: tokens walked since the request began.
        forced_id: the only token that may follow, if there is but one.
        likely: the token that follows in all likelihood, and how likely it is, if there is one.
        can_end: the text may end here.
        must_end: nothing else may follow.
        children: places that were looked at; `None` where the grammar forbids the token.
    """

    depth: int
    parent: _Place | None
    token_id: int
    forced_id: int | None = None
    likely: tuple[int, float] | None = None
    can_end: bool = False
    must_end: bool = False
    is_behind_end: bool = False
    children: dict[int, _Place | None] = field(default_factory=dict)
    bits: bytes | None = None


class Matcher:
    """The state of one request; only `advance` moves it on.

    What may follow a row is a function of the tokens before it: looking at guesses, and the order
    in which that happens, changes nothing.

    Args:
        state: llguidance's, at the beginning of the text.
        tokenize: from bytes to token ids.
        likely_eos: of `eos_ids`, the one to guess where the text has to end.
    """

    def __init__(
        self,
        state: Any,
        tokenize: Callable[[bytes], Seq[int]],
        *,
        vocab_size: int,
        eos_ids: Seq[int],
        likely_eos: int,
    ) -> None:
        self._state = state
        self._tokenize = tokenize
        self._vocab_size = vocab_size
        self._eos_ids = frozenset(eos_ids)
        self._likely_eos = likely_eos
        self._end_acceptance = 1.0 if len(self._eos_ids) == 1 else _LIKELY_END
        self._root = self._at = self._look(_Place(0, None, _ROOT))

    @property
    def is_finished(self) -> bool:
        """Whether the token that ends the text was committed."""
        return self._root.is_behind_end

    @property
    def can_end(self) -> bool:
        """Whether the text is whole as it stands."""
        return self._root.can_end or self.is_finished

    def advance(self, token_id: int) -> None:
        """Takes note of a committed token.

        Raises:
            SettingsError: the grammar does not allow it here.
        """
        place = self._child(self._root, token_id)
        if place is None:
            raise SettingsError(
                f"token {token_id} was chosen where the grammar forbids it: one of "
                "logits_processors made it likely again; have it leave logits of -inf as they are"
            )
        if not place.is_behind_end:
            self._go(place)
        place.parent = None
        self._root = place

    def prune(self, tree: DraftTree) -> DraftTree:
        """The guesses that the grammar allows; with a forbidden one goes what hangs on it."""
        place_of = self._places(tree)
        if len(place_of) == len(tree):
            return tree
        kept = sorted(place_of)
        new_idx = {_ROOT: _ROOT, **{node: i for i, node in enumerate(kept)}}
        return DraftTree(
            token_ids=tuple(tree.token_ids[node] for node in kept),
            parents=tuple(new_idx[tree.parents[node]] for node in kept),
            acceptance=tuple(tree.acceptance[node] for node in kept),
            drafter=tree.drafter,
            scores=tuple(tree.scores[node] for node in kept) if tree.scores else (),
        )

    def forced_ids(self, max_len: int) -> tuple[int, ...]:
        """The next tokens, as far as there is no choice."""
        ids: list[int] = []
        place = self._root
        while len(ids) < max_len and place.likely is not None and place.likely[1] == 1.0:
            ids.append(place.likely[0])
            place = self._child_that_is_there(place, ids[-1])
        return tuple(ids)

    def add_forced(self, tree: DraftTree, max_depth: int) -> DraftTree:
        """A pruned tree in which every path goes on as long as the grammar says how.

        New nodes stand behind the tree's own, which keep their places. Where there is no choice
        they are certain; where only the characters are, they are likely.
        """
        place_of = {_ROOT: self._root, **self._places(tree)}
        grown = GrowingTree(tree)
        for start in _depth_first(tree):
            node = start
            while grown.depth_of[node] < max_depth and (likely := place_of[node].likely):
                token_id, acceptance = likely
                known = grown.node_of.get((node, token_id))
                if known is not None:
                    grown.raise_to(known, acceptance)
                    break  # it is a start of its own
                place = self._child_that_is_there(place_of[node], token_id)
                node = grown.add(node, token_id, acceptance)
                place_of[node] = place
        return grown.to_tree()

    def mask_rows(self, tree: DraftTree) -> Tensor:
        """Which tokens may follow each row, `[1 + nodes, vocab]`, bool.

        A row that no allowed text can reach allows all: whatever is drawn there is dropped.
        """
        place_of = {_ROOT: self._root, **self._places(tree)}
        num_bytes = -(-self._vocab_size // 8)
        rows = np.full((1 + len(tree), num_bytes), 0xFF, dtype=np.uint8)
        for node in _depth_first(tree):
            place = place_of.get(node)
            if place is not None and not place.is_behind_end:
                rows[node + 1] = np.frombuffer(self._bits(place), dtype=np.uint8)[:num_bytes]
        bits = np.unpackbits(rows, axis=1, count=self._vocab_size, bitorder="little")
        return torch.from_numpy(bits.view(np.bool_))

    def _places(self, tree: DraftTree) -> dict[int, _Place]:
        """Where the allowed nodes of a tree lead."""
        place_of = {_ROOT: self._root}
        for node in _depth_first(tree):
            parent = place_of.get(tree.parents[node]) if node != _ROOT else None
            place = self._child(parent, tree.token_ids[node]) if parent is not None else None
            if place is not None:
                place_of[node] = place
        del place_of[_ROOT]
        return place_of

    def _child_that_is_there(self, place: _Place, token_id: int) -> _Place:
        child = self._child(place, token_id)
        assert child is not None  # a likely token is an allowed one
        return child

    def _child(self, place: _Place, token_id: int) -> _Place | None:
        """Where a token leads, `None` where it is forbidden; nothing follows the end."""
        if token_id in place.children or place.is_behind_end:
            return place.children.get(token_id)
        child = _Place(place.depth + 1, place, token_id)
        if token_id in self._eos_ids:
            child.is_behind_end = True
            is_allowed = place.can_end or _has_bit(self._bits(place), token_id)
        else:
            is_allowed = self._try(place, child)
        place.children[token_id] = child if is_allowed else None
        return place.children[token_id]

    def _try(self, place: _Place, child: _Place) -> bool:
        """Moves the state to a child that was not looked at yet, if the grammar allows it."""
        is_token = 0 <= child.token_id < self._vocab_size
        if not is_token or place.must_end or place.forced_id not in (None, child.token_id):
            return False
        self._go(place)
        if self._state.try_consume_tokens([child.token_id]) != 1:
            return False
        self._at = self._look(child)
        return True

    def _go(self, place: _Place) -> None:
        """Moves the state to a place: back to where the ways part, and on from there."""
        onward: list[int] = []
        num_back, here, there = 0, self._at, place
        while here is not there:
            if here.depth >= there.depth:
                num_back += 1
                assert here.parent is not None  # both descend from the root
                here = here.parent
            else:
                onward.append(there.token_id)
                assert there.parent is not None
                there = there.parent
        if num_back:
            self._state.rollback(num_back)
        if onward:
            self._state.consume_tokens(onward[::-1])
        self._check()
        self._at = place

    def _look(self, place: _Place) -> _Place:
        """Notes what the state says of the place it has just reached."""
        self._check()
        place.can_end = self._state.is_accepting()
        place.must_end = self._state.is_stopped()
        if place.must_end:
            place.likely = self._likely_eos, self._end_acceptance
        elif forced := self._state.compute_ff_tokens():
            place.forced_id = forced[0]
            place.likely = forced[0], 1.0
        elif certain := self._state.compute_ff_bytes():
            token_id, *others = self._tokenize(certain)
            if self._state.validate_tokens([token_id]) == 1:
                place.likely = token_id, _LIKELY_CUT if others else _LIKELY_LAST_CUT
        return place

    def _bits(self, place: _Place) -> bytes:
        if place.bits is None:
            self._go(place)
            place.bits = self._state.compute_bitmask()
            self._check()
        return place.bits

    def _check(self) -> None:
        if self._state.is_error():
            raise SettingsError(
                f"the grammar cannot be followed any further ({self._state.get_error().strip()}); "
                "make it simpler"
            )


def _has_bit(bits: bytes, idx: int) -> bool:
    return bool(bits[idx // 8] >> idx % 8 & 1)


def _depth_first(tree: DraftTree) -> Iterator[int]:
    """The root, then the nodes, each path to its end before the next begins."""
    children: dict[int, list[int]] = {}
    for node in reversed(range(len(tree))):
        children.setdefault(tree.parents[node], []).append(node)
    waiting = [_ROOT]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(children.get(node, ()))
