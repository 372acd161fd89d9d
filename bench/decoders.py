"""Llama-like decoders of random weights, written as files that every runtime reads: a folder of Hugging Face's form, or
a GGUF file in one of its types."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
EPSILON, THETA, CONTEXT = 1e-5, 10000.0, 2048
FOLDER_DTYPES = {"f32": np.dtype(np.float32), "bf16": np.dtype(ml_dtypes.bfloat16)}


@dataclass(frozen=True)
class Sizes:
    """Of a decoder; heads have width / heads elements."""

    blocks: int
    width: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int

    @property
    def head_size(self) -> int:
        return self.width // self.heads


SIZES = {
    "tiny": Sizes(2, 256, 4, 2, 512, 1024),
    "60m": Sizes(12, 768, 12, 4, 2048, 8192),
    "1b": Sizes(16, 2048, 32, 8, 8192, 32000),
}

_LINEAR = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}


def tensors(sizes: Sizes) -> Iterator[tuple[str, str, Array]]:
    """Name in the folder, name in the GGUF file, f32 contents; the same on every call."""
    rng = np.random.default_rng(0)
    width, keys = sizes.width, sizes.kv_heads * sizes.head_size
    shapes = {
        "self_attn.q_proj": (width, width),
        "self_attn.k_proj": (keys, width),
        "self_attn.v_proj": (keys, width),
        "self_attn.o_proj": (width, width),
        "mlp.gate_proj": (sizes.inner, width),
        "mlp.up_proj": (sizes.inner, width),
        "mlp.down_proj": (width, sizes.inner),
    }

    def matrix(outputs: int, inputs: int) -> Array:
        return rng.standard_normal((outputs, inputs), np.float32) / np.float32(np.sqrt(inputs))

    yield "model.embed_tokens", "token_embd", matrix(sizes.vocabulary, width)
    for number in range(sizes.blocks):
        for theirs, own in _LINEAR.items():
            yield f"model.layers.{number}.{theirs}", f"blk.{number}.{own}", matrix(*shapes[theirs])
        for theirs, own in _NORMS.items():
            yield f"model.layers.{number}.{theirs}", f"blk.{number}.{own}", np.ones(width, np.float32)
    yield "model.norm", "output_norm", np.ones(width, np.float32)
    yield "lm_head", "output", matrix(sizes.vocabulary, width)


def write_folder(folder: Path, sizes: Sizes, dtype: str) -> Path:
    """config.json and model.safetensors in f32 or bf16."""
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    kind = FOLDER_DTYPES[dtype]
    save_file({f"{name}.weight": array.astype(kind) for name, _, array in tensors(sizes)}, folder / "model.safetensors")
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": sizes.width,
        "intermediate_size": sizes.inner,
        "num_hidden_layers": sizes.blocks,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "vocab_size": sizes.vocabulary,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": EPSILON,
        "rope_theta": THETA,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": {"f32": "float32", "bf16": "bfloat16"}[dtype],
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_gguf(path: Path, sizes: Sizes, kind: str, words: bool = False) -> Path:
    """A file whose matrices are of `kind` (F32, F16, BF16, Q8_0, Q4_0, ...); norms are F32. `words`: with a vocabulary
    of made-up words, which some readers ask for."""
    import gguf

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(sizes.blocks)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(sizes.width)
    writer.add_feed_forward_length(sizes.inner)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.kv_heads)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_dimension_count(sizes.head_size)
    writer.add_rope_freq_base(THETA)
    writer.add_vocab_size(sizes.vocabulary)
    if words:
        writer.add_file_type(getattr(gguf.LlamaFileType, f"MOSTLY_{kind}"))
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("default")
        writer.add_token_list([f"<{i}>" for i in range(sizes.vocabulary)])
        writer.add_token_types([1] * sizes.vocabulary)
        writer.add_token_merges(["a b"])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_chat_template("x")
    else:
        writer.add_tokenizer_model("no_vocab")
    packed_as = gguf.GGMLQuantizationType[kind]
    turned = {"attn_q": sizes.heads, "attn_k": sizes.kv_heads}
    for _, name, array in tensors(sizes):
        if array.ndim == 1:
            writer.add_tensor(f"{name}.weight", array)
            continue
        heads = turned.get(name.rpartition(".")[2])
        if heads:  # pairs that turn together are neighbours there
            array = array.reshape(heads, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        writer.add_tensor(f"{name}.weight", gguf.quants.quantize(array, packed_as), raw_dtype=packed_as)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
