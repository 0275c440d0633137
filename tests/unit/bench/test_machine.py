from __future__ import annotations

import json
import sys

import pytest
import torch

import outdraft
from outdraft.bench.machine import describe_machine, describe_versions, peak_rss_bytes


def test_a_machine_is_described_in_plain_json() -> None:
    machine = describe_machine(torch.device("cpu"))
    assert json.loads(json.dumps(machine)) == machine
    assert machine["threads"] == torch.get_num_threads()
    assert machine["device"] == "cpu"
    assert machine["device_name"] == machine["cpu"] != ""
    assert machine["cores"] >= 1


def test_versions_are_those_that_run() -> None:
    versions = describe_versions()
    assert versions["outdraft"] == outdraft.__version__
    assert versions["torch"] == torch.__version__
    assert versions["python"] == sys.version.split()[0]
    assert set(versions) == {"outdraft", "python", "torch", "transformers", "tokenizers"}


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not tell")
def test_peak_memory_is_in_bytes_and_never_falls() -> None:
    before = peak_rss_bytes()
    block = torch.ones(16_000_000)  # 64 MB
    after = peak_rss_bytes()
    del block
    assert before is not None
    assert after is not None
    assert 50_000_000 < before <= after < 100_000_000_000
    assert after == peak_rss_bytes()
