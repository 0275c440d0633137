from __future__ import annotations

import platform
from pathlib import Path

import pytest
import torch

from outdraft.models import devices
from outdraft.models.devices import cpu_name, device_name

CPUINFO = """processor\t: 0
vendor_id\t: Some
model name\t: Some(R) CPU: 9 @ 2.00GHz
processor\t: 1
model name\t: Another
"""


@pytest.fixture
def cpuinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the kernel says of the processors, as a file that may be written."""
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(devices, "Path", lambda _: path)
    return path


def test_the_processor_is_called_what_it_calls_itself(cpuinfo: Path) -> None:
    cpuinfo.write_text(CPUINFO)
    assert cpu_name() == device_name(torch.device("cpu")) == "Some(R) CPU: 9 @ 2.00GHz"


@pytest.mark.parametrize("contents", [None, "", "CPU part\t: 0xd0c\n"])
def test_where_it_does_not_say_the_platform_does(
    cpuinfo: Path, contents: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if contents is not None:
        cpuinfo.write_text(contents)
    monkeypatch.setattr(platform, "processor", lambda: "arm")
    assert cpu_name() == "arm"
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    assert cpu_name() == "aarch64"


def test_this_one_has_a_name() -> None:
    assert cpu_name() != ""


def test_a_gpu_is_called_what_torch_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"GPU {device.index}")
    assert device_name(torch.device("cuda:1")) == "GPU 1"
