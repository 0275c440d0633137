"""A key/value cache addressed by position.

    slot      0   1   2   3   4 │  5    6    7    8
    holds     committed context │ root  d1   d2   x        rows of the pass in flight
                                └ committed_lens

The rows of a pass are written behind the committed context. `commit(path)` moves the accepted ones
together and raises `committed_lens`; what lies behind it is unreachable, since the mask never
shows it and the next pass overwrites it. Windowed layers keep all positions too and are windowed by
their mask, so that nothing has to be un-evicted when a guess is rejected.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from outdraft.errors import CacheError
from outdraft.interfaces import KVCache

_FIRST_CAPACITY = 256


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one layer caches per position."""

    heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype
    device: torch.device


class PositionCache(KVCache):
    """The cache of one batch; see the module's picture.

    Layers of one shape share one tensor, so that a commit is one copy and not one per layer.

    Args:
        shapes: one per layer, in the model's order.
    """

    def __init__(self, shapes: Seq[LayerShape]) -> None:
        self._lens: list[int] = []
        self._pass: _Pass | None = None
        self._stores: dict[LayerShape, _Store] = {}
        self._layers: list[PositionLayer] = []
        for shape in shapes:
            store = self._stores.setdefault(shape, _Store(shape))
            self._layers.append(PositionLayer(store, store.add_layer()))
        self.for_model = Cache(layers=list(self._layers))

    @property
    def committed_lens(self) -> tuple[int, ...]:
        return tuple(self._lens)

    def add(self) -> int:
        self._lens.append(0)
        self._reserve(context=0)
        return len(self._lens) - 1

    def add_from(self, source: Self, seq_idx: int, length: int) -> int:
        source.check_beginning(seq_idx, length)
        if source._stores.keys() != self._stores.keys():
            raise CacheError("the caches belong to models of different shapes")
        added = len(self._lens)
        for shape, store in self._stores.items():
            store.reserve(added + 1, length)
            store.copy_from(source._stores[shape], seq_idx, added, length)
        self._lens.append(length)
        return added

    def remove(self, seq_idx: int) -> None:
        last = len(self._lens) - 1
        if seq_idx != last:
            for store in self._stores.values():
                store.copy_from(store, last, seq_idx, self._lens[last])
        self._lens[seq_idx] = self._lens[last]
        self._lens.pop()
        self._pass = None

    def begin_pass(self, first_seq: int, num_seqs: int, num_rows: int) -> None:
        """Prepares the layers to take `num_rows` rows of these sequences, behind what they own."""
        self.check_seqs(first_seq, num_seqs)
        starts = self._lens[first_seq : first_seq + num_seqs]
        context = max(starts) + num_rows
        self._reserve(context)
        self._pass = _Pass(first_seq, num_seqs, num_rows, tuple(starts), context)
        for store in self._stores.values():
            store.open(self._pass)

    @property
    def pass_context(self) -> int:
        """Slots that the pass in flight sees: the longest context plus its rows."""
        if self._pass is None:
            raise CacheError("no pass is in flight")
        return self._pass.context

    def commit(self, seq_idx: int, path: Seq[int]) -> None:
        now = self._pass
        if now is None or not now.first_seq <= seq_idx < now.first_seq + now.num_seqs:
            raise CacheError(f"commit of sequence {seq_idx}, but the last pass did not read it")
        start = now.starts[seq_idx - now.first_seq]
        if self._lens[seq_idx] != start:
            raise CacheError(f"sequence {seq_idx} was already committed after the last pass")
        self.check_path(path, now.num_rows)
        num_in_place = next((i for i, row in enumerate(path) if row != i), len(path))
        if num_in_place < len(path):
            for store in self._stores.values():
                store.move(seq_idx, start, num_in_place, path)
        self._lens[seq_idx] += len(path)

    def _reserve(self, context: int) -> None:
        for store in self._stores.values():
            store.reserve(len(self._lens), context)


@dataclass(frozen=True, slots=True)
class _Pass:
    """The pass in flight: whose rows, how many, and behind which positions."""

    first_seq: int
    num_seqs: int
    num_rows: int
    starts: tuple[int, ...]
    context: int


class _Store:
    """Keys and values of all layers of one shape: `[layers, seqs, heads, context, head_dim]`."""

    def __init__(self, shape: LayerShape) -> None:
        self._shape = shape
        self._num_layers = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None
        self._views: list[tuple[Tensor, Tensor]] = []  # per layer, keys and values
        self._index: tuple[Tensor, Tensor] | None = None

    def add_layer(self) -> int:
        self._num_layers += 1
        return self._num_layers - 1

    def reserve(self, num_seqs: int, context: int) -> None:
        """Grows in large steps; what is cached stays."""
        old_seqs, old_context = (0, 0) if self._keys is None else self._keys.shape[1:4:2]
        if num_seqs <= old_seqs and context <= old_context:
            return
        if num_seqs > old_seqs:
            num_seqs = max(num_seqs, 2 * old_seqs)
        if context > old_context:
            context = max(context, 2 * old_context, _FIRST_CAPACITY)
        self._keys = self._grown(self._keys, num_seqs, context, self._shape.key_dim)
        self._values = self._grown(self._values, num_seqs, context, self._shape.value_dim)

    def _grown(self, old: Tensor | None, num_seqs: int, context: int, head_dim: int) -> Tensor:
        old_seqs, old_context = (0, 0) if old is None else old.shape[1:4:2]
        shape = (
            self._num_layers,
            max(num_seqs, old_seqs),
            self._shape.heads,
            max(context, old_context),
            head_dim,
        )
        # Zeros and not empty memory: a masked slot still enters a product, and 0 * nan is nan.
        new = torch.zeros(shape, dtype=self._shape.dtype, device=self._shape.device)
        if old is not None:
            new[:, :old_seqs, :, :old_context] = old
        return new

    def open(self, now: _Pass) -> None:
        """Makes the views through which the layers write and read in this pass."""
        assert self._keys is not None and self._values is not None  # reserved just before
        seqs = slice(now.first_seq, now.first_seq + now.num_seqs)
        keys = self._keys[:, seqs, :, : now.context]
        values = self._values[:, seqs, :, : now.context]
        self._views = list(zip(keys.unbind(0), values.unbind(0), strict=True))
        self._index = None
        if len(set(now.starts)) > 1:
            starts = torch.tensor(now.starts, device=keys.device)
            slots = starts[:, None] + torch.arange(now.num_rows, device=keys.device)
            seq_idx = torch.arange(now.num_seqs, device=keys.device)[:, None]
            self._index = (seq_idx, slots)

    def write(self, layer: int, new_keys: Tensor, new_values: Tensor) -> tuple[Tensor, Tensor]:
        """Takes one layer's rows `[seqs, heads, rows, head_dim]`; returns all it may see."""
        keys, values = self._views[layer]
        if self._index is None:
            num_rows = new_keys.shape[2]
            keys[:, :, -num_rows:] = new_keys
            values[:, :, -num_rows:] = new_values
        else:
            keys.transpose(1, 2)[self._index] = new_keys.transpose(1, 2)
            values.transpose(1, 2)[self._index] = new_values.transpose(1, 2)
        return keys, values

    def room(self, layer: int) -> tuple[Tensor, Tensor] | None:
        """All that one layer may see, keys and values, its rows to be written in the last slots.

        `None` if the rows of some sequences go elsewhere than those of others.
        """
        return None if self._index is not None else self._views[layer]

    def move(self, seq_idx: int, start: int, num_in_place: int, path: Seq[int]) -> None:
        """Brings the rows of `path` together behind `start`; the first ones are there already."""
        assert self._keys is not None and self._values is not None  # a pass has written
        to = slice(start + num_in_place, start + len(path))
        rows = torch.tensor(path[num_in_place:], device=self._keys.device) + start
        for store in (self._keys, self._values):
            store[:, seq_idx, :, to] = store[:, seq_idx].index_select(2, rows)

    def copy_from(self, source: _Store, from_idx: int, to_idx: int, length: int) -> None:
        """Copies a sequence's first positions, from this or another store of the same shape."""
        for theirs, own in ((source._keys, self._keys), (source._values, self._values)):
            assert theirs is not None and own is not None  # both hold a sequence
            own[:, to_idx, :, :length] = theirs[:, from_idx, :, :length]


class PositionLayer(CacheLayerMixin):
    """One layer as the model's attention sees it: writes through, reads the whole context."""

    is_sliding = False

    def __init__(self, store: _Store, index: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._store = store
        self._index = index
        self.is_initialized = True

    def update(
        self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        return self._store.write(self._index, key_states, value_states)

    def room(self) -> tuple[Tensor, Tensor] | None:
        """For those who write and read in place; see `_Store.room`."""
        return self._store.room(self._index)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing to do: the store is reserved before each pass."""

    def get_seq_length(self) -> int:
        # Positions and masks are always handed over explicitly; a model that asks would count
        # from the wrong place for ragged batches, and the load-time self-test would catch it.
        return 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return query_length, 0

    def get_max_length(self) -> int:
        return -1
