from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import torch
from huggingface_hub.errors import (
    GatedRepoError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)
from safetensors.torch import load_file
from transformers import (
    BertConfig,
    BertForMaskedLM,
    LlamaModel,
    T5Config,
    T5ForConditionalGeneration,
)

from outdraft.errors import (
    FetchError,
    ModelError,
    SettingsError,
    UnknownModelError,
    UnsupportedModelError,
)
from outdraft.models import load
from outdraft.models.load import load_model
from outdraft.models.pack import Packing
from outdraft.models.packed import PackedLinear
from support.tiny_files import (
    CHAT_TEMPLATE,
    edit_json,
    gguf_embedding,
    save_folder,
    tiny_llama,
    tiny_tokenizer,
    write_gguf,
)

CPU, CUDA, MPS = torch.device("cpu"), torch.device("cuda"), torch.device("mps")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_folder(tmp_path / "tiny")


@pytest.fixture(autouse=True)
def no_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test here may talk to the network; those about the hub put their own in its place."""

    def unexpected(ref: str, **_: Any) -> str:
        raise AssertionError(f"the hub was asked for {ref!r}")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", unexpected)


def message_of(kind: type[Exception], ref: Any, **options: Any) -> str:
    """What loading says; it must be of exactly this kind and one line."""
    with pytest.raises(kind) as caught:
        load_model(ref, **options)
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- what is loaded -------------------------------------------------------------------------------


def test_a_folder_gives_its_weights_ready_to_run(folder: Path) -> None:
    loaded = load_model(str(folder), dtype="float32", pack=False)
    saved = load_file(folder / "model.safetensors")
    weights = loaded.model.state_dict()
    assert saved
    assert all(torch.equal(weights[name], saved[name]) for name in saved)
    assert not loaded.model.training
    assert not any(weight.requires_grad for weight in loaded.model.parameters())
    assert loaded.tokenizer("hello world")["input_ids"] == [3, 4]
    assert loaded.name == str(folder)


def test_a_path_object_is_a_path(folder: Path) -> None:
    assert load_model(folder).model.config.hidden_size == 32


def test_a_gguf_file_gives_its_own_numbers_and_tokenizer(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    loaded = load_model(path, dtype="float32", pack=False)
    embedding = loaded.model.get_input_embeddings().weight
    assert torch.equal(embedding, gguf_embedding(path))
    assert loaded.tokenizer.convert_ids_to_tokens(loaded.tokenizer("hello")["input_ids"]) == [
        "hello"
    ]
    assert loaded.tokenizer.chat_template == CHAT_TEMPLATE
    assert loaded.eos_ids == (2,)
    assert not embedding.requires_grad


def test_loading_says_nothing(
    tmp_path: Path, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    capfd.readouterr()
    load_model(folder)
    load_model(path)
    assert capfd.readouterr() == ("", "")


def test_an_alias_comes_before_a_folder_of_that_name(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save_folder(tmp_path / "smollm2-135m", vocab_size=280)
    fetched = save_folder(tmp_path / "elsewhere" / "model", rms_norm_eps=0.25)
    monkeypatch.setattr(load, "fetch", {"smollm2-135m": fetched}.__getitem__)
    loaded = load_model("smollm2-135m")
    assert (loaded.model.config.rms_norm_eps, loaded.name) == (0.25, "smollm2-135m")
    assert load_model("./smollm2-135m").model.config.rms_norm_eps != 0.25


# --- dtype and device -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "got"),
    [
        ("float32", torch.float32),
        ("bfloat16", torch.bfloat16),
        ("float16", torch.float16),
        ("float64", torch.float64),
        (torch.float64, torch.float64),
    ],
)
def test_the_dtype_asked_for(folder: Path, asked: Any, got: torch.dtype) -> None:
    model = load_model(folder, dtype=asked).model
    assert {weight.dtype for weight in model.parameters()} == {got}


@pytest.mark.parametrize("dtype", ["fp32", "int8", torch.int8, 32, None])
def test_a_dtype_that_is_none(folder: Path, dtype: Any) -> None:
    message = message_of(SettingsError, folder, dtype=dtype)
    assert repr(dtype) in message
    assert "auto, float32, bfloat16, float16, float64" in message


@pytest.mark.parametrize(("native", "got"), [(True, torch.bfloat16), (False, torch.float32)])
def test_auto_dtype_on_a_cpu_follows_the_hardware(
    folder: Path, monkeypatch: pytest.MonkeyPatch, native: bool, got: torch.dtype
) -> None:
    edit_json(folder / "config.json", dtype="float16")
    monkeypatch.setattr(load, "_cpu_multiplies_bf16", lambda: native)
    assert load_model(folder, device="cpu").model.dtype is got


@pytest.mark.parametrize("device", [CUDA, MPS])
def test_auto_dtype_on_a_gpu_is_the_checkpoints(device: torch.device) -> None:
    assert load._auto_dtype(device) == "auto"


@pytest.mark.parametrize(
    ("onednn", "used", "capabilities", "native"),
    [
        (True, True, {"avx512_bf16": True}, True),
        (True, True, {"amx_bf16": True}, True),
        (True, True, {"bf16": True, "neon": True}, True),
        (True, True, {"avx512_f": True, "avx512_bf16": False}, False),
        (True, False, {"avx512_bf16": True}, False),
        (False, True, {"bf16": True}, False),
    ],
)
def test_bf16_is_native_where_the_cpu_has_it_and_onednn_uses_it(
    monkeypatch: pytest.MonkeyPatch,
    onednn: bool,
    used: bool,
    capabilities: dict[str, bool],
    native: bool,
) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: onednn)
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: used)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert load._cpu_multiplies_bf16() is native


@pytest.mark.parametrize(
    ("here", "device"),
    [({"cuda": 2}, CUDA), ({"mps": 1}, MPS), ({"xpu": 1}, CPU), ({}, CPU)],
)
def test_auto_device_is_cuda_then_mps_then_the_cpu(
    monkeypatch: pytest.MonkeyPatch, here: dict[str, int], device: torch.device
) -> None:
    monkeypatch.setattr(load, "_devices_here", lambda: here)
    assert load._auto_device() == device


@pytest.mark.parametrize(
    ("asked", "here", "says"),
    [
        ("cuda", {}, "device='cuda' is not on this machine; pass 'auto', 'cpu'"),
        ("cuda:2", {"cuda": 2}, "pass 'auto', 'cpu' or one of cuda:0, cuda:1"),
        ("meta", {"cuda": 1}, "device='meta' is not on this machine"),
        ("gpu", {}, "device='gpu' is none torch knows"),
    ],
)
def test_a_device_that_is_not_here(
    folder: Path, monkeypatch: pytest.MonkeyPatch, asked: str, here: dict[str, int], says: str
) -> None:
    monkeypatch.setattr(load, "_devices_here", lambda: here)
    assert says in message_of(SettingsError, folder, device=asked)


def test_devices_that_are_here_are_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "_devices_here", lambda: {"cuda": 2})
    assert load._parse_device("cuda:1") == torch.device("cuda:1")
    assert load._parse_device(CPU) == CPU


def test_mps_has_no_float64(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "_devices_here", lambda: {"mps": 1})
    assert "no float64" in message_of(SettingsError, folder, dtype="float64")


# --- nothing of that name -------------------------------------------------------------------------


@pytest.mark.parametrize("ref", ["no/such/folder", "", "a b", "~/nowhere/at/all", "/no/such"])
def test_an_unknown_name_is_told_the_aliases(ref: str) -> None:
    message = message_of(UnknownModelError, ref)
    assert repr(ref) in message
    assert "smollm2-135m" in message


def test_a_missing_path_object_is_never_asked_of_the_hub(tmp_path: Path) -> None:
    assert "no existing path" in message_of(UnknownModelError, Path("org/name"))


def test_a_missing_gguf_file(tmp_path: Path) -> None:
    assert str(tmp_path / "x.gguf") in message_of(UnknownModelError, tmp_path / "x.gguf")


def test_something_else_than_a_name() -> None:
    assert "not int" in message_of(SettingsError, 7)


def test_a_folder_without_config(tmp_path: Path) -> None:
    message = message_of(UnsupportedModelError, tmp_path)
    assert str(tmp_path) in message
    assert "save_pretrained" in message


def test_a_folder_of_gguf_files_points_at_one(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").touch()
    assert str(tmp_path / "a.gguf") in message_of(UnsupportedModelError, tmp_path)


def test_a_file_that_is_no_gguf(folder: Path) -> None:
    message = message_of(UnsupportedModelError, folder / "model.safetensors")
    assert "pass the folder" in message


# --- the hub --------------------------------------------------------------------------------------


def hub_answers(monkeypatch: pytest.MonkeyPatch, answer: Path | Exception) -> list[list[str]]:
    """Puts a hub in place that has this folder or fails like this; returns what it is asked for."""
    asked: list[list[str]] = []

    def download(ref: str, allow_patterns: list[str]) -> str:
        asked.append(allow_patterns)
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return asked


def http_error(kind: Callable[..., Exception]) -> Exception:
    import httpx2

    request = httpx2.Request("GET", "https://huggingface.co/api/models/org/name")
    return kind("401", response=httpx2.Response(401, request=request))


def test_a_hub_id_is_loaded_from_its_snapshot(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = hub_answers(monkeypatch, folder)
    loaded = load_model("org/name")
    assert loaded.name == "org/name"
    assert loaded.model.config.hidden_size == 32
    assert len(asked) == 1
    assert "model.safetensors" in asked[0]
    assert not any(".bin" in pattern for pattern in asked[0])


def test_pickled_weights_are_downloaded_where_there_are_no_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    asked = hub_answers(monkeypatch, folder)
    loaded = load_model("name", dtype="float32")
    assert "pytorch_model.bin" in asked[1]
    name = "model.embed_tokens.weight"
    assert torch.equal(loaded.model.state_dict()[name], weights[name])


def test_a_hub_repository_without_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub_answers(monkeypatch, tmp_path)
    assert "hf download org/name FILE.gguf" in message_of(UnsupportedModelError, "org/name")


def test_an_id_the_hub_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    hub_answers(monkeypatch, http_error(RepositoryNotFoundError))
    message = message_of(UnknownModelError, "org/name")
    assert "'org/name'" in message
    assert "smollm2-135m" in message
    assert "hf auth login" in message


def test_a_gated_model(monkeypatch: pytest.MonkeyPatch) -> None:
    hub_answers(monkeypatch, http_error(GatedRepoError))
    message = message_of(FetchError, "org/name")
    assert "gated" in message
    assert "/org/name" in message


def test_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    hub_answers(monkeypatch, LocalEntryNotFoundError("cannot reach\nthe hub"))
    message = message_of(FetchError, "org/name")
    assert "cannot be reached" in message
    assert "smollm2-135m" in message
    assert "local folder" in message
    assert "already cached" in message


def test_offline_by_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    hub_answers(monkeypatch, LocalEntryNotFoundError("offline"))
    assert "unset it" in message_of(FetchError, "org/name")


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        RuntimeError("Data processing error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_while_downloading(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "not" / "yet"))
    hub_answers(monkeypatch, error)
    message = message_of(FetchError, "org/name")
    assert str(tmp_path) in message
    assert "GB free" in message
    assert "HF_HOME" in message


def test_any_other_trouble_with_the_hub_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    hub_answers(monkeypatch, RuntimeError("the proxy hung up\nand more"))
    message = message_of(FetchError, "org/name")
    assert "(the proxy hung up)" in message
    assert "org/name" in message


# --- not a causal language model, not whole -------------------------------------------------------


@pytest.mark.parametrize(
    "architecture", ["LlamaForSequenceClassification", "LlamaModel", "BertForMaskedLM"]
)
def test_another_kind_of_model_is_named(folder: Path, architecture: str) -> None:
    edit_json(folder / "config.json", architectures=[architecture])
    assert f"{architecture} is not a causal" in message_of(UnsupportedModelError, folder)


def test_without_architectures_the_model_type_decides(folder: Path) -> None:
    edit_json(folder / "config.json", architectures=None)
    assert load_model(folder).model.config.hidden_size == 32
    edit_json(folder / "config.json", model_type="t5", architectures=None)
    assert "t5 is not a causal" in message_of(UnsupportedModelError, folder)


def test_an_architecture_transformers_does_not_know(folder: Path) -> None:
    edit_json(folder / "config.json", model_type="novel")
    message = message_of(UnsupportedModelError, folder)
    assert "novel" in message
    assert "upgrade transformers" in message


def test_foreign_code_is_neither_run_nor_asked_about(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    edit_json(folder / "config.json", model_type="novel", auto_map={"AutoConfig": "x.Config"})
    capfd.readouterr()
    assert "pass (model, tokenizer)" in message_of(UnsupportedModelError, folder)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("changes", [{"hidden_size": "wide"}, {"num_attention_heads": 5}])
def test_a_config_of_nonsense(folder: Path, changes: dict[str, Any]) -> None:
    edit_json(folder / "config.json", **changes)
    assert "cannot read its config.json" in message_of(UnsupportedModelError, folder)


def test_a_config_that_is_no_json(folder: Path) -> None:
    (folder / "config.json").write_text("{")
    assert "not a valid JSON" in message_of(UnsupportedModelError, folder)


@pytest.mark.parametrize("model_type", ["llama", "gpt2", "qwen2"])
def test_a_folder_without_tokenizer(folder: Path, model_type: str) -> None:
    edit_json(folder / "config.json", model_type=model_type)
    (folder / "tokenizer.json").unlink()
    assert "no tokenizer" in message_of(UnsupportedModelError, folder)


@pytest.mark.parametrize("content", ["{}", "{", json.dumps({"added_tokens": [], "model": 1})])
def test_a_damaged_tokenizer(folder: Path, content: str) -> None:
    (folder / "tokenizer.json").write_text(content)
    assert "no tokenizer" in message_of(UnsupportedModelError, folder)


def test_a_gguf_without_tokenizer(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", with_tokenizer=False)
    assert "pass a GGUF file that holds one" in message_of(UnsupportedModelError, path)


@pytest.mark.parametrize("content", [b"", b"hello world" * 9, b"GGUF\3\0\0\0" + b"\1" * 30])
def test_a_gguf_of_nonsense(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(content)
    assert "cannot read this GGUF file" in message_of(UnsupportedModelError, path)


def test_a_gguf_of_another_kind_of_model(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf", architecture="bert")
    assert "bert" in message_of(UnsupportedModelError, path)


def test_a_gguf_that_was_cut_short(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "tiny.gguf")
    path.write_bytes(path.read_bytes()[:-4096])
    assert "cannot read this GGUF file" in message_of(UnsupportedModelError, path)


def test_weights_that_need_another_package(folder: Path) -> None:
    edit_json(folder / "config.json", quantization_config={"quant_method": "gptq", "bits": 4})
    assert "(Loading a GPTQ quantized model requires" in message_of(UnsupportedModelError, folder)


def without(path: Path) -> None:
    path.unlink()


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def a_pointer(path: Path) -> None:
    path.write_text("version https://git-lfs.github.com/spec/v1")


@pytest.mark.parametrize("damage", [without, cut_short, a_pointer])
def test_weights_that_are_missing_or_damaged(folder: Path, damage: Callable[[Path], None]) -> None:
    damage(folder / "model.safetensors")
    message = message_of(ModelError, folder)
    assert str(folder) in message
    assert "download them again" in message


def test_weights_of_another_shape(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    edit_json(folder / "config.json", vocab_size=281)
    assert "another shape" in message_of(ModelError, folder)


def test_weights_that_are_not_in_the_checkpoint_are_never_invented(folder: Path) -> None:
    edit_json(folder / "config.json", num_hidden_layers=2)
    message = message_of(ModelError, folder)
    assert "lacks 9 of the model's weights (model.layers.1." in message


# --- laid out for this machine --------------------------------------------------------------------


@pytest.fixture
def packed_as(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """How models were asked to be packed; nothing is done to them."""
    asked: list[str | None] = []

    def pack(model: Any, quantize: str | None = None) -> Packing:
        asked.append(quantize)
        assert not any(weight.requires_grad for weight in model.parameters())
        return Packing("as told")

    monkeypatch.setattr(load, "pack_model", pack)
    return asked


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({}, [None]),
        ({"pack": True}, [None]),
        ({"pack": False}, []),
        ({"quantize": "int8"}, ["int8"]),
        ({"quantize": "int8", "pack": False}, ["int8"]),  # there is no other way to quantise
    ],
)
def test_a_model_is_packed_as_asked_for(
    folder: Path, packed_as: list[str | None], options: dict[str, Any], asked: list[str | None]
) -> None:
    packing = load_model(folder, **options).packing
    assert packed_as == asked
    assert (packing is not None) == bool(asked)


def test_a_pair_is_never_packed(packed_as: list[str | None]) -> None:
    assert load_model((tiny_llama(), tiny_tokenizer())).packing is None
    assert packed_as == []


def test_packing_changes_the_model_and_not_its_answer(folder: Path) -> None:
    ids = torch.tensor([[3, 4, 5]])
    loaded = load_model(folder, dtype="float32")
    assert loaded.packing is not None
    assert loaded.packing.linears >= 1  # by whatever road there is here
    bare = load_model(folder, dtype="float32", pack=False)
    assert all(type(module) is not PackedLinear for module in bare.model.modules())
    torch.testing.assert_close(loaded.model(ids).logits, bare.model(ids).logits)


@pytest.mark.parametrize("pack", [True, False])
def test_a_quantisation_nobody_knows_is_refused(folder: Path, pack: bool) -> None:
    message = message_of(SettingsError, folder, dtype="float32", quantize="int3", pack=pack)
    assert "quantize='int3' is none of int8" in message


def test_a_quantisation_the_numbers_do_not_allow_is_refused(folder: Path) -> None:
    message = message_of(SettingsError, folder, dtype="float64", quantize="int8")
    assert "float32 and bfloat16 models on the CPU" in message


def test_a_pair_is_not_quantised(packed_as: list[str | None]) -> None:
    message = message_of(SettingsError, (tiny_llama(), tiny_tokenizer()), quantize="int8")
    assert "quantize='int8' would change the model in the pair" in message
    assert packed_as == []


# --- a pair ---------------------------------------------------------------------------------------


def test_a_pair_is_taken_as_it_is() -> None:
    model, tokenizer = tiny_llama().to(torch.float64).train(), tiny_tokenizer()
    loaded = load_model((model, tokenizer))
    assert loaded.model is model
    assert loaded.tokenizer is tokenizer
    assert model.training
    assert next(model.parameters()).requires_grad
    assert model.dtype is torch.float64
    assert loaded.name == "LlamaForCausalLM"


def test_a_pair_keeps_the_name_it_was_loaded_by(folder: Path) -> None:
    loaded = load_model(folder)
    assert load_model((loaded.model, loaded.tokenizer)).name == str(folder)


def test_a_pair_may_be_described_truly() -> None:
    pair = (tiny_llama().to(torch.bfloat16), tiny_tokenizer())
    assert load_model(pair, dtype="bfloat16", device="cpu").model is pair[0]


def test_a_dtype_that_contradicts_the_pair() -> None:
    message = message_of(SettingsError, (tiny_llama(), tiny_tokenizer()), dtype="bfloat16")
    assert "torch.bfloat16" in message
    assert "torch.float32" in message


def test_a_device_that_contradicts_the_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "_devices_here", lambda: {"cuda": 1})
    message = message_of(SettingsError, (tiny_llama(), tiny_tokenizer()), device="cuda")
    assert "'cuda'" in message
    assert "'cpu'" in message


@pytest.mark.parametrize(
    ("wanted", "actual", "same"),
    [
        ("cuda", "cuda:1", True),
        ("cuda:1", "cuda:1", True),
        ("cuda:0", "cuda:1", False),
        ("cpu", "cuda:0", False),
    ],
)
def test_a_device_without_a_number_is_any_of_its_kind(wanted: str, actual: str, same: bool) -> None:
    assert load._is_same_device(torch.device(wanted), torch.device(actual)) is same


@pytest.mark.parametrize(
    ("pair", "kind", "says"),
    [
        (lambda: (tiny_llama(),), SettingsError, "not 1 things"),
        (lambda: ("org/name", tiny_tokenizer()), UnsupportedModelError, "not with str"),
        (
            lambda: (LlamaModel(tiny_llama().config), tiny_tokenizer()),
            UnsupportedModelError,
            "LlamaModel is not a causal",
        ),
        (
            lambda: (BertForMaskedLM(BertConfig(**_TINY_BERT)), tiny_tokenizer()),
            UnsupportedModelError,
            "BertForMaskedLM is not a causal",
        ),
        (
            lambda: (T5ForConditionalGeneration(T5Config(**_TINY_T5)), tiny_tokenizer()),
            UnsupportedModelError,
            "T5ForConditionalGeneration is not a causal",
        ),
        (lambda: (tiny_llama(), None), UnsupportedModelError, "NoneType where its tokenizer"),
    ],
)
def test_a_pair_of_other_things(
    pair: Callable[[], tuple[Any, ...]], kind: type[Exception], says: str
) -> None:
    assert says in message_of(kind, pair())


_TINY_BERT: dict[str, Any] = {
    "vocab_size": 8,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "intermediate_size": 8,
}
_TINY_T5: dict[str, Any] = {
    "vocab_size": 8,
    "d_model": 8,
    "d_kv": 8,
    "d_ff": 8,
    "num_layers": 1,
    "num_heads": 1,
}


@pytest.mark.parametrize(
    ("of_model", "of_tokenizer", "ids"),
    [(7, "<|im_end|>", (7,)), ([7, 9], None, (7, 9)), (None, "<|im_end|>", (2,)), (None, None, ())],
)
def test_end_tokens_are_the_models_else_the_tokenizers(
    of_model: Any, of_tokenizer: str | None, ids: tuple[int, ...]
) -> None:
    model, tokenizer = tiny_llama(), tiny_tokenizer()
    model.generation_config.eos_token_id = of_model
    tokenizer.eos_token = of_tokenizer
    assert load_model((model, tokenizer)).eos_ids == ids
