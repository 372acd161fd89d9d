"""The kernel that a body gets where nobody asks the registry: by operator name alone. For tests and for tools without
a registry.
"""

from __future__ import annotations

from superkernel.core.dtypes import DType
from superkernel.ir.body import Body, Role
from superkernel.scheduler.hostcall import HOST_REFERENCE

_BY_OP: dict[str, str] = {
    "concat": "host.concat",
    "pad": "host.pad",
    "tile": "host.tile",
    "trilu": "host.pad",
    "gather": "host.gather",
    **dict.fromkeys(
        ("gather_elements", "gather_nd", "scatter_elements", "scatter_nd", "one_hot", "topk", "resize"), "host.index"
    ),
    **dict.fromkeys(("argmax", "argmin"), "host.argreduce"),
    "cumsum": "host.cumsum",
    **dict.fromkeys(("softmax", "log_softmax"), "host.softmax"),
    **dict.fromkeys(("layer_norm", "rms_norm", "group_norm", "instance_norm", "lp_norm", "batch_norm"), "host.norm"),
    "lrn": "host.lrn",
    "conv_transpose": "host.conv.transpose",
    **dict.fromkeys(("max_pool", "avg_pool", "lp_pool", "global_avg_pool", "global_max_pool"), "host.pool"),
    "attention": "host.attention",
    "rope": "host.rope",
    "kv_update": "host.kv_update",
}
GEMV_ROWS = 4


def default_choice(body: Body) -> str:
    """A kernel id of `families` that can compute the body, `host.reference` where there is none."""
    if body.op is None:
        copy = body.epilogue.is_store_only and len(body.epilogue.inputs) == 1
        strides = body.epilogue.inputs[0].strides if copy else ()
        return "host.transpose" if strides and abs(strides[-1]) > 1 else "host.pointwise"
    if body.op == "matmul":
        return _matmul(body)
    if body.op == "conv":
        return _conv(body)
    if body.op.startswith("reduce_"):
        return "host.reduce"
    return _BY_OP.get(body.op, HOST_REFERENCE)


def _is_constant(body: Body, slot: int) -> bool:
    source = body.anchor_inputs[slot]
    index = getattr(source, "operand", None)
    return index is not None and body.operands[index].role is Role.CONSTANT


def _matmul(body: Body) -> str:
    types = body.anchor_input_types
    if any(t is not None and t.dtype is not DType.F32 for t in types):
        return "host.matmul.generic"
    if types[1] is not None and types[1].rank == 2 and _is_constant(body, 1):
        rows = body.anchor_outputs[0].size // max(
            1, body.anchor_outputs[0].shape[-1] if body.anchor_outputs[0].shape else 1
        )
        return "host.matmul.gemv" if rows <= GEMV_ROWS else "host.matmul.packed"
    return "host.matmul.dynamic"


def _conv(body: Body) -> str:
    x, w = body.anchor_input_types[:2]
    assert x is not None
    assert w is not None
    if x.dtype is not DType.F32 or x.rank > 4 or not _is_constant(body, 1):
        return "host.conv.generic"
    if body.attr["groups"] == x.shape[1] and x.rank == 4:
        return "host.conv.depthwise"
    return "host.conv.igemm"
