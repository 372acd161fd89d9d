"""Where data lies in the accelerator's memory: in the first window of it, behind it, or nowhere."""

from __future__ import annotations

import shutil
import struct
import time

import numpy as np
import pytest
from plan_cases import planned_graph

import superkernel as sk
from superkernel.codegen.aicore import image, memory_map
from superkernel.codegen.aicore.code_choice import CodeOptions
from superkernel.codegen.aicore.image import AicoreImageBuilder
from superkernel.codegen.aicore.memory_map import PARAMETERS_BYTE, MemoryMap, map_addresses
from superkernel.codegen.cache import ObjectCache
from superkernel.codegen.firmware.memory import FirmwareMap
from superkernel.core.errors import UnsupportedError
from superkernel.ir.graph import Graph
from superkernel.reference.random_inputs import random_inputs
from superkernel.target.aicore import load_target

GIB = 1 << 30
REACH_BYTES = 2 << 30  # of code that forms an address relative to itself
DEVICE_TREE = (0xBFE0_0000, 0xC000_0000)  # where `virt` has it when there is 1 GiB of memory or more


def _graph() -> Graph:
    rng, b = np.random.default_rng(0), sk.GraphBuilder("far")
    x = b.input("x", (33, 64))
    y = x @ b.constant(rng.standard_normal((64, 48)).astype(np.float32), name="w")
    b.output(b.softmax(b.gelu(y), axis=-1), "y")
    return b.graph()


@pytest.mark.parametrize("preset", ["a3", "a2", "mini"])
def test_the_map_of_a_preset(preset: str) -> None:
    memory = MemoryMap.of(load_target(preset))
    end = memory.private_address + memory.harts * memory.private_bytes
    assert memory.data_address < memory.private_address
    assert end <= memory.ram_address + memory.ram_bytes
    assert end - memory.code_address < REACH_BYTES
    assert end <= DEVICE_TREE[0] or memory.private_address >= DEVICE_TREE[1]
    assert memory.place_data(1 << 20) == memory.data_address
    assert memory.place_data(memory.data_bytes) == memory.data_address


def test_large_data_lies_behind_the_window() -> None:
    memory = MemoryMap.of(load_target("a3"))
    assert memory.far_bytes > 60 * GIB
    assert memory.place_data(memory.data_bytes + 1) == memory.far_address == DEVICE_TREE[1]
    with pytest.raises(UnsupportedError, match=rf"map\.ram_bytes.*at most {memory.far_bytes} bytes") as caught:
        memory.place_data(memory.far_bytes + 1)
    assert "larger map.ram_bytes" in str(caught.value)


def test_ranges_fill_private_memory_to_the_last_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three sub-operators have ranges on vector cores, one of them on cube cores, too."""
    made, target = planned_graph(_graph(), "mini"), load_target("mini")
    addresses = map_addresses(made.schedule, target, list(made.graph.inputs.values()), [made.graph.types["y"]], [])
    cache, code = ObjectCache(None), CodeOptions()
    builder = AicoreImageBuilder(made.schedule, made.plan, target, addresses, cache, code, None, {})
    calls = tuple(builder._call(i) for i in range(3))
    memory = MemoryMap.of(target)
    found = builder._parameters(calls)
    assert [row.nbytes for row in found] == [8, 8, 24, 24, 24, 24]
    assert [row.address for row in found] == [memory.private(core) + PARAMETERS_BYTE for core in range(6)]
    ranges = {t.core: (t.begin, t.end) for t in made.schedule.tasks if t.subop == 2}
    assert {n: struct.unpack("<II", row.data[16:].tobytes()) for n, row in enumerate(found) if n >= 2} == ranges
    for short, fits in ((0, True), (1, False)):
        monkeypatch.setattr(image, "STACK_BYTES", memory.private_bytes - PARAMETERS_BYTE - 24 + short)
        if fits:
            assert len(builder._parameters(calls)) == 6
            continue
        with pytest.raises(UnsupportedError, match="ranges of 3 sub-operators") as caught:
            builder._parameters(calls)
        assert f"at least {memory.private_bytes + 1} bytes; found {memory.private_bytes}" in str(caught.value)
    assert builder._parameters((None, None, None)) == []


def test_private_memories_that_leave_no_room_are_refused() -> None:
    target = load_target("mini").replaced({"control.private_bytes": 1 << 20, "map.ram_bytes": 12 << 20})
    memory = MemoryMap.of(target)
    assert memory.data_bytes == 0
    with pytest.raises(UnsupportedError, match=r"map\.ram_bytes.*smaller control\.private_bytes") as caught:
        memory.place_data(0)
    assert "-" not in str(caught.value).split("found")[1].split("hint")[0]


@pytest.mark.parametrize("megabytes", [64, 128, 1000, 1020, 1024, 1030, 4096])
def test_the_firmware_keeps_clear_of_the_device_tree(megabytes: int) -> None:
    target = load_target("a3").replaced({"map.ram_bytes": megabytes << 20})
    places = FirmwareMap(target)
    assert places.shared >= target.map.ram_address + target.map.ram_bytes
    last = places.locals[-2][next(iter(places.locals[-2]))]
    assert places.shared < places.state(0) < last < places.scratch < places.end
    top = target.map.ram_address + places.ram_bytes
    tree = min(top, DEVICE_TREE[1]) - (2 << 20)
    assert places.end <= tree or places.shared >= DEVICE_TREE[1]


def test_the_same_bits_behind_the_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the simulator, and on the emulator where there is one."""
    graph = _graph()
    inputs = random_inputs(graph.inputs, 0)
    near = sk.compile(graph, target="a2").run(inputs).outputs["y"]
    monkeypatch.setattr(memory_map.MemoryMap, "data_bytes", 0)
    kernel = sk.compile(graph, target="a2")
    assert kernel._compiled.image.addresses.begin == DEVICE_TREE[1]
    assert np.array_equal(kernel.run(inputs).outputs["y"], near)
    if shutil.which("qemu-system-riscv64"):
        assert np.array_equal(kernel.run(inputs, executor="qemu").outputs["y"], near)


def test_a_large_memory_costs_a_small_program_nothing() -> None:
    """Tens of GiB are mapped, not touched."""
    graph = _graph()
    kernel = sk.compile(graph, target="a3")
    inputs = random_inputs(graph.inputs, 0)
    kernel.run(inputs)
    began = time.process_time()
    kernel.run(inputs)
    assert time.process_time() - began < 2.0
