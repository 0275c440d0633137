"""Which cached slots each row may attend to, as explicit 4-D masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from outdraft.types import Rows

Kind = Literal["full", "window", "chunk"]


@dataclass(frozen=True, slots=True)
class Reach:
    """How far back a layer looks.

    Args:
        kind: `full` sees every earlier position; `window` the last `size`, its own included;
            `chunk` those of its own block of `size` positions.
    """

    kind: Kind = "full"
    size: int = 0


def tree_mask(
    rows: Rows, starts: Int[Tensor, " seqs"], context: int
) -> Bool[Tensor, "seqs rows context"]:
    """Slots each row sees before any window: the committed context and its own ancestors.

        slot          0 … start-1     start … start+rows-1      beyond
        row i sees    all of them     its ancestors             nothing

    Args:
        starts: committed positions of each sequence.
        context: slots handed to attention.
    """
    offset = torch.arange(context, device=starts.device) - starts[:, None]  # [seqs, context]
    is_committed = offset < 0
    is_row = (offset >= 0) & (offset < rows.num_rows)
    index = offset.clamp(0, rows.num_rows - 1)[:, None, :].expand(-1, rows.num_rows, -1)
    is_ancestor = rows.ancestors.gather(2, index)
    return is_committed[:, None, :] | (is_row[:, None, :] & is_ancestor)


def slot_positions(
    rows: Rows, starts: Int[Tensor, " seqs"], context: int
) -> Int[Tensor, "seqs context"]:
    """The text position of each slot: its own number if committed, else its row's."""
    slots = torch.arange(context, device=starts.device).expand(rows.num_seqs, -1)
    index = (slots - starts[:, None]).clamp(0, rows.num_rows - 1)
    return torch.where(slots < starts[:, None], slots, rows.position_ids.gather(1, index))


def within_reach(
    reach: Reach,
    row_positions: Int[Tensor, "seqs rows"],
    slot_positions: Int[Tensor, "seqs context"],
) -> Bool[Tensor, "seqs rows context"]:
    """Whether a layer of this reach looks from each row as far back as each slot."""
    row, slot = row_positions[:, :, None], slot_positions[:, None, :]
    if reach.kind == "window":
        return row - slot < reach.size
    return row // reach.size == slot // reach.size


def additive(mask: Bool[Tensor, "..."], dtype: torch.dtype) -> Tensor:
    """The same mask as numbers to add to attention scores: 0 to see, the least float not to."""
    return torch.zeros(mask.shape, dtype=dtype, device=mask.device).masked_fill_(
        ~mask, torch.finfo(dtype).min
    )
