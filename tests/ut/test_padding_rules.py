"""Each rule of `padding.rules` against all ways to pad an operator's axes: what must be proved is, and holds under
poison; all else is refused. And no rule overlooks an attribute that hangs on the sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import chain, combinations
from typing import Any

import numpy as np
import pytest
from padding_check import hold

import superkernel as sk
from superkernel.core.errors import GraphError, UnsupportedError
from superkernel.frontends import load_graph
from superkernel.ir.graph import Graph
from superkernel.padding.proof import proved

EXTENTS = {
    "b": (2, 3), "c": (4, 8), "d": (4, 8), "e": (3, 4), "h": (2, 4), "k": (3, 6), "m": (2, 4), "n": (3, 4), "s": (3, 5),
    "t": (4, 7), "u": (2, 5), "1": (1, 1), "2": (2, 2), "9": (9, 9),
}  # fmt: skip
"""Axis -> its extent, and the extent that it is padded to. No two grow alike."""
Given = Callable[[str], Any]
Write = Callable[[sk.GraphBuilder, Given], Any]


def whole(b: sk.GraphBuilder, x: Any, kind: str = "i64") -> Any:
    return b.cast(x, kind)


def joined(x: Any, *shape: int) -> Any:
    """The first two axes as one, then reshaped."""
    first, second, *rest = map(int, x.shape)
    return x.reshape(*shape, first * second, *rest)


def suppressed(b: sk.GraphBuilder, x: Any, least: float | None = None, more: int | None = None) -> Any:
    """Three boxes of a class at most, or as many as there are and `more`."""
    boxes, scores = b.concat(x("bn2"), x("bn2") + 1.0, axis=2), x("bcn")
    limit = 3 if more is None else scores.shape[2] + more
    return b.non_max_suppression(boxes, scores, scores.type.size, limit, iou_threshold=0.2, score_threshold=least)


def rows_found(b: sk.GraphBuilder, x: Any, width: int) -> Any:
    """Where x is positive, as [count, width] indices."""
    found = b.nonzero(b.greater(x, 0.0), x.type.size)[1:]
    return b.expand(found.reshape(found.type.size, 1), (found.type.size, width))


CASES: dict[str, tuple[Write, str]] = {
    "broadcast": (lambda b, x: x("b1d") + x("sd") * x("s1"), "bsd"),
    "where": (lambda b, x: b.where(b.greater(x("bs"), x("s")), x("bs"), x("b1")), "bs"),
    "matmul": (lambda b, x: b.matmul(x("bmk"), x("kn")), "bmkn"),
    "matmul of batches": (lambda b, x: b.matmul(x("bmk"), x("bkn")), "bmkn"),
    "matmul of a repeated batch": (lambda b, x: b.matmul(x("bhmk"), x("b1kn")), "bhmkn"),
    "matmul turned": (lambda b, x: b.matmul(x("bkm"), x("bnk"), trans_a=True, trans_b=True), "bmkn"),
    "row by matrix": (lambda b, x: b.matmul(x("k"), x("bkn")), "bkn"),
    "matrix by column": (lambda b, x: b.matmul(x("bmk"), x("k")), "bmk"),
    "row by column": (lambda b, x: b.matmul(x("k"), x("k")), "k"),
    "gemm": (lambda b, x: b.gemm(x("km"), x("nk"), x("n"), trans_a=True, trans_b=True), "kmn"),
    "gemm and a matrix": (lambda b, x: b.gemm(x("mk"), x("kn"), x("mn")), "kmn"),
    "integers": (lambda b, x: b.matmul_integer(whole(b, x("mk"), "u8"), whole(b, x("kn"), "i8")), "mn"),
    "integers and zeros": (
        lambda b, x: b.matmul_integer(
            whole(b, x("mk"), "u8"), whole(b, x("kn"), "i8"), whole(b, x("1"), "u8"), whole(b, x("n"), "i8")
        ),
        "m",
    ),
    "integers and zeros of rows": (
        lambda b, x: b.matmul_integer(whole(b, x("mk"), "u8"), whole(b, x("kn"), "i8"), whole(b, x("m"), "u8")),
        "n",
    ),
    "blocks": (lambda b, x: b.block_matmul(x("bm2"), whole(b, x("n2"), "u8"), x("n1"), bits=8, block=2), "bm"),
    "softmax": (lambda b, x: b.softmax(x("bsd"), axis=1), "bsd"),
    "log_softmax": (lambda b, x: b.log_softmax(x("bsd"), axis=0), "bsd"),
    "lp_norm": (lambda b, x: b.lp_norm(x("bsd"), axis=1), "bsd"),
    "softmax_integer": (lambda b, x: b.softmax_integer(x("bsd"), 64, axis=-1), "bs"),
    "topk": (lambda b, x: b.topk(x("bsd"), 2, axis=1)[1], "bsd"),
    "the smallest": (lambda b, x: b.topk(x("bsd"), 2, axis=1, largest=False)[0], "bd"),
    "nonzero": (lambda b, x: b.nonzero(y := b.greater(x("bsd"), x("1")), y.type.size), "b"),
    "nonzero of one": (lambda b, x: b.nonzero(b.greater(x("1").reshape(), 0.5), 1), ""),
    "found again": (
        lambda b, x: b.gather(x("ts"), b.nonzero(y := b.greater(x("t"), 0.0), y.type.size)[1:], axis=0),
        "ts",
    ),
    "found, and their number": (
        lambda b, x: b.gather(x("ts"), b.nonzero(y := b.greater(x("t"), 0.0), y.type.size), axis=0),
        "s",
    ),
    "less room for more": (lambda b, x: b.nonzero(y := b.greater(x("b"), 0.0), 9 - y.type.size), ""),
    "places of the best": (lambda b, x: b.gather(x("ts"), b.topk(x("t"), 2)[1], axis=0), "ts"),
    "the best as places": (lambda b, x: b.gather(x("ts"), whole(b, b.topk(x("t"), 2)[0]), axis=0), "s"),
    "suppression": (lambda b, x: suppressed(b, x, -1.0), "bcn"),
    "suppression of any score": (suppressed, "bcn"),
    "classes of what is selected": (
        lambda b, x: b.gather(x("cs"), suppressed(b, x, -1.0)[1:, 1], axis=0),
        "bcns",
    ),
    "selected, and their number": (lambda b, x: b.gather(x("cs"), suppressed(b, x, -1.0)[:, 0], axis=0), "bns"),
    "suppression of all boxes": (lambda b, x: suppressed(b, x, -1.0, more=0), "bcn"),
    "suppression of all boxes and one": (lambda b, x: suppressed(b, x, -1.0, more=1), "bc"),
    "boxes and scores in other places": (
        lambda b, x: b.non_max_suppression(
            b.concat(*[joined(x("hbn2"))] * 2, axis=2), y := joined(x("bhcn")), y.type.size, 3, score_threshold=-1.0
        ),
        "cn",
    ),
    "reduce": (lambda b, x: b.reduce_max(x("bsd"), axes=(0, -1), keepdims=False), "bsd"),
    "reduce all": (lambda b, x: b.reduce_max(x("bs")), "bs"),
    "mean": (lambda b, x: b.reduce_mean(x("bsd"), axes=(0, -1), keepdims=False), "bsd"),
    "mean of all": (lambda b, x: b.reduce_mean(x("bs"), keepdims=False), "bs"),
    "argmin": (lambda b, x: b.argmin(x("bsd"), axis=1), "bsd"),
    "cumsum": (lambda b, x: b.cumsum(x("bs"), axis=1, exclusive=True), "bs"),
    "cumsum from the end": (lambda b, x: b.cumsum(x("bs"), axis=1, reverse=True), "bs"),
    "layer_norm": (lambda b, x: b.layer_norm(x("bsd"), x("sd"), x("d"), axis=1), "b"),
    "rms_norm": (lambda b, x: b.rms_norm(x("bsd"), x("s1"), axis=-1), "bs"),
    "group_norm": (lambda b, x: b.group_norm(x("bcs"), x("c"), x("c"), 2), "b"),
    "instance_norm": (lambda b, x: b.instance_norm(x("bcs"), x("c"), x("c")), "b"),
    "batch_norm": (lambda b, x: b.batch_norm(x("bcs"), x("c"), x("c"), x("c"), b.abs(x("c"))), "bs"),
    "lrn": (lambda b, x: b.lrn(x("bcs"), 3), "bs"),
    "conv": (lambda b, x: b.conv(x("bct"), x("nc2"), x("n")), "bt"),
    "conv_transpose": (
        lambda b, x: b.conv_transpose(x("bct"), x("cn2"), x("n"), strides=(2,), pads=(1, 0), output_padding=(1,)),
        "bt",
    ),
    "conv_integer": (
        lambda b, x: b.conv_integer(whole(b, x("bct"), "u8"), whole(b, x("nc2"), "i8")),
        "b",
    ),
    "max_pool": (lambda b, x: b.max_pool(x("bct"), (2,), pads=(1, 0)), "bct"),
    "lp_pool": (lambda b, x: b.lp_pool(x("bct"), (2,), pads=(0, 1)), "bct"),
    "avg_pool": (lambda b, x: b.avg_pool(x("bct"), (3,), strides=(2,), pads=(1, 0), dilations=(1,)), "bct"),
    "avg_pool that counts zeros": (
        lambda b, x: b.avg_pool(x("bct"), (2,), pads=(1, 1), count_include_pad=True),
        "bct",
    ),
    "avg_pool that counts no zeros": (lambda b, x: b.avg_pool(x("bct"), (2,), pads=(0, 1)), "bc"),
    "avg_pool that hangs over": (
        lambda b, x: b.avg_pool(x("bct"), (3,), strides=(2,), ceil_mode=True, count_include_pad=True),
        "bc",
    ),
    "global_avg_pool": (lambda b, x: b.global_avg_pool(x("bcst")), "bcst"),
    "global_max_pool": (lambda b, x: b.global_max_pool(x("bcst")), "bcst"),
    "transpose": (lambda b, x: b.transpose(x("bsd")), "bsd"),
    "concat": (lambda b, x: b.concat(x("bsd"), x("btd"), x("bud"), axis=1), "bud"),
    "split": (lambda b, x: b.split(y := x("bs"), (1, y.shape[1] - 1), axis=1)[1], "bs"),
    "slice": (lambda b, x: b.slice(x("bsd"), (1, 1), (3, 2), axes=(1, 2)), "bsd"),
    "slice to the end": (lambda b, x: b.slice(x("bs"), (1,), (99,), axes=(1,)), "bs"),
    "slice by steps": (lambda b, x: b.slice(x("bs"), (2,), (-99,), axes=(1,), steps=(-1,)), "bs"),
    "slice from the end": (lambda b, x: b.slice(x("bs"), (-2,), (99,), axes=(1,)), "bs"),
    "pad in front": (lambda b, x: b.pad(x("bsd"), (0, 2, 0, 0, 0, 0), value=3.0), "bsd"),
    "pad behind": (lambda b, x: b.pad(x("bsd"), (0, 1, 0, 0, 2, 0)), "bd"),
    "pad and crop": (lambda b, x: b.pad(x("bsd"), (0, -1, 1, 0, -1, 0)), "bsd"),
    "pad by the edge": (lambda b, x: b.pad(x("bsd"), (0, 1, 0, 0, 0, 0), mode="edge"), "bd"),
    "tile": (lambda b, x: b.reshape(b.tile(y := x("bs"), (2, 1)), (2, y.shape[0], y.shape[1])), "bs"),
    "tile along": (lambda b, x: b.tile(x("bs"), (1, 2)), "b"),
    "gather": (lambda b, x: b.gather(x("bsd"), whole(b, x("tu")), axis=1), "bdtu"),
    "gather by constants": (lambda b, x: b.gather(x("bsd"), b.constant(np.array([0, 2])), axis=1), "bsd"),
    "gather beyond": (lambda b, x: b.gather(x("bsd"), b.constant(np.array([0, 3])), axis=1), "bd"),
    "gather the last": (lambda b, x: b.gather(x("bsd"), b.constant(np.array([-1])), axis=1), "bsd"),
    "gather_elements": (lambda b, x: b.gather_elements(x("bs"), whole(b, x("bs")), axis=1), "b"),
    "gather_elements by constants": (
        lambda b, x: b.gather_elements(x("bs"), b.constant(np.array([[0, 2], [1, 0]])), axis=1),
        "bs",
    ),
    "gather_elements from the end": (
        lambda b, x: b.gather_elements(x("bs"), b.constant(np.array([[0, -1], [1, 0]])), axis=1),
        "b",
    ),
    "gather_elements in other places": (
        lambda b, x: b.gather_elements(joined(x("bsd")), whole(b, joined(x("sbd"))), axis=1),
        "",
    ),
    "gather_nd": (lambda b, x: b.gather_nd(x("bsd"), whole(b, x("t2"))), "dt"),
    "gather_nd by constants": (lambda b, x: b.gather_nd(x("bsd"), b.constant(np.array([[0, 1], [1, 2]]))), "bsd"),
    "gather_nd from the end": (lambda b, x: b.gather_nd(x("bsd"), b.constant(np.array([[0, 1], [-1, 2]]))), "sd"),
    "gather_nd of batches": (lambda b, x: b.gather_nd(x("bsd"), whole(b, x("bt1")), batch_dims=1), "bdt"),
    "scatter_nd": (lambda b, x: b.scatter_nd(x("bsd"), whole(b, x("t2")), x("td")), "dt"),
    "scatter_nd that adds": (lambda b, x: b.scatter_nd(x("sd"), whole(b, x("ut1")), x("utd"), reduction="add"), "dut"),
    "scatter_nd by constants": (
        lambda b, x: b.scatter_nd(x("bsd"), b.constant(np.array([[0, 1], [1, 2]])), x("2d")),
        "bsd",
    ),
    "scatter_nd beyond": (lambda b, x: b.scatter_nd(x("sd"), b.constant(np.array([[0], [3]])), x("2d")), "d"),
    "scatter_nd in other places": (
        lambda b, x: b.scatter_nd(x("se"), whole(b, joined(x("bt1"))), joined(x("tbe"))),
        "e",
    ),
    "scatter to what is found": (lambda b, x: b.scatter_nd(x("ts"), rows_found(b, x("t"), 1), x("ts")), "ts"),
    "scatter to what is found on a diagonal": (
        lambda b, x: b.scatter_nd(x("tt"), rows_found(b, y := x("t"), 2), y),
        "t",
    ),
    "scatter_elements to what is found": (
        lambda b, x: b.scatter_elements(y := x("t9"), rows_found(b, x("t"), 9), y, axis=0, reduction="mul"),
        "t",
    ),
    "scatter_elements": (
        lambda b, x: b.scatter_elements(x("bs"), whole(b, x("bt")), x("bt"), axis=1, reduction="max"),
        "bt",
    ),
    "scatter_elements along": (lambda b, x: b.scatter_elements(x("bs"), whole(b, x("bs")), x("bs"), axis=1), "b"),
    "scatter_elements to some rows": (
        lambda b, x: b.scatter_elements(x("cs"), whole(b, x("kt")), x("kt"), axis=1),
        "ckt",
    ),
    "scatter_elements in other places": (
        lambda b, x: b.scatter_elements(joined(x("bsd")), whole(b, joined(x("sbd"))), joined(x("sbd")), axis=1),
        "",
    ),
    "one_hot": (lambda b, x: b.one_hot(whole(b, x("bs")), x("2"), 3, axis=1), "bs"),
    "trilu": (lambda b, x: b.trilu(x("bst"), k=1), "bst"),
    "resize": (lambda b, x: b.resize(y := x("bst"), (y.shape[0], y.shape[1], 5)), "bs"),
    "resize by scales": (
        lambda b, x: b.resize(y := x("bt"), tuple(y.shape), scales=(1.0, 1.1), mode="linear"),
        "b",
    ),
    "attention": (lambda b, x: b.attention(x("bhsd"), x("bhtd"), x("bhte")), "bste"),
    "grouped attention": (lambda b, x: b.attention(x("b2sd"), x("b1td"), x("b1te")), "bste"),
    "causal": (lambda b, x: b.attention(x("bhsd"), x("bhsd"), x("bhse"), causal=True), "bse"),
    "causal, more keys": (lambda b, x: b.attention(x("bhsd"), x("bhtd"), x("bhte"), causal=True), "be"),
    "masked": (lambda b, x: b.attention(x("bhsd"), x("bhtd"), x("bhte"), x("b1st")), "bste"),
    "causal and masked": (
        lambda b, x: b.attention(x("bhsd"), x("bhsd"), x("bhse"), b.greater(x("ss"), x("1")), causal=True),
        "bse",
    ),
    "lengths": (lambda b, x: b.attention(x("bhsd"), x("bhtd"), x("bhte"), None, whole(b, x("b"))), "bste"),
    "a length": (lambda b, x: b.attention(x("bhsd"), x("bhtd"), x("bhte"), None, whole(b, x("1"))), "bste"),
    "causal up to a length": (
        lambda b, x: b.attention(x("bhsd"), x("bhsd"), x("bhse"), None, whole(b, x("1")), causal=True),
        "be",
    ),
    "rope": (lambda b, x: b.rope(x("bhsd"), x("s2"), x("s2"), rotary_dim=4), "bhs"),
    "rope by rows": (lambda b, x: b.rope(x("bhsd"), x("b1s2"), x("b1s2"), rotary_dim=4), "bhs"),
    "rope by a position": (lambda b, x: b.rope(x("bhsd"), x("92"), x("92"), whole(b, x("1")), rotary_dim=4), "bhs"),
    "rope by batch": (lambda b, x: b.rope(x("bhsd"), x("t2"), x("t2"), whole(b, x("b")), rotary_dim=4), "bhs"),
    "rope by place": (lambda b, x: b.rope(x("bhsd"), x("t2"), x("t2"), whole(b, x("bs")), rotary_dim=4), "bhs"),
    "ragged": (
        lambda b, x: b.attention(x("bhsd"), x("bhtd"), x("bhte"), None, b.abs(whole(b, x("b"))), ragged=True),
        "",
    ),
    # An axis of batch and length in one: where the length is padded, elements lie in other places.
    "sum over places": (lambda b, x: b.cumsum(joined(x("bsd")), axis=0), "bd"),
    "sum over places from the end": (lambda b, x: b.cumsum(joined(x("bsd")), axis=0, reverse=True), "bd"),
    "mean over places": (lambda b, x: b.reduce_mean(joined(x("bsd")), axes=(0,)), "bd"),
    "largest of places": (lambda b, x: b.topk(joined(x("bsd")), 2, axis=0)[0], "bd"),
    "slice of places": (lambda b, x: b.slice(joined(x("bsd")), (0,), (4,)), "bd"),
    "split of places": (lambda b, x: b.split(y := joined(x("bsd")), (2, int(y.shape[0]) - 2))[1], "bd"),
    "pad ahead of places": (lambda b, x: b.pad(joined(x("bsd")), (1, 0, 0, 0)), "bd"),
    "places behind others": (lambda b, x: b.concat(x("ud"), joined(x("bsd")), axis=0), "bd"),
    "two orders of places": (lambda b, x: b.concat(joined(x("bsd")), joined(x("sbd")), axis=1), ""),
    "gather of places": (lambda b, x: b.gather(joined(x("bsd")), b.constant(np.array([0, 4]))), "bd"),
    "triangle of places": (lambda b, x: b.trilu(b.matmul(joined(x("bsk")), joined(x("bsk")), trans_b=True)), "bk"),
    "causal over places": (
        lambda b, x: b.attention(*(joined(x("bs9"), 1, 1) for _ in "qkv"), causal=True),
        "b",
    ),
    "rope over places": (
        lambda b, x: b.rope(joined(x("bsd"), 1, 1), x("92"), x("92"), whole(b, x("1")), rotary_dim=4),
        "b",
    ),
    "mask in other places": (
        lambda b, x: b.attention(joined(x("bu1sd")), joined(x("bu1td")), joined(x("bu1te")), joined(x("ub1st"))),
        "ste",
    ),
    "lengths in other places": (
        lambda b, x: b.attention(
            joined(x("bu1sd")), joined(x("bu1td")), joined(x("bu1te")), None, whole(b, joined(x("ub")))
        ),
        "ste",
    ),
    "positions in other places": (
        lambda b, x: b.rope(joined(x("buhsd")), x("92"), x("92"), whole(b, joined(x("ub"))), rotary_dim=4),
        "hs",
    ),
    "kv_update": (lambda b, x: b.kv_update(x("bhtd"), x("bhsd"), whole(b, x("1"))), ""),
}


def written(write: Write, grown: str) -> Graph:
    """The graph with these axes padded."""
    b, used = sk.GraphBuilder("one"), []

    def given(axes: str) -> Any:
        used.append(axes)
        return b.input(f"x{len(used)}", tuple(EXTENTS[axis][axis in grown] for axis in axes))

    b.output(write(b, given), name="y")
    return load_graph(b)


def axes_of(write: Write) -> str:
    """All axes of a case that can be padded."""
    found: list[str] = []
    b = sk.GraphBuilder()

    def given(axes: str) -> Any:
        found.extend(axes)
        return b.input(f"x{len(found)}", tuple(EXTENTS[axis][0] for axis in axes))

    write(b, given)
    return "".join(axis for axis in dict.fromkeys(found) if axis.isalpha())


@pytest.mark.parametrize("what", CASES)
def test_exactly_what_must_be_is_proved(what: str) -> None:
    write, free = CASES[what]
    axes = axes_of(write)
    assert set(free) <= set(axes)
    small = written(write, "")
    for grown in chain.from_iterable(combinations(axes, count) for count in range(len(axes) + 1)):
        try:
            large = written(write, "".join(grown))
        except GraphError:  # an operator that does not take these extents together
            continue
        if set(grown) <= set(free):
            hold(small, large)
        else:
            with pytest.raises(UnsupportedError):
                proved(small, large)


def test_a_scatter_to_all_is_refused_where_some_do_not_count() -> None:
    """Its indices name no axis, so nothing lies behind an end."""
    write: Write = lambda b, x: b.scatter_nd(x("s"), whole(b, x("b1"))[:, :0], x("bs"))  # noqa: E731
    hold(written(write, ""), written(write, "s"))
    with pytest.raises(UnsupportedError, match="writes to all"):
        proved(written(write, ""), written(write, "b"))


HANGS_ON_SIZES = {"shape", "starts", "ends", "sizes", "size", "repeats", "dtype"}


@pytest.mark.parametrize("what", CASES)
def test_attributes_are_compared(what: str) -> None:
    """Where one is another for the larger sizes, nothing is proved, even if nothing is padded."""
    small = written(CASES[what][0], "")
    for index, node in enumerate(small.nodes):
        for name, value in node.attrs.items():
            if name in HANGS_ON_SIZES or (node.op, name) in {("slice", "axes"), ("slice", "steps"), ("topk", "k")}:
                continue
            others: list[Any] = [not value] if isinstance(value, bool) else []
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                others = [value + 1, value + 0.5] if isinstance(value, float) else [value + 1, value - 1]
            if isinstance(value, str):
                attr = small.definition(node).attr(name)
                others = [choice for choice in (attr.choices if attr else ()) if choice != value]
            for other in others:
                changed = replace(node, attrs={**node.attrs, name: other})
                try:
                    large = small.rebuilt([*small.nodes[:index], changed, *small.nodes[index + 1 :]])
                except GraphError:
                    continue
                with pytest.raises(UnsupportedError):
                    proved(small, large)
