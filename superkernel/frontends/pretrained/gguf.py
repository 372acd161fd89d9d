"""Decoders from GGUF files, by way of the `gguf` package: metadata, names of tensors, blocks of codes.

Types of tensors: F32, F16 and BF16 are used where they lie in the mapped file; Q8_0, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K
and Q6_K become `Coded`, without loss: what has 5 or 6 bits is kept in 8. Experts in blocks are decoded to f32.

Layouts of blocks (those of ggml, as its documentation and the package's own decoder have them): each block of 32 or
256 neighbours is a record of scales and codes; halves of bytes hold codes that lie half a block apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from superkernel.core.errors import FileFormatError, MachineError, UnsupportedError
from superkernel.frontends.pretrained.decoder import Attention, Block, Decoder, Experts, FeedForward, Linear, Norm
from superkernel.frontends.pretrained.factors import Coded, Dense, Matrix
from superkernel.frontends.pretrained.fields import Fields
from superkernel.frontends.pretrained.rotary import Rotary, rotary_of

Array = NDArray[Any]

ARCHITECTURES = ("gpt2", "llama", "qwen2", "qwen3", "qwen2moe", "qwen3moe")
_INTERLEAVED = ("llama",)
_DAMAGE = (
    ValueError, KeyError, IndexError, OSError, TypeError, AttributeError, OverflowError, RecursionError,
)  # fmt: skip
_ARRAY_MAX = 1 << 22  # elements of a field: vocabularies and their merges have less than a million
_SUPER = 256  # neighbours in a block of the K types
_SUB = 32  # that share a scale in it


def read_gguf(path: Path) -> Decoder:
    """The decoder of a file. Raises FileFormatError on what does not read, UnsupportedError on architectures and types
    of tensors that are not known, MachineError where the package `gguf` is missing."""
    try:
        from gguf import GGUFReader, GGUFValueType
    except ImportError as error:
        hint = "pip install 'superkernel-compiler[generation]'"
        raise MachineError("GGUF files need the package gguf", location=str(path), hint=hint) from error

    class Reader(GGUFReader):  # type: ignore[misc]  # gguf is optional, and Any to the type checker
        """That of the package goes on behind the end of a file, for as many elements as the file says it has."""

        def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Array:
            found: Array = super()._get(offset, dtype, count, override_order)
            if len(found) != int(count):
                raise ValueError(f"{count} elements at byte {offset} of {len(self.data)}")
            return found

        def _get_field_parts(self, orig_offs: int, raw_type: int) -> Any:
            if raw_type == GGUFValueType.ARRAY and (count := self._get(orig_offs + 4, np.uint64)[0]) > _ARRAY_MAX:
                raise ValueError(f"an array of {count} elements")
            return super()._get_field_parts(orig_offs, raw_type)

    try:
        with np.errstate(over="ignore"):  # of sums with numbers that lead out of the file
            reader = Reader(path)
        fields = {name: field.contents() for name, field in reader.fields.items() if not _is_vocabulary(name)}
        tensors = {tensor.name: tensor for tensor in reader.tensors}
    except _DAMAGE as error:
        raise FileFormatError("not a GGUF file", location=str(path), found=str(error)) from error
    if reader.byte_order != "I":
        raise UnsupportedError("a file of the other order of bytes", location=str(path))
    return _Gguf(path, fields, tensors).read()


def _is_vocabulary(name: str) -> bool:
    return name.startswith(("tokenizer.", "GGUF."))


class _Gguf:
    def __init__(self, path: Path, fields: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
        self.where, self.name = str(path), path.stem
        self.tensors = tensors
        self.kind = Fields(fields, self.where).text("general.architecture", "")
        self.fields = Fields(fields, self.where, f"{self.kind}.")
        self.used: set[str] = set()
        if self.kind not in ARCHITECTURES:
            expected = ", ".join(ARCHITECTURES)
            raise UnsupportedError("architecture", location=self.where, expected=expected, found=repr(self.kind))
        if Fields(fields, self.where, "split.").whole("count", 1, least=0) > 1:
            hint = "llama-gguf-split --merge makes one of them"
            raise UnsupportedError("a model in several files", location=self.where, hint=hint)

    def read(self) -> Decoder:
        fields, embedding = self.fields, self._matrix("token_embd.weight")
        self.width, self.heads = fields.whole("embedding_length"), fields.whole("attention.head_count")
        self.kv_heads = fields.whole("attention.head_count_kv", self.heads)
        if self.heads % self.kv_heads:
            raise fields.error("attention.head_count_kv", f"a divisor of the {self.heads} heads")
        self.size = fields.whole("attention.key_length", self.width // self.heads)
        self.positions_max = fields.whole("context_length")
        learned = self.kind == "gpt2"
        epsilon = "attention.layer_norm_epsilon" if learned else "attention.layer_norm_rms_epsilon"
        self._check_shape("token_embd.weight", embedding.shape, (embedding.shape[0], self.width))
        decoder = Decoder(
            name=self.name,
            embedding=embedding,
            blocks=tuple(self._block(number) for number in range(fields.whole("block_count"))),
            final_norm=self._norm("output_norm", self.width),
            head=self._head(embedding),
            heads=self.heads,
            kv_heads=self.kv_heads,
            head_size=self.size,
            positions_max=self.positions_max,
            epsilon=fields.number(epsilon),
            activation="gelu_tanh" if learned else "silu",
            rotary=None if learned else self._rotary(),
            positions=self._shaped("position_embd.weight", self.positions_max, self.width) if learned else None,
        )
        rest = sorted(name for name in self.tensors if name not in self.used)
        if rest:
            hint = "a variant of the architecture that is not supported"
            raise FileFormatError("tensors that have no place", location=self.where, found=", ".join(rest), hint=hint)
        return decoder

    def _head(self, embedding: Matrix) -> Matrix:
        if "output.weight" not in self.tensors:
            return embedding
        head = self._matrix("output.weight")
        self._check_shape("output.weight", head.shape, embedding.shape)
        return head

    def _rotary(self) -> Rotary:
        fields, where = self.fields, self.where
        given: dict[str, Any] = {"rope_theta": fields.number("rope.freq_base", 10000.0, above=0.0)}
        scaling = fields.text("rope.scaling.type", "none")
        if scaling != "none":
            trained = fields.whole("rope.scaling.original_context_length", 0, least=0)
            given |= {"rope_type": scaling, "factor": fields.number("rope.scaling.factor", 1.0, above=0.0)}
            given |= {"original_max_position_embeddings": trained}
        rotated = fields.whole("rope.dimension_count", self.size, least=2)
        if rotated > self.size or rotated % 2:
            raise fields.error("rope.dimension_count", f"an even number of the {self.size} elements of a head")
        interleaved = self.kind in _INTERLEAVED
        rotary = rotary_of(Fields(given, where), rotated, self.positions_max, interleaved=interleaved)
        if "rope_freqs.weight" in self.tensors:  # what each frequency is divided by
            divisors = self._shaped("rope_freqs.weight", rotated // 2)
            rotary = replace(rotary, frequencies=rotary.frequencies / divisors)
        return rotary

    def _block(self, number: int) -> Block:
        place, width, heads, kv_heads, size = f"blk.{number}", self.width, self.heads, self.kv_heads, self.size
        window = self.fields.whole("attention.sliding_window", 0, least=0) or None
        if self.kind == "gpt2":
            joined = self._linear(f"{place}.attn_qkv", width, 3 * width)
            if joined.bias is None:
                raise self._lacks(f"{place}.attn_qkv.bias")
            query, key, value = map(Linear, joined.matrix.parts(width, width, width), np.split(joined.bias, 3))
        else:
            query = self._linear(f"{place}.attn_q", width, heads * size)
            key = self._linear(f"{place}.attn_k", width, kv_heads * size)
            value = self._linear(f"{place}.attn_v", width, kv_heads * size)
        normed = self.kind.startswith("qwen3")
        attention = Attention(
            query,
            key,
            value,
            self._linear(f"{place}.attn_output", heads * size, width),
            self._norm(f"{place}.attn_q_norm", size) if normed else None,
            self._norm(f"{place}.attn_k_norm", size) if normed else None,
            window,
        )
        mixture = f"{place}.ffn_gate_inp.weight" in self.tensors
        feed = self._experts(place) if mixture else self._feed(place, self.fields.whole("feed_forward_length"))
        return Block(self._norm(f"{place}.attn_norm", width), attention, self._norm(f"{place}.ffn_norm", width), feed)

    def _feed(self, place: str, inner: int, suffix: str = "") -> FeedForward:
        width = self.width
        up = self._linear(f"{place}.ffn_up{suffix}", width, inner)
        down = self._linear(f"{place}.ffn_down{suffix}", inner, width)
        gated = f"{place}.ffn_gate{suffix}.weight" in self.tensors
        return FeedForward(up, down, self._linear(f"{place}.ffn_gate{suffix}", width, inner) if gated else None)

    def _experts(self, place: str) -> Experts:
        width, count = self.width, self.fields.whole("expert_count")
        top = self.fields.whole("expert_used_count")
        if top > count:
            raise self.fields.error("expert_used_count", f"at most the {count} experts that there are")
        _, inner, _ = self._shape(f"{place}.ffn_up_exps.weight", axes=3)
        shared = shared_gate = None
        if f"{place}.ffn_up_shexp.weight" in self.tensors:
            shared = self._feed(place, self._matrix(f"{place}.ffn_up_shexp.weight").shape[0], "_shexp")
            name = f"{place}.ffn_gate_inp_shexp.weight"
            if name in self.tensors:  # [width], with axes of 1 around it or not
                gate = self._floats(name)
                self._check_shape(name, (gate.size,), (width,))
                shared_gate = Linear(Dense(gate.reshape(1, width)))
        return Experts(
            self._linear(f"{place}.ffn_gate_inp", width, count),
            self._stack(f"{place}.ffn_gate_exps.weight", count, inner, width),
            self._stack(f"{place}.ffn_up_exps.weight", count, inner, width),
            self._stack(f"{place}.ffn_down_exps.weight", count, width, inner),
            top,
            renormalised=self.kind in ("llama", "qwen3moe"),
            shared=shared,
            shared_gate=shared_gate,
        )

    # Tensors ----------------------------------------------------------------------------------------------------------

    def _lacks(self, name: str) -> FileFormatError:
        return FileFormatError("the model lacks a tensor", location=self.where, expected=name)

    def _tensor(self, name: str) -> Any:
        found = self.tensors.get(name)
        if found is None:
            raise self._lacks(name)
        self.used.add(name)
        return found

    def _shape(self, name: str, axes: int) -> tuple[int, ...]:
        """Of a tensor with as many axes and with elements. Raises FileFormatError where it is another one."""
        shape = tuple(reversed(self._tensor(name).shape.tolist()))
        if len(shape) != axes or 0 in shape:
            where = f"{self.where}, tensor {name!r}"
            raise FileFormatError("wrong shape", location=where, expected=f"{axes} axes", found=list(shape))
        return shape

    def _check_shape(self, name: str, found: tuple[int, ...], shape: tuple[int, ...]) -> None:
        if found != shape:
            where = f"{self.where}, tensor {name!r}"
            raise FileFormatError("wrong shape", location=where, expected=list(shape), found=list(found))

    def _shaped(self, name: str, *shape: int) -> Array:
        """A tensor of plain floats. Raises FileFormatError where it has another shape."""
        found = self._floats(name)
        self._check_shape(name, found.shape, shape)
        return found

    def _norm(self, place: str, size: int) -> Norm:
        bias = f"{place}.bias"
        return Norm(self._shaped(f"{place}.weight", size), self._shaped(bias, size) if bias in self.tensors else None)

    def _linear(self, place: str, inputs: int, outputs: int) -> Linear:
        name, bias = f"{place}.weight", f"{place}.bias"
        matrix = self._matrix(name)
        self._check_shape(name, matrix.shape, (outputs, inputs))
        return Linear(matrix, self._shaped(bias, outputs) if bias in self.tensors else None)

    def _floats(self, name: str, others: Iterable[str] = ()) -> Array:
        """A tensor of plain floats, of the shape that it has. `others`: types that its caller would take as well."""
        tensor = self._tensor(name)
        kind = tensor.tensor_type.name
        if kind == "BF16":
            shape = tuple(int(d) for d in reversed(tensor.shape))
            words: Array = np.asarray(tensor.data).view(ml_dtypes.bfloat16)
            return words.reshape(shape)
        if kind not in ("F32", "F16"):
            where, expected = f"{self.where}, tensor {name!r}", ", ".join(("F32", "F16", "BF16", *others))
            raise UnsupportedError("type of tensor", location=where, expected=expected, found=kind)
        return np.asarray(tensor.data)

    def _matrix(self, name: str) -> Matrix:
        tensor, _ = self._tensor(name), self._shape(name, axes=2)
        decode = _BLOCKS.get(tensor.tensor_type.name)
        return Dense(self._floats(name, _BLOCKS)) if decode is None else decode(np.asarray(tensor.data))

    def _stack(self, name: str, count: int, outputs: int, inputs: int) -> Array:
        """Matrices of experts, [experts, inputs, outputs], decoded where they are in blocks."""
        tensor = self._tensor(name)
        self._check_shape(name, self._shape(name, axes=3), (count, outputs, inputs))
        decode = _BLOCKS.get(tensor.tensor_type.name)
        if decode is None:
            found = self._floats(name, _BLOCKS)
        else:
            data = np.asarray(tensor.data)
            found = np.stack([decode(data[e]).dense() for e in range(len(data))])
        return np.ascontiguousarray(found.swapaxes(1, 2))


# Blocks of codes ------------------------------------------------------------------------------------------------------


def _records(data: Array, nbytes: int) -> Array:
    """[outputs, blocks, bytes of a block]."""
    return data.reshape(data.shape[0], -1, nbytes)


def _half(records: Array, at: int) -> Array:
    """The f16 at byte `at` of each record, [outputs, blocks]."""
    return np.ascontiguousarray(records[..., at : at + 2]).view("<f2")[..., 0].astype(np.float16)


def _nibbles(packed: Array) -> Array:
    """Codes of records whose bytes hold in their lower halves the first half of the codes, [outputs, blocks, codes]."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1)


def _paired(codes: Array) -> Array:
    """4-bit codes [outputs, ...] as bytes [outputs, inputs / 2], the even input in the lower half."""
    flat = codes.reshape(codes.shape[0], -1)
    return np.ascontiguousarray(flat[:, ::2] | (flat[:, 1::2] << 4))


def _flat(codes: Array) -> Array:
    return np.ascontiguousarray(codes.reshape(codes.shape[0], -1).astype(np.int8))


def _q8_0(data: Array) -> Coded:
    records = _records(data, 34)
    return Coded(_flat(records[..., 2:].view(np.int8)), _half(records, 0), None, 8, 32)


def _q4_0(data: Array) -> Coded:
    records = _records(data, 18)
    return Coded(_paired(_nibbles(records[..., 2:])), _half(records, 0), None, 4, 32, 8)


def _q4_1(data: Array) -> Coded:
    records = _records(data, 20)
    return Coded(_paired(_nibbles(records[..., 4:])), _half(records, 0), _half(records, 2), 4, 32)


def _fifth_bits(records: Array, at: int) -> Array:
    """[outputs, blocks, 32]: bit i of the u32 at byte `at`, as 16 or 0."""
    words = np.ascontiguousarray(records[..., at : at + 4]).view("<u4")
    return ((words >> np.arange(32, dtype=np.uint32)) & 1).astype(np.uint8) << 4


def _q5_0(data: Array) -> Coded:
    records = _records(data, 22)
    codes = (_nibbles(records[..., 6:]) | _fifth_bits(records, 2)).astype(np.int8) - np.int8(16)
    return Coded(_flat(codes), _half(records, 0), None, 8, 32)


def _q5_1(data: Array) -> Coded:
    records = _records(data, 24)
    codes = _nibbles(records[..., 8:]) | _fifth_bits(records, 4)
    return Coded(_flat(codes), _half(records, 0), _half(records, 2), 8, 32)


def _six_bits(packed: Array) -> tuple[Array, Array]:
    """Scales and minima of the 8 parts of a block of the K types from 12 bytes, [outputs, blocks, 8] each: those of
    the first four are the low 6 bits of a byte each; the others have 4 bits in the last bytes and 2 above the first."""
    scales, minima, rest = packed[..., 0:4], packed[..., 4:8], packed[..., 8:12]
    high = (rest & 15) | ((scales >> 6) << 4), (rest >> 4) | ((minima >> 6) << 4)
    return np.concatenate([scales & 63, high[0]], axis=-1), np.concatenate([minima & 63, high[1]], axis=-1)


def _by_parts(records: Array) -> tuple[Array, Array]:
    """Scale and offset of each 32 neighbours of the types Q4_K and Q5_K, f32 [outputs, inputs / 32]."""
    scales, minima = _six_bits(records[..., 4:16])
    outer, inner = (_half(records, at)[..., None].astype(np.float32) for at in (0, 2))
    return (outer * scales).reshape(len(records), -1), (-inner * minima).reshape(len(records), -1)


def _in_parts(packed: Array) -> Array:
    """Codes of blocks of 256 from 128 bytes: each 32 bytes hold 32 codes in their lower and the next 32 in their upper
    halves."""
    return _nibbles(packed.reshape(*packed.shape[:-1], _SUPER // (2 * _SUB), _SUB))


def _q4_k(data: Array) -> Coded:
    records = _records(data, 144)
    return Coded(_paired(_in_parts(records[..., 16:])), *_by_parts(records), 4, _SUB)


def _q5_k(data: Array) -> Coded:
    records = _records(data, 176)
    high = records[..., 16:48]  # bit i of byte j: of code j of part i
    fifth = ((high[..., None, :] >> np.arange(8, dtype=np.uint8)[:, None]) & 1) << 4
    codes = _in_parts(records[..., 48:]).reshape(fifth.shape) | fifth
    return Coded(_flat(codes), *_by_parts(records), 8, _SUB)


def _q6_k(data: Array) -> Coded:
    """A block of 256 is two of 128: 64 bytes of low halves, 32 bytes of two bits for each of four parts of 32; a
    signed scale for every 16."""
    records = _records(data, 210)
    lows = records[..., :128].reshape(*records.shape[:2], 2, 64)
    highs = records[..., 128:192].reshape(*records.shape[:2], 2, 1, _SUB)
    low = np.concatenate([lows & 15, lows >> 4], axis=-1).reshape(*records.shape[:2], 2, 4, _SUB)
    high = (highs >> np.array([0, 2, 4, 6], np.uint8)[:, None]) & 3
    codes = (low | (high << 4)).astype(np.int8) - np.int8(32)
    scale = _half(records, 208)[..., None].astype(np.float32) * records[..., 192:208].view(np.int8)
    return Coded(_flat(codes), scale.reshape(len(records), -1), None, 8, 16)


_BLOCKS: Mapping[str, Callable[[Array], Coded]] = {
    "Q8_0": _q8_0,
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q4_K": _q4_k,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
