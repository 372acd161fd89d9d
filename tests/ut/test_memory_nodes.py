"""Constants go where they are read, on machines with several memories."""

from __future__ import annotations

import ctypes
import errno
import platform
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

import superkernel as sk
from superkernel import _core
from superkernel.backends.host import backend, memory_nodes
from superkernel.backends.host.compiled import HostCompiled
from superkernel.backends.host.memory_nodes import STRETCH_BYTES, homes
from superkernel.codegen.host.constants import Bytes, HostConstants
from superkernel.scheduler.schedule import Schedule, Space

RNG = np.random.default_rng(3)
PAGE = 4096
Reads = Callable[[int], set[int]]


def perceptron(wide: NDArray[np.float32], narrow: NDArray[np.float32]) -> sk.Graph:
    b = sk.GraphBuilder("mlp")
    x = b.input("x", (1, wide.shape[0]), "f32")
    b.output(b.matmul(b.gelu(b.matmul(x, b.constant(wide))), b.constant(narrow)))
    return b.graph()


def factors() -> sk.Graph:
    """With 9 MB and 120 KB of weights."""
    return perceptron(RNG.standard_normal((768, 3072), np.float32), RNG.standard_normal((3072, 10), np.float32))


def parts(kernel: sk.HostKernel) -> tuple[HostConstants, Schedule]:
    compiled = kernel._compiled
    assert isinstance(compiled, HostCompiled)
    return compiled.image.constants, compiled.schedule


def nodes_that_read(constants: HostConstants, schedule: Schedule, nodes: Sequence[int]) -> Reads:
    """By an address of a large constant, the nodes of the cores whose tasks declare to read there, asked one by one."""
    blocks = [(slot, constants.at(slot.offset).ctypes.data) for slot in constants.places.shared]

    def reads(address: int) -> set[int]:
        offsets = [slot.offset + address - first for slot, first in blocks if 0 <= address - first < slot.nbytes]
        return {
            nodes[task.core]
            for task in schedule.tasks
            for access in task.accesses
            if access.space is Space.CONSTANT
            for region in access.regions
            if any(region.start <= offset < region.stop for offset in offsets)
        }

    return reads


def test_constants_go_to_the_nodes_whose_cores_read_them() -> None:
    kernel = sk.compile(factors(), threads=4)
    constants, schedule = parts(kernel)
    nodes = (5, 5, 2, 2)
    reads = nodes_that_read(constants, schedule, nodes)
    found = [*homes(constants, schedule, nodes)]
    alone = {2: 0, 5: 0}
    for memory, node in found:
        first = memory.ctypes.data
        for begin in range(first - first % STRETCH_BYTES, first + len(memory), STRETCH_BYTES):
            whole = range(begin, begin + STRETCH_BYTES, 64)
            met = set().union(*map(reads, whole))
            assert node in met, "one of its cores reads there"
            if met == {node}:
                alone[node] += 1
            else:
                assert node == sorted(met)[begin // STRETCH_BYTES % 2]
    assert min(alone.values()) >= 1
    assert sum(alone.values()) >= 3, "of five or six stretches"
    covered = sum(len(memory) for memory, _ in found)
    assert covered == sum(len(memory) for memory in constants.shared), "all of it is read"


def test_what_all_cores_read_lies_in_all_memories_by_turns() -> None:
    wide = RNG.standard_normal((512, 6144), np.float32)
    constants, schedule = parts(sk.compile(perceptron(wide, RNG.standard_normal((6144, 8), np.float32)), threads=2))
    everywhere = replace(schedule, tasks=tuple(replace(t, core=c) for t in schedule.tasks for c in (0, 1)))
    found = [*homes(constants, everywhere, (0, 1))]
    large = [(memory, node) for memory, node in found if len(memory) == STRETCH_BYTES]
    assert len(large) >= 4
    for memory, node in large:
        assert memory.ctypes.data // STRETCH_BYTES % 2 == node


def test_one_memory_needs_nothing_and_cores_beyond_the_cpus_take_them_again() -> None:
    constants, schedule = parts(sk.compile(factors(), threads=4))
    for nodes in ((0,), (0, 0), (3, 3, 3, 3, 1)):
        assert not [*homes(constants, schedule, nodes)]
    again = [(m.ctypes.data, node) for m, node in homes(constants, schedule, (0, 1))]
    assert again == [(m.ctypes.data, node) for m, node in homes(constants, schedule, (0, 1, 0, 1))]
    assert again


def test_constants_that_another_kernel_uses_stay_where_they_are() -> None:
    graph = factors()
    first = sk.compile(graph, threads=4)
    again = sk.compile(graph, threads=2)
    assert [*homes(*parts(first), (0, 0, 1, 1))]
    assert parts(again)[0].shared
    assert not [*homes(*parts(again), (0, 1))]


def test_compiling_asks_the_system_for_what_the_profile_says(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Bytes, int]] = []
    monkeypatch.setattr(_core, "move_to_node", lambda memory, node: asked.append((memory, node)))
    monkeypatch.setattr(backend, "place_constants", lambda c, s, _: memory_nodes.place_constants(c, s, (0, 0, 1, 1)))
    sk.compile(factors(), threads=4)
    assert {node for _, node in asked} == {0, 1}


def test_pages_go_to_the_node_asked_for_and_keep_their_bytes() -> None:
    memory = _core.alloc_aligned(8 * PAGE)
    memory[:] = RNG.integers(0, 256, memory.shape, np.uint8)
    before = memory.copy()
    there = _core.move_to_node(memory, 0)
    if there == 0:
        pytest.skip("the system moves nothing")
    assert there >= 8
    libc = ctypes.CDLL(None, use_errno=True)
    node, address = ctypes.c_int(-1), ctypes.c_void_p(memory.ctypes.data + PAGE)
    get_mempolicy = {"x86_64": 239, "aarch64": 236}[platform.machine()]
    node_of_address = 1 | 2  # MPOL_F_NODE | MPOL_F_ADDR
    done = libc.syscall(get_mempolicy, ctypes.byref(node), None, 0, address, node_of_address)
    assert (done, node.value) == (0, 0), errno.errorcode.get(ctypes.get_errno())
    np.testing.assert_array_equal(memory, before)


def test_nodes_that_are_not_there_are_refused() -> None:
    memory = _core.alloc_aligned(PAGE)
    memory[:] = 7
    for node in (1023, -1, 1 << 30):
        assert _core.move_to_node(memory, node) == 0
    assert _core.move_to_node(memory[:0], 0) == 0
    with pytest.raises(TypeError):
        _core.move_to_node(memory[::2], 0)
    assert (memory == 7).all()
