"""The shared queue of the emulator's firmware (`codegen/firmware/sdma.py`), its code compiled for the host and called
here: every timing against a queue of Python, random doorbells and takings; and the lock, by holding it."""

from __future__ import annotations

import ctypes
import platform
import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from llvmlite import ir
from seeds import seeds

from superkernel.codegen.aicore.scalar import declare
from superkernel.codegen.firmware.base import OPCODES
from superkernel.codegen.firmware.memory import CONFIG, LOG, LOG_RECORD_BYTES, RECORD_BYTES, STATE, TIMINGS
from superkernel.codegen.firmware.sdma import SdmaCode
from superkernel.codegen.host.features import detect_cpu
from superkernel.codegen.host.loader import LoadedCode
from superkernel.codegen.host.lower import compile_ir
from superkernel.target.aicore import AicoreTarget, load_target
from superkernel.target.engines.model import Engine

pytestmark = pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="no code for this machine")
DEPTH, COMMANDS_MAX = 3, 64
BIAS = STATE[f"bias{Engine.SDMA.value}"]


@dataclass(frozen=True)
class Places:
    """What the code asks of a `FirmwareMap`."""

    target: AicoreTarget
    config: int
    sdma_ring: int
    depth: int = DEPTH


class Queue:
    """The code, with memory of its own for what it keeps. `done` are the first operand words of the commands that were
    carried out, with whether it was as a notification."""

    def __init__(self) -> None:
        self.config, self.state, self.ring, self.log, self.trace = (
            np.zeros(nbytes // 8, np.uint64)
            for nbytes in (
                4096,
                4096,
                DEPTH * (RECORD_BYTES + 8),
                COMMANDS_MAX * LOG_RECORD_BYTES,
                8 + 16 * COMMANDS_MAX,
            )
        )
        module = ir.Module(name="sdma")
        for kind, name in enumerate(("fw_execute", "fw_notify")):
            _carry_out(module, name, kind, self.trace.ctypes.data)
        places = Places(load_target("mini"), self.config.ctypes.data, self.ring.ctypes.data)
        SdmaCode(module, places).emit()  # type: ignore[arg-type]
        self.code = LoadedCode([compile_ir(str(module), detect_cpu(""))])
        self.state[STATE["random"] // 8] = 0x9E3779B97F4A7C15

    def call(self, name: str, *arguments: int) -> int:
        kind = ctypes.CFUNCTYPE(ctypes.c_uint64, *[ctypes.c_uint64] * (1 + len(arguments)))
        function: Callable[..., int] = kind(self.code.address(f"fw_{name}"))
        return function(self.state.ctypes.data, *arguments)

    def ring_doorbell(self, number: int, opcode: int, log: int = -1) -> None:
        """A command whose operand words are told apart by its number. `log`: its record, -1 for none."""
        record = np.arange(RECORD_BYTES // 8, dtype=np.uint64) + np.uint64(100 * number)
        record[0] = 0xAB00 | opcode
        self.call("sdma_doorbell", record.ctypes.data, self.log_at(log))

    def log_at(self, number: int) -> int:
        return 0 if number < 0 else int(self.log.ctypes.data) + number * LOG_RECORD_BYTES

    def word(self, name: str) -> int:
        return int(self.config[CONFIG[name] // 8])

    def set_timing(self, timing: str, bias: int = 0) -> None:
        self.state[STATE["timing"] // 8], self.state[BIAS // 8] = TIMINGS.index(timing), bias

    @property
    def done(self) -> list[tuple[int, int]]:
        rows = self.trace[1 : 1 + 2 * int(self.trace[0])].reshape(-1, 2)
        return [(int(word) // 100, int(kind)) for word, kind in rows]


def _carry_out(module: ir.Module, name: str, kind: int, trace: int) -> None:
    """A function in the place of the engine's: adds (the record's last operand word, kind) to the trace."""
    function = declare(module, name, 2)
    b, word = ir.IRBuilder(function.append_basic_block()), ir.IntType(64)

    def pointer(address: Any) -> ir.Value:
        return b.inttoptr(address, ir.PointerType())

    count = b.load(pointer(word(trace)), typ=word)
    at = b.add(word(trace + 8), b.mul(count, word(16)))
    last = b.load(pointer(b.add(function.args[1], word(RECORD_BYTES - 8))), typ=word)
    b.store(last, pointer(at))
    b.store(word(kind), pointer(b.add(at, word(8))))
    b.store(b.add(count, word(1)), pointer(word(trace)))
    b.ret_void()


COPY, NOTIFY = OPCODES["sdma_copy"], OPCODES["notify"]


@pytest.mark.parametrize("seed", seeds(4))
def test_late_commands_leave_in_their_order_one_at_a_time(seed: int) -> None:
    """Where the queue is full a doorbell has the first one carried out, otherwise none; taking from an empty one says
    so. The log has begin and end of each, in the order of all."""
    rng, queue, expected, waiting = random.Random(seed), Queue(), [], deque[tuple[int, int]]()
    queue.set_timing("late")
    for number in range(40):
        if rng.random() < 0.6:
            if len(waiting) == DEPTH:
                expected.append(waiting.popleft())
            opcode = rng.choice((COPY, NOTIFY))
            queue.ring_doorbell(number, opcode, number)
            waiting.append((number, int(opcode == NOTIFY)))
        else:
            assert queue.call("sdma") == (1 if waiting else 0)
            if waiting:
                expected.append(waiting.popleft())
        assert queue.done == expected
        assert queue.word("sdma_put") - queue.word("sdma_taken") == len(waiting)
    assert len(expected) > DEPTH
    log = queue.log.reshape(COMMANDS_MAX, -1)
    stamps = [int(log[number, LOG[word] // 8]) for number, _ in expected for word in ("begin", "end")]
    assert stamps == list(range(1, 1 + len(stamps)))
    assert not any(log[number].any() for number, _ in waiting)


def test_commands_that_run_now_are_done_behind_their_doorbell() -> None:
    queue = Queue()
    queue.set_timing("late")
    queue.ring_doorbell(0, COPY)
    queue.ring_doorbell(1, COPY)
    assert queue.done == []
    queue.set_timing("now")
    queue.ring_doorbell(2, NOTIFY)
    assert queue.done == [(0, 0), (1, 0), (2, 1)]
    assert queue.call("sdma") == 0
    assert not queue.log.any()  # nothing is logged


@pytest.mark.parametrize(("bias", "runs"), [(0, {0}), (256, {DEPTH}), (128, None)])
def test_luck_decides_how_many_run_at_random(bias: int, runs: set[int] | None) -> None:
    """None with a bias of 0, all with one of 256, now more and now less with one between."""
    queue, counts = Queue(), set()
    for _ in range(12):
        queue.set_timing("late")
        while queue.call("sdma"):
            pass
        queue.trace[0] = 0
        for number in range(DEPTH - 1):
            queue.ring_doorbell(number, COPY)
        queue.set_timing("random", bias)
        queue.ring_doorbell(DEPTH - 1, COPY)
        assert [number for number, _ in queue.done] == list(range(len(queue.done)))
        counts.add(len(queue.done))
    assert counts == runs if runs is not None else len(counts) > 1


@pytest.mark.parametrize("operation", ["doorbell", "take"])
def test_nobody_passes_the_lock(operation: str) -> None:
    """While another hart holds it, neither a doorbell nor a taking changes anything; then it goes on, and the lock is
    free behind it."""
    queue = Queue()
    queue.set_timing("late")
    queue.ring_doorbell(0, COPY)
    lock = CONFIG["sdma_lock"] // 8
    assert queue.config[lock] == 0
    queue.config[lock] = 1
    act = (lambda: queue.ring_doorbell(1, COPY)) if operation == "doorbell" else (lambda: queue.call("sdma"))
    hart = threading.Thread(target=act, daemon=True)
    hart.start()
    hart.join(0.05)
    assert hart.is_alive()
    assert (queue.word("sdma_put"), queue.word("sdma_taken"), queue.config[lock]) == (1, 0, 1)
    queue.config[lock] = 0
    hart.join(60)
    assert not hart.is_alive()
    assert (queue.word("sdma_put"), queue.word("sdma_taken")) == ((2, 0) if operation == "doorbell" else (1, 1))
    assert queue.config[lock] == 0


def test_no_command_is_lost_between_two_harts() -> None:
    """Both ring doorbells while a third one takes: each command is carried out once, those of a hart in their order."""
    queue, each = Queue(), COMMANDS_MAX // 4
    queue.set_timing("late")

    def hart(first: int) -> None:
        for number in range(first, first + each):
            queue.ring_doorbell(number, COPY)

    harts = [threading.Thread(target=hart, args=(n * each,)) for n in range(2)]
    for thread in harts:
        thread.start()
    while any(thread.is_alive() for thread in harts):
        queue.call("sdma")
    while queue.call("sdma"):
        pass
    done = [number for number, _ in queue.done]
    assert sorted(done) == list(range(2 * each))
    assert [n for n in done if n < each] == list(range(each))
    assert [n for n in done if n >= each] == list(range(each, 2 * each))
