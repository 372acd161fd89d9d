"""How operators of the table are written in ONNX: one row per operator, attributes and inputs mapped. Cases that ONNX
cannot express are left out by the row, those that its evaluator gets wrong or refuses by `only`, with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from operator_cases import Case

from superkernel.ops.table import op_table

Array = np.ndarray[Any, Any]

Mapped = tuple[str, list[Array | None], dict[str, Any]] | None


def same(name: str, **renamed: str) -> Callable[[Case], Mapped]:
    """The same inputs; our attributes under other names (`ours=theirs`), flags as 0 and 1; only those listed."""

    def build(case: Case) -> Mapped:
        attrs = {renamed[k]: int(v) if isinstance(v, bool) else v for k, v in case.attrs.items()}
        return name, list(case.inputs), attrs

    return build


def ints(values: Any) -> Array:
    return np.asarray(values, np.int64)


def with_inputs(name: str, *moved: str, **renamed: str) -> Callable[[Case], Mapped]:
    """As `same`, with the attributes in `moved` as trailing i64 inputs."""

    def build(case: Case) -> Mapped:
        rest = {renamed[k]: int(v) if isinstance(v, bool) else v for k, v in case.attrs.items() if k not in moved}
        tail = [ints(case.attrs[m]) if m in case.attrs else None for m in moved]
        return name, [*case.inputs, *tail], rest

    return build


def reduction(name: str) -> Callable[[Case], Mapped]:
    return with_inputs(name, "axes", keepdims="keepdims")


def window(name: str) -> Callable[[Case], Mapped]:
    names = {"kernel": "kernel_shape", "groups": "group"}
    plain = ("strides", "pads", "dilations", "ceil_mode", "count_include_pad", "p", "output_padding")
    return same(name, **names, **{p: p for p in plain})


def only(build: Callable[[Case], Mapped], holds: Callable[[Case, Array], bool]) -> Callable[[Case], Mapped]:
    """`build` for cases where `holds(case, leading input)`."""
    return lambda case: build(case) if case.inputs[0] is not None and holds(case, case.inputs[0]) else None


def off_axis_equal(case: Case, x: Array) -> bool:
    assert case.inputs[1] is not None
    axis = case.attrs["axis"] % x.ndim
    return all(i == axis or n == d for i, (n, d) in enumerate(zip(case.inputs[1].shape, x.shape, strict=True)))


def transpose(case: Case) -> Mapped:
    return "Transpose", case.inputs, case.attrs


def slice_(case: Case) -> Mapped:
    a = case.attrs
    axes = a.get("axes") or tuple(range(len(a["starts"])))
    steps = a.get("steps") or (1,) * len(a["starts"])
    return "Slice", [*case.inputs, ints(a["starts"]), ints(a["ends"]), ints(axes), ints(steps)], {}


def pad(case: Case) -> Mapped:
    x = case.inputs[0]
    assert x is not None
    if min(case.attrs["pads"]) < 0 or x.size == 0:
        return None
    value = np.asarray(case.attrs.get("value", 0.0), x.dtype)
    return "Pad", [x, ints(case.attrs["pads"]), value], {"mode": case.attrs.get("mode", "constant")}


def trilu(case: Case) -> Mapped:
    return "Trilu", [*case.inputs, ints(case.attrs.get("k", 0))], {"upper": int(case.attrs.get("upper", True))}


def topk(case: Case) -> Mapped:
    attrs = {"axis": case.attrs.get("axis", -1), "largest": int(case.attrs.get("largest", True)), "sorted": 1}
    return "TopK", [*case.inputs, ints([case.attrs["k"]])], attrs


def one_hot(case: Case) -> Mapped:
    chosen, on = case.inputs
    if on is None or on.dtype == np.bool_:
        return None  # the evaluator subtracts off from on
    return "OneHot", [chosen, ints(case.attrs["depth"]), on], {"axis": case.attrs.get("axis", -1)}


def cumsum(case: Case) -> Mapped:
    flags = {k: int(case.attrs.get(k, False)) for k in ("exclusive", "reverse")}
    return "CumSum", [*case.inputs, ints(case.attrs.get("axis", 0))], flags


def resize(case: Case) -> Mapped:
    a = case.attrs
    x = case.inputs[0]
    assert x is not None
    if "scales" in a or (a.get("mode") == "linear" and x.dtype.kind != "f"):
        return None  # ONNX takes sizes or scales, not both, and leaves the rounding of integers open
    mode = {"align_corners": "align_corners", "asymmetric": "asymmetric"}.get(
        a.get("coordinate_mode", ""), "half_pixel"
    )
    attrs = {"mode": a.get("mode", "nearest"), "coordinate_transformation_mode": mode}
    if attrs["mode"] == "nearest":
        attrs["nearest_mode"] = a.get("nearest_mode", "round_prefer_floor")
    return "Resize", [*case.inputs, None, None, ints(a["sizes"])], attrs


def layer_norm(case: Case) -> Mapped:
    if len(case.inputs) < 2:
        return None
    return "LayerNormalization", case.inputs, case.attrs


def gemm(case: Case) -> Mapped:
    names = {"trans_a": "transA", "trans_b": "transB", "alpha": "alpha", "beta": "beta"}
    return "Gemm", case.inputs, {names[k]: int(v) if isinstance(v, bool) else v for k, v in case.attrs.items()}


def matmul(case: Case) -> Mapped:
    a, b = case.inputs
    assert a is not None
    assert b is not None
    if a.size == 0 or a.dtype.kind != "f":
        return None  # MatMul of 8-bit integers stays in 8 bits
    left = a.swapaxes(-1, -2) if case.attrs.get("trans_a") else a
    right = b.swapaxes(-1, -2) if case.attrs.get("trans_b") else b
    return "MatMul", [left, right], {}


def matmul_integer(case: Case) -> Mapped:
    zeros = [z for z in case.inputs[2:] if z is not None and z.ndim and z.size > 1]
    return None if zeros else ("MatMulInteger", case.inputs, {})


def conv_integer(case: Case) -> Mapped:
    x, w, bias, *zeros = [*case.inputs, None, None][:5]
    if bias is not None or any(z is not None and z.size > 1 for z in zeros):
        return None
    return window("ConvInteger")(case._replace(inputs=[x, w, *zeros]))


def shift(direction: str) -> Callable[[Case], Mapped]:
    def build(case: Case) -> Mapped:
        assert case.inputs[0] is not None
        unsigned = case.inputs[0].dtype.kind == "u"
        return ("BitShift", case.inputs, {"direction": direction}) if unsigned else None

    return build


_REDUCTIONS = {
    "sum": "Sum", "mean": "Mean", "max": "Max", "min": "Min", "prod": "Prod", "l1": "L1", "l2": "L2",
    "log_sum": "LogSum",
}  # fmt: skip

ROWS: dict[str, Callable[[Case], Mapped]] = {
    **{r.name: same(r.onnx, **{a.name: a.name for a in r.attrs}) for r in op_table().values() if r.onnx},
    "minimum": same("Min"),
    "maximum": same("Max"),
    "clip": same("Clip"),
    "global_avg_pool": same("GlobalAveragePool"),
    **{f"reduce_{ours}": reduction(f"Reduce{theirs}") for ours, theirs in _REDUCTIONS.items()},
    "shift_left": shift("LEFT"),
    "shift_right": shift("RIGHT"),
    "reshape": with_inputs("Reshape", "shape"),
    "transpose": transpose,
    "expand": with_inputs("Expand", "shape"),
    "slice": slice_,
    "split": with_inputs("Split", "sizes", axis="axis"),
    "concat": same("Concat", axis="axis"),
    "pad": pad,
    "tile": with_inputs("Tile", "repeats"),
    "gather": same("Gather", axis="axis"),
    "gather_elements": only(same("GatherElements", axis="axis"), off_axis_equal),
    "gather_nd": same("GatherND", batch_dims="batch_dims"),
    "scatter_elements": same("ScatterElements", axis="axis", reduction="reduction"),
    "scatter_nd": same("ScatterND", reduction="reduction"),
    "one_hot": one_hot,
    "trilu": trilu,
    "topk": topk,
    "resize": resize,
    "argmax": same("ArgMax", axis="axis", keepdims="keepdims", select_last_index="select_last_index"),
    "argmin": same("ArgMin", axis="axis", keepdims="keepdims", select_last_index="select_last_index"),
    "cumsum": cumsum,
    "softmax": same("Softmax", axis="axis"),
    "log_softmax": same("LogSoftmax", axis="axis"),
    "layer_norm": layer_norm,
    "group_norm": same("GroupNormalization", groups="num_groups"),
    "instance_norm": same("InstanceNormalization", epsilon="epsilon"),
    "batch_norm": same("BatchNormalization"),
    # The evaluator forgets the absolute value at p = 1.
    "lp_norm": only(same("LpNormalization", axis="axis", p="p"), lambda case, x: "p" not in case.attrs),
    # Scalars, integers (widened) and 3-D inputs the evaluator does not take.
    "softsign": only(same("Softsign"), lambda case, x: x.ndim > 0),
    "reduce_log_sum_exp": only(reduction("ReduceLogSumExp"), lambda case, x: x.ndim > 0),
    "reduce_sum_square": only(reduction("ReduceSumSquare"), lambda case, x: x.dtype.kind == "f"),
    "global_max_pool": only(same("GlobalMaxPool"), lambda case, x: x.ndim == 4),
    "matmul": matmul,
    "gemm": gemm,
    "matmul_integer": matmul_integer,
    "conv": window("Conv"),
    "conv_integer": conv_integer,
    "conv_transpose": only(window("ConvTranspose"), lambda case, x: x.ndim == 4 and "groups" not in case.attrs),
    "max_pool": window("MaxPool"),
    "avg_pool": window("AveragePool"),
    "lp_pool": window("LpPool"),
}
