"""The logits processors that `generate` hands over, as row processors of each row of its batch.

`generate` puts temperature and filters last; these are left to outdraft's own road to
probabilities. What stands before them is called as `generate` would call it: with the padding in
front of the row, so that lengths count the same tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence as Seq
from typing import Any

import torch
from transformers import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    GenerationConfig,
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from outdraft.errors import SettingsError
from outdraft.models.processors import Restorable, in_rows, is_stateless
from outdraft.processing import RowProcessor


def honoured_processors(processors: LogitsProcessorList, config: GenerationConfig) -> list[Any]:
    """Those that stand before temperature and filters.

    Raises:
        SettingsError: one might notice guesses or neighbours, or the filters are others than the
            options say.
    """
    implied = _implied_filters(config)
    start = max(len(processors) - len(implied), 0)
    for processor, expected in zip(reversed(processors), reversed(implied), strict=False):
        if (type(processor), vars(processor)) != (type(expected), vars(expected)):
            raise _refuse(processor, "leave it out")
    honoured = list(processors[:start])
    for processor in honoured:
        if not is_stateless(processor) and not isinstance(processor, Restorable):
            raise _refuse(
                processor,
                "give it snapshot() and restore(), or is_stateless = True if it looks at nothing "
                "but the row it is called with",
            )
    return honoured


def processors_of_row(processors: Seq[Any], row: int, padding: Seq[int]) -> list[RowProcessor]:
    """The same for one row of the batch.

    Args:
        padding: token ids in front of its prompt.
    """
    made, _ = in_rows([_for_row(processor, row) for processor in processors], prefix=padding)
    return made


def _for_row(processor: Any, row: int) -> Any:
    """`generate` tells this one processor how long the padding of every row is."""
    if type(processor) is RepetitionPenaltyLogitsProcessor:
        ignored = processor.prompt_ignore_length
        if isinstance(ignored, torch.Tensor):
            processor = copy.copy(processor)
            processor.prompt_ignore_length = int(ignored[row])
    return processor


def _implied_filters(config: GenerationConfig) -> list[Any]:
    """What `generate` makes of the options that `GenerationSettings` has too, in its order."""
    if not config.do_sample:
        return []
    filters: list[Any] = []
    if config.temperature is not None and config.temperature != 1.0:
        filters.append(TemperatureLogitsWarper(config.temperature))
    if config.top_k:
        filters.append(TopKLogitsWarper(config.top_k))
    if config.top_p is not None and config.top_p < 1.0:
        filters.append(TopPLogitsWarper(config.top_p))
    if config.min_p is not None:
        filters.append(MinPLogitsWarper(config.min_p))
    if config.typical_p is not None and config.typical_p < 1.0:
        filters.append(TypicalLogitsWarper(config.typical_p))
    if config.epsilon_cutoff is not None and 0.0 < config.epsilon_cutoff < 1.0:
        filters.append(EpsilonLogitsWarper(config.epsilon_cutoff))
    if config.eta_cutoff is not None and 0.0 < config.eta_cutoff < 1.0:
        filters.append(EtaLogitsWarper(config.eta_cutoff))
    return filters


def _refuse(processor: Any, way_out: str) -> SettingsError:
    return SettingsError(
        f"outdraft.custom_generate cannot honour the logits processor {type(processor).__name__}; "
        f"{way_out}, or generate without custom_generate"
    )
