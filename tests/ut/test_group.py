"""Grouping keeps the meaning of every graph, and joins what it is meant to join."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from grouped_on import AVX2, chooser_on, host_group
from interpret import interpret_grouping
from random_graphs import GraphMaker, LenientFamily, random_graph, random_inputs
from seeds import seeds

from superkernel.builder import GraphBuilder
from superkernel.ir.body import Body, PointwiseProgram, Role, View
from superkernel.ir.graph import Graph
from superkernel.reference import evaluate
from superkernel.registry.records import Policy
from superkernel.registry.requirement import requirement_of
from superkernel.scheduler.families import HOST_KERNELS
from superkernel.scheduler.grouping import Grouping, view_chain
from superkernel.scheduler.schedule import MemoryAddress, Space

RNG = np.random.default_rng(3)


def weights(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def grouped(graph: Graph, *, eager: bool = True, **options: Any) -> Grouping:
    family = LenientFamily(eager)
    return host_group(graph, family, **options)


def check_meaning(graph: Graph, grouping: Grouping, seed: int = 0) -> None:
    inputs = random_inputs(graph, seed)
    want = evaluate(graph, inputs)
    outputs, states = interpret_grouping(grouping, graph, inputs)
    for name, found in zip(graph.outputs, outputs, strict=True):
        np.testing.assert_allclose(found, want[name], rtol=1e-4, atol=1e-5, err_msg=name)
    for name, found in states.items():
        np.testing.assert_allclose(found, want.states[name], rtol=1e-4, atol=1e-5, err_msg=f"state {name}")


@pytest.mark.parametrize("seed", seeds(40))
@pytest.mark.parametrize("fuse", [True, False])
@pytest.mark.parametrize("eager", [True, False])
def test_random_graphs_keep_their_meaning(eager: bool, fuse: bool, seed: int) -> None:
    graph = random_graph(seed, 8 + seed % 40)
    check_meaning(graph, grouped(graph, eager=eager, fuse=fuse), seed)


def test_the_property_test_can_fail() -> None:
    graph = random_graph(1, 20)
    grouping = grouped(graph)
    broken = Grouping(grouping.subops[:-1], grouping.buffers, grouping.constants, grouping.notes)
    with pytest.raises(AssertionError):
        check_meaning(graph, broken, 1)


def unrolled(steps: int) -> Graph:
    """A row of the input after the other, some through a softmax, scaled by a number of its own."""
    b = GraphBuilder("unrolled")
    x = b.input("x", (steps, 8), "f32")
    for i in range(steps):
        row = x[i : i + 1]
        b.output(b.softmax(row) if i % 2 else row * float(i + 2), name=f"y{i}")
    return b.graph()


def test_bodies_that_differ_in_offsets_alone_are_one_and_those_of_other_numbers_do_not_share_hashes() -> None:
    grouping = grouped(unrolled(32))
    bodies = {sub.body for sub in grouping.subops}
    assert len(bodies) == 16 + 1, "the products, and one softmax of a row that begins somewhere in the input"
    assert len(set(map(hash, bodies))) == 17, "looking one up would compare it with all others"
    needs = {requirement_of(body, AVX2, Policy()) for body in bodies if body.op is None}
    assert len(set(map(hash, needs))) == 16


def mlp_block() -> Graph:
    g = GraphMaker()
    x = g.input("x", 8, 16)
    h = g.op("gelu", g.op("add", g.op("matmul", x, g.constant(weights(16, 32))), g.constant(weights(32))))
    y = g.op("add", g.op("add", g.op("matmul", h, g.constant(weights(32, 16))), g.constant(weights(16))), x)
    scale = g.constant(weights(16))
    return g.graph(g.op("layer_norm", y, scale, scale, axis=-1, epsilon=1e-5))


def test_epilogues_take_bias_activation_and_residual() -> None:
    grouping = grouped(mlp_block(), eager=False)
    assert [s.body.op for s in grouping.subops] == ["matmul", "matmul", "layer_norm"]
    assert [i.op for i in grouping.subops[0].body.epilogue.instructions] == ["add", "gelu"]
    assert [i.op for i in grouping.subops[1].body.epilogue.instructions] == ["add", "add"]
    assert grouping.subops[0].nodes == ("matmul0", "add1", "gelu2")
    assert any(n.node == "gelu2" and n.decision == "joined 'matmul0'" for n in grouping.notes)


def test_without_fusion_every_node_is_a_sub_operator() -> None:
    graph = mlp_block()
    grouping = grouped(graph, fuse=False)
    assert len(grouping.subops) == len(graph.nodes)
    assert all(o.shape == s.body.epilogue.shape for s in grouping.subops for o in s.body.anchor_outputs)


def test_equal_layers_share_one_body() -> None:
    g = GraphMaker()
    h = g.input("x", 4, 8)
    for _ in range(3):
        h = g.op("relu", g.op("matmul", h, g.constant(weights(8, 8))))
    subops = grouped(g.graph(h)).subops
    assert len(subops) == 3
    assert subops[0].body is subops[1].body
    assert subops[0].body is subops[2].body


def test_reshape_is_an_alias_and_scalars_become_immediates() -> None:
    g = GraphMaker()
    x = g.input("x", 2, 3, 4)
    y = g.op("mul", g.op("reshape", x, shape=(6, 4)), g.constant(np.float32(2.5)))
    (sub,) = grouped(g.graph(g.op("reshape", y, shape=(24,)))).subops
    assert [o.role for o in sub.body.operands] == [Role.INPUT, Role.OUTPUT]
    assert [i.op for i in sub.body.epilogue.instructions] == ["constant", "mul"]
    assert sub.body.epilogue.instructions[0].attr("value") == 2.5


def test_a_transposed_reader_walks_strides_where_its_kernel_can() -> None:
    g = GraphMaker()
    x = g.input("x", 6, 4)
    y = g.op("softmax", g.op("transpose", x, perm=(1, 0)), axis=-1)
    graph = g.graph(y)
    (eager,) = grouped(graph, eager=True).subops
    feed = eager.body.anchor_inputs[0]
    assert isinstance(feed, View)
    assert feed.strides == (1, 4)
    dense = grouped(graph, eager=False).subops
    assert [s.body.op for s in dense] == [None, "softmax"], "a kernel that wants dense input gets a copy"
    check_meaning(graph, grouped(graph, eager=False))


def test_a_producer_stores_transposed_where_the_reader_cannot() -> None:
    g = GraphMaker()
    x = g.input("x", 4, 6)
    y = g.op("transpose", g.op("matmul", x, g.constant(weights(6, 8))), perm=(1, 0))
    graph = g.graph(g.op("softmax", y, axis=-1))
    subops = grouped(graph, eager=False).subops
    assert [s.body.op for s in subops] == ["matmul", "softmax"]
    assert subops[0].body.epilogue.outputs[0].strides == (1, 4)


def test_concat_parts_are_stored_in_place() -> None:
    g = GraphMaker()
    x = g.input("x", 4, 6)
    w = g.constant(weights(6, 3))
    parts = [g.op("matmul", x, w), g.op("relu", x), x]
    graph = g.graph(g.op("softmax", g.op("concat", *parts, axis=1), axis=-1))
    grouping = grouped(graph)
    assert [s.body.op for s in grouping.subops] == ["matmul", None, None, "softmax"]
    stores = [s.body.epilogue.outputs[0] for s in grouping.subops[:3]]
    assert all((s.strides, s.offset) == ((15, 1), 0) for s in stores)
    chains = [list(view_chain(grouping.buffers, s.values[-1])) for s in grouping.subops[:3]]
    assert len({chain[-1][0] for chain in chains}) == 1, "one buffer"
    assert sorted(chain[-1][2] for chain in chains) == [0, 3 * 4, 9 * 4]
    check_meaning(graph, grouping)


def test_a_growing_concat_copies_nothing() -> None:
    """As in a dense block: every stage reads the concatenation of all earlier stages. Along the outermost axis each
    whole becomes a piece of the next."""
    g = GraphMaker()
    h = g.op("softmax", g.input("x", 1, 2, 6), axis=-1)
    for _ in range(3):
        h = g.op("concat", h, g.op("reduce_sum", h, axes=(1,), keepdims=True), axis=1)
    graph = g.graph(g.op("softmax", h, axis=-1))
    grouping = grouped(graph, eager=False)
    assert [s.body.op for s in grouping.subops] == ["softmax", *["reduce_sum"] * 3, "softmax"]
    assert sum(b.inside is not None for b in grouping.buffers.values()) >= 3
    check_meaning(graph, grouping)


def test_concat_of_inputs_is_one_copy() -> None:
    g = GraphMaker()
    a, b = g.input("a", 2, 3), g.input("b", 2, 3)
    (sub,) = grouped(g.graph(g.op("concat", a, b, axis=0))).subops
    assert sub.body.op == "concat"


def test_a_join_that_would_close_a_cycle_is_refused() -> None:
    g = GraphMaker()
    x = g.input("x", 4, 4)
    a = g.op("matmul", x, g.constant(weights(4, 4)))
    b = g.op("softmax", a, axis=-1)
    graph = g.graph(g.op("add", a, b))  # must not join the matmul: softmax lies between
    grouping = grouped(graph, eager=False)
    assert [s.body.op for s in grouping.subops] == ["matmul", "softmax"]
    assert grouping.subops[1].nodes == ("softmax1", "add2")
    check_meaning(graph, grouping)


def test_a_broadcast_of_the_own_result_is_refused() -> None:
    g = GraphMaker()
    x = g.input("x", 4, 4)
    row = g.op("reduce_sum", x, axes=(0,), keepdims=True)
    graph = g.graph(g.op("add", g.op("exp", row), g.op("transpose", g.op("exp", row), perm=(1, 0))))
    grouping = grouped(graph)
    check_meaning(graph, grouping)
    assert len(grouping.subops) == 2


def test_a_residual_sum_becomes_a_storing_prologue_of_a_norm() -> None:
    g = GraphMaker()
    x, y = g.input("x", 4, 8), g.input("y", 4, 8)
    total = g.op("add", x, y)
    scale = g.constant(weights(8))
    normed = g.op("layer_norm", total, scale, scale, axis=-1, epsilon=1e-5)
    graph = g.graph(g.op("add", g.op("matmul", normed, g.constant(weights(8, 8))), total))
    grouping = grouped(graph)
    norm = grouping.subops[0].body
    prologue = norm.anchor_inputs[0]
    assert isinstance(prologue, PointwiseProgram)
    assert [o.target >= 0 for o in prologue.outputs] == [False, True]
    assert [s.body.op for s in grouping.subops] == ["layer_norm", "matmul"]
    check_meaning(graph, grouping)


def cache_graph(*, update: bool, read_old: bool) -> Graph:
    g = GraphMaker()
    cache = g.state("cache", weights(1, 2, 4, 3))
    new = g.op("tanh", g.input("new", 1, 2, 1, 3))
    full = g.op("kv_update", cache, new, g.constant(np.int64(2)))
    if update:
        g.updates["cache"] = full
    outputs = [g.op("relu", full)]
    if read_old:
        outputs.append(g.op("neg", cache))
    return g.graph(*outputs)


@pytest.mark.parametrize(
    ("update", "read_old", "in_place"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_caches_are_updated_in_place_where_nobody_reads_the_old(update: bool, read_old: bool, in_place: bool) -> None:
    graph = cache_graph(update=update, read_old=read_old)
    grouping = grouped(graph, eager=False)
    roles = [o.role for s in grouping.subops for o in s.body.operands]
    assert (Role.INOUT in roles) == in_place
    check_meaning(graph, grouping)


def test_swapped_states_go_through_a_copy() -> None:
    g = GraphMaker()
    g.state("a", weights(3))
    g.state("b", weights(3))
    g.updates.update(a="b", b="a")
    x = g.input("x", 3)
    graph = g.graph(g.op("add", x, "a"))
    check_meaning(graph, grouped(graph))


def test_a_pointwise_state_update_is_stored_straight_into_the_state() -> None:
    g = GraphMaker()
    s = g.state("s", weights(4, 4))
    g.updates["s"] = g.op("add", g.op("mul", s, g.constant(np.float32(0.9))), g.input("x", 4, 4))
    graph = g.graph(g.op("softmax", s, axis=-1))
    grouping = grouped(graph, eager=False)
    assert [sub.body.op for sub in grouping.subops] == ["softmax", None], "the old contents are read first"
    assert grouping.buffers[grouping.subops[1].values[-1]].address == MemoryAddress(Space.STATE, 0, 0)
    check_meaning(graph, grouping)


@pytest.mark.parametrize("perm", [(0, 1), (1, 0)])
def test_a_state_that_is_read_elsewhere_than_it_is_written_is_not_written_in_place(perm: tuple[int, int]) -> None:
    """An element would be overwritten before another one that needs it is computed."""
    g = GraphMaker()
    s = g.state("s", weights(4, 4))
    g.updates["s"] = g.op("add", g.op("transpose", s, perm=perm), g.input("x", 4, 4))
    graph = g.graph(g.op("neg", "x"))
    grouping = grouped(graph)
    writes = [
        sub
        for sub in grouping.subops
        for value, operand in zip(sub.values, sub.body.operands, strict=True)
        if operand.role is not Role.INPUT and grouping.buffers[value].address == MemoryAddress(Space.STATE, 0, 0)
    ]
    (last,) = writes
    computes = any(i.op == "add" for i in last.body.epilogue.instructions)
    assert computes == (perm == (0, 1))
    check_meaning(graph, grouping)


def test_inputs_constants_and_states_as_outputs_are_copied() -> None:
    g = GraphMaker()
    x, c, s = g.input("x", 2, 3), g.constant(weights(3)), g.state("s", weights(2))
    graph = g.graph(x, c, s, g.op("transpose", x, perm=(1, 0)))
    grouping = grouped(graph)
    assert len(grouping.subops) == 4
    check_meaning(graph, grouping)
    written = [
        v
        for sub in grouping.subops
        for v, o in zip(sub.values, sub.body.operands, strict=True)
        if o.role is Role.OUTPUT
    ]
    addresses = {grouping.buffers[v].address for v in written}
    assert addresses == {MemoryAddress(Space.OUTPUT, i, 0) for i in range(4)}


def test_a_fallback_sub_operator_is_dense_and_alone() -> None:
    g = GraphMaker()
    x = g.input("x", 4, 6)
    y = g.op("softmax", g.op("transpose", g.op("relu", x), perm=(1, 0)), axis=-1)
    graph = g.graph(g.op("neg", y))

    known = chooser_on(AVX2, HOST_KERNELS)

    def choose(body: Body) -> str:
        return "host.reference" if body.op == "softmax" else known.choose(body)

    family = LenientFamily(True)
    grouping = host_group(graph, family, choose=choose)
    (call,) = [s for s in grouping.subops if s.kernel == "host.reference"]
    feed = call.body.anchor_inputs[0]
    assert isinstance(feed, View)
    assert feed.is_dense
    assert call.body.epilogue.is_store_only
    assert not [n for n in grouping.notes if n.decision == "takes no epilogue"]  # of kernels alone
    check_meaning(graph, grouping)


def test_views_of_constants_are_folded() -> None:
    g = GraphMaker()
    w = g.op("transpose", g.constant(weights(8, 6)), perm=(1, 0))
    graph = g.graph(g.op("matmul", g.input("x", 4, 6), w))
    grouping = grouped(graph, eager=False)
    (sub,) = grouping.subops
    assert sub.body.operands[1].role is Role.CONSTANT
    assert sub.body.operands[1].type.shape == (6, 8)
    check_meaning(graph, grouping)


def test_empty_tensors_are_legal() -> None:
    g = GraphMaker()
    x = g.input("x", 0, 4)
    graph = g.graph(g.op("add", g.op("softmax", x, axis=-1), x), g.op("transpose", x, perm=(1, 0)))
    check_meaning(graph, grouped(graph))


def test_grouping_prints() -> None:
    text = str(grouped(mlp_block()))
    assert "subop 0 matmul0 host.matmul.packed" in text
    assert "# gelu2: joined 'matmul0'" in text
