"""What a drafter would have brought on answers that are already known.

`log` reads the answers, `simulate` runs drafters on them.
"""

from outdraft.replay.log import KnownAnswer, Log, is_bench_log, read_bench_log, read_log
from outdraft.replay.simulate import (
    KnownTarget,
    Prediction,
    id_only_drafter,
    id_only_specs,
    replay,
)

__all__ = [
    "KnownAnswer",
    "KnownTarget",
    "Log",
    "Prediction",
    "id_only_drafter",
    "id_only_specs",
    "is_bench_log",
    "read_bench_log",
    "read_log",
    "replay",
]
