"""How many threads compute on the CPU."""

from __future__ import annotations

import os

import torch

from outdraft.errors import SettingsError

VARIABLE = "OUTDRAFT_THREADS"


def set_threads(number: int | None = None) -> None:
    """Sets torch's number of threads, for the whole process.

    Args:
        number: without it, that of the environment variable; without either, torch's own choice
            stays: one for each physical core.

    Raises:
        SettingsError: it is no whole number above 0.
    """
    asked = os.environ.get(VARIABLE) if number is None else str(number)
    if not asked:
        return
    if not asked.isdecimal() or int(asked) < 1:
        source = VARIABLE if number is None else "threads"
        raise SettingsError(f"{source}={asked!r} is no whole number above 0")
    torch.set_num_threads(int(asked))
