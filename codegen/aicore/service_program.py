"""The service hart's part of a program, as LLVM IR: its launches, and the cores' notifications.

Model: the first `aicpu` hart that the plan leaves runs `sk_service<k>(private)` in launch k: `wait_memory` on the words
that the cores count up, SDMA commands, and at the end a notify queued on SDMA itself that the hart waits for, so that
no command is under way when the launch ends. The words (`sk_words`, a line of L2 each) are never set back: the hart and
each notifying core keep in their private memory how far theirs have come, so that every launch finds them where the
last one left them.

Private memory, from WORDS_WORD on: of a core one word, its notifications so far; of the service hart three, those of
the cube type, the vector type, and its own of SDMA, as of the launch's begin.
"""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from superkernel.codegen.aicore.memory_map import WORDS_WORD
from superkernel.codegen.aicore.scalar import I64, Scalar, load_volatile
from superkernel.codegen.aicore.statements import define, issue, line_address, store, word
from superkernel.sync.aicore.plan import AicorePlan, AwaitCount, CoreKind, Prefetch
from superkernel.target.aicore import AicoreTarget
from superkernel.target.engines import Engine, command

WORDS = "sk_words"
_NUMBER = {CoreKind.CUBE: 0, CoreKind.VECTOR: 1}
_STORES = {CoreKind.CUBE: Engine.FIX, CoreKind.VECTOR: Engine.MTE3}
_SDMA = 2  # the word that SDMA notifies


def service_name(launch: int) -> str:
    """The service hart's function of a launch."""
    return f"sk_service{launch}"


def emit_services(
    module: ir.Module, plan: AicorePlan, constants: int, notified: Sequence[dict[CoreKind, int]], target: AicoreTarget
) -> dict[int, ir.Function]:
    """The functions of the launches that have a service program. `constants`: their address; `notified`: by launch, how
    often the types notify."""
    found = {}
    for launch, steps in enumerate(plan.service):
        if steps:
            function, b = define(module, service_name(launch), 1)
            _emit_service(module, function, b, steps, constants, notified[launch], target)
            found[launch] = function
    return found


def emit_notify(
    module: ir.Module, b: ir.IRBuilder, kind: CoreKind, core: ir.Value, private: ir.Value, target: AicoreTarget
) -> None:
    """The first core of a type counts the type's word up, behind its stores. `core`: its number within the type."""
    with b.if_then(b.icmp_unsigned("==", core, word(0))):
        at = b.add(private, word(8 * WORDS_WORD))
        value = b.add(load_volatile(b, Scalar(b, at), I64), word(1))
        store(b, at, value)
        made = command("notify", engine=_STORES[kind], address=0, value=0, mode="store")
        issue(b, target, made, {"address": _address(module, b, _NUMBER[kind]), "value": value})


def _emit_service(
    module: ir.Module, function: ir.Function, b: ir.IRBuilder, steps: Sequence[object], constants: int,
    notified: dict[CoreKind, int], target: AicoreTarget,
) -> None:  # fmt: skip
    """One launch of the service hart."""
    (private,) = function.args

    def place(number: int) -> ir.Value:
        return b.add(private, word(8 * (WORDS_WORD + number)))

    def wait(number: int, value: ir.Value) -> None:
        made = command("wait_memory", address=0, value=0)
        issue(b, target, made, {"address": _address(module, b, number), "value": value})

    used = [kind for kind in CoreKind if notified[kind]]
    before = {_NUMBER[kind]: load_volatile(b, Scalar(b, place(_NUMBER[kind])), I64) for kind in used}
    for step in steps:
        if isinstance(step, AwaitCount):
            wait(_NUMBER[step.kind], b.add(before[_NUMBER[step.kind]], word(step.count)))
        elif isinstance(step, Prefetch):
            issue(b, target, command("sdma_prefetch", address=constants + step.offset, bytes=step.nbytes))
    done = b.add(load_volatile(b, Scalar(b, place(_SDMA)), I64), word(1))
    made = command("notify", engine=Engine.SDMA, address=0, value=0, mode="store")
    issue(b, target, made, {"address": _address(module, b, _SDMA), "value": done})
    wait(_SDMA, done)
    store(b, place(_SDMA), done)
    for kind in used:
        came = b.add(before[_NUMBER[kind]], word(notified[kind]))
        store(b, place(_NUMBER[kind]), came)
    b.ret_void()


def _address(module: ir.Module, b: ir.IRBuilder, number: int) -> ir.Value:
    """The address of a word."""
    return line_address(module, b, WORDS, 3, number)
