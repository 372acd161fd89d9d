"""Activations written out as arithmetic: GELU (both forms), SiLU, Mish, hard swish."""

from __future__ import annotations

from math import pi, sqrt

from superkernel.ir.graph import Node
from superkernel.transforms.base import PatternPass
from superkernel.transforms.editor import Editor
from superkernel.transforms.pattern import Match, Number, Rewrite, Var, alt, near, op, product

_X = Var("x")
_HALF, _ONE = Number(0.5), Number(1.0)

_ERF_ARGUMENT = alt(op("div", _X, near(sqrt(2.0))), op("mul", _X, near(sqrt(0.5))))
_ERF_GELU = product(_X, _HALF, op("add", op("erf", _ERF_ARGUMENT), _ONE))
_ERF_GELU_HALVED = op("div", op("mul", _X, op("add", op("erf", _ERF_ARGUMENT), _ONE)), Number(2.0))

_SQUARE = alt(op("square", _X), op("mul", _X, _X), op("pow", _X, Number(2.0)))
_CUBE = alt(op("pow", _X, Number(3.0)), op("mul", _SQUARE, _X))
_TANH_ARGUMENT = alt(
    op("mul", op("add", _X, op("mul", _CUBE, near(0.044715))), near(sqrt(2.0 / pi))),
    product(_X, near(sqrt(2.0 / pi)), op("add", op("mul", _SQUARE, near(0.044715)), _ONE)),
    op("mul", op("add", _X, product(_X, _SQUARE, near(0.044715))), near(sqrt(2.0 / pi))),
    product(_X, near(sqrt(2.0 / pi)), op("add", product(_X, _X, near(0.044715)), _ONE)),
)
_TANH_GELU = product(_X, _HALF, op("add", op("tanh", _TANH_ARGUMENT), _ONE))


def _is_hard_swish_gate(node: Node, _: Editor) -> bool:
    alpha, beta = float(node.attrs["alpha"]), float(node.attrs["beta"])  # type: ignore[arg-type]
    return abs(alpha - 1 / 6) < 1e-5 and abs(beta - 0.5) < 1e-6


_SILU = op("mul", _X, op("sigmoid", _X))
_MISH = op("mul", _X, op("tanh", op("softplus", _X)))
_HARD_GATE = op("hard_sigmoid", _X, where=_is_hard_swish_gate)
_RELU6 = op("clip", op("add", _X, Number(3.0)), Number(0.0), Number(6.0))


_SIXTH = near(1 / 6)
_HARD_SWISH = alt(
    op("mul", _X, _HARD_GATE),
    op("div", op("mul", _X, _RELU6), Number(6.0)),
    op("mul", _X, op("div", _RELU6, Number(6.0))),
    product(_X, _RELU6, _SIXTH),
)


def _becomes(name: str, **attrs: object) -> Rewrite:
    def rewrite(editor: Editor, node: Node, match: Match) -> bool:
        return editor.emit(name, (match["x"],), attrs, node, node.outputs[0]) is not None

    return rewrite


class FuseActivations(PatternPass):
    """One operator instead of up to eight: fewer roundings, and the kernels' own approximations."""

    rules = (
        (alt(_ERF_GELU, _ERF_GELU_HALVED), _becomes("gelu", approximate="none")),
        (_TANH_GELU, _becomes("gelu", approximate="tanh")),
        (_SILU, _becomes("silu")),
        (_MISH, _becomes("mish")),
        (_HARD_SWISH, _becomes("hard_swish")),
    )
