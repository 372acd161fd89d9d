"""Decoders as Hugging Face stores them: `config.json` with safetensors beside it, or a module of transformers.

Names of fields and tensors are those of transformers 4 and 5. What a configuration asks for and this reader does not
know is refused, and so is a tensor that has no place: a model is read whole or not at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.core.errors import FileFormatError, UnsupportedError, Violation, raise_all
from superkernel.core.files import is_file, text_of
from superkernel.core.json_text import parse_json
from superkernel.frontends.pretrained.decoder import (
    ACTIVATIONS,
    Attention,
    Block,
    Decoder,
    Experts,
    FeedForward,
    Linear,
    Norm,
)
from superkernel.frontends.pretrained.factors import Dense
from superkernel.frontends.pretrained.fields import Fields
from superkernel.frontends.pretrained.rotary import Rotary, rotary_of
from superkernel.frontends.pretrained.tensors import Tensors, mapped_safetensors

Array = NDArray[Any]

LLAMA_LIKE = ("llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen2_moe", "qwen3_moe")
ARCHITECTURES = ("gpt2", *LLAMA_LIKE)
_LAYERS_OF_OWN_KIND = {"mixtral": "block_sparse_moe", "qwen2_moe": "mlp", "qwen3_moe": "mlp"}
_SLIDING = "sliding_attention"
_LAYER_TYPES = ("full_attention", _SLIDING)
_BUFFERS = ("rotary_emb.inv_freq", "attn.bias", "attn.masked_bias")
"""What older checkpoints store and nobody reads."""


def read_folder(folder: Path) -> Decoder:
    """The decoder of a folder with config.json and safetensors. Raises FileFormatError, UnsupportedError."""
    path = folder / "config.json"
    if not is_file(path):
        raise FileFormatError("no configuration", location=str(folder), expected="config.json")
    try:
        config = parse_json(text_of(path))
        if not isinstance(config, dict):
            raise ValueError("not an object")
    except (OSError, ValueError) as error:
        raise FileFormatError("not a configuration", location=str(path), found=str(error)) from error
    return read(config, mapped_safetensors(folder), folder.name)


def read_module(module: Any) -> Decoder:
    """The decoder of a module of transformers, whose parameters it uses where they lie."""
    import torch

    from superkernel.frontends.torch.types import tensor_array

    module = getattr(module, "_orig_mod", module)  # what torch.compile wrapped
    where, stored = type(module).__name__, module.state_dict()
    odd = {name: type(value).__name__ for name, value in stored.items() if not isinstance(value, torch.Tensor)}
    hint = "a quantised module: give the one that it was made from, or a GGUF file"
    raise_all(
        UnsupportedError,
        [Violation("not a tensor", f"{where}, parameter {n!r}", found=kind, hint=hint) for n, kind in odd.items()],
    )
    state = {name: tensor_array(value, f"parameter {name!r}") for name, value in stored.items()}
    return read(module.config.to_dict(), Tensors(state, where), where)


def read(config: Mapping[str, Any], tensors: Tensors, name: str) -> Decoder:
    """The decoder of a configuration and its tensors."""
    fields = Fields(config, tensors.where)
    kind = fields.text("model_type", "")
    if kind not in ARCHITECTURES:
        expected = ", ".join(ARCHITECTURES)
        raise UnsupportedError("architecture", location=fields.where, expected=expected, found=repr(kind))
    decoder = _gpt2(fields, tensors, name) if kind == "gpt2" else _LlamaLike(kind, fields, tensors).read(name)
    tensors.refuse_rest(_BUFFERS)
    return decoder


def _activation(config: Fields, field: str) -> str:
    found = config.text(field)
    if found not in ACTIVATIONS:
        expected = ", ".join(ACTIVATIONS)
        raise UnsupportedError("activation", location=config.where, expected=expected, found=repr(found))
    return ACTIVATIONS[found]


def _require(config: Fields, name: str, wanted: bool) -> None:
    """Raises UnsupportedError where the field, which is as wanted by default, is not."""
    if config.is_on(name, wanted) is not wanted:
        on = ("off", "on")
        raise UnsupportedError(f"field {name!r}", location=config.where, expected=on[wanted], found=on[not wanted])


def _gpt2(config: Fields, tensors: Tensors, name: str) -> Decoder:
    """Linear layers are stored as [inputs, outputs]; queries, keys and values in one."""
    _require(config, "scale_attn_by_inverse_layer_idx", False)
    _require(config, "add_cross_attention", False)
    _require(config, "scale_attn_weights", True)
    width, count = config.whole("n_embd"), config.whole("n_head")
    inner, positions = config.whole("n_inner", 4 * width), config.whole("n_positions")
    if width % count:
        raise config.error("n_head", f"a divisor of the {width} elements of a token")
    prefix = "transformer." if "transformer.wte.weight" in tensors else ""
    embedding = Dense(tensors.shaped(f"{prefix}wte.weight", config.whole("vocab_size"), width))
    tied = config.is_on("tie_word_embeddings", True)

    def norm(place: str) -> Norm:
        return Norm(tensors.shaped(f"{place}.weight", width), tensors.shaped(f"{place}.bias", width))

    def linear(place: str, inputs: int, outputs: int) -> Linear:
        matrix = Dense(tensors.shaped(f"{place}.weight", inputs, outputs), transposed=True)
        return Linear(matrix, tensors.shaped(f"{place}.bias", outputs))

    def block(number: int) -> Block:
        place = f"{prefix}h.{number}"
        joined = linear(f"{place}.attn.c_attn", width, 3 * width)
        assert joined.bias is not None
        biases = np.split(joined.bias, 3)
        parts = joined.matrix.parts(width, width, width)
        query, key, value = map(Linear, parts, biases)
        return Block(
            norm(f"{place}.ln_1"),
            Attention(query, key, value, linear(f"{place}.attn.c_proj", width, width)),
            norm(f"{place}.ln_2"),
            FeedForward(linear(f"{place}.mlp.c_fc", width, inner), linear(f"{place}.mlp.c_proj", inner, width)),
        )

    if "lm_head.weight" in tensors:
        stored = tensors.shaped("lm_head.weight", *embedding.shape)
        tied, head = False, Dense(stored)
    else:
        head = embedding
    if not tied and head is embedding:
        raise FileFormatError("the model lacks a tensor", location=tensors.where, expected="lm_head.weight")
    return Decoder(
        name=name,
        embedding=embedding,
        blocks=tuple(block(number) for number in range(config.whole("n_layer"))),
        final_norm=norm(f"{prefix}ln_f"),
        head=head,
        heads=count,
        kv_heads=count,
        head_size=width // count,
        positions_max=positions,
        epsilon=config.number("layer_norm_epsilon"),
        activation=_activation(config, "activation_function"),
        positions=tensors.shaped(f"{prefix}wpe.weight", positions, width),
    )


class _LlamaLike:
    """Llama and what differs from it in a few fields."""

    def __init__(self, kind: str, config: Fields, tensors: Tensors) -> None:
        self.kind, self.config, self.tensors = kind, config, tensors
        self.width, self.inner = config.whole("hidden_size"), config.whole("intermediate_size")
        self.heads = config.whole("num_attention_heads")
        self.kv_heads = config.whole("num_key_value_heads", self.heads)
        if self.heads % self.kv_heads:
            raise config.error("num_key_value_heads", f"a divisor of the {self.heads} heads")
        self.head_size = config.whole("head_dim", 128 if kind == "qwen3" else self.width // self.heads)
        self.prefix = "model." if "model.embed_tokens.weight" in tensors else ""

    def read(self, name: str) -> Decoder:
        config, tensors = self.config, self.tensors
        if "quantization_config" in config:
            raise UnsupportedError("quantised weights", location=f"{config.where}, field 'quantization_config'")
        embedding = Dense(tensors.shaped(f"{self.prefix}embed_tokens.weight", config.whole("vocab_size"), self.width))
        if config.is_on("tie_word_embeddings"):
            head = embedding
            if "lm_head.weight" in tensors:
                tensors.shaped("lm_head.weight", *embedding.shape)
        else:
            head = Dense(tensors.shaped("lm_head.weight", *embedding.shape))
        return Decoder(
            name=name,
            embedding=embedding,
            blocks=tuple(self._block(number) for number in range(config.whole("num_hidden_layers"))),
            final_norm=self._norm(f"{self.prefix}norm", self.width),
            head=head,
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_size=self.head_size,
            positions_max=config.whole("max_position_embeddings"),
            epsilon=config.number("rms_norm_eps"),
            activation=_activation(config, "hidden_act"),
            rotary=self._rotary(),
        )

    def _rotary(self) -> Rotary:
        config = self.config
        given = config.inner("rope_parameters") or config.inner("rope_scaling")
        theta = config.number("rope_theta", 1e6 if self.kind == "mixtral" else 1e4, above=0.0)
        share = given.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
        rotated = self.head_size * share
        if not 2 <= rotated <= self.head_size or int(rotated) % 2:
            expected = f"an even number of the {self.head_size} elements of a head that turn"
            raise UnsupportedError("positions", location=config.where, expected=expected, found=f"{rotated:g}")
        positions = config.whole("max_position_embeddings")
        return rotary_of(given.over(rope_theta=theta), int(rotated), positions)

    def _window(self, number: int) -> int | None:
        """Of a layer; kinds of models tell it in different ways, and have their defaults."""
        config, kind = self.config, self.kind
        unused = kind.startswith("qwen") and not config.is_on("use_sliding_window")
        if kind == "llama" or unused or config.is_null("sliding_window"):
            return None
        window = config.whole("sliding_window", 0 if kind == "mixtral" else 4096, least=0) or None
        if kind in ("mistral", "mixtral", "qwen3_moe"):
            return window
        if kinds := config.values("layer_types"):
            if len(kinds) <= number or kinds[number] not in _LAYER_TYPES:
                raise config.error("layer_types", f"{' or '.join(_LAYER_TYPES)} for each layer")
            return window if kinds[number] == _SLIDING else None
        full = config.whole("max_window_layers", 28, least=0)
        slides = number < full and number % 2 == 0 if kind == "qwen2_moe" else number >= full
        return window if slides else None

    def _norm(self, place: str, size: int) -> Norm:
        return Norm(self.tensors.shaped(f"{place}.weight", size))

    def _linear(self, place: str, inputs: int, outputs: int) -> Linear:
        bias = f"{place}.bias"
        found = self.tensors.shaped(bias, outputs) if bias in self.tensors else None
        return Linear(Dense(self.tensors.shaped(f"{place}.weight", outputs, inputs)), found)

    def _block(self, number: int) -> Block:
        place = f"{self.prefix}layers.{number}"
        own, width, size = f"{place}.self_attn", self.width, self.head_size
        normed = self.kind.startswith("qwen3")
        attention = Attention(
            self._linear(f"{own}.q_proj", width, self.heads * size),
            self._linear(f"{own}.k_proj", width, self.kv_heads * size),
            self._linear(f"{own}.v_proj", width, self.kv_heads * size),
            self._linear(f"{own}.o_proj", self.heads * size, width),
            self._norm(f"{own}.q_norm", size) if normed else None,
            self._norm(f"{own}.k_norm", size) if normed else None,
            self._window(number),
        )
        return Block(
            self._norm(f"{place}.input_layernorm", width),
            attention,
            self._norm(f"{place}.post_attention_layernorm", width),
            self._experts(place) if self._is_mixture(number) else self._feed(f"{place}.mlp", self.inner),
        )

    def _feed(self, place: str, inner: int) -> FeedForward:
        return FeedForward(
            self._linear(f"{place}.up_proj", self.width, inner),
            self._linear(f"{place}.down_proj", inner, self.width),
            self._linear(f"{place}.gate_proj", self.width, inner),
        )

    def _is_mixture(self, number: int) -> bool:
        config = self.config
        if self.kind not in _LAYERS_OF_OWN_KIND or number in config.values("mlp_only_layers"):
            return False
        return (number + 1) % config.whole("decoder_sparse_step", 1) == 0

    def _experts(self, block: str) -> Experts:
        config, width = self.config, self.width
        count = config.whole("num_local_experts" if "num_local_experts" in config else "num_experts")
        inner = config.whole("moe_intermediate_size", self.inner)
        top = config.whole("num_experts_per_tok")
        if top > count:
            raise config.error("num_experts_per_tok", f"at most the {count} experts that there are")
        place = f"{block}.{_LAYERS_OF_OWN_KIND[self.kind]}"
        if f"{place}.gate.weight" not in self.tensors:  # a module of transformers 5
            place = f"{block}.mlp"
        gate, up, down = self._stacked(f"{place}.experts", count, inner)
        shared = shared_gate = None
        if self.kind == "qwen2_moe":
            shared = self._feed(f"{place}.shared_expert", config.whole("shared_expert_intermediate_size"))
            shared_gate = self._linear(f"{place}.shared_expert_gate", width, 1)
        return Experts(
            self._linear(f"{place}.gate", width, count),
            gate,
            up,
            down,
            top,
            self.kind == "mixtral" or config.is_on("norm_topk_prob"),
            shared,
            shared_gate,
        )

    def _stacked(self, place: str, count: int, inner: int) -> tuple[Array, Array, Array]:
        """Gates, ups and downs of all experts as [experts, inputs, outputs]: from a matrix per expert, or from the
        joined ones of a module."""
        tensors, width = self.tensors, self.width
        if f"{place}.gate_up_proj" in tensors:
            joined = tensors.shaped(f"{place}.gate_up_proj", count, 2 * inner, width).swapaxes(1, 2)
            down = tensors.shaped(f"{place}.down_proj", count, width, inner).swapaxes(1, 2)
            parts = (joined[..., :inner], joined[..., inner:], down)
            return parts[0].copy(), parts[1].copy(), parts[2].copy()
        names = ("w1", "w3", "w2") if self.kind == "mixtral" else ("gate_proj", "up_proj", "down_proj")

        def stack(which: int, outputs: int, inputs: int) -> Array:
            files = (f"{place}.{expert}.{names[which]}.weight" for expert in range(count))
            return np.stack([tensors.shaped(name, outputs, inputs).T for name in files])

        return stack(0, inner, width), stack(1, inner, width), stack(2, width, inner)
