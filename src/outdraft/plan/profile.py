"""What `outdraft tune` found out about a model on this machine, for later runs to start from.

A profile holds the costs of passes, the counts of judged guesses, and the findings it was made of.
It stands beside the kept costs and holds for the same key: another model, precision, processor,
number of threads or version has a profile of its own, or none. It decides how much is drafted, and
can change no text whatever stands in it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass
from pathlib import Path

from outdraft.errors import SettingsError
from outdraft.plan.calibration import Calibrator
from outdraft.plan.cost_file import DAMAGE, CostKey, read_kept, write_kept
from outdraft.plan.cost_model import CostModel

_KIND = "outdraft profile 1"


class ProfileWarning(UserWarning):
    """A profile that cannot be used; the run goes on without it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What one way of guessing did for the prompts that were tried, at one temperature.

    Args:
        tokens_per_step: the prompt's pass left out; plain decoding has 1.
        expected_speedup: by what passes cost and what was written.
        measured_speedup: by the clock, beside plain decoding of the same prompts.
    """

    drafter: str
    temperature: float
    tokens_per_step: float
    expected_speedup: float
    measured_speedup: float

    @property
    def pays(self) -> bool:
        """Whether both agree that it is faster than plain decoding."""
        return min(self.expected_speedup, self.measured_speedup) > 1.0


@dataclass(frozen=True, slots=True)
class Profile:
    """Costs, counts and findings.

    Args:
        made: when, as people write it.
        num_prompts: that were tried.
    """

    costs: CostModel
    calibrator: Calibrator
    findings: tuple[Finding, ...]
    made: str
    num_prompts: int


def profile_path(key: CostKey) -> Path:
    """Where the profile for this key is kept."""
    return key.path.with_suffix(".profile.json")


def load_profile(key: CostKey) -> Profile | None:
    """The profile for this key; `None` if there is none.

    Warns:
        ProfileWarning: it is damaged or cannot be read, and is ignored.
    """
    path = profile_path(key)
    if not path.exists():
        return None
    try:
        values = read_kept(path, _KIND, key)
        return Profile(
            costs=CostModel.from_json(values["costs"]),
            calibrator=Calibrator.from_json(values["counts"]),
            findings=_to_findings(values["findings"]),
            made=str(values["made"]),
            num_prompts=int(values["num_prompts"]),
        )
    except DAMAGE as error:
        warnings.warn(
            f"the profile {path} is damaged ({error!r}) and left out; make another with `outdraft "
            "tune`, or remove it with `outdraft tune --reset`",
            ProfileWarning,
            stacklevel=2,
        )
        return None


def save_profile(key: CostKey, profile: Profile) -> Path:
    """Keeps a profile in place of an older one, in one rename; returns where.

    Raises:
        SettingsError: the disk cannot be written to.
    """
    path = profile_path(key)
    try:
        write_kept(
            path,
            _KIND,
            key,
            {
                "made": profile.made,
                "num_prompts": profile.num_prompts,
                "costs": profile.costs.to_json(),
                "counts": profile.calibrator.to_json(),
                "findings": [asdict(finding) for finding in profile.findings],
            },
        )
    except OSError as error:
        raise SettingsError(
            f"the profile cannot be kept in {path.parent} ({error}); set OUTDRAFT_HOME to a folder "
            "that can be written to"
        ) from error
    return path


def remove_profile(key: CostKey) -> bool:
    """Removes the profile for this key, damaged or not; returns whether there was one."""
    path = profile_path(key)
    was_there = path.exists()
    path.unlink(missing_ok=True)
    return was_there


def _to_findings(values: Seq[dict[str, float | str]]) -> tuple[Finding, ...]:
    findings = []
    for each in values:
        numbers = {name: float(each[name]) for name in _NUMBERS}
        if not all(map(math.isfinite, numbers.values())):
            raise ValueError(f"findings of {each['drafter']!r} are no numbers")
        findings.append(Finding(drafter=str(each["drafter"]), **numbers))
    return tuple(findings)


_NUMBERS = ("temperature", "tokens_per_step", "expected_speedup", "measured_speedup")
