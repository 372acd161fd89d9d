"""Layer and RMS normalisation written out as reductions and arithmetic, and the scale and bias that follow them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from superkernel.ir.graph import Node
from superkernel.transforms.base import PatternPass
from superkernel.transforms.editor import Editor
from superkernel.transforms.pattern import Match, Number, Pattern, Var, alt, op

_X = Var("x")
_EPSILON = Number(name="epsilon")


def _last_axes(node: Node, editor: Editor) -> bool:
    """True of a reduction with keepdims over the last axes."""
    source = node.inputs[0]
    return bool(node.attrs["keepdims"]) and source is not None and first_axis(editor, node) is not None


def first_axis(editor: Editor, node: Node) -> int | None:
    """The first of the reduced axes where they are the last ones, else None."""
    source = node.inputs[0]
    assert source is not None
    rank = editor.type(source).rank
    given: tuple[int, ...] = node.attrs["axes"] or tuple(range(rank))  # type: ignore[assignment]
    axes = sorted(a % rank for a in given)
    return axes[0] if axes == list(range(axes[0], rank)) else None


_MEAN = op("reduce_mean", _X, where=_last_axes, name="mean")
_CENTRED = op("sub", _X, _MEAN, name="centred")


def _square(x: Pattern) -> Pattern:
    return alt(op("square", x), op("mul", x, x), op("pow", x, Number(2.0)))


def _divided(x: Pattern, variance: Pattern) -> Pattern:
    """x / sqrt(variance + epsilon), in the ways that exporters write it."""
    total = op("add", variance, _EPSILON)
    root = alt(op("sqrt", total), op("pow", total, Number(0.5)))
    inverse = alt(
        op("rsqrt", total), op("reciprocal", root), op("pow", total, Number(-0.5)), op("div", Number(1.0), root)
    )
    return alt(op("div", x, root), op("mul", x, inverse))


_LAYER_NORM = _divided(_CENTRED, op("reduce_mean", _square(_CENTRED), where=_last_axes, name="variance"))
_RMS_NORM = _divided(_X, op("reduce_mean", _square(_X), where=_last_axes, name="variance"))


def _to_layer_norm(editor: Editor, node: Node, match: Match) -> bool:
    first = first_axis(editor, editor.producer[match["mean"]])
    if first is None or first != first_axis(editor, editor.producer[match["variance"]]):
        return False
    attrs = {"axis": first, "epsilon": editor.scalar(match["epsilon"])}
    return editor.emit("layer_norm", (match["x"],), attrs, node, node.outputs[0]) is not None


def _to_rms_norm(editor: Editor, node: Node, match: Match) -> bool:
    first = first_axis(editor, editor.producer[match["variance"]])
    attrs = {"axis": first, "epsilon": editor.scalar(match["epsilon"])}
    return editor.emit("rms_norm", (match["x"],), attrs, node, node.outputs[0]) is not None


@dataclass(frozen=True)
class _Norm(Pattern):
    """A norm (bound to "norm") of so many inputs, whatever they are."""

    ops: tuple[str, ...]
    count: int

    def find(self, editor: Editor, value: str, match: Match) -> Iterator[Match]:
        node = editor.producer.get(value)
        if node is not None and node.op in self.ops and len(node.inputs) == self.count:
            yield Match({**match.values, "norm": value}, {**match.nodes, node.name: node})


def _with_scale(editor: Editor, node: Node, match: Match) -> bool:
    return _with_operand(editor, node, editor.producer[match["norm"]], match["scale"])


def _with_bias(editor: Editor, node: Node, match: Match) -> bool:
    return _with_operand(editor, node, editor.producer[match["norm"]], match["bias"])


def _with_operand(editor: Editor, node: Node, norm: Node, value: str) -> bool:
    operand = _row_constant(editor, value, norm)
    if operand is None:
        return False
    return editor.emit(norm.op, (*norm.inputs, operand), norm.attrs, node, node.outputs[0]) is not None


def _row_constant(editor: Editor, value: str, norm: Node) -> str | None:
    """The value where it has exactly the normalised shape, reshaped where it is a constant with leading ones."""
    source = norm.inputs[0]
    assert source is not None
    shape = editor.type(source).shape
    row = shape[int(norm.attrs["axis"]) % len(shape) :]  # type: ignore[arg-type]
    have = editor.type(value).shape
    if have == row:
        return value
    array = editor.array(value)
    if array is not None and have[-len(row) :] == row and all(d == 1 for d in have[: -len(row)]):
        return editor.constant(array.reshape(row), f"{norm.name}/row")
    return None


class FuseNorms(PatternPass):
    """One pass over the row instead of five."""

    rules = (
        (_LAYER_NORM, _to_layer_norm),
        (_RMS_NORM, _to_rms_norm),
        (op("mul", _Norm(("layer_norm", "rms_norm"), 1), Var("scale")), _with_scale),
        (op("add", _Norm(("layer_norm",), 2), Var("bias")), _with_bias),
    )
