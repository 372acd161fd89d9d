"""Files of language models that are damaged, cut short or inconsistent: refused with their place, not read wrongly."""

from __future__ import annotations

import importlib.util
import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from gguf_names import gguf_name

import superkernel as sk
from superkernel.core.errors import FileFormatError, InputError, UnsupportedError
from superkernel.frontends.pretrained import read_decoder
from superkernel.frontends.pretrained.fields import Fields

HAS_GGUF = importlib.util.find_spec("gguf") is not None
WIDTH, INNER, VOCABULARY, HEADS = 16, 24, 20, 2
CONFIG = {
    "model_type": "llama",
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 32,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
}
BLOCK = "model.layers.0"
SHAPES = {
    "model.embed_tokens.weight": (VOCABULARY, WIDTH),
    **{f"{BLOCK}.self_attn.{n}_proj.weight": (WIDTH, WIDTH) for n in "qkvo"},
    **{f"{BLOCK}.mlp.{n}_proj.weight": (INNER, WIDTH) for n in ("gate", "up")},
    f"{BLOCK}.mlp.down_proj.weight": (WIDTH, INNER),
    f"{BLOCK}.input_layernorm.weight": (WIDTH,),
    f"{BLOCK}.post_attention_layernorm.weight": (WIDTH,),
    "model.norm.weight": (WIDTH,),
    "lm_head.weight": (VOCABULARY, WIDTH),
}
NORM = "model.norm.weight"
Head = dict[str, dict[str, Any]]


def tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {name: rng.standard_normal(shape, dtype=np.float32) / 4 for name, shape in SHAPES.items()}


def parts(arrays: dict[str, np.ndarray], types: dict[str, str] | None = None) -> tuple[Head, bytes]:
    head, data = {}, b""
    for name, array in arrays.items():
        places = [len(data), len(data) + array.nbytes]
        head[name] = {"dtype": (types or {}).get(name, "F32"), "shape": list(array.shape), "data_offsets": places}
        data += array.tobytes()
    return head, data


def write(folder: Path, head: Head | bytes, data: bytes, config: dict[str, Any] | bytes = CONFIG) -> Path:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_bytes(config if isinstance(config, bytes) else json.dumps(config).encode())
    return folder


DEEP = b"[" * 100_000
FIELDS: dict[str, tuple[str, Any]] = {
    "a word for a number": ("hidden_size", "16"),
    "half a layer": ("num_hidden_layers", 0.5),
    "no layers": ("num_hidden_layers", 0),
    "more layers than a list can have": ("num_hidden_layers", 2**70),
    "not a number": ("vocab_size", float("nan")),
    "endless": ("max_position_embeddings", float("inf")),
    "null": ("intermediate_size", None),
    "true for a number": ("num_attention_heads", True),
    "a list": ("num_key_value_heads", [2]),
    "no divisor": ("num_key_value_heads", 3),
    "a number beyond f64": ("rms_norm_eps", 10**400),
    "no number": ("rms_norm_eps", float("nan")),
    "a word for true": ("tie_word_embeddings", "false"),
    "no fields": ("rope_scaling", ["linear"]),
    "no factor": ("rope_scaling", {"rope_type": "linear"}),
    "a factor of nothing": ("rope_scaling", {"rope_type": "linear", "factor": 0}),
    "no base": ("rope_theta", 0),
    "a base that is none": ("rope_scaling", {"rope_theta": float("nan")}),
    "a band that is none": (
        "rope_scaling",
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0},
    ),
    "a base without a logarithm to divide by": ("rope_scaling", {"type": "yarn", "factor": 2.0, "rope_theta": 1.0}),
}


@pytest.mark.parametrize("name", FIELDS)
def test_fields_of_a_configuration_are_what_they_have_to_be(name: str, tmp_path: Path) -> None:
    field, value = FIELDS[name]
    write(tmp_path, *parts(tensors()), {**CONFIG, field: value})
    with pytest.raises(FileFormatError, match=r"field|lacks a tensor"):
        read_decoder(tmp_path)


@pytest.mark.parametrize("share", [2.0, 0.1, -1.0, 0.4])
def test_more_of_a_head_than_there_is_cannot_turn(share: float, tmp_path: Path) -> None:
    write(tmp_path, *parts(tensors()), {**CONFIG, "partial_rotary_factor": share})
    with pytest.raises(UnsupportedError, match="an even number of the 8 elements"):
        read_decoder(tmp_path)


@pytest.mark.parametrize("text", [b"", DEEP, b'{"a":' * 100_000, b"[]", b"\xff", b'{"a":' + b"9" * 5000 + b"}"])
def test_configurations_that_are_none(text: bytes, tmp_path: Path) -> None:
    write(tmp_path, *parts(tensors()), text)
    with pytest.raises(FileFormatError, match="not a configuration"):
        read_decoder(tmp_path)
    write(tmp_path, text, b"")
    with pytest.raises(FileFormatError, match="not a safetensors file"):
        read_decoder(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_bytes(text)
    with pytest.raises(FileFormatError, match="not an index of weights"):
        read_decoder(tmp_path)


def _lies(**entry: Any) -> Callable[[Head, bytes], tuple[Head, bytes]]:
    return lambda head, data: ({**head, NORM: {**head[NORM], **entry}}, data)


HEADS_THAT_LIE: dict[str, Callable[[Head, bytes], tuple[Head, bytes]]] = {
    "bytes of another tensor": _lies(data_offsets=[1, 1 + 4 * WIDTH]),
    "a shape of words": _lies(shape=[str(WIDTH)]),
    "a shape of fractions": _lies(shape=[WIDTH + 0.5]),
    "sizes below zero": _lies(shape=[-4, -4]),
    "a byte too few": lambda head, data: (head, data[:-1]),
    "a byte too many": lambda head, data: (head, data + b"\0"),
    "no entry": lambda head, data: ({**head, NORM: None}, data),  # type: ignore[dict-item]
}


@pytest.mark.parametrize("name", HEADS_THAT_LIE)
def test_heads_of_safetensors_that_lie(name: str, tmp_path: Path) -> None:
    write(tmp_path, *HEADS_THAT_LIE[name](*parts(tensors())))
    with pytest.raises(FileFormatError, match="not a safetensors file"):
        read_decoder(tmp_path)


def test_types_that_are_none_of_floats_are_named(tmp_path: Path) -> None:
    for kind, dtype in (("I8", np.int8), ("F8_E4M3", ml_dtypes.float8_e4m3fn)):  # of a byte, so shapes fit
        arrays = {**tensors(), NORM: np.ones(WIDTH, dtype)}
        write(tmp_path, *parts(arrays, {NORM: kind}))
        with pytest.raises(UnsupportedError, match=rf"{NORM}.*type of tensor.*found {kind}"):
            read_decoder(tmp_path)
    buffer = f"{BLOCK}.attn.bias"  # which older files hold and nobody reads: of any type
    write(tmp_path, *parts({**tensors(), buffer: np.ones(4, np.uint8)}, {buffer: "U8"}))
    read_decoder(tmp_path)


def test_weights_of_f64_say_how_they_are_computed(tmp_path: Path) -> None:
    arrays = {name: array.astype(np.float64) for name, array in tensors().items()}
    write(tmp_path, *parts(arrays, dict.fromkeys(arrays, "F64")))
    with pytest.raises(InputError, match="dtype='f32' computes in another"):
        sk.from_pretrained(tmp_path, threads=1)
    assert str(sk.from_pretrained(tmp_path, threads=1, dtype="f32").dtype) == "f32"


def test_shards_that_are_missing_are_all_named(tmp_path: Path) -> None:
    write(tmp_path, *parts(tensors()))
    os.mkfifo(tmp_path / "pipe.safetensors")  # nobody writes to it: reading would wait for ever
    names = {"a": "gone.safetensors", "b": "pipe.safetensors", "c": "model.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": names}))
    with pytest.raises(FileFormatError, match=r"(?s)2 problems.*gone.*pipe"):
        read_decoder(tmp_path)


def test_what_has_a_configuration_of_its_own_kind_is_no_model() -> None:
    class Module:
        config = {"model_type": "llama"}  # noqa: RUF012

        def state_dict(self) -> dict[str, Any]:
            return {}

    with pytest.raises(InputError, match="not a language model"):
        sk.from_pretrained(Module())


def test_fields_have_defaults_where_they_are_missing_or_null() -> None:
    fields = Fields({"a.x": None, "a.y": 3.0, "a.z": (1, 2)}, "here", "a.")
    assert (fields.whole("x", 5), fields.whole("y"), fields.number("q", 0.5), fields.values("z")) == (5, 3, 0.5, [1, 2])
    assert [name in fields for name in "xyq"] == [False, True, False]
    assert [fields.is_null(name) for name in "xyq"] == [True, False, False]
    assert [fields.over(x=1, y=1).whole(name) for name in "xy"] == [1, 3]
    with pytest.raises(FileFormatError, match=r"lacks a field; expected a\.q"):
        fields.whole("q")


# GGUF -----------------------------------------------------------------------------------------------------------------

needs_gguf = pytest.mark.skipif(not HAS_GGUF, reason="gguf is not installed")


def write_gguf(path: Path, changed: dict[str, np.ndarray] | None = None, big: bool = False, **fields: Any) -> Path:
    import gguf

    endian = gguf.GGUFEndian.BIG if big else gguf.GGUFEndian.LITTLE
    writer = gguf.GGUFWriter(path, "llama", endianess=endian)
    values = {
        "block_count": 1,
        "context_length": 32,
        "embedding_length": WIDTH,
        "feed_forward_length": INNER,
        "attention.head_count": HEADS,
        "attention.layer_norm_rms_epsilon": 1e-6,
        **fields,
    }
    for name, value in values.items():
        key = f"llama.{name}"
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, str):
            writer.add_string(key, value)
        else:
            (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(key, value)
    for name, array in {**tensors(), **(changed or {})}.items():
        writer.add_tensor(gguf_name(name), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


BAD_GGUF: dict[str, tuple[dict[str, Any], str]] = {
    "a size per layer": ({"attention.head_count_kv": [2, 1]}, "head_count_kv"),
    "a word for a number": ({"context_length": "many"}, "context_length"),
    "not a number": ({"rope.freq_base": float("nan")}, "freq_base"),
    "no heads": ({"attention.head_count": 0}, "head_count"),
    "more turns than there is": ({"rope.dimension_count": 10}, "dimension_count"),
    "a norm that would be stretched": ({"changed": {NORM: np.ones(1, np.float32)}}, "output_norm.*wrong shape"),
    "a bias that would be stretched": (
        {"changed": {f"{BLOCK}.self_attn.q_proj.bias": np.ones(1, np.float32)}},
        "attn_q.bias.*wrong shape",
    ),
    "other frequencies": ({"changed": {"rope_freqs.weight": np.ones(5, np.float32)}}, "rope_freqs.*wrong shape"),
    "a vector for a matrix": ({"changed": {"lm_head.weight": np.ones(8, np.float32)}}, "output.*wrong shape"),
    "a matrix of nothing": ({"changed": {"lm_head.weight": np.ones((0, WIDTH), np.float32)}}, "output.*wrong shape"),
}


@needs_gguf
@pytest.mark.parametrize("name", BAD_GGUF)
def test_fields_and_tensors_of_gguf_files_are_what_they_have_to_be(name: str, tmp_path: Path) -> None:
    changed, said = BAD_GGUF[name]
    with pytest.raises(FileFormatError, match=said):
        read_decoder(write_gguf(tmp_path / "m.gguf", **changed))


@needs_gguf
def test_gguf_files_that_are_whole_and_cannot_be_read(tmp_path: Path) -> None:
    assert read_decoder(write_gguf(tmp_path / "m.gguf")).vocabulary == VOCABULARY
    with pytest.raises(UnsupportedError, match="order of bytes"):
        read_decoder(write_gguf(tmp_path / "big.gguf", big=True))


@needs_gguf
@pytest.mark.timeout(60)
def test_lengths_in_gguf_files_lead_nowhere(tmp_path: Path) -> None:
    """An array of 2^60 elements, behind the end of the file or longer than any vocabulary; arrays in arrays."""
    data = write_gguf(tmp_path / "m.gguf", words=[7, 7, 7]).read_bytes()
    at = data.index(b"llama.words") + len("llama.words") + 4  # type of the elements, u32; how many, u64
    for count in (1 << 60, 1 << 16):
        (tmp_path / "m.gguf").write_bytes(data[: at + 4] + struct.pack("<Q", count) + data[at + 12 :])
        with pytest.raises(FileFormatError, match="not a GGUF file"):
            read_decoder(tmp_path / "m.gguf")
    nested = struct.pack("<IQ", 9, 1) * 100_000
    (tmp_path / "m.gguf").write_bytes(data[:at] + nested + data[at:])
    with pytest.raises(FileFormatError, match="not a GGUF file"):
        read_decoder(tmp_path / "m.gguf")
