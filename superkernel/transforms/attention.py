"""Scaled dot-product attention written out as two products around a softmax.

Recognised: matmul(softmax(scores [+ mask]), v) with scores a product of q and k (k transposed by a node or by the
product's flag), scale factors on the scores, on q or on k, and a mask that is added, chosen by `where`, or both, the
choice last and with -inf. Keys and values that are repeated for groups of heads (grouped queries) are read
unrepeated. A guard behind the softmax, where(isnan(p), 0, p), is what `attention` does anyway. The result differs from
the written-out form in two points: a row whose keys are all masked with -inf gives zeros instead of NaN (with a guard:
zeros in both), and a guard does not turn NaN in the data itself into zeros.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.ir.graph import Node
from superkernel.transforms.base import NodePass
from superkernel.transforms.cleanup import perm_of
from superkernel.transforms.editor import Editor

_MASKING = -1e4  # numbers at or below this mask a key out
_SWALLOWING = -3e38  # what any score becomes when this is added: a row without visible keys gets equal weights


@dataclass
class _Found:
    q: str
    k: str  # [.., keys, width], or [.., width, keys] where `k_transposed`
    k_transposed: bool
    scale: float
    mask: str | None = None
    chosen: tuple[str, str, str] | None = None  # inputs of the `where` that masks: condition, kept, fill


def _fuse(editor: Editor, node: Node) -> None:
    if node.attrs["trans_a"] or node.attrs["trans_b"]:
        return
    softmax = _guarded_softmax(editor, node.inputs[0]) or editor.inner(node.inputs[0], "softmax")
    v = node.inputs[1]
    if softmax is None or v is None or editor.type(v).rank != 4 or editor.type(node.outputs[0]).rank != 4:
        return
    if softmax.attrs["axis"] not in (-1, 3):
        return
    found = _scores(editor, softmax.inputs[0])
    if found is None or not _shapes_fit(editor, found, v):
        return
    mask = found.mask
    if found.chosen is not None:
        if mask is None:
            mask = _mask_of_choice(editor, found.chosen, node, editor.type(found.q).dtype)
        else:
            mask = _mask_of_both(editor, found.chosen, mask, node)
        if mask is None:
            return
    if mask is not None and editor.type(mask).dtype not in (DType.BOOL, editor.type(found.q).dtype):
        return
    k: str | None = found.k if not found.k_transposed else _untransposed(editor, found.k, node)
    inputs = (found.q, k, v) if mask is None else (found.q, k, v, mask)
    editor.emit("attention", inputs, {"scale": found.scale}, node, node.outputs[0])


def _guarded_softmax(editor: Editor, value: str | None) -> Node | None:
    """The softmax p of where(isnan(p), 0, p), where nobody else reads p."""
    guard = editor.inner(value, "where")
    if guard is None or editor.scalar(guard.inputs[1]) != 0.0:
        return None
    p = guard.inputs[2]
    test = editor.inner(guard.inputs[0], "isnan")
    softmax = editor.producer.get(p or "")
    if p is None or test is None or test.inputs[0] != p or softmax is None or softmax.op != "softmax":
        return None
    return softmax if set(editor.readers[p]) == {test.name, guard.name} and not editor.is_kept(p) else None


def _scores(editor: Editor, value: str | None) -> _Found | None:
    """q, k, scale and mask of what goes into the softmax."""
    mask, chosen = None, None
    choice = editor.inner(value, "where")
    if choice is not None:
        condition, kept, fill = choice.inputs
        assert condition is not None
        assert kept is not None
        assert fill is not None
        chosen, value = (condition, kept, fill), kept
        if editor.scalar(kept) is not None:
            value = fill
        assert value is not None
        if editor.type(value).shape != editor.type(choice.outputs[0]).shape:
            return None
    addition = editor.inner(value, "add")
    if addition is None:
        found = _product(editor, value)
    else:
        for slot in (0, 1):
            mask, found = addition.inputs[1 - slot], _product(editor, addition.inputs[slot])
            if found is not None:
                break
    if found is not None:
        found.mask, found.chosen = mask, chosen
    return found


def _product(editor: Editor, value: str | None) -> _Found | None:
    """matmul(q, k^T) under scale factors."""
    inner, scale = _strip_scale(editor, value)
    product = editor.inner(inner, "matmul")
    if product is None or product.attrs["trans_a"] or product.inputs[0] is None or product.inputs[1] is None:
        return None
    q, k = product.inputs[0], product.inputs[1]
    q_inner, q_scale = _strip_scale(editor, q)
    k_inner, k_scale = _strip_scale(editor, k)
    assert q_inner is not None
    assert k_inner is not None
    total = scale * q_scale * k_scale
    return _Found(q_inner, k_inner, not product.attrs["trans_b"], total) if total > 0.0 else None


def _strip_scale(editor: Editor, value: str | None) -> tuple[str | None, float]:
    """The value under multiplications and divisions by numbers, and the factor."""
    factor = 1.0
    while True:
        node = editor.inner(value, "mul", "div")
        if node is None:
            return value, factor
        left, right = (editor.scalar(v) for v in node.inputs)
        if right is not None and right != 0.0 and editor.type(node.inputs[0] or "") == editor.type(value or ""):
            factor *= right if node.op == "mul" else 1.0 / right
            value = node.inputs[0]
        elif left is not None and node.op == "mul" and editor.type(node.inputs[1] or "") == editor.type(value or ""):
            factor *= left
            value = node.inputs[1]
        else:
            return value, factor


def _shapes_fit(editor: Editor, found: _Found, v: str) -> bool:
    q, k, values = editor.type(found.q), editor.type(found.k), editor.type(v)
    if q.rank != 4 or k.rank != 4 or not q.dtype.is_float:
        return False
    keys, width = (k.shape[3], k.shape[2]) if found.k_transposed else (k.shape[2], k.shape[3])
    return (
        q.shape[:2] == k.shape[:2] == values.shape[:2]
        and q.shape[3] == width
        and values.shape[2] == keys
        and (found.mask is None or _broadcasts(editor.type(found.mask).shape, (*q.shape[:3], keys)))
    )


def _broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    """True where `shape` broadcasts to `target` without enlarging it."""
    return len(shape) <= 4 and all(a in (1, b) for a, b in zip(reversed(shape), reversed(target), strict=False))


def _untransposed(editor: Editor, value: str, near: Node) -> str | None:
    """k as [.., keys, width]: a transpose before it is changed rather than another one put behind it."""
    inner = editor.producer.get(value)
    if inner is not None and inner.op == "transpose":
        perm = perm_of(inner, 4)
        swapped = (*perm[:2], perm[3], perm[2])
        source = inner.inputs[0]
        return source if swapped == (0, 1, 2, 3) else editor.emit("transpose", (source,), {"perm": swapped}, near)
    return editor.emit("transpose", (value,), {"perm": (0, 1, 3, 2)}, near)


def _mask_of_choice(editor: Editor, chosen: tuple[str, str, str], near: Node, dtype: DType) -> str | None:
    """The mask that does what where(condition, kept, fill) does: boolean for -inf, else additive with a number so low
    that no score shows through it (f16 has none, so there every row must be known to have a visible key)."""
    condition, kept, fill = chosen
    keep_where_true = editor.scalar(fill) is not None
    number = editor.scalar(fill if keep_where_true else kept)
    if number is None or number > _MASKING or len(editor.type(condition).shape) > 4:
        return None
    if np.isneginf(number):
        return condition if keep_where_true else editor.emit("logical_not", (condition,), {}, near)
    if dtype is DType.F16:
        known = editor.array(condition)
        if known is None or not (np.atleast_1d(known) == keep_where_true).any(axis=-1).all():
            return None
    zero = editor.constant(np.zeros((), dtype.numpy), f"{near.name}/zero")
    fill_number = number if dtype is DType.F16 else min(number, _SWALLOWING)
    low = editor.constant(np.array(fill_number).astype(dtype.numpy), f"{near.name}/fill")
    return editor.emit("where", (condition, zero, low) if keep_where_true else (condition, low, zero), {}, near)


def _mask_of_both(editor: Editor, chosen: tuple[str, str, str], added: str, near: Node) -> str | None:
    """The added mask, with -inf wherever where(condition, scores + mask, -inf) has it."""
    condition, _, fill = chosen
    number = editor.scalar(fill)
    if number is None or not np.isneginf(number):
        return None
    return editor.emit("where", (condition, added, fill), {}, near)


def _share_heads(editor: Editor, node: Node) -> None:
    """attention(q, repeat(k), repeat(v)) reads k and v themselves: query head h belongs to their head h // repeats."""
    q, k, v = node.inputs[:3]
    assert q is not None
    heads = editor.type(q).shape[1]
    plain = [_unrepeated(editor, value, heads) for value in (k, v)]
    if None not in plain and editor.type(plain[0] or "").shape[1] == editor.type(plain[1] or "").shape[1]:
        editor.emit("attention", (q, *plain, *node.inputs[3:]), node.attrs, node, node.outputs[0])


def _unrepeated(editor: Editor, value: str | None, heads: int) -> str | None:
    """x of reshape(expand(reshape(x))) where each head is repeated for a group: [B, G, S, D] -> [B, heads, S, D]."""
    joined = None if value is None else editor.producer.get(value)
    spread = None if joined is None or joined.op != "reshape" else editor.producer.get(joined.inputs[0] or "")
    parted = None if spread is None or spread.op != "expand" else editor.producer.get(spread.inputs[0] or "")
    if value is None or spread is None or parted is None or parted.op != "reshape" or parted.inputs[0] is None:
        return None
    source = parted.inputs[0]
    kind = editor.type(source)
    if kind.rank != 4 or heads % max(1, kind.shape[1]):
        return None
    batch, groups, length, width = kind.shape
    fits = (
        editor.type(parted.outputs[0]).shape == (batch, groups, 1, length, width)
        and editor.type(spread.outputs[0]).shape == (batch, groups, heads // groups, length, width)
        and editor.type(value).shape == (batch, heads, length, width)
    )
    return source if fits else None


class FuseAttention(NodePass):
    """Scores never leave the core: no [heads, queries, keys] array in memory."""

    rules = ({"matmul": _fuse}, {"attention": _share_heads})
