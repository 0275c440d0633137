"""A language model that guesses: it keeps many texts in its cache and grows a tree behind each.

The model reads only what it has not read before. Behind the text it reads its own guesses, the
likeliest unread ones of all texts in one pass, none of which belongs to the text yet:

    cache of one text    committed text … root │ a    b    x    c        rows of the draft
    tree                                        root ──▶ a ──▶ b ──▶ c ──▶ ?
                                                  └────▶ x

When the text has gone on, the rows that turned out right are kept (`settle`), and what came instead
of the others is read with the next draft.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence as Seq
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from outdraft.draft.guess_tree import ROOT, Guess, GuessTree
from outdraft.interfaces import KVCache, TargetModel
from outdraft.models.piecewise import PiecewiseCache, PiecewiseLM
from outdraft.models.target import CausalLM
from outdraft.types import Rows

# Unread tokens that texts of different lengths read together; of more, all but the last are read
# by each text for itself.
_MAX_RAGGED = 16


Guesser = Callable[[Tensor, Seq[int]], list[list[Guess]]]
"""From logits `[rows, vocab]` and the depth of the guesses behind each row to these guesses."""


@dataclass(frozen=True, slots=True)
class DraftJob:
    """A text to draft for.

    Args:
        token_ids: the whole text, as the draft model reads it; at least one token.
        max_depth: tokens that may be guessed in a row.
        guess: what may come next.
    """

    request_id: int
    token_ids: Seq[int]
    max_nodes: int
    max_depth: int
    guess: Guesser


class ModelRunner:
    """Runs a draft model for many requests at once.

    After each call, its cache holds a beginning of each request's text and nothing else that can be
    reached.

    Args:
        prompt_chunk: tokens read in one pass while catching up with a text.
    """

    def __init__(self, model: TargetModel, *, prompt_chunk: int = 512) -> None:
        if isinstance(model, CausalLM) and not isinstance(model, PiecewiseLM):
            model = PiecewiseLM(model.model)
        self.model = model
        self._cache: KVCache = model.new_cache()
        self._prompt_chunk = prompt_chunk
        self._request_ids: list[int] = []  # in the order of the cache's sequences
        self._held: dict[int, list[int]] = {}  # tokens of each text that the cache holds
        self._trees: dict[int, GuessTree] = {}  # of the last draft, until it is settled
        self.num_levels = 0
        """Passes of the last draft that read guesses."""

    @property
    def cache_bytes(self) -> int:
        """Memory of the cache; 0 if the model's cache does not tell."""
        return self._cache.num_bytes if isinstance(self._cache, PiecewiseCache) else 0

    def held_ids(self, request_id: int) -> tuple[int, ...]:
        """The beginning of a request's text that the cache holds."""
        return tuple(self._held.get(request_id, ()))

    @torch.inference_mode()
    def draft(self, jobs: Seq[DraftJob], min_level_tokens: float = 0.0) -> list[GuessTree]:
        """Reads what is new in each text, then guesses how it goes on.

        Texts have to fit into the model's context.

        Args:
            min_level_tokens: that another pass over guesses has to promise, of all texts together.
        """
        self._trees.clear()
        self.num_levels = 0
        if not jobs:
            return []
        trees = [GuessTree() for _ in jobs]
        for job, tree, logits in zip(jobs, trees, self._read_texts(jobs), strict=True):
            tree.add(ROOT, job.guess(logits[None], [1])[0])
        self._grow(jobs, trees, min_level_tokens)
        self._trees = {job.request_id: tree for job, tree in zip(jobs, trees, strict=True)}
        return trees

    def is_drafting(self, request_id: int) -> bool:
        """Whether the last draft for this request is still to be settled."""
        return request_id in self._trees

    @torch.inference_mode()
    def settle(self, request_id: int, token_ids: Seq[int]) -> None:
        """Keeps the rows of the last draft that the text has gone on with.

        Args:
            token_ids: the whole text as it is now.
        """
        tree = self._trees.pop(request_id, None)
        held = self._held.get(request_id)
        if tree is None or held is None or list(token_ids[: len(held)]) != held:
            return
        # The last token is left to the next draft, which starts from what follows it.
        rows = tree.read_along(token_ids[len(held) : -1])
        if rows:
            self._cache.commit(self._request_ids.index(request_id), rows)
            held.extend(token_ids[len(held) : len(held) + len(rows)])

    @torch.inference_mode()
    def forget(self, request_id: int) -> None:
        """Frees what is kept for a request, if anything is."""
        if self._held.pop(request_id, None) is None:
            return
        seq_idx = self._request_ids.index(request_id)
        self._cache.remove(seq_idx)
        last = self._request_ids.pop()
        if seq_idx < len(self._request_ids):
            self._request_ids[seq_idx] = last
        self._trees.clear()  # rows of a pass before a removal cannot be committed any more

    # --- the text ---------------------------------------------------------------------------------

    def _read_texts(self, jobs: Seq[DraftJob]) -> list[Tensor]:
        """Brings the cache up to the end of each text; returns the logits behind it, `[vocab]`."""
        for job in jobs:
            self._keep_common(job)
        most = _MAX_RAGGED if len(jobs) > 1 else self._prompt_chunk
        for job in jobs:
            if len(job.token_ids) - len(self._held[job.request_id]) > most:
                self._read_alone(job.request_id, job.token_ids[:-1])
        unread = [list(job.token_ids[len(self._held[job.request_id]) :]) for job in jobs]
        span = self._span(jobs)
        layout = _Layout(span, [len(self._held[job.request_id]) for job in jobs])
        layout.append([_chain(new) for new in unread])
        logits = self.model.forward(
            layout.rows(self.model.device),
            self._cache,
            first_seq=span.first_seq,
            logits_to_keep=int(len(jobs) == 1),
        )
        judged = []
        for place, job, new in zip(span.places, jobs, unread, strict=True):
            self._cache.commit(span.first_seq + place, range(len(new)))
            self._held[job.request_id].extend(new)
            judged.append(logits[place, len(new) - 1 if len(jobs) > 1 else -1])
        return judged

    def _keep_common(self, job: DraftJob) -> None:
        """Has the cache hold a beginning of the text, and at least one token less than the text."""
        held = self._held.get(job.request_id)
        if held is None:
            self._cache.add()
            self._request_ids.append(job.request_id)
            self._held[job.request_id] = []
            return
        common = min(_common_len(held, job.token_ids), len(job.token_ids) - 1)
        if common == len(held):
            return
        if isinstance(self._cache, PiecewiseCache):
            self._cache.rewind(self._request_ids.index(job.request_id), common)
            del held[common:]
        else:
            self.forget(job.request_id)
            self._keep_common(job)

    def _read_alone(self, request_id: int, token_ids: Seq[int]) -> None:
        held, seq_idx = self._held[request_id], self._request_ids.index(request_id)
        while len(held) < len(token_ids):
            chunk = list(token_ids[len(held) : len(held) + self._prompt_chunk])
            rows = Rows.chain(chunk, len(held), self.model.device)
            self.model.forward(rows, self._cache, first_seq=seq_idx, logits_to_keep=1)
            self._cache.commit(seq_idx, range(len(chunk)))
            held.extend(chunk)

    def _span(self, jobs: Seq[DraftJob]) -> _Span:
        indexes = [self._request_ids.index(job.request_id) for job in jobs]
        first_seq = min(indexes)
        places = tuple(index - first_seq for index in indexes)
        return _Span(first_seq, max(places) + 1, places)

    # --- the tree ---------------------------------------------------------------------------------

    def _grow(self, jobs: Seq[DraftJob], trees: Seq[GuessTree], min_level_tokens: float) -> None:
        """Reads the likeliest guesses until none is likely enough to be worth a pass."""
        span = self._span(jobs)
        layout = _Layout(span, [len(job.token_ids) for job in jobs])
        max_depths = [self._max_read_depth(job) for job in jobs]
        while True:
            chosen = [
                tree.worth_reading(job.max_nodes, max_depth)
                for tree, job, max_depth in zip(trees, jobs, max_depths, strict=True)
            ]
            expected = sum(map(GuessTree.expected_behind, trees, chosen))
            if not any(chosen) or expected < min_level_tokens:
                return
            self.num_levels += 1
            num_read = layout.num_rows
            layout.append([_nodes(tree, nodes) for tree, nodes in zip(trees, chosen, strict=True)])
            logits = self._read_behind(layout.rows(self.model.device), num_read, span.first_seq)
            for place, job, tree, nodes in zip(span.places, jobs, trees, chosen, strict=True):
                if nodes:
                    depths = [tree.depths[node] + 1 for node in nodes]
                    guesses = job.guess(logits[place, : len(nodes)], depths)
                    tree.take_in(nodes, num_read, guesses)

    def _read_behind(self, rows: Rows, num_read: int, first_seq: int) -> Tensor:
        """Logits of the rows behind the first `num_read`, which were read before if possible."""
        if isinstance(self.model, PiecewiseLM):
            return self.model.forward(rows, self._cache, first_seq=first_seq, num_read=num_read)
        return self.model.forward(rows, self._cache, first_seq=first_seq)[:, num_read:]

    def _max_read_depth(self, job: DraftJob) -> int:
        """Depth to which guesses are read: their children must be wanted, and they must fit."""
        return min(job.max_depth - 1, self.model.max_context - len(job.token_ids))


@dataclass(frozen=True, slots=True)
class _Span:
    """The stretch of the cache's sequences that a pass covers.

    Sequences in between that do not take part read rows that nobody looks at.

    Args:
        places: of those that take part, in the order of their jobs, from `first_seq` on.
    """

    first_seq: int
    num_seqs: int
    places: tuple[int, ...]


class _Row(NamedTuple):
    """A token to read.

    Args:
        offset: of its position, from the first one the cache does not hold.
        parent: row it stands behind; -1 where only the cache's content comes before.
    """

    token_id: int
    offset: int
    parent: int


def _chain(token_ids: Seq[int]) -> list[_Row]:
    return [_Row(token_id, i, i - 1) for i, token_id in enumerate(token_ids)]


def _nodes(tree: GuessTree, nodes: Seq[int]) -> list[_Row]:
    return [
        _Row(tree.guesses[node].token_id, tree.depths[node] - 1, tree.row_of(tree.parents[node]))
        for node in nodes
    ]


class _Layout:
    """The rows of a pass that is read piece by piece.

    Pieces are as wide as their longest list of rows. Padding reads token 0, where the text ends,
    and sees itself and the text alone.

    Args:
        starts: of each text that takes part, the first position that the cache does not hold.
    """

    def __init__(self, span: _Span, starts: Seq[int]) -> None:
        self._span = span
        self._starts = dict(zip(span.places, starts, strict=True))
        padding = [max(0, self._starts.get(place, 0) - 1) for place in range(span.num_seqs)]
        self._padding_positions = np.array(padding, dtype=np.int64)[:, None]
        self._token_ids = np.zeros((span.num_seqs, 0), dtype=np.int64)
        self._position_ids = np.zeros((span.num_seqs, 0), dtype=np.int64)
        self._ancestors = np.zeros((span.num_seqs, 0, 0), dtype=bool)

    @property
    def num_rows(self) -> int:
        return self._token_ids.shape[1]

    def append(self, pieces: Seq[Seq[_Row]]) -> None:
        """Adds a piece: rows of each text that takes part."""
        before, width = self.num_rows, max(len(piece) for piece in pieces)
        pad = ((0, 0), (0, width))
        self._token_ids = np.pad(self._token_ids, pad)
        self._position_ids = np.pad(self._position_ids, pad)
        self._position_ids[:, before:] = self._padding_positions
        self._ancestors = np.pad(self._ancestors, (*pad, (0, width)))
        self._ancestors[:, range(before, before + width), range(before, before + width)] = True
        for place, piece in zip(self._span.places, pieces, strict=True):
            for row, (token_id, offset, parent) in enumerate(piece, start=before):
                self._token_ids[place, row] = token_id
                self._position_ids[place, row] = self._starts[place] + offset
                if parent >= 0:
                    self._ancestors[place, row] |= self._ancestors[place, parent]

    def rows(self, device: torch.device) -> Rows:
        """All pieces up to now."""
        return Rows(
            token_ids=torch.from_numpy(self._token_ids).to(device),
            position_ids=torch.from_numpy(self._position_ids).to(device),
            ancestors=torch.from_numpy(self._ancestors).to(device),
            row_lens=(self.num_rows,) * self._span.num_seqs,
        )


def _common_len(one: Seq[int], other: Seq[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))
