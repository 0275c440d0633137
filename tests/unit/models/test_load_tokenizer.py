from __future__ import annotations

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from outdraft.errors import UnknownModelError, UnsupportedModelError
from outdraft.models.load import load_tokenizer
from support.tiny_files import save_folder, tiny_llama, tiny_tokenizer, write_gguf

IDS = [3, 4]


def test_a_folder_needs_no_weights(tmp_path: Path) -> None:
    folder = save_folder(tmp_path / "tiny")
    (folder / "model.safetensors").unlink()
    assert load_tokenizer(str(folder))("hello world")["input_ids"] == IDS


def test_a_gguf_file_has_one(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_gguf(tmp_path / "tiny.gguf"))
    assert tokenizer.decode(tokenizer("hello")["input_ids"]) == "hello"


def test_a_pair_brings_its_own() -> None:
    tokenizer = tiny_tokenizer()
    assert load_tokenizer((tiny_llama(), tokenizer)) is tokenizer


def test_of_a_hub_repository_no_weights_are_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_folder(tmp_path / "tiny")
    (folder / "model.safetensors").unlink()
    asked: list[str] = []

    def snapshot_download(ref: str, *, allow_patterns: list[str], **_: Any) -> str:
        assert ref == "org/name"
        asked.extend(allow_patterns)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    assert load_tokenizer("org/name")("hello world")["input_ids"] == IDS
    assert "*.json" in asked
    assert not [pattern for pattern in asked if "safetensors" in pattern or ".bin" in pattern]


def test_what_is_no_model_has_none(tmp_path: Path) -> None:
    with pytest.raises(UnknownModelError, match="no existing path"):
        load_tokenizer("./nowhere")
    with pytest.raises(UnsupportedModelError, match=r"no config\.json"):
        load_tokenizer(str(tmp_path))
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(UnsupportedModelError, match="no tokenizer could be read"):
        load_tokenizer(str(tmp_path))
