from __future__ import annotations

import sys
from pathlib import Path

import pytest

from outdraft.errors import SettingsError
from outdraft.report import Run, read_run
from outdraft.report.png import draw_png
from support.reports import run_traced


def test_the_chart_is_drawn(whole: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw_png(whole, tmp_path / "a.png")
    content = (tmp_path / "a.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    width, height = (int.from_bytes(content[at : at + 4]) for at in (16, 20))
    assert width > 1000
    assert height > 300


def test_a_name_that_cannot_be_written_is_refused(whole: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for path in (tmp_path / "a.unknown", tmp_path / "none" / "a.png"):
        with pytest.raises(SettingsError, match=r"cannot be written .*name another file"):
            draw_png(whole, path)


def test_without_matplotlib_the_way_out_is_named(
    whole: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SettingsError, match=r"needs matplotlib; pip install 'outdraft\[bench\]'"):
        draw_png(whole, tmp_path / "a.png")


def test_without_plain_decoding_there_is_nothing_to_draw(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    folder = run_traced(tmp_path, baselines=(), drafters=["suffix"], max_new_tokens=4)
    with pytest.raises(SettingsError, match="the methods are suffix; measure beside"):
        draw_png(read_run(folder), tmp_path / "a.png")
