"""Reads by index: embeddings, gathers, advanced indexing.

Negative indices count from the end. An index out of range, which torch refuses, is clamped: no input can reach outside
a tensor.
"""

from __future__ import annotations

from math import prod

import numpy as np

from superkernel.builder.tensor import Tensor
from superkernel.core.dtypes import DType
from superkernel.frontends.torch.call import TorchCall
from superkernel.frontends.torch.registry import lowers
from superkernel.frontends.torch.sizes import finding


def as_index(call: TorchCall, x: Tensor) -> Tensor:
    """An index of a type that gathers take."""
    return x if x.dtype in (DType.I64, DType.I32) else call.cast(x, DType.I64)


@lowers("embedding")
def embedding(call: TorchCall) -> Tensor:
    return call.emit("gather", call.tensor("weight"), as_index(call, call.tensor("indices")), axis=0)


@lowers("index_select")
def index_select(call: TorchCall) -> Tensor:
    x = call.tensor("self")
    index = call.reshape(as_index(call, call.tensor("index")), (call.tensor("index").type.size,))
    if x.rank == 0:
        return x
    return call.emit("gather", x, index, axis=call.axis("dim", x.rank))


@lowers("gather", "take_along_dim")
def gather(call: TorchCall) -> Tensor:
    """The other axes of x may be longer than the index's in a gather; those of the two are broadcast in the other."""
    x, index = call.lifted("self"), as_index(call, call.lifted("index" if call.op == "gather" else "indices"))
    if call.args.get("dim") is None:
        x, index = call.reshape(x, (x.type.size,)), call.reshape(index, (index.type.size,))
    axis = call.axis("dim", x.rank)
    if call.op == "gather":
        for other in range(x.rank):
            if other != axis:
                x = call.slice(x, other, 0, index.shape[other])
    else:
        shape = list(np.broadcast_shapes(*((*t.shape[:axis], 1, *t.shape[axis + 1 :]) for t in (x, index))))
        x, index = (call.expand(t, [*shape[:axis], t.shape[axis], *shape[axis + 1 :]]) for t in (x, index))
    return call.reshape(call.emit("gather_elements", x, index, axis=axis), call.shape)


@lowers("index.Tensor", "_unsafe_index.Tensor")
def index(call: TorchCall) -> Tensor:
    """x[i, :, j]: the indexed axes come first; they stand in place of the first of them where they are neighbours."""
    x, given = call.tensor("self"), split_masks(call, call.args["indices"])
    axes = [axis for axis, i in enumerate(given) if i is not None]
    if len(axes) == 1:
        return call.emit("gather", x, given[axes[0]], axis=axes[0])
    rest = [d for d in range(x.rank) if d not in axes]
    picks = stacked(call, [i for i in given if i is not None], [x.shape[a] for a in axes])
    y = call.emit("gather_nd", call.transpose(x, [*axes, *rest]), picks)
    count = picks.rank - 1
    if axes == list(range(axes[0], axes[-1] + 1)):
        before = axes[0]
        moved = [*range(count, count + before), *range(count), *range(count + before, y.rank)]
        y = call.transpose(y, moved)
    return y


def split_masks(call: TorchCall, indices: list[Tensor | None]) -> list[Tensor | None]:
    """Indices with the masks among them replaced by the places where they are true; how many these are must be known,
    or found as the importer foresees."""
    result: list[Tensor | None] = []
    for i, node in zip(indices, call.raw["indices"], strict=True):
        if i is None:
            result.append(None)
        elif call.found.foresees(node):
            result += call.found.places(call, i, node)
        elif i.dtype is not DType.BOOL:
            result.append(as_index(call, i))
        elif i.value.data is None:
            hint = "the number of elements depends on data; torch.where keeps the shape"
            raise call.unsupported("a mask that is computed at run time cannot be an index", hint=hint)
        else:
            result += [call.constant(np.asarray(p, np.int64)) for p in np.nonzero(i.value.data)]
    return result


@lowers("nonzero")
def nonzero(call: TorchCall) -> Tensor:
    """Coordinates as rows: how many is data."""
    x = call.tensor("self")
    if not x.rank:
        rows = call.found.find(call, "nonzero", x, key=call.raw["self"], most=1)
        return call.slice(call.reshape(rows, (rows.shape[0], 1)), 1, 0, 0)
    places = call.found.places(call, x, call.raw["self"])
    return call.concat([call.reshape(place, (place.shape[0], 1)) for place in places], 1)


@lowers("nonzero_numpy", "where.default")
def places(call: TorchCall) -> list[Tensor]:
    """Coordinates, axis by axis."""
    name = "self" if call.op == "nonzero_numpy" else "condition"
    return call.found.places(call, call.lifted(name), call.raw[name])


@lowers("masked_select")
def masked_select(call: TorchCall) -> Tensor:
    """Elements where the mask, of the same shape, is true."""
    x, mask = call.tensor("self"), call.tensor("mask")
    rows = call.found.find(call, "nonzero", mask, key=call.raw["mask"], most=mask.type.size)
    return call.emit("gather", call.reshape(x, (x.type.size,)), rows, axis=0)


@lowers("torchvision.nms")
def selection(call: TorchCall) -> Tensor:
    """Indices of the boxes that are kept."""
    boxes, scores = call.tensor("dets"), call.tensor("scores")
    count = boxes.shape[0]
    rows = call.found.find(
        call, "non_max_suppression", call.reshape(boxes, (1, count, 4)), call.reshape(scores, (1, 1, count)),
        key=finding(*call.raw.values()), most=count, limit=count, iou_threshold=float(call.get("iou_threshold")),
    )  # fmt: skip
    return call.reshape(call.slice(rows, 1, 2, 3), (rows.shape[0],))


def stacked(call: TorchCall, indices: list[Tensor], extents: list[int]) -> Tensor:
    """Indices of several axes as tuples: [..., axes]."""
    shape = np.broadcast_shapes(*(i.shape for i in indices))
    parts = [call.reshape(call.expand(call.cast(i, DType.I64), shape), (*shape, 1)) for i in indices]
    return call.concat(parts, len(shape))


@lowers("take")
def take(call: TorchCall) -> Tensor:
    x = call.tensor("self")
    return call.emit("gather", call.reshape(x, (prod(x.shape),)), as_index(call, call.tensor("index")), axis=0)
