"""How long a kernel's commands take, without the simulator of the device: for tests of kernels' pipelines.

Model: each engine works off its queue in order; a command is busy for start-up + beats; flags make one queue wait for
another. The control unit takes `CONTROL_CYCLES` per stored word and stands still when a queue is full. Global memory
answers at its peak rate, always.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

from aicore_check import CompiledKernel, _Core

from superkernel.ir.body import Body
from superkernel.scheduler.families.aicore.base import AicoreTiling, CoreRole
from superkernel.target.aicore import AicoreTarget
from superkernel.target.engines import Command, Engine
from superkernel.target.engines.formula import evaluate

CONTROL_CYCLES = 3  # per word: computing it and storing it


class _Idle:
    """Carries nothing out."""

    def execute(self, *_: object) -> None:
        return None


def recorded(
    kernel: str, body: Body, tiling: AicoreTiling, target: AicoreTarget, begin: int, end: int
) -> dict[CoreRole, list[Any]]:
    """The commands of a range, by role, without data."""
    compiled = CompiledKernel(kernel, body, tiling, target)
    place = target.map.ram_address
    made = _Core.__init__

    def idle(core: _Core, *arguments: Any) -> None:
        made(core, *arguments)
        core.bench = _Idle()  # type: ignore[assignment]

    addresses = [place + (i << 30) for i in range(len(body.operands))]
    _Core.__init__ = idle  # type: ignore[assignment, method-assign]
    try:
        compiled.run(bytearray(), addresses, place, begin, end)
    finally:
        _Core.__init__ = made  # type: ignore[method-assign]
    return compiled.commands


def busy_cycles(command: Command, target: AicoreTarget) -> int:
    """Cycles an engine is busy with a command when nothing is in its way: start-up + beats."""
    spec, numbers = command.spec, command.numbers
    return sum(evaluate(text, spec, numbers, command.types, target) for text in (spec.start_up, spec.beats))


def engine_busy(commands: Sequence[Any], target: AicoreTarget) -> dict[Engine, int]:
    """Busy cycles of each engine."""
    found: dict[Engine, int] = defaultdict(int)
    for command in commands:
        if command.name not in ("set_flag", "wait_flag", "cross_set", "cross_wait"):
            found[command.engine] += busy_cycles(command, target)
    return dict(found)


def elapsed(commands: Sequence[Any], target: AicoreTarget) -> int:
    """Cycles from the first command until the last engine is done."""
    control, depth = 0, target.queue.depth_commands
    free: dict[Engine, int] = defaultdict(int)
    queues: dict[Engine, deque[int]] = defaultdict(deque)
    flags: dict[tuple[str, str, int], deque[int]] = defaultdict(deque)
    for command in commands:
        engine, queue = command.engine, queues[command.engine]
        is_flag = command.name in ("set_flag", "wait_flag")
        control += CONTROL_CYCLES * (2 if is_flag else 1 + len(command.spec.operands) // 2)
        if engine is Engine.CONTROL:
            continue
        if len(queue) == depth:
            control = max(control, queue.popleft())
        start = max(control, free[engine])
        if is_flag:
            peer, number = str(command.operand("peer")), int(command.operand("flag"))
            if command.name == "set_flag":
                flags[engine.title, peer, number].append(start + target.queue.flag_cycles)
            else:
                found = flags[peer, engine.title, number]  # empty: a credit, set when the kernel began
                start = max(start, found.popleft() if found else 0)
            free[engine] = start
        elif command.name == "cross_set":
            free[engine] = start
        else:
            free[engine] = start + busy_cycles(command, target)
        queue.append(start)
    return max(free.values())
