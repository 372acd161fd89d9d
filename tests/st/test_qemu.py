"""Accelerator programs on the emulator: the simulator's bits from the same bytes, whenever engine commands are carried
out; and that a forgotten flag is noticed.

The emulator's firmware and the simulator share nothing but the words of the command table. Commands that may differ in
their last place (exp, ln) are allowed to: `superkernel.analysis.crosscheck` says how far.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
from firmware_bench import needs_qemu
from random_models import random_graph
from seeds import seeds

import superkernel as sk
from superkernel import cli
from superkernel.analysis.crosscheck import crosscheck, schedules
from superkernel.backends.aicore import qemu
from superkernel.backends.aicore.kernel import AicoreKernel
from superkernel.backends.aicore.qemu_counts import plugin_path
from superkernel.backends.aicore.qemu_machine import Emulator
from superkernel.backends.aicore.qemu_process import PROGRAM, find_qemu
from superkernel.backends.aicore.qemu_schedule import EngineSchedule, Fault
from superkernel.codegen.aicore.memory_map import MARKER_WORD
from superkernel.core.errors import InputError, MachineError, SimulationError, UnsupportedError, WatchdogError
from superkernel.frontends.json_form import save_json
from superkernel.ir.graph import Graph
from superkernel.reference.random_inputs import random_inputs
from superkernel.target.aicore import load_target
from superkernel.target.engines import Engine

pytestmark = needs_qemu

RUNS = schedules(("now", "late", "random"), 3, 60.0)
EXACT: dict[str, Any] = {"precision": "f32", "fallback": "allow"}
RING_FLAGS = 3  # flags below are fences between kernels, which small shapes may not need
GraphMaker = Callable[[sk.GraphBuilder], Any]


def agree(graph: Graph, inputs: dict[str, Any] | None = None, **options: Any) -> None:
    """Everything agrees: the table is the message where it does not."""
    result = crosscheck(graph, inputs or random_inputs(graph.inputs, 0), runs=RUNS, options=options)
    assert len(result.rows) == 2 + len(RUNS)
    assert result.ok, result.text()
    emulated = result.rows[2:]
    counted = plugin_path() is not None
    assert counted or os.environ.get("SK_REQUIRE_QEMU") != "1"
    assert all(row.counts is (True if counted else None) for row in emulated), result.text()
    assert all(row.events is not None for row in emulated)


def weight(b: sk.GraphBuilder, *shape: int) -> Any:
    return b.constant(np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32) * np.float32(0.3))


FAMILIES: dict[str, GraphMaker] = {
    "pointwise": lambda b: b.relu(b.input("x", (7, 100)) * 2.0 + b.input("y", (7, 100))),
    "functions": lambda b: b.tanh(b.exp(b.input("x", (5, 40)))),
    "movement": lambda b: b.input("x", (3, 17, 9)).transpose(2, 0, 1),
    "concat": lambda b: b.concat(b.input("x", (3, 20)), b.input("y", (3, 13)), axis=1),
    "reduce": lambda b: b.reduce_sum(b.input("x", (6, 50)), axes=[1]),
    "softmax": lambda b: b.softmax(b.input("x", (6, 50)), axis=1),
    "layer_norm": lambda b: b.layer_norm(b.input("x", (6, 64)), weight(b, 64), weight(b, 64), epsilon=1e-5),
    "matmul": lambda b: b.input("x", (20, 48)) @ weight(b, 48, 40),
    "batched": lambda b: b.input("x", (3, 20, 33)) @ b.input("y", (3, 33, 17)),
    "gather": lambda b: b.gather(b.input("x", (9, 20)), b.constant(np.array([1, 8, 3])), axis=0),
    "pool": lambda b: b.max_pool(b.input("x", (1, 16, 9, 9)), kernel=[3, 3], strides=[2, 2]),
    "conv": lambda b: b.relu(b.conv(b.input("x", (1, 8, 9, 9)), weight(b, 16, 8, 3, 3), pads=[1, 1, 1, 1])),
    "argmax": lambda b: b.argmax(b.input("x", (6, 33)), axis=1),
    "cumsum": lambda b: b.cumsum(b.input("x", (6, 33)), axis=1),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_of_kernels(name: str) -> None:
    b = sk.GraphBuilder(name)
    b.output(FAMILIES[name](b), "z")
    agree(b.graph(), precision="f32" if name == "argmax" else "auto")


def test_encoder_layer() -> None:
    agree(models.transformer(layers=1, tokens=16, width=64, heads=4))


def test_decoder_step_with_states() -> None:
    agree(models.decode_step(layers=2), {"token": np.array([3]), "position": np.array([5])})


def test_chain_of_convolutions() -> None:
    b = sk.GraphBuilder("chain")
    x = b.input("x", (1, 3, 16, 16))
    for n, (into, out) in enumerate(((3, 16), (16, 32), (32, 16))):
        x = b.relu(b.conv(x, weight(b, out, into, 3, 3), pads=[1, 1, 1, 1], strides=[1 + n % 2] * 2))
    b.output(b.global_avg_pool(x), "y")
    agree(b.graph())


def test_a_launch_in_two_parts() -> None:
    b = sk.GraphBuilder("fallback")
    x = b.input("x", (1, 16, 8, 8))
    b.output(b.relu(b.lrn(b.relu(x), size=3)), "y")
    with pytest.warns(sk.FallbackWarning):
        agree(b.graph())


@pytest.mark.parametrize("seed", seeds([0, 1, 4, 7, 11, 19]))
def test_random_graphs(seed: int) -> None:
    agree(random_graph(random.Random(seed)), **EXACT)


def test_four_and_twenty_harts() -> None:
    """More harts than CPUs: waiting harts must sleep."""
    many = {"device.groups": 8, "device.cube_cores": 8, "device.vector_cores": 16, "device.aicpu_harts": 0}
    target = load_target("mini").replaced(many)
    graph = models.transformer(layers=1, tokens=16, width=64, heads=4)
    inputs = random_inputs(graph.inputs, 0)
    kernel = sk.compile(graph, target=target)
    expected = kernel.run(inputs).outputs["y"]
    for schedule in RUNS[:3]:
        outputs, run = kernel.emulate(inputs, schedule)
        assert len(run.commands) == 24
        assert np.abs(outputs["y"].astype(np.float64) - expected).max() <= 1e-3
    assert sum(n > 0 for n in run.commands) > 12


def encoder() -> tuple[Any, dict[str, Any]]:
    graph = models.transformer(layers=1, tokens=16, width=64, heads=4)
    return sk.compile(graph, target="mini"), random_inputs(graph.inputs, 0)


def outcome(kernel: Any, inputs: dict[str, Any], expected: bytes, schedule: EngineSchedule) -> str:
    """What becomes of a run: "unnoticed", "numbers", "watchdog", or what the firmware or the end found."""
    try:
        outputs, _ = kernel.emulate(inputs, schedule)
    except WatchdogError:
        return "watchdog"
    except SimulationError as error:
        return error.kind
    return "unnoticed" if outputs["y"].tobytes() == expected else "numbers"


def test_flags_that_announce_data_are_all_needed() -> None:
    """A flag between two engines forgotten altogether, sets and waits: each flag that says that data is there is
    noticed when commands run as late as legal, whoever waits."""
    kernel, inputs = encoder()
    outputs, run = kernel.emulate(inputs, EngineSchedule("late"))
    expected = outputs["y"].tobytes()
    ways = {(Engine.MTE2, Engine.MTE1), (Engine.MTE1, Engine.M), (Engine.M, Engine.FIX), (Engine.MTE2, Engine.V),
            (Engine.V, Engine.MTE3)}  # fmt: skip
    missed = []
    for core in (0, 2):
        for setter, waiter, flag in run.flags[core]:
            if (setter, waiter) in ways and flag >= RING_FLAGS:
                schedule = EngineSchedule("late", watchdog_s=60.0, fault=Fault(core, forget=(setter, waiter, flag)))
                if outcome(kernel, inputs, expected, schedule) == "unnoticed":
                    missed.append((core, setter.title, waiter.title, flag))
    assert len(missed) <= 1, missed  # a flag may be implied by another one of the same pair of engines


@pytest.mark.serial
def test_a_small_run_is_well_under_a_second() -> None:
    """From the call to the outputs: the start and the end of the emulator, and next to no work."""
    kernel = sk.compile(models.mlp(), target="mini")
    inputs = random_inputs(kernel.inputs, 0)
    kernel.emulate(inputs)
    times_s = []
    for _ in range(5):
        begun = time.perf_counter()
        kernel.emulate(inputs)
        times_s.append(time.perf_counter() - begun)
    assert min(times_s) < 0.7


def test_deadlocks_and_wrong_programs_are_errors_not_hangs() -> None:
    kernel, inputs = encoder()
    kinds = {
        outcome(kernel, inputs, b"", EngineSchedule("late", watchdog_s=60.0, fault=Fault(2, (n,)))) for n in range(8)
    }
    assert kinds & {"deadlock", "leftover_flag", "undrained", "flag_overflow"}


def test_progress_markers_are_the_simulators() -> None:
    kernel, inputs = encoder()
    program = kernel._executable
    with Emulator(program.target, program.image.image, qemu.firmware_of(program.target)) as machine:
        program.fill(machine, [*inputs.values(), np.zeros((1, 16, 64), np.float32)])
        machine.launch()
        memory = machine.places.memory
        markers = {machine.word(memory.private(core) + 8 * MARKER_WORD) for core in range(program.target.cores)}
    assert markers == {4 * len(program.schedule.subops) + 3}


# ---- the entry points


def test_executor_of_run_and_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph = models.mlp()
    kernel = sk.compile(graph, target="mini")
    inputs = random_inputs(graph.inputs, 3)
    assert np.array_equal(kernel.run(inputs, executor="qemu").outputs["y"], kernel.run(inputs).outputs["y"])
    assert kernel.executors == ("sim", "qemu", "reference")
    with pytest.raises(UnsupportedError, match="unknown executor"):
        sk.compile(graph).run(inputs, executor="qemu")
    with pytest.raises(UnsupportedError, match="only an accelerator"):
        sk.compile(graph).emulate(inputs)


def test_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "m.json"
    save_json(models.mlp(), model)
    status = cli.main(["crosscheck", str(model), "--seeds", "1", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert status == 0, result
    assert [row["timing"] for row in result["runs"]] == ["", "", "now", "late", "random:0"]
    assert all(row["bits"] for row in result["runs"][2:])
    assert cli.main(["crosscheck", str(model), "--timings", "soon"]) == 2
    assert cli.main(["crosscheck", str(model), "--mutants", "-1"]) == 2


def test_memory_is_shared_by_none_of_a_stream_s_numbers() -> None:
    """The number of a stdout that is closed goes to the next file that is opened; the emulator has one of its own."""
    code = """if True:
        import os
        from superkernel.backends.aicore.qemu_process import shared_memory
        os.close(1)
        file, memory = shared_memory("memory", 4096)
        os.pwrite(file, b"here", 0)
        os.write(2, b"%d %s" % (file, memory[:4]))
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120, check=True)
    file, read = done.stderr.split()
    assert (int(file) > 2, read) == (True, b"here")


def test_a_missing_emulator_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    find_qemu.cache_clear()
    try:
        with pytest.raises(MachineError, match="qemu-system-misc"):
            sk.compile(models.mlp(), target="mini").run(random_inputs(models.mlp().inputs, 0), executor="qemu")
    finally:
        monkeypatch.undo()
        find_qemu.cache_clear()


def test_an_old_emulator_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    old = tmp_path / PROGRAM
    old.write_text("#!/bin/sh\necho 'QEMU emulator version 4.2.1'\n")
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    find_qemu.cache_clear()
    try:
        with pytest.raises(MachineError, match=r"too old; expected 7.0 or newer"):
            find_qemu()
    finally:
        find_qemu.cache_clear()


def test_impossible_schedules_are_refused() -> None:
    for wrong in ({"timing": "soon"}, {"watchdog_s": 0.0}, {"seed": -1}):
        with pytest.raises(InputError):
            EngineSchedule(**wrong)
    moved = load_target("mini").replaced({"map.page_address": 0x0900_0000})
    with pytest.raises(UnsupportedError, match="page_address"):
        qemu.firmware_of(moved)


def test_under_a_manifest_the_firmware_holds_no_other_commands(tmp_path: Path) -> None:
    """The same bits as on the simulator; what issues another command fails by it."""
    b = sk.GraphBuilder("softmax")
    b.output(b.softmax(b.input("x", (4, 32)), axis=-1), "y")
    file = tmp_path / "m.json"
    sk.compile(b.graph(), target="mini").manifest().save(file)
    kernel = sk.compile(b.graph(), target="mini", options={"manifest": file})
    assert isinstance(kernel, AicoreKernel)
    x = np.random.default_rng(0).standard_normal((4, 32), dtype=np.float32)
    outputs, run = kernel.emulate({"x": x})
    assert sum(run.commands) > 0
    np.testing.assert_allclose(outputs["y"], kernel.run({"x": x}).outputs["y"], rtol=2e-3)
    emulator, io = kernel.emulation({"x": x})
    issued = frozenset[str]().union(*kernel.commands().values())
    small, full = (qemu.firmware_of(load_target("mini"), held).image.code_bytes for held in (issued, None))
    assert emulator.firmware().image.code_bytes == small < full
    emulator.firmware = partial(qemu.firmware_of, load_target("mini"), issued - {"v_sum"})
    with pytest.raises(SimulationError, match="doorbell 0x") as caught:
        emulator.run(io)
    assert "command" in caught.value.kind
