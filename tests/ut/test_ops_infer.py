"""Shape and type inference: what must be refused, with which words; what is accepted agrees with the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from operator_cases import cases, dtypes_of

from superkernel.core.dtypes import DType
from superkernel.core.errors import DataError, GraphError
from superkernel.core.tensor import TensorType
from superkernel.ir.graph import check_arguments, type_of_array
from superkernel.ops.attributes import canonical_attrs
from superkernel.ops.opdef import REQUIRED, AttrKind
from superkernel.ops.table import find_op, op_table, suggest_ops
from superkernel.reference import apply, run_reference

# operator, input types, attributes, words of the error
BAD: list[tuple[str, str, dict[str, Any], str]] = [
    ("add", "f32[2,3] f32[4]", {}, "do not broadcast"),
    ("add", "f32[2] f64[2]", {}, "element types differ"),
    ("add", "bool[2] bool[2]", {}, "element type not accepted"),
    ("add", "f32[2]", {}, "wrong number of inputs"),
    ("sqrt", "i32[2]", {}, "element type not accepted"),
    ("sqrt", "f32[2] f32[2]", {}, "wrong number of inputs"),
    ("relu", "f32[2]", {"slope": 1}, "unknown attribute"),
    ("gelu", "f32[2]", {"approximate": "sigmoid"}, "bad value"),
    ("leaky_relu", "f32[2]", {"alpha": float("nan")}, "bad value"),
    ("cast", "f32[2]", {}, "is missing"),
    ("cast", "f32[2]", {"dtype": "complex64"}, "bad value"),
    ("prelu", "f32[2,3] f32[4,1,3]", {}, "does not broadcast"),
    ("where", "f32[2] f32[2] f32[2]", {}, "element type not accepted"),
    ("where", "bool[2] f32[2] f16[2]", {}, "element types differ"),
    ("quantize", "f32[2] f32[]", {"dtype": "f32"}, "not a quantised type"),
    ("quantize", "f32[2] f32[3]", {}, "does not broadcast"),
    ("quantize", "f32[2] f32[] i8[]", {"dtype": "u8"}, "zero point"),
    ("dequantize", "u8[2] f32[] i8[]", {}, "zero point"),
    ("reshape", "f32[2,3]", {"shape": (4, 2)}, "another number of elements"),
    ("grouped_matmul", "f32[6,5] f32[3,4,2] i64[3]", {}, "inner dimensions differ"),
    ("grouped_matmul", "f32[6,5] f32[3,5,2] i64[4]", {}, "wrong shape"),
    ("grouped_matmul", "f32[6,5] f32[3,5,2] i64[3] i32[9]", {}, "needs its cut"),
    ("grouped_matmul", "f32[6,5] f32[3,5,2] i64[3] i32[9]", {"cut": (2, 1, 1)}, "wrong shape"),
    ("grouped_matmul", "f32[6,5] f32[3,5,2] i64[3] i32[9]", {"cut": (0, 1, 1)}, "without extent"),
    ("block_matmul", "f32[6,32] u8[5,15] f32[5,1]", {"bits": 4, "block": 32}, "wrong shape"),
    ("block_matmul", "f32[6,32] u8[5,16] f32[5,2]", {"bits": 4, "block": 32}, "wrong shape"),
    ("block_matmul", "f32[6,32] u8[5,16] f32[5,1] f32[5]", {"bits": 4, "block": 32}, "wrong shape"),
    ("block_matmul", "f32[6,32] u8[5,16] f32[5,1] f16[5,1]", {"bits": 4, "block": 32}, "element types differ"),
    ("block_matmul", "f32[6,32] i8[5,16] f32[5,1]", {"bits": 4, "block": 32}, "signed byte"),
    ("block_matmul", "f32[6,32] u8[5,12] f32[5,1]", {"bits": 3, "block": 32}, "no such codes"),
    ("block_matmul", "f32[6,32] u8[5,16] f32[5,1]", {"bits": 4, "block": 32, "x_bits": 4}, "no such x"),
    ("block_matmul", "f32[6,32] u8[5,16] f32[5,1]", {"bits": 4, "block": 0}, "without weights"),
    ("block_matmul", "f32[6,32] u8[5,16] f32[5,1]", {"bits": 4, "block": 32, "zero": 16}, "no code"),
    ("block_matmul", "f32[6,32] i8[5,32] f32[5,1]", {"bits": 8, "block": 32, "zero": 128}, "no code"),
    ("tile_groups", "i64[3,1]", {"rows": 4, "tile": 2}, "wrong rank"),
    ("tile_groups", "i64[3]", {"rows": 4, "tile": 0}, "out of range"),
    ("tile_groups", "i64[3]", {"rows": 1 << 23, "tile": 1, "columns": 1 << 20}, "31 bits"),
    ("tile_lengths", "i64[0]", {"keys": 4}, "too few"),
    ("tile_lengths", "i64[2]", {"keys": -1}, "out of range"),
    ("nonzero", "f32[2]", {"size": -1}, "out of range"),
    ("non_max_suppression", "f32[2,9,4] f32[2,9]", {"size": 1, "limit": 1}, "wrong rank"),
    ("non_max_suppression", "f32[2,9,4] f32[2,3,8]", {"size": 1, "limit": 1}, "wrong shape"),
    ("non_max_suppression", "f32[2,9,4] f32[2,3,9]", {"size": 1, "limit": -1}, "out of range"),
    ("attention", "f32[2,1,3,4] f32[2,1,3,4] f32[2,1,3,4]", {"ragged": True}, "a length per batch"),
    ("reshape", "f32[2,3]", {"shape": (-1, -1)}, "more than one -1"),
    ("reshape", "f32[2,3]", {"shape": (-1, 4)}, "no single answer"),
    ("reshape", "f32[0,3]", {"shape": (0, -1)}, "no single answer"),
    ("reshape", "f32[2,3]", {"shape": (-2, 3)}, "bad extent"),
    ("transpose", "f32[2,3]", {"perm": (0, 0)}, "repeated axis"),
    ("transpose", "f32[2,3]", {"perm": (0,)}, "wrong length"),
    ("transpose", "f32[2,3]", {"perm": (0, 2)}, "out of range"),
    ("expand", "f32[2,3]", {"shape": (2, 4)}, "do not broadcast"),
    ("expand", "f32[2,3]", {"shape": (-1, 3)}, "negative extent"),
    ("slice", "f32[4]", {"starts": (0,), "ends": (2, 3)}, "wrong length"),
    ("slice", "f32[4]", {"starts": (0,), "ends": (2,), "steps": (0,)}, "step is 0"),
    ("slice", "f32[4]", {"starts": (0, 0), "ends": (2, 2)}, "more starts"),
    ("slice", "f32[4]", {"starts": (0,), "ends": (2,), "axes": (1,)}, "out of range"),
    ("split", "f32[4]", {"axis": 0, "sizes": (1, 2)}, "do not add up"),
    ("split", "f32[4]", {"axis": 0, "sizes": ()}, "bad sizes"),
    ("concat", "f32[2,3] f32[3,3]", {"axis": 1}, "wrong shape"),
    ("concat", "f32[2,3] f32[2]", {"axis": 1}, "wrong rank"),
    ("concat", "f32[2] i32[2]", {"axis": 0}, "element types differ"),
    ("concat", "f32[] f32[]", {"axis": 0}, "out of range"),
    ("pad", "f32[2]", {"pads": (1,)}, "wrong length"),
    ("pad", "f32[2]", {"pads": (-2, -1)}, "crop more"),
    ("pad", "f32[0]", {"pads": (1, 0), "mode": "edge"}, "nothing to repeat"),
    ("tile", "f32[2]", {"repeats": (1, 2)}, "wrong length"),
    ("tile", "f32[2]", {"repeats": (-1,)}, "negative repeats"),
    ("gather", "f32[2] f32[2]", {}, "element type not accepted"),
    ("gather", "f32[0,2] i64[1]", {}, "no index is legal"),
    ("gather", "f32[] i64[1]", {}, "out of range"),
    ("gather_elements", "f32[2,3] i64[2]", {}, "wrong rank"),
    ("gather_elements", "f32[2,3] i64[2,4]", {}, "over the edge"),
    ("gather_nd", "f32[2,3] i64[3]", {}, "longer than x"),
    ("gather_nd", "f32[2,3] i64[]", {}, "rank too small"),
    ("gather_nd", "f32[2,3] i64[3,1]", {"batch_dims": 1}, "batch dimensions differ"),
    ("gather_nd", "f32[2,3] i64[2,1]", {"batch_dims": 2}, "batch_dims is out of range"),
    ("scatter_elements", "f32[3] i64[2] f32[3]", {}, "wrong shape"),
    ("scatter_elements", "bool[3] i64[2] bool[2]", {"reduction": "add"}, "needs numbers"),
    ("scatter_elements", "f32[3] i64[2] i32[2]", {}, "element types differ"),
    ("scatter_nd", "f32[3,2] i64[2,1] f32[2,3]", {}, "wrong shape"),
    ("one_hot", "i64[3] f32[3]", {"depth": 2}, "wrong shape"),
    ("one_hot", "i64[3] f32[2]", {"depth": -1}, "negative depth"),
    ("trilu", "f32[3]", {}, "rank too small"),
    ("resize", "f32[2,3]", {"sizes": (2,)}, "wrong length"),
    ("resize", "f32[2,0]", {"sizes": (2, 3)}, "cannot grow"),
    ("resize", "f32[2]", {"sizes": (2,), "scales": (0.0,)}, "bad scale"),
    ("topk", "f32[3]", {"k": 4}, "out of range"),
    ("reduce_sum", "f32[3]", {"axes": (0, -1)}, "repeated axis"),
    ("reduce_sum", "f32[3]", {"axes": (1,)}, "out of range"),
    ("argmax", "f32[2,0]", {"axis": 1}, "no extreme"),
    ("argmax", "f32[]", {}, "out of range"),
    ("softmax", "f32[]", {}, "out of range"),
    ("lp_norm", "f32[2]", {"p": 3}, "bad p"),
    ("layer_norm", "f32[2,3] f32[2]", {}, "does not broadcast"),
    ("layer_norm", "f32[2,3] f32[3]", {"epsilon": -1.0}, "bad epsilon"),
    ("group_norm", "f32[2,4,3] f32[4] f32[4]", {"groups": 3}, "does not divide"),
    ("group_norm", "f32[2,4,3] f32[3] f32[4]", {"groups": 2}, "wrong shape"),
    ("lrn", "f32[2,4]", {"size": 0}, "bad size"),
    ("softmax_integer", "f32[2,9]", {"grid": 1 << 22}, "bad grid"),
    ("softmax_integer", "f32[2,9]", {"grid": 0}, "bad grid"),
    ("matmul", "f32[2,3] f32[4,5]", {}, "inner dimensions differ"),
    ("matmul", "f32[] f32[2]", {}, "rank too small"),
    ("matmul", "f32[2,2,3] f32[3,3,4]", {}, "do not broadcast"),
    ("matmul", "f32[3] f32[3]", {"trans_a": True}, "no axes to swap"),
    ("matmul", "u8[2,2] f32[2,2]", {}, "do not multiply"),
    ("gemm", "f32[1,2,3] f32[3,4]", {}, "wrong rank"),
    ("gemm", "f32[2,3] f32[3,4] f32[3]", {}, "does not broadcast"),
    ("matmul_integer", "u8[2,3] i8[3,4] i8[]", {}, "element types differ"),
    ("matmul_integer", "u8[2,3] i8[3,4] u8[3]", {}, "wrong shape"),
    ("conv_integer", "u8[1,3,4,4] i8[2,3,1,1] i32[2] i8[]", {}, "element types differ"),
    ("conv_integer", "u8[1,3,4,4] i8[2,3,1,1] i32[2] u8[2]", {}, "wrong shape"),
    ("conv_integer", "u8[1,3,4,4] i8[2,2,1,1]", {}, "wrong shape"),
    ("conv", "f32[1,3,8,8] f32[4,2,3,3]", {}, "wrong shape"),
    ("conv", "f32[1,3,8,8] f32[4,3,3]", {}, "wrong rank"),
    ("conv", "f32[1,3,2,8] f32[4,3,3,3]", {}, "does not fit"),
    ("conv", "f32[1,4,8] f32[3,2,3]", {"groups": 2}, "output channels"),
    ("conv", "f32[1,3,8] f32[4,1,3]", {"groups": 2}, "input channels"),
    ("conv", "f32[1,3,8] f32[4,3,3]", {"strides": (0,)}, "bad strides"),
    ("conv", "f32[1,3,8] f32[4,3,3]", {"strides": (1, 1)}, "wrong length"),
    ("conv", "f32[1,3,8] f32[4,3,3]", {"pads": (-1, 0)}, "negative pads"),
    ("conv", "f32[1,3,8] f32[4,3,3] f32[3]", {}, "wrong shape"),
    ("conv_transpose", "f32[1,3,8] f32[4,3,3]", {}, "wrong shape"),
    ("conv_transpose", "f32[1,3,8] f32[3,3,3]", {"output_padding": (1,)}, "output_padding is too large"),
    ("max_pool", "f32[1,3,8,8]", {"kernel": (2,)}, "wrong length"),
    ("max_pool", "f32[1,3,8,8]", {"kernel": ()}, "kernel is empty"),
    ("max_pool", "f32[1,3,8]", {"kernel": (2,), "pads": (2, 0)}, "hold a whole window"),
    ("max_pool", "f32[3,8]", {"kernel": (2,)}, "rank too small"),
    ("attention", "f32[1,3,4,8] f32[1,2,4,8] f32[1,2,4,8]", {}, "no multiple"),
    ("attention", "f32[1,2,4,8] f32[1,2,4,6] f32[1,2,4,8]", {}, "wrong shape"),
    ("attention", "f32[1,2,4,8] f32[1,2,4,8] f32[1,2,5,8]", {}, "wrong shape"),
    ("attention", "f32[1,2,4,8] f32[1,2,4,8] f32[1,2,4,8] f32[3,4]", {}, "does not broadcast"),
    ("attention", "f16[1,2,4,8] f16[1,2,4,8] f16[1,2,4,8] f32[4,4]", {}, "mask has the wrong"),
    ("attention", "f32[2,2,4,8] f32[2,2,4,8] f32[2,2,4,8] _ i64[3]", {}, "length has the wrong shape"),
    ("attention", "f32[2,4,8] f32[2,4,8] f32[2,4,8]", {}, "wrong rank"),
    ("rope", "f32[1,2,4,7] f32[4,3] f32[4,3]", {}, "bad rotary_dim"),
    ("rope", "f32[1,2,4,8] f32[5,4] f32[5,4]", {}, "does not broadcast"),
    ("rope", "f32[1,2,4,8] f32[4,3] f32[4,3]", {}, "wrong last extent"),
    ("rope", "f32[1,2,4,8] f32[9,4] f32[9,4] i64[3]", {}, "wrong shape"),
    ("kv_update", "f32[1,2,4,8] f32[1,2,5,8] i64[]", {}, "more new rows"),
    ("kv_update", "f32[1,2,4,8] f32[1,2,1,8] i64[2]", {}, "position has the wrong shape"),
    ("kv_update", "f32[1,2,4,8] f16[1,2,1,8] i64[]", {}, "element types differ"),
]


def infer(op: str, types: list[TensorType | None], attrs: dict[str, Any]) -> tuple[TensorType, ...]:
    """What `Graph.build` does to one node."""
    row = op_table()[op]
    complete = canonical_attrs(row, attrs)
    check_arguments(row, types)
    return row.infer(types, complete)


@pytest.mark.parametrize(("op", "inputs", "attrs", "words"), BAD, ids=[f"{b[0]}-{b[3]}-{i}" for i, b in enumerate(BAD)])
def test_bad_nodes_are_refused(op: str, inputs: str, attrs: dict[str, Any], words: str) -> None:
    types = [None if t == "_" else TensorType.parse(t) for t in inputs.split()]
    with pytest.raises(GraphError, match=words) as caught:
        infer(op, types, attrs)
    first = caught.value.violations[0]
    assert first.expected or first.hint
    assert not first.expected or first.expected != first.found


def test_every_operator_has_a_refusal_or_takes_any_shape() -> None:
    shapeless = {name for name, row in op_table().items() if len(row.args) == 1 and row.family.value == "pointwise"}
    refused = {b[0] for b in BAD}
    broadcasting = {name for name, row in op_table().items() if row.family.value == "pointwise"}
    single = {"global_avg_pool", "global_max_pool", "avg_pool", "lp_pool", "instance_norm", "batch_norm", "rms_norm"}
    alike = {n for n in op_table() if n.startswith("reduce_")} | {"argmin", "cumsum", "log_softmax"}
    assert set(op_table()) - refused - shapeless - broadcasting - single - alike == set()


def mutations(rng: np.random.Generator, kind: TensorType) -> TensorType:
    """Another type: a dimension longer, shorter, 1, 0, missing or added, or another element type."""
    shape = list(kind.shape)
    choice = int(rng.integers(0, 6))
    if choice == 5:
        return TensorType(list(DType)[int(rng.integers(0, len(DType)))], kind.shape)
    if choice == 4 or not shape:
        return TensorType(kind.dtype, (*shape, int(rng.integers(0, 4))))
    at = int(rng.integers(0, len(shape)))
    if choice == 3:
        return TensorType(kind.dtype, tuple(shape[:at] + shape[at + 1 :]))
    shape[at] = (shape[at] + 1, 1, 0)[choice]
    return TensorType(kind.dtype, tuple(shape))


@pytest.mark.parametrize("op", op_table())
def test_whatever_inference_accepts_the_reference_computes(op: str) -> None:
    """Legal cases with one input type changed: GraphError or a reference result of exactly the inferred types."""
    rng = np.random.default_rng(5)
    row = op_table()[op]
    accepted = 0
    for case in cases(op, seed=3)[:10]:
        for _ in range(6):
            types = [None if x is None else type_of_array(x) for x in case.inputs]
            given = [i for i, t in enumerate(types) if t is not None]
            at = given[int(rng.integers(0, len(given)))]
            types[at] = mutations(rng, types[at])  # type: ignore[arg-type]
            try:
                outputs = infer(op, types, case.attrs)
            except GraphError:
                continue
            accepted += 1
            arrays = [
                None if t is None else np.asarray(rng.integers(0, 2, t.shape)).astype(t.dtype.numpy) for t in types
            ]
            complete = canonical_attrs(row, case.attrs)
            try:
                results = run_reference(row, arrays, complete, outputs)
            except DataError:  # counts of rows and lengths are data
                continue
            for found, kind in zip(results, outputs, strict=True):
                assert type_of_array(found) == kind, case
            assert row.flops(types, outputs, complete) >= 0
    assert accepted > 0 or op in ("gemm", "batch_norm", "rope", "kv_update", "attention"), op


@pytest.mark.parametrize("op", op_table())
def test_rows_are_complete(op: str) -> None:
    row = op_table()[op]
    assert row.doc.endswith(".")
    assert row.args
    assert not any(a.variadic for a in row.args[:-1])
    names = [a.name for a in row.attrs]
    assert len(set(names)) == len(names)
    seen_optional = False
    for arg in row.args:
        assert arg.dtypes
        assert arg.optional or not seen_optional, "a required input behind an optional one"
        seen_optional |= arg.optional
    for attr in row.attrs:
        if attr.kind is AttrKind.STR:
            assert attr.choices
        if attr.default is not REQUIRED:
            assert canonical_attrs_of(op, {attr.name: attr.default})[attr.name] == attr.default


def canonical_attrs_of(op: str, given: dict[str, Any]) -> dict[str, Any]:
    """Canonical attributes with the required ones taken from a legal case."""
    case = cases(op)[0]
    return dict(canonical_attrs(op_table()[op], {**case.attrs, **given}))


@pytest.mark.parametrize("op", op_table())
def test_every_element_type_of_the_leading_input_computes(op: str) -> None:
    leading = 1 if op == "where" else 0
    seen = set()
    for case in cases(op):
        values = case.inputs[leading]
        assert values is not None
        seen.add(DType.of(values.dtype))
        for result in apply(*case):
            assert isinstance(result, np.ndarray)
    assert seen == set(dtypes_of(op)) == set(op_table()[op].args[leading].dtypes)


def test_names_are_suggested() -> None:
    assert find_op("sotfmax") is None
    assert "softmax" in suggest_ops("sotfmax")
    assert suggest_ops("LayerNorm") == ["layer_norm"] or suggest_ops("LayerNorm")[0] == "layer_norm"


def test_all_attribute_violations_are_reported_at_once() -> None:
    with pytest.raises(GraphError) as caught:
        canonical_attrs(op_table()["slice"], {"starts": "abc", "wrong": 1})
    assert [v.message for v in caught.value.violations] == [
        "unknown attribute 'wrong'", "attribute 'starts' has a bad value", "attribute 'ends' is missing",
    ]  # fmt: skip
