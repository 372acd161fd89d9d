"""SDMA and the aicpu hart on the emulator: one queue for all harts, whose commands run at once, late or at random; what
follows a wait for them is right in every timing, and wrong without the wait in the late one."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from firmware_bench import needs_qemu

from superkernel.backends.aicore.qemu import firmware_of
from superkernel.backends.aicore.qemu_log import read_log
from superkernel.backends.aicore.qemu_machine import Emulator
from superkernel.backends.aicore.qemu_order import LaunchOrder
from superkernel.backends.aicore.qemu_schedule import EngineSchedule, Fault
from superkernel.codegen.aicore.boot import boot_object
from superkernel.codegen.aicore.linking import Image, LinkLayout, link
from superkernel.codegen.aicore.lower import compile_rv64
from superkernel.codegen.aicore.memory_map import MemoryMap
from superkernel.core.errors import WatchdogError
from superkernel.target.aicore import load_target
from superkernel.target.engines import Command, Engine, command, stores

pytestmark = needs_qemu

MINI = load_target("mini")
MEMORY = MemoryMap.of(MINI)
AICPU, READER = MINI.cores, 2  # the hart that issues, and a vector core that waits
SOURCE, COPY, WORD, FOUND = (MEMORY.data_address + at for at in (0, 4096, 8192, 12288))
BYTES = 1024
BODIES: dict[int, list[Command]] = {
    AICPU: [
        command("sdma_prefetch", address=SOURCE, bytes=BYTES),
        command("sdma_copy", dst=COPY, src=SOURCE, bytes=BYTES),
        command("notify", engine=Engine.SDMA, address=WORD, value=1),
    ],
    READER: [command("wait_memory", address=WORD, value=1)],
}


def text() -> str:
    """Each hart stores its commands; the reader then copies the first word of the copy by a load and a store."""
    lines, blocks = [], []
    for hart, commands in BODIES.items():
        body = [
            f"  store volatile i64 {value}, ptr inttoptr (i64 {address} to ptr)"
            for c in commands
            for address, value in stores(c, MINI)
        ]
        if hart == READER:
            body += [f"  %found = load volatile i64, ptr inttoptr (i64 {COPY} to ptr)",
                     f"  store volatile i64 %found, ptr inttoptr (i64 {FOUND} to ptr)"]  # fmt: skip
        blocks += [f"h{hart}:", *body, "  ret void"]
        lines.append(f"    i64 {hart}, label %h{hart}")
    cases = "\n".join(lines)
    return (
        "define void @sk_main(i64 %hart) {\n  switch i64 %hart, label %none [\n"
        f"{cases}\n  ]\nnone:\n  ret void\n" + "\n".join(blocks) + "\n}\n"
    )


def program() -> Image:
    layout = LinkLayout(
        code_address=MEMORY.code_address, code_end=MEMORY.data_address,
        absolute={"sk_private": MEMORY.private_address}, shared=("sk_start", "sk_trap", "sk_fence"),
    )  # fmt: skip
    return link([boot_object(MINI, harts=MEMORY.harts), compile_rv64(text())], layout)


def run(schedule: EngineSchedule) -> tuple[bytes, int, int, LaunchOrder]:
    """The copy, the word that the reader found in it, the source's first word, the order of events."""
    source = np.random.default_rng(0).bytes(BYTES)
    with Emulator(MINI, program(), firmware_of(MINI), log=True) as machine:
        machine.write(SOURCE, source)
        machine.write(COPY, b"\xee" * BYTES)
        machine.write_word(WORD, 0)
        machine.launch(0, schedule)
        found = machine.read(COPY, BYTES), machine.word(FOUND), machine.word(SOURCE)
        order = LaunchOrder(read_log(machine), MINI)
        assert found[0] == source or schedule.fault
    return *found, order


@pytest.mark.parametrize(
    "schedule",
    [EngineSchedule("now"), EngineSchedule("late"), *(EngineSchedule("random", n) for n in range(4))],
    ids=str,
)
def test_a_copy_is_there_behind_the_wait(schedule: EngineSchedule) -> None:
    copy, found, first, order = run(schedule)
    assert found == first == int.from_bytes(copy[:8], "little")
    shared = [c for c in order.commands if c.engine is Engine.SDMA]
    assert [c.command.name for c in shared] == ["sdma_prefetch", "sdma_copy", "notify"]
    assert all(a.end < b.begin for a, b in pairwise(shared))


def test_late_commands_run_when_somebody_waits_for_them() -> None:
    """Not at the doorbell: the aicpu hart has ended long before in the order of events."""
    _, _, _, order = run(EngineSchedule("late"))
    doorbells = [c for c in order.commands if c.hart == READER]
    copy = next(c for c in order.commands if c.command.name == "sdma_copy")
    assert doorbells[0].begin < copy.begin < doorbells[0].end


def test_without_the_wait_the_late_copy_is_not_there() -> None:
    copy, found, first, _ = run(EngineSchedule("late", fault=Fault(READER, (0,))))
    assert copy == b"\xee" * BYTES
    assert found != first


def test_without_the_notify_the_wait_never_ends() -> None:
    with pytest.raises(WatchdogError, match="waits for the word at"):
        run(EngineSchedule("late", watchdog_s=60.0, fault=Fault(AICPU, (0,))))
