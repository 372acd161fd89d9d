"""Legal input that is easy to get wrong: empty tensors, NaN and infinity, arrays that lie oddly, indices out of range,
objects that are almost arrays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import superkernel as sk
from superkernel.core.dtypes import DType
from superkernel.core.tensor import TensorType
from superkernel.ir.graph import Graph, Node
from superkernel.ops.opdef import Family
from superkernel.ops.table import op_table
from superkernel.sync.plan import parse_plan
from superkernel.sync.verify import verify


@pytest.fixture(scope="module")
def negate() -> sk.Kernel:
    b = sk.GraphBuilder("negate")
    b.output(b.neg(b.input("x", (2, 3), "f32")), name="y")
    return sk.compile(b.graph(), threads=1)


# Calls ----------------------------------------------------------------------------------------------------------------

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


def unaligned() -> Any:
    raw = np.zeros(25, np.uint8)
    raw[1:] = VALUES.view(np.uint8).reshape(-1)
    return raw[1:].view(np.float32).reshape(2, 3)


def read_only() -> Any:
    array = VALUES.copy()
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "value",
    [
        np.asfortranarray(VALUES),
        np.ascontiguousarray(VALUES[::-1, ::-1])[::-1, ::-1],
        np.repeat(VALUES, 2, axis=1)[:, ::2],
        VALUES.astype(">f4"),
        unaligned(),
        read_only(),
        memoryview(VALUES),  # type: ignore[arg-type]
        np.ma.masked_array(VALUES),
        VALUES.tolist(),
        tuple(map(tuple, VALUES.tolist())),
        VALUES.astype(int).tolist(),
    ],
    ids=lambda v: type(v).__name__,
)
def test_arrays_that_lie_oddly(negate: sk.Kernel, value: Any) -> None:
    np.testing.assert_array_equal(negate(value), -VALUES)


class Almost:
    """Claims to be an array and fails."""

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise RuntimeError("no data")


class Nonsense:
    __array_interface__ = 3


class Capsule:
    def __dlpack__(self, **_: Any) -> int:
        return 3

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)


BAD_VALUES: dict[str, tuple[Any, str]] = {
    "shape": (np.zeros((3, 2), np.float32), r"wrong shape; expected f32\[2,3\]; found float32\[3, 2\]"),
    "rank": (np.float32(1), "wrong shape"),
    "dtype": (np.zeros((2, 3)), r"wrong element type.*float64.*astype\('float32'\)"),
    "complex": (np.zeros((2, 3), complex), "complex128"),
    "objects": (np.zeros((2, 3), object), "wrong element type.*object"),
    "texts": (np.full((2, 3), "a"), "wrong element type"),
    "times": (np.zeros((2, 3), "datetime64[s]"), "wrong element type"),
    "records": (np.zeros((2, 3), [("a", "f4")]), "wrong element type"),
    "masked": (np.ma.masked_array(VALUES, mask=VALUES > 2), r"masked array.*filled"),
    "text": ("abc", "not numbers"),
    "none": (None, "not numbers"),
    "mapping": ({}, "not numbers"),
    "generator": ((i for i in range(6)), "not numbers"),
    "ragged": ([[1], [2, 3]], "not a rectangular array"),
    "almost": (Almost(), "Almost cannot be read as an array.*RuntimeError: no data"),
    "nonsense": (Nonsense(), "Nonsense cannot be read as an array"),
    "capsule": (Capsule(), "Capsule cannot be read as an array"),
    "huge integer": ([[10**400, 0, 0], [0, 0, 0]], "not numbers"),
}


@pytest.mark.parametrize("name", BAD_VALUES)
def test_values_that_are_no_such_array(negate: sk.Kernel, name: str) -> None:
    value, text = BAD_VALUES[name]
    with pytest.raises(sk.InputError, match=f"input 'x': .*{text}"):
        negate(value)


@pytest.mark.parametrize("inputs", [3, "abc", b"ab", VALUES, {1, 2}, iter([VALUES])])
def test_containers_that_are_none(negate: sk.Kernel, inputs: Any) -> None:
    with pytest.raises(sk.InputError, match="inputs are not a mapping"):
        negate.run(inputs)


@pytest.mark.parametrize(
    ("args", "named", "text"),
    [
        ((), {}, "input 'x': missing"),
        ((VALUES, VALUES), {}, r"too many inputs; expected 1 \(x\); found 2"),
        ((VALUES,), {"z": 1}, "unknown input 'z'.*the inputs are x"),
        ((VALUES,), {"x": VALUES}, "given twice"),
    ],
)
def test_missing_and_unknown_inputs(negate: sk.Kernel, args: Any, named: Any, text: str) -> None:
    with pytest.raises(sk.InputError, match=text):
        negate(*args, **named)


def test_scalars() -> None:
    b = sk.GraphBuilder("scalar")
    b.output(b.neg(b.input("x", (), "i8")), name="y")
    kernel = sk.compile(b.graph())
    for given in (3, np.int8(3), np.array(3, np.int8)):
        result = kernel(given)
        assert (result.shape, result.dtype, int(result)) == ((), np.int8, -3)
    wrong: list[tuple[Any, str]] = [
        (300, "found 300"),
        (2.5, "not numbers"),
        (True, "not numbers"),
        (np.array([3], np.int8), "shape"),
    ]
    for value, text in wrong:
        with pytest.raises(sk.InputError, match=text):
            kernel(value)


# Sizes of zero --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(0,), (0, 4), (4, 0), (3, 0, 5)])
def test_empty_tensors_through_every_family(shape: tuple[int, ...]) -> None:
    """Pointwise, reductions, norms, scans, moves, over the last axis; whole results against NumPy's reference."""
    b = sk.GraphBuilder("empty")
    x = b.input("x", shape, "f32")
    last = shape[-1]
    made = {
        "relu": b.relu(x),
        "softmax": b.softmax(x, axis=-1),
        "cumsum": b.cumsum(x, axis=-1),
        "layer_norm": b.layer_norm(x, b.constant(np.ones(last, np.float32)), b.constant(np.zeros(last, np.float32))),
        "transpose": b.transpose(x),
        "topk": b.topk(x, k=0, axis=-1)[0],
        "concat": b.concat(x, x, axis=0),
        "gather": b.gather(x, b.constant(np.zeros((0,), np.int64)), axis=0),
        "matmul": b.matmul(x, b.constant(np.ones((last, 3), np.float32))),
        "outer": b.matmul(x, b.constant(np.ones((last, 0), np.float32))),
    }
    for how in ("sum", "prod", "max", "min", "mean"):
        made[how] = getattr(b, f"reduce_{how}")(x, axes=(-1,))
    for name, value in made.items():
        b.output(value, name=f"{name}_out")
    kernel = sk.compile(b.graph(), threads=2, options={"fallback": "allow"})
    array = np.zeros(shape, np.float32)
    host, reference = kernel.run([array]).outputs, kernel.run([array], executor="reference").outputs
    for name, expected in reference.items():
        np.testing.assert_array_equal(host[name], expected, err_msg=name)
    if last == 0 and np.prod(shape[:-1]):
        neutral = {n: host[f"{n}_out"].reshape(-1)[0] for n in ("sum", "prod", "max", "min", "mean")}
        assert (neutral["sum"], neutral["prod"], neutral["max"], neutral["min"]) == (0, 1, -np.inf, np.inf)
        assert np.isnan(neutral["mean"])


# Numbers --------------------------------------------------------------------------------------------------------------

# What the vector mathematics states: trigonometry up to 2^30, mod while the quotient is an exact integer of the type,
# pow in f64 within 1e-13.
_POW_F64 = 1e-13
_NOT_HUGE = {"sin", "cos", "tan", "mod"}
_OTHER_FORM = {"cast", "bitcast", "clip", "where", "quantize", "dequantize"}  # take more than the two plain operands


def special(dtype: DType) -> Any:
    """Values at the ends, around zero and, of floats, those that are no numbers."""
    if dtype.is_float:
        ends = ml_dtypes.finfo(dtype.numpy)
        finite = [0.0, -0.0, 1, -1, 0.5, -2.5, 3, 100, -88.5, float(ends.tiny), float(ends.max), float(ends.min)]
        return np.array([*finite, np.inf, -np.inf, np.nan]).astype(dtype.numpy)
    info = np.iinfo(dtype.numpy)
    return np.array(sorted({0, 1, 2, 7, info.min, info.max, info.max - 1, -1 if info.min else 3}), dtype.numpy)


def pointwise_graph(dtype: DType, size: int) -> Graph:
    """Every pointwise operator of one or two operands that takes the type, each with an output of its own."""
    kind = TensorType(dtype, (size,))
    nodes = []
    for name, row in sorted(op_table().items()):
        if row.family is not Family.POINTWISE or name in _OTHER_FORM or dtype not in row.args[0].dtypes:
            continue
        nodes.append(Node(name, name, ("a", "c")[: len(row.args)], (f"{name}_out",)))
    nodes += [Node(f"to_{t}", "cast", ("a",), (f"to_{t}_out",), {"dtype": t}) for t in DType]
    same_size = [t for t in DType if t.bits == dtype.bits]
    nodes += [Node(f"as_{t}", "bitcast", ("a",), (f"as_{t}_out",), {"dtype": t}) for t in same_size]
    outputs = [node.outputs[0] for node in nodes]
    return Graph.build(inputs={"a": kind, "c": kind}, nodes=nodes, outputs=outputs)


@pytest.mark.parametrize("dtype", [DType.F32, DType.F64], ids=str)
def test_nan_and_infinity_through_every_pointwise_operator(dtype: DType) -> None:
    """NaN where NumPy has NaN, infinity where it has infinity, else close to its values."""
    values = special(dtype)
    a, c = np.repeat(values, len(values)), np.tile(values, len(values))
    huge = ~(np.abs(a.astype(np.float64)) < 2.0**24) & np.isfinite(a.astype(np.float64))
    tiny_divisor = np.abs(c.astype(np.float64)) < 1e-30
    kernel = sk.compile(pointwise_graph(dtype, a.size), threads=1)
    assert not kernel.summary()["fallbacks"]
    host = kernel.run({"a": a, "c": c}).outputs
    reference = kernel.run({"a": a, "c": c}, executor="reference").outputs
    for name, expected in reference.items():
        op, found = name.removesuffix("_out"), host[name]
        keep = ~(huge | (tiny_divisor & (op == "mod"))) if op in _NOT_HUGE else np.ones(a.size, bool)
        if kernel.outputs[name].dtype.is_float:
            info = ml_dtypes.finfo(found.dtype)
            rtol = _POW_F64 if (op, dtype) == ("pow", DType.F64) else 64 * float(info.eps)
            atol = float(info.tiny)
            left, right = found[keep].astype(np.float64), expected[keep].astype(np.float64)
            np.testing.assert_allclose(left, right, rtol, atol, err_msg=f"{op} of {dtype}")
        else:
            np.testing.assert_array_equal(found[keep], expected[keep], err_msg=f"{op} of {dtype}")


@pytest.mark.parametrize("count", [2, 3, 64])
def test_gather_moves_indices_to_the_ends(count: int) -> None:
    b = sk.GraphBuilder("gather")
    table, index = b.input("table", (4, count), "f32"), b.input("index", (6,), "i64")
    b.output(b.gather(table, index, axis=0), name="rows")
    kernel = sk.compile(b.graph(), threads=2)
    rows = np.arange(4 * count, dtype=np.float32).reshape(4, count)
    given = np.array([0, 3, -1, 4, 2**62, -(2**62)])
    np.testing.assert_array_equal(kernel(rows, given), rows[[0, 3, 3, 3, 3, 0]])


# Names and states -----------------------------------------------------------------------------------------------------

STRANGE = ['a"b\n} ; define', "ü名", "%x", "\0", "..", "/", "x" * 3000, "a:0", " "]


@pytest.mark.parametrize("name", STRANGE, ids=range(len(STRANGE)))
def test_strange_names_survive_everything(name: str, tmp_path: Path) -> None:
    kind = TensorType(DType.F32, (2,))
    node = Node(name, "neg", (f"{name}i",), (f"{name}o",))
    kernel = sk.compile(Graph.build(name=name, inputs={f"{name}i": kind}, nodes=[node], outputs=[f"{name}o"]))
    kernel.save(tmp_path / "k.skm")
    loaded = sk.load(tmp_path / "k.skm")
    assert (list(loaded.inputs), list(loaded.outputs), loaded.name) == ([f"{name}i"], [f"{name}o"], name)
    np.testing.assert_array_equal(loaded(np.ones(2, np.float32)), [-1, -1])
    assert verify(parse_plan(kernel.plan)).tasks == kernel.certificate.tasks
    assert name in kernel.report(rounds=0).graph


def test_a_node_may_be_called_like_an_input(tmp_path: Path) -> None:
    kind = TensorType(DType.F32, (2,))
    applications = [Node("x", "neg", ("x",), ("y",)), Node("x~1", "exp", ("y",), ("z",))]
    kernel = sk.compile(Graph.build(inputs={"x": kind}, nodes=applications, outputs=["z"]))
    kernel.save(tmp_path / "k.skm")
    x = np.array([0, 1], np.float32)
    np.testing.assert_array_equal(sk.load(tmp_path / "k.skm")(x), kernel(x))


def test_every_output_has_a_name_of_its_own() -> None:
    kind = TensorType(DType.F32, (2,))
    applications = [Node("a", "neg", ("x",), ("y",)), Node("b", "abs", ("x",), ("y:1",))]
    kernel = sk.compile(Graph.build(inputs={"x": kind}, nodes=applications, outputs=["y", "y", "y:1", "y"]))
    found = kernel.run([np.ones(2, np.float32)]).outputs
    assert {name: array[0] for name, array in found.items()} == {"y": -1, "y:2": -1, "y:1": 1, "y:3": -1}


def running_sum() -> sk.Kernel:
    kind = TensorType(DType.F32, (2,))
    node = Node("a", "add", ("x", "s"), ("y",))
    states = {"s": np.zeros(2, np.float32)}
    return sk.compile(Graph.build(inputs={"x": kind}, states=states, updates={"s": "y"}, nodes=[node], outputs=["y"]))


def test_states_cannot_be_taken_away_from_the_kernel() -> None:
    """Contents may be written; another array in their place would be read and written beyond its end."""
    kernel = running_sum()
    with pytest.raises(TypeError):
        kernel.states["s"] = np.zeros(1)  # type: ignore[index]
    with pytest.raises(ValueError, match="own"):
        kernel.states["s"].resize((1,), refcheck=False)
    kernel.states["s"][:] = 5
    np.testing.assert_array_equal(kernel(np.ones(2, np.float32)), [6, 6])


def test_a_state_may_be_an_input() -> None:
    kernel = running_sum()
    kernel(np.ones(2, np.float32))
    for expected in (2, 4, 8):
        np.testing.assert_array_equal(kernel(kernel.states["s"]), [expected] * 2)
        np.testing.assert_array_equal(kernel.states["s"], [expected] * 2)
