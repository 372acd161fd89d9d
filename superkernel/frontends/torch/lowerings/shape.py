"""Operators that only move or rename elements: views, joins, cuts, casts and copies."""

from __future__ import annotations

from math import prod

import numpy as np
import torch
from numpy.typing import NDArray

from superkernel.builder.tensor import Tensor
from superkernel.core.dtypes import DType
from superkernel.frontends.powers import power_of_two
from superkernel.frontends.torch.call import TorchCall
from superkernel.frontends.torch.registry import lowers
from superkernel.frontends.torch.types import TORCH_OF


@lowers(
    "alias", "clone", "contiguous", "detach", "lift", "lift_fresh", "lift_fresh_copy", "positive", "resolve_conj",
    "resolve_neg", "_to_copy", "to", "type_as", "_conj", "copy",
)  # fmt: skip
def copy(call: TorchCall) -> Tensor:
    """The same elements, in the type that torch says."""
    x = call.tensor("src" if call.op == "copy" else "self")
    return call.expand(converted(call, x, call.dtype), call.shape)


_ENDS = frozenset(
    dtype
    for dtype, kind in TORCH_OF.items()
    if dtype.is_small and torch.tensor([1e6], dtype=torch.float32).to(kind).to(torch.float32).isfinite().item()
)
"""Small floats whose end torch, in this version, gives for what is beyond it."""


def converted(call: TorchCall, x: Tensor, dtype: DType) -> Tensor:
    """`x` in another element type, as torch converts to it."""
    if not dtype.is_small or x.dtype is dtype:
        return call.cast(x, dtype)
    if dtype is DType.F8E8M0FNU:
        return power_of_two(call, x, "nearest", saturate=False)
    return call.emit("cast", x, dtype=dtype, saturate=dtype in _ENDS)


@lowers("dropout", "native_dropout", "alpha_dropout", "feature_dropout")
def dropout(call: TorchCall) -> list[Tensor | None]:
    x = call.tensor("input")
    if call.get("train", False) and float(call.get("p", 0.5)) > 0:
        raise call.unsupported(
            "training mode draws random numbers",
            hint="export after module.eval(); F.dropout takes training=self.training",
        )
    return [x, call.expand(call.constant(np.asarray(True)), x.shape) if call.wants(1) else None]


@lowers(
    "view.default",
    "reshape",
    "_unsafe_view",
    "_reshape_copy",
    "flatten",
    "unflatten",
    "squeeze",
    "unsqueeze",
    "view_as",
)
def reshape(call: TorchCall) -> Tensor:
    """torch has worked the shape out."""
    return call.reshape(call.tensor("input" if "input" in call.args else "self"), call.shape)


@lowers("view.dtype")
def reinterpret(call: TorchCall) -> Tensor:
    """Of constants also as elements of another size."""
    x = call.tensor("self")
    if x.dtype is call.dtype:
        return x
    if x.value.data is not None:
        return call.constant(np.ascontiguousarray(x.value.data).view(call.dtype.numpy).reshape(call.shape))
    if x.dtype.bits != call.dtype.bits or call.dtype is DType.BOOL:
        raise call.unsupported("no kernel views run-time values as elements of another size", found=call.dtype)
    return call.emit("bitcast", x, dtype=call.dtype)


@lowers("permute")
def permute(call: TorchCall) -> Tensor:
    x = call.tensor("self")
    return call.transpose(x, [d % max(x.rank, 1) for d in call.ints("dims")])


@lowers("transpose", "swapaxes", "swapdims")
def transpose(call: TorchCall) -> Tensor:
    x = call.tensor("self")
    names = [n for n in call.args if n != "self"]
    return swapped(call, x, *(call.axis(n, x.rank) for n in names))


@lowers("t", "numpy_T", "mT", "matrix_H", "adjoint")
def matrix_transpose(call: TorchCall) -> Tensor:
    x = call.tensor("self")
    return call.transpose(x, range(x.rank)[::-1]) if call.op == "numpy_T" or x.rank < 2 else swapped(call, x, -1, -2)


def swapped(call: TorchCall, x: Tensor, a: int, b: int) -> Tensor:
    """x with two axes exchanged."""
    perm = list(range(x.rank))
    if perm:
        perm[a], perm[b] = perm[b], perm[a]
    return call.transpose(x, perm)


@lowers("movedim", "moveaxis")
def move_axes(call: TorchCall) -> Tensor:
    x = call.tensor("self")
    source, target = ([d % x.rank for d in call.ints(n)] for n in ("source", "destination"))
    perm = [d for d in range(x.rank) if d not in source]
    for to, at in sorted(zip(target, source, strict=True)):
        perm.insert(to, at)
    return call.transpose(x, perm)


@lowers("expand", "expand_as", "broadcast_to")
def expand(call: TorchCall) -> Tensor:
    return call.expand(call.tensor("self"), call.shape)


@lowers("slice.Tensor")
def slice_(call: TorchCall) -> Tensor:
    x = call.tensor("self")
    axis = call.axis("dim", x.rank)
    start, end, step = slice(call.get("start"), call.args.get("end"), int(call.get("step", 1))).indices(x.shape[axis])
    return call.slice(x, axis, start, max(start, end), step)


@lowers("select.int")
def select(call: TorchCall) -> Tensor:
    x = call.tensor("self")
    axis = call.axis("dim", x.rank)
    at = int(call.args["index"]) % x.shape[axis]
    return call.reshape(call.slice(x, axis, at, at + 1), call.shape)


@lowers("narrow.default")
def narrow(call: TorchCall) -> Tensor:
    x = call.tensor("self")
    axis = call.axis("dim", x.rank)
    start = int(call.args["start"]) % max(1, x.shape[axis])
    return call.slice(x, axis, start, start + int(call.args["length"]))


@lowers("split", "split_with_sizes", "chunk", "tensor_split.sections", "tensor_split.indices", "unbind")
def split(call: TorchCall) -> list[Tensor | None]:
    """Parts along an axis, of the sizes that torch says; unbind drops the axis."""
    x = call.tensor("self")
    axis = call.axis("dim", x.rank)
    shapes = [tuple(v.shape) for v in call.values]
    sizes = [1] * len(shapes) if call.op == "unbind" else [s[axis] for s in shapes]
    starts = [sum(sizes[:i]) for i in range(len(sizes))]
    return [
        call.reshape(call.slice(x, axis, start, start + size), shape) if call.wants(i) else None
        for i, (start, size, shape) in enumerate(zip(starts, sizes, shapes, strict=True))
    ]


@lowers("cat", "concat", "concatenate", "stack")
def join(call: TorchCall) -> Tensor:
    """Parts of other types are promoted; the old form of an empty part, [0], may stand beside any rank."""
    rank = len(call.shape)
    parts = [p for p in call.args["tensors"] if call.op == "stack" or p.rank == rank]
    axis = call.axis("dim", rank)
    if call.op == "stack":
        parts = [call.reshape(p, (*p.shape[:axis], 1, *p.shape[axis:])) for p in parts]
    return call.concat([call.cast(p, call.dtype) for p in parts], axis)


@lowers("repeat", "tile")
def repeat(call: TorchCall) -> Tensor:
    x = call.tensor("self")
    times = call.ints("repeats" if call.op == "repeat" else "dims")
    times = [1] * (x.rank - len(times)) + times
    lifted = call.reshape(x, (1,) * (len(times) - x.rank) + x.shape)
    return lifted if prod(times) == 1 else call.emit("tile", lifted, repeats=times)


@lowers("repeat_interleave.self_int")
def repeat_interleave(call: TorchCall) -> Tensor:
    x, times = call.tensor("self"), int(call.args["repeats"])
    if call.args.get("dim") is None:
        x = call.reshape(x, (x.type.size,))
    axis = call.axis("dim", x.rank)
    lifted = call.reshape(x, (*x.shape[: axis + 1], 1, *x.shape[axis + 1 :]))
    wide = call.expand(lifted, (*x.shape[: axis + 1], times, *x.shape[axis + 1 :]))
    return call.reshape(wide, call.shape)


@lowers("flip")
def flip(call: TorchCall) -> Tensor:
    x = call.tensor("self")
    axes = [d % x.rank for d in call.ints("dims")] if x.rank else []
    if not axes:
        return x
    ends = [-x.shape[a] - 1 for a in axes]
    return call.emit("slice", x, starts=[-1] * len(axes), ends=ends, axes=axes, steps=[-1] * len(axes))


@lowers("roll")
def roll(call: TorchCall) -> Tensor:
    x = call.tensor("self")
    shifts, axes = call.ints("shifts"), call.ints("dims")
    y = x if axes else call.reshape(x, (x.type.size,))
    for axis, shift in zip([d % x.rank for d in axes] or [0], shifts, strict=True):
        extent = y.shape[axis]
        cut = -shift % max(1, extent)
        y = call.concat([call.slice(y, axis, cut, extent), call.slice(y, axis, 0, cut)], axis)
    return call.reshape(y, x.shape)


_PAD_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}


@lowers(
    "pad", "constant_pad_nd", *(f"{kind}_pad{n}d" for kind in ("reflection", "replication") for n in (1, 2, 3)),
    "_pad_circular",
)  # fmt: skip
def pad(call: TorchCall) -> Tensor:
    """Pads come innermost axis first, (begin, end) by axis. Edges and reflections are those of what
    negative ones do not cut off yet; what wraps round is what they leave."""
    x = call.tensor("self")
    kinds = {"reflection": "reflect", "replication": "edge", "_pad_circular": "wrap"}
    named = next((mode for word, mode in kinds.items() if call.op.startswith(word)), None)
    mode = named or _PAD_MODES[call.get("mode", "constant")]
    given = call.ints("pad" if "pad" in call.args else "padding")
    begins, ends = [0] * x.rank, [0] * x.rank
    for place, (begin, end) in enumerate(zip(given[::2], given[1::2], strict=True)):
        begins[x.rank - 1 - place], ends[x.rank - 1 - place] = begin, end
    pads = [*begins, *ends]
    if mode in ("edge", "reflect") and min(given) < 0 < max(given):
        x, pads = call.emit("pad", x, pads=[max(n, 0) for n in pads], mode=mode), [min(n, 0) for n in pads]
    if not any(pads):
        return x
    return call.emit("pad", x, pads=pads, mode=mode, value=float(call.get("value", 0)))


@lowers("pixel_shuffle", "pixel_unshuffle")
def pixel_shuffle(call: TorchCall) -> Tensor:
    x = call.tensor("self")
    outer, (c, h, w) = x.shape[:-3], x.shape[-3:]
    n = len(outer)
    if call.op == "pixel_shuffle":
        r = int(call.args["upscale_factor"])
        cut, order = (c // (r * r), r, r, h, w), (0, 3, 1, 4, 2)
    else:
        r = int(call.args["downscale_factor"])
        cut, order = (c, h // r, r, w // r, r), (0, 2, 4, 1, 3)
    moved = call.transpose(call.reshape(x, (*outer, *cut)), [*range(n), *(n + i for i in order)])
    return call.reshape(moved, call.shape)


@lowers("channel_shuffle")
def channel_shuffle(call: TorchCall) -> Tensor:
    x, groups = call.tensor("self"), int(call.args["groups"])
    n, c, *rest = x.shape
    cut = call.reshape(x, (n, groups, c // groups, *rest))
    return call.reshape(swapped(call, cut, 1, 2), x.shape)


@lowers("diagonal")
def diagonal(call: TorchCall) -> Tensor:
    """The two axes flattened, and the diagonal's places in them."""
    x = call.tensor("self")
    a, b = call.axis("dim1", x.rank), call.axis("dim2", x.rank, 1)
    offset = int(call.get("offset", 0))
    rest = [d for d in range(x.rank) if d not in (a, b)]
    rows, columns = x.shape[a], x.shape[b]
    flat = call.reshape(call.transpose(x, [*rest, a, b]), (*(x.shape[d] for d in rest), rows * columns))
    places = call.constant(diagonal_places(call.shape[-1], columns, offset))
    return call.emit("gather", flat, places, axis=len(rest))


def diagonal_places(count: int, columns: int, offset: int) -> NDArray[np.int64]:
    """Places of the elements of a diagonal of a flattened matrix."""
    return np.arange(count, dtype=np.int64) * (columns + 1) + (offset if offset >= 0 else -offset * columns)


@lowers("tril", "triu")
def triangle(call: TorchCall) -> Tensor:
    x = call.tensor("self")
    whole = call.cast(x, DType.U8) if x.dtype is DType.BOOL else x
    y = call.emit("trilu", whole, upper=call.op == "triu", k=int(call.get("diagonal", 0)))
    return call.cast(y, x.dtype)


@lowers("unfold")
def windows(call: TorchCall) -> Tensor:
    """Windows along an axis; what is in each comes last."""
    x, size, step = call.tensor("self"), int(call.args["size"]), int(call.args["step"])
    if x.rank == 0:
        return call.reshape(x, call.shape)
    axis = call.axis("dimension", x.rank)
    count = call.shape[axis]
    if size == step or count == 1:  # cut, none of them shared
        parts = call.slice(x, axis, 0, count * size)
        cut = call.reshape(parts, (*x.shape[:axis], count, size, *x.shape[axis + 1 :]))
    else:
        places = np.arange(count, dtype=np.int64)[:, None] * step + np.arange(size)
        cut = call.emit("gather", x, call.constant(places), axis=axis)
    return call.transpose(cut, [d for d in range(cut.rank) if d != axis + 1] + [axis + 1])
