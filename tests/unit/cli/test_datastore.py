from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from outdraft.cli.datastore import DEFAULT_SHARD_TOKENS
from outdraft.draft.datastore import DatastoreDrafter
from outdraft.draft.datastore_build import SHARD_TOKENS
from outdraft.draft.datastore_file import HEADER_BYTES, read_header
from outdraft.models.progress import StageProgress
from outdraft.text.vocabulary import Vocabulary
from support.command_line import Run
from support.tiny_files import save_folder

TEXT = "hello world hello hello\nworld\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder from which all weights are gone: only the tokenizer is needed."""
    folder = save_folder(tmp_path_factory.mktemp("model") / "tiny")
    (folder / "model.safetensors").unlink()
    return folder


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "a.txt"
    path.write_text(TEXT)
    return path


def test_texts_become_a_datastore_that_the_drafter_reads(
    run: Run, model: Path, text: Path, tmp_path: Path
) -> None:
    lines = tmp_path / "b.jsonl"
    records = [{"text": "world world"}, {"prompt": "hello ", "answer": "world"}, {"text": ""}]
    lines.write_text("\n".join(json.dumps(record) for record in records))
    output = tmp_path / "x.datastore"

    result = run("datastore", "build", str(text), str(lines), "-o", str(output), "-m", str(model))

    assert result.exit_code == 0, result.stderr
    assert result.stdout == f"{output}: 9 tokens of 3 documents, 0.0 MB\n"
    assert f"use it with --drafter datastore:{output}" in result.stderr
    assert "reading and tokenising" in result.stderr
    assert "sorting part 1" in result.stderr
    tokenizer = AutoTokenizer.from_pretrained(model)
    drafter = DatastoreDrafter(output, Vocabulary.of(tokenizer))
    index = drafter.new_index()
    index.extend(tokenizer("hello world hello")["input_ids"])
    tree = drafter.guess(index, 2, 2)
    assert tokenizer.decode(tree.token_ids) == "hello world"


def test_the_bar_runs_to_the_end_of_the_files(
    run: Run, model: Path, text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stages: list[tuple[str, int | None]] = []
    reached: list[int] = []
    monkeypatch.setattr(
        StageProgress, "begin", lambda self, stage, total=None: stages.append((stage, total))
    )
    monkeypatch.setattr(StageProgress, "advance_to", lambda self, size: reached.append(size))
    args = ["datastore", "build", str(text), str(text), "-m", str(model), "--shard-tokens", "4"]

    run(*args, "-o", str(tmp_path / "x.datastore"))

    assert reached == sorted(set(reached))
    assert reached[-1] == 2 * len(TEXT)
    assert stages[0] == ("reading and tokenising", 2 * len(TEXT))
    assert [stage for stage, total in stages if total is None] == [
        f"sorting part {part}" for part in (1, 2, 3)
    ]


def test_info_says_what_it_holds_and_whose_it_is(
    run: Run, model: Path, text: Path, tmp_path: Path
) -> None:
    output = tmp_path / "x.datastore"
    run("datastore", "build", str(text), "--output", str(output), "--model", str(model))

    result = run("datastore", "info", str(output), "--verify")

    vocabulary = read_header(output).vocabulary
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        f"{output}: 5 tokens of 1 document, 0.0 MB",
        f"tokenizer: '{model}' (6 ids, fingerprint {vocabulary.fingerprint[:8]})",
        "checksum: as it was written",
    ]


def test_damage_is_found_by_verify_alone(run: Run, model: Path, text: Path, tmp_path: Path) -> None:
    output = tmp_path / "x.datastore"
    run("datastore", "build", str(text), "-o", str(output), "-m", str(model))
    data = bytearray(output.read_bytes())
    data[HEADER_BYTES] ^= 1
    output.write_bytes(data)

    assert run("datastore", "info", str(output)).exit_code == 0
    result = run("datastore", "info", str(output), "--verify")

    assert result.exit_code == 1
    assert "is damaged" in result.stderr


def test_a_corpus_may_be_sorted_in_parts(run: Run, model: Path, text: Path, tmp_path: Path) -> None:
    output = tmp_path / "x.datastore"
    args = ["datastore", "build", str(text), "-o", str(output), "-m", str(model)]

    result = run(*args, "--shard-tokens", "2")

    assert result.exit_code == 0
    assert len(read_header(output).shards) == 3
    assert "sorting part 3" in result.stderr


def test_a_datastore_is_replaced_and_nothing_else_is(
    run: Run, model: Path, text: Path, tmp_path: Path
) -> None:
    output = tmp_path / "x.datastore"
    args = ["datastore", "build", str(text), "-m", str(model), "-o"]
    assert run(*args, str(output)).exit_code == 0
    text.write_text("hello")
    assert run(*args, str(output)).exit_code == 0
    assert read_header(output).num_tokens == 1

    result = run(*args, str(text))

    assert result.exit_code == 2
    assert f"--output {text} is there already and no datastore" in result.stderr
    assert text.read_text() == "hello"


@pytest.mark.parametrize(
    ("args", "code", "reason"),
    [
        (["build", "no.txt", "-o", "x"], 2, "no.txt is not there"),
        (["build", ".", "-o", "x"], 2, ". is a folder"),
        (["build", __file__, "-o", "no/x"], 2, "there is no folder"),
        (["build", __file__, "-o", "x", "--shard-tokens", "0"], 2, "shard-tokens"),
        (["build", __file__], 2, "Missing option '--output'"),
        (["build", __file__, "-o", "x", "-m", "./nowhere"], 1, "./nowhere"),
        (["info", "no.datastore"], 1, "there is no datastore no.datastore"),
        (["info", __file__], 1, "is no datastore"),
    ],
)
def test_what_cannot_be_done_is_one_line(
    run: Run,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    args: list[str],
    code: int,
    reason: str,
) -> None:
    monkeypatch.chdir(tmp_path)

    result = run("datastore", *args)

    assert result.exit_code == code
    assert reason in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_an_empty_corpus_leaves_nothing_behind(run: Run, model: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("")
    output = tmp_path / "x.datastore"

    result = run("datastore", "build", str(tmp_path / "a.txt"), "-o", str(output), "-m", str(model))

    assert result.exit_code == 1
    assert "no tokens to build a datastore from" in result.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "a.txt"]


def test_alone_it_shows_its_commands(run: Run) -> None:
    result = run("datastore")
    assert "build" in result.output
    assert "info" in result.output


def test_the_help_names_the_default_shard() -> None:
    assert DEFAULT_SHARD_TOKENS == SHARD_TOKENS
