"""Language models read from files, against transformers: the same tokens, the same logits but for rounding."""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import pickle
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if os.environ.get("SK_REQUIRE_TORCH") != "1":
    pytest.importorskip("torch", reason="torch is not installed (SK_REQUIRE_TORCH=1 makes this a failure)")
    pytest.importorskip("transformers", reason="transformers is not installed (see SK_REQUIRE_TORCH)")

import generation
import gguf
import ml_dtypes
import torch
import transformers
from gguf_names import gguf_name
from transformers.integrations.executorch import convert_and_export_with_cache
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import superkernel as sk
from superkernel.cli import main
from superkernel.codegen.host.features import detect_cpu
from superkernel.core.dtypes import DType
from superkernel.core.errors import FileFormatError, InputError, UnsupportedError
from superkernel.frontends.pretrained.fields import Fields
from superkernel.frontends.pretrained.rotary import rotary_of

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
VOCABULARY, WIDTH = 160, 64
PROMPT = np.random.default_rng(3).integers(0, VOCABULARY, 13)
_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}
_MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", _COMMON),
    "llama3-tied": (
        "Llama",
        {
            **_COMMON,
            "tie_word_embeddings": True,
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 5e5,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
    ),
    "mistral-window": ("Mistral", {**_COMMON, "sliding_window": 6}),
    "qwen2": ("Qwen2", _COMMON),
    "qwen3": ("Qwen3", {**_COMMON, "head_dim": 16}),
    "gpt2": ("GPT2", {"vocab_size": VOCABULARY, "n_embd": WIDTH, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    "mixtral": ("Mixtral", {**_COMMON, "num_local_experts": 4}),
    "qwen2-moe": ("Qwen2Moe", {**_COMMON, **_MIXTURE, "shared_expert_intermediate_size": 48}),
    "qwen3-moe": ("Qwen3Moe", {**_COMMON, **_MIXTURE, "head_dim": 16, "norm_topk_prob": True}),
}


def made(name: str, **changed: Any) -> Any:
    """A model of random weights, with biases and norms that are not the trivial ones."""
    kind, fields = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        **{**fields, **changed}, bos_token_id=None, eos_token_id=None, pad_token_id=None
    )
    model = getattr(transformers, f"{kind}LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM")(config)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, mean=1.0 if weight.ndim == 1 else 0.0, std=0.2 if weight.ndim == 1 else 0.08)
    return model.eval()


def continued(model: Any, count: int) -> list[int]:
    ids = torch.tensor(PROMPT)[None]
    with torch.no_grad():
        found = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=count, do_sample=False)
    return found[0, len(PROMPT) :].tolist()


def logits_of(model: Any, tokens: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor(tokens)[None]).logits[0].float().numpy()


@pytest.mark.parametrize("name", MODELS)
def test_greedy_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    model = made(name)
    model.save_pretrained(tmp_path)
    ours = sk.from_pretrained(tmp_path, threads=2, chunks=(1, 8))
    assert list(ours.generate(PROMPT, 12)) == continued(model, 12)
    assert ours.position == len(PROMPT) + 11
    ours.rewind()
    np.testing.assert_allclose(ours.score(PROMPT[:8]), logits_of(model, PROMPT[:8]), rtol=0, atol=2e-5)


def test_a_module_is_read_where_it_lies() -> None:
    for name in ("qwen2-moe", "gpt2"):
        model = made(name)
        ours = sk.from_pretrained(model, threads=1, chunks=(8,), context=32)
        np.testing.assert_allclose(ours.score(PROMPT[:8]), logits_of(model, PROMPT[:8]), rtol=0, atol=2e-5)


def test_modules_that_were_wrapped_or_quantised() -> None:
    model = made("llama")
    compiled = sk.from_pretrained(torch.compile(model, backend="eager"), threads=1, chunks=(8,))
    np.testing.assert_allclose(compiled.score(PROMPT[:8]), logits_of(model, PROMPT[:8]), rtol=0, atol=2e-5)

    class Quantised:
        config = model.config

        def state_dict(self) -> dict[str, Any]:
            return {**model.state_dict(), "lm_head._packed_params.dtype": torch.qint8}

    with pytest.raises(UnsupportedError, match=r"_packed_params\.dtype.*not a tensor.*dtype"):
        sk.from_pretrained(Quantised())


def test_half_precision_is_computed_in(tmp_path: Path) -> None:
    model = made("llama").to(torch.bfloat16)
    model.save_pretrained(tmp_path)
    ours = sk.from_pretrained(tmp_path, threads=2, chunks=(1,))
    assert ours.dtype is sk.DType.BF16
    got = np.stack([ours(token) for token in PROMPT[:6]])
    exact = logits_of(model.float(), PROMPT[:6])
    theirs = np.abs(logits_of(model.to(torch.bfloat16), PROMPT[:6]) - exact).max()
    assert np.abs(got - exact).max() <= 1.5 * theirs  # rounded no more often than there
    wide = sk.from_pretrained(tmp_path, threads=2, chunks=(1,), dtype="f32")
    np.testing.assert_allclose(wide(PROMPT[:1]), exact[0], rtol=0, atol=2e-5)


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_caches_hold_the_type_that_is_asked_for(kind: str) -> None:
    model = made("llama")
    ours = sk.from_pretrained(model, threads=2, chunks=(1, 8), cache_dtype=kind)
    assert (str(ours.dtype), str(ours.cache_dtype)) == ("f32", kind)
    assert {str(array.dtype) for array in ours.kernel().states.values()} == {DType.of(kind).numpy.name}
    error = np.abs(ours.score(PROMPT) - logits_of(model, PROMPT)).max()
    assert 1e-6 < error < 4 * float(ml_dtypes.finfo(DType.of(kind).numpy).eps)
    assert sk.from_pretrained(model, dtype="bf16").cache_dtype is DType.BF16
    with pytest.raises(InputError, match=r"^cache_dtype: .*f32, f16 or bf16; found i8$"):
        sk.from_pretrained(model, cache_dtype="i8")


@pytest.fixture(scope="module")
def llama() -> sk.CausalLM:
    return sk.from_pretrained(made("llama"), threads=2, chunks=(1, 8), context=24)


def test_any_way_of_appending_gives_the_same_logits(llama: sk.CausalLM) -> None:
    llama.rewind()
    one_by_one = np.stack([llama(token) for token in PROMPT])
    llama.rewind()
    padded = llama(PROMPT)  # 8 and, filled up, 5
    np.testing.assert_allclose(padded, one_by_one[-1], rtol=0, atol=1e-5)
    llama.rewind(9)
    assert llama.position == 9
    np.testing.assert_allclose(llama.score(PROMPT[9:]), one_by_one[9:], rtol=0, atol=1e-5)
    llama.rewind(3)  # what filled up lies behind, and counts for nothing
    np.testing.assert_allclose(llama(PROMPT[3]), one_by_one[3], rtol=0, atol=1e-5)


def test_the_context_can_be_filled_to_the_last_token(llama: sk.CausalLM) -> None:
    llama.rewind()
    assert len(list(llama.generate(PROMPT))) == 24 - len(PROMPT) + 1
    assert llama.position == 24
    with pytest.raises(InputError, match="the context is full"):
        llama(1)
    assert llama.position == 24


@pytest.mark.parametrize("chosen", ["x", 1.5, None, -1, VOCABULARY])
def test_what_is_chosen_is_a_token(llama: sk.CausalLM, chosen: Any) -> None:
    llama.rewind()
    with pytest.raises(InputError, match="choose"):
        next(llama.generate(PROMPT, 2, choose=lambda _: chosen))
    assert next(llama.generate([1], 1, choose=lambda _: torch.tensor(3))) == 3


def test_generation_stops_where_it_is_told_to(llama: sk.CausalLM) -> None:
    llama.rewind()
    found = list(llama.generate(PROMPT, 5, choose=lambda logits: int(np.argsort(logits)[-2])))
    llama.rewind()
    assert (
        list(llama.generate(PROMPT, 5, choose=lambda logits: int(np.argsort(logits)[-2]), stop=found[1:2]))
        == (found[: found.index(found[1]) + 1])
    )


@pytest.mark.parametrize(
    "tokens",
    [[], [1.5], [-1], [VOCABULARY], [[1, 2]], "text", [[1], [2, 3]], None],
    ids=["none", "float", "negative", "large", "matrix", "text", "ragged", "nothing"],
)
def test_what_are_no_tokens_is_refused(llama: sk.CausalLM, tokens: Any) -> None:
    before = llama.position
    with pytest.raises(InputError):
        llama(tokens)
    assert llama.position == before


@pytest.mark.parametrize("given", [{"count": -1}, {"count": "3"}, {"count": True}, {"stop": 5}])
def test_what_generates_nothing_appends_nothing(llama: sk.CausalLM, given: dict[str, Any]) -> None:
    llama.rewind()
    with pytest.raises(InputError):
        next(llama.generate(PROMPT, **given))
    assert llama.position == 0


def test_tokens_are_appended_all_or_none(llama: sk.CausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    llama.rewind()
    want = llama(PROMPT)
    llama.rewind()
    launched = llama._launch

    def interrupted(tokens: Any, size: int, every: bool) -> Any:
        if llama.position:
            raise KeyboardInterrupt
        return launched(tokens, size, every)

    monkeypatch.setattr(llama, "_launch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llama(PROMPT)
    monkeypatch.undo()
    assert llama.position == 0
    np.testing.assert_array_equal(llama(PROMPT), want)


def test_copies_are_refused(llama: sk.CausalLM) -> None:
    """They would write to one another's caches."""
    for act in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(UnsupportedError, match="cannot be copied or pickled"):
            act(llama)


def test_positions_that_are_none_are_refused(llama: sk.CausalLM) -> None:
    for position in (-1, 25, 1.5):
        with pytest.raises(InputError, match="not a position"):
            llama.rewind(position)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="no such chunk"):
        llama.kernel(3)


def test_a_launch_of_a_model_is_compiled_like_any_graph(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = made("llama")
    model.save_pretrained(tmp_path)
    kernel = sk.compile(tmp_path, threads=1, dims={"tokens": 2, "rows": 2, "context": 16})
    found = kernel(PROMPT[:2], np.array([0]), np.arange(2))
    np.testing.assert_allclose(found, logits_of(model, PROMPT[:2]), rtol=0, atol=2e-5)
    assert kernel.states["key_0"].shape == (1, 2, 16, 16)
    for dims in ({"token": 2}, {"tokens": 17, "context": 16}, {"tokens": 2, "rows": 3}, {"context": 65}):
        with pytest.raises(InputError):
            sk.compile(tmp_path, threads=1, dims=dims)
    capsys.readouterr()
    assert main(["verify", str(tmp_path), "--dim", "context=16", "--threads", "1"]) == 0
    assert "certificate" in capsys.readouterr().out.lower()


# By way of torch.export ----------------------------------------------------------------------------------------------


def test_a_module_with_the_cache_of_transformers_says_how_it_is_compiled() -> None:
    with pytest.raises(UnsupportedError, match=r"use_cache=False.*from_pretrained"):
        sk.compile(made("llama"), example_inputs={"input_ids": torch.tensor([[1, 2]])})


def test_an_exported_program_with_a_static_cache_decodes() -> None:
    model = made("llama")
    wanted = logits_of(model, PROMPT[:4])
    settings = {"batch_size": 1, "max_cache_len": 32}
    model.generation_config = transformers.GenerationConfig(
        use_cache=True, cache_implementation="static", max_length=32, cache_config=settings
    )
    first = {"example_input_ids": torch.tensor([[1]]), "example_cache_position": torch.tensor([0])}
    kernel = sk.compile(convert_and_export_with_cache(model, **first), threads=2, options={"fallback": "forbid"})
    found = [np.asarray(kernel(np.array([[token]]), np.array([at]))).ravel() for at, token in enumerate(PROMPT[:4])]
    np.testing.assert_allclose(np.stack(found), wanted, rtol=0, atol=2e-5)


# Files ----------------------------------------------------------------------------------------------------------------


def test_sharded_weights_are_found_by_their_index(tmp_path: Path) -> None:
    model = made("llama")
    model.save_pretrained(tmp_path, max_shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    ours = sk.from_pretrained(tmp_path, threads=1, chunks=(1,))
    np.testing.assert_allclose(ours(PROMPT[0]), logits_of(model, PROMPT[:1])[0], rtol=0, atol=2e-5)


def changed_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_what_cannot_be_read_is_refused_with_its_place(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file or folder"):
        sk.from_pretrained(tmp_path / "nowhere")
    with pytest.raises(FileFormatError, match=r"config\.json"):
        sk.from_pretrained(tmp_path)
    with pytest.raises(InputError, match="not a language model"):
        sk.from_pretrained(object())
    made("llama").save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    data = weights.read_bytes()
    for damaged in (data[:100], data[: len(data) // 2], b"\xff" * 64, b""):
        weights.write_bytes(damaged)
        with pytest.raises(FileFormatError, match="safetensors"):
            sk.from_pretrained(tmp_path)
    weights.write_bytes(data)
    with pytest.raises(InputError, match="context"):
        sk.from_pretrained(tmp_path, context=65)
    for fields, error in (
        ({"model_type": "mamba"}, UnsupportedError),
        ({"hidden_act": "tanhshrink"}, UnsupportedError),
        ({"rope_parameters": {"rope_type": "longrope", "rope_theta": 1e4}}, UnsupportedError),
        ({"num_hidden_layers": 3}, FileFormatError),  # a tensor is missing
        ({"num_hidden_layers": 1}, FileFormatError),  # one has no place
        ({"intermediate_size": 95}, FileFormatError),
    ):
        kept = (tmp_path / "config.json").read_text()
        changed_config(tmp_path, **fields)
        with pytest.raises(error):
            sk.from_pretrained(tmp_path)
        (tmp_path / "config.json").write_text(kept)


_WINDOW = {"sliding_window": 6, "use_sliding_window": True, "max_window_layers": 1}


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("llama", _WINDOW),  # has no window, whatever fields say
        ("mistral-window", {**_WINDOW, "sliding_window": None}),
        ("mixtral", _WINDOW),
        ("qwen2", _WINDOW),
        ("qwen3", {**_WINDOW, "layer_types": ["sliding_attention", "full_attention"]}),
        ("qwen2-moe", _WINDOW),
        ("qwen3-moe", _WINDOW),  # of all layers
        ("qwen3-moe", {**_WINDOW, "use_sliding_window": False}),
    ],
)
def test_windows_are_those_of_transformers(name: str, fields: dict[str, Any], tmp_path: Path) -> None:
    made(name).save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    kept = {key: value for key, value in json.loads(path.read_text()).items() if key not in (*_WINDOW, "layer_types")}
    path.write_text(json.dumps({**kept, **fields}))
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    ours = sk.from_pretrained(tmp_path, threads=1, chunks=(1, 8))
    np.testing.assert_allclose(ours(PROMPT), logits_of(theirs, PROMPT)[-1], rtol=0, atol=2e-5)


def test_kinds_of_layers_that_are_not_known_are_refused(tmp_path: Path) -> None:
    made("qwen3").save_pretrained(tmp_path)
    for kinds in (["sliding_attention"], ["chunked_attention"] * 2):
        changed_config(tmp_path, use_sliding_window=True, sliding_window=6, layer_types=kinds)
        with pytest.raises(FileFormatError, match="layer_types"):
            sk.from_pretrained(tmp_path)


@pytest.mark.parametrize("kind", ["linear", "llama3", "yarn"])
def test_scaled_positions_have_the_frequencies_of_transformers(kind: str) -> None:
    parameters = {
        "rope_type": kind,
        "rope_theta": 1e4,
        "factor": 4.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    }
    config = transformers.LlamaConfig(**{**_COMMON, "head_dim": 32, "max_position_embeddings": 1024})
    config.rope_parameters = parameters
    expected, scale = ROPE_INIT_FUNCTIONS[kind](config, "cpu")
    found = rotary_of(Fields(parameters, "here"), 32, 1024)
    np.testing.assert_allclose(found.frequencies, expected.numpy(), rtol=1e-6)
    assert found.scale == pytest.approx(scale)


# GGUF -----------------------------------------------------------------------------------------------------------------


def write_gguf(path: Path, model: Any, kind: gguf.GGMLQuantizationType) -> None:
    """A Llama as converters write it: rows of queries and keys so that pairs are neighbours, matrices in `kind`. The
    model's own weights become what the file holds."""
    config = model.config
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    for name, parameter in model.named_parameters():
        own = gguf_name(name.removesuffix(".weight"))
        array = parameter.detach().float().numpy()
        if parameter.ndim == 1:
            writer.add_tensor(f"{own}.weight", array)
            continue
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(own.split(".")[-1])
        order = np.arange(len(array))
        if heads:
            order = order.reshape(heads, 2, -1).swapaxes(1, 2).ravel()
        packed = gguf.quants.quantize(array[order], kind)
        writer.add_tensor(f"{own}.weight", packed, raw_dtype=kind)
        held = gguf.quants.dequantize(packed, kind)
        with torch.no_grad():
            parameter[torch.tensor(order)] = torch.tensor(np.asarray(held, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("kind", ["F32", "Q8_0", "Q4_0", "Q4_1", "BF16"])
def test_gguf_files_give_the_tokens_of_the_weights_that_they_hold(kind: str, tmp_path: Path) -> None:
    model = made("llama")
    path = tmp_path / "llama.gguf"
    write_gguf(path, model, gguf.GGMLQuantizationType[kind])
    ours = sk.from_pretrained(path, threads=2, chunks=(1, 8), dtype="f32", options={"precision": "f32"})
    assert list(ours.generate(PROMPT, 12)) == continued(model, 12)
    ours.rewind()
    np.testing.assert_allclose(ours.score(PROMPT[:8]), logits_of(model, PROMPT[:8]), rtol=0, atol=5e-5)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
def test_codes_meet_tokens_of_8_bits_unless_f32_is_asked_for(kind: str, tmp_path: Path) -> None:
    model = made("llama")
    path = tmp_path / "llama.gguf"
    write_gguf(path, model, gguf.GGMLQuantizationType[kind])
    assert sk.from_pretrained(path).cache_dtype is DType.F16
    ours = sk.from_pretrained(path, threads=2, chunks=(1, 8), cache_dtype="f32")
    wanted = logits_of(model, PROMPT[:8])
    in_bytes = [
        "host.block_matmul.int8" in {s.kernel for s in ours.kernel(n)._compiled.schedule.subops} for n in (1, 8)
    ]
    assert in_bytes == [detect_cpu().has("avx512vnni")] * 2
    error = np.abs(ours.score(PROMPT[:8]) - wanted).max() / np.abs(wanted).max()
    assert (1e-4 < error < 0.03) if all(in_bytes) else error < 1e-4


def test_damaged_gguf_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "llama.gguf"
    write_gguf(path, made("llama"), gguf.GGMLQuantizationType.Q8_0)
    data = path.read_bytes()
    for damaged in (data[:64], data[: len(data) // 2], b"GGUF" + b"\xff" * 64, b""):
        path.write_bytes(damaged)
        with pytest.raises(FileFormatError):
            sk.from_pretrained(path)


# Beside it ------------------------------------------------------------------------------------------------------------


def test_the_example_finds_the_tokens_of_transformers(capsys: pytest.CaptureFixture[str]) -> None:
    main = runpy.run_path(str(ROOT / "examples" / "generate.py"))["main"]
    assert main(["--tokens", "6", "--prompt", "11", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(found) == {"llama", "gpt2"}
    assert all(result["same_tokens"] for result in found.values())


def test_the_bench_compares_runners_on_equal_weights(tmp_path: Path) -> None:
    out = tmp_path / "found.json"
    asked = "--model tiny --formats f32,q4_0 --runners superkernel,transformers,openvino"
    asked += " --rounds 1 --prompt 9 --steps 2"
    assert generation.main([*asked.split(), "--json", str(out)]) == 0
    found = json.loads(out.read_text())["formats"]
    assert found["f32"]["transformers"]["logits_off"] < 1e-5
    assert found["q4_0"]["transformers"] == {"absent": "it does not run q4_0"}
    assert found["f32"]["openvino"] == {"absent": "it does not run f32"}
    if importlib.util.find_spec("openvino_genai") is None:
        assert found["q4_0"]["openvino"] == {"absent": "openvino_genai is not installed"}
    else:
        assert found["q4_0"]["openvino"]["logits_off"] < 0.05
