"""What a kernel waits for inside: packed entries, and the function that executes them.

A kernel gets up to four *wait entries* and, for each operand, a mask of those it needs; `sk_wait` executes them where
the kernel first touches the operand. An entry is a kind in its low bits and its operands above: take a cross-core
flag, let one engine wait for another, or let the control unit wait for engines. What is left over stands in front of
the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

from llvmlite import ir

from superkernel.codegen.aicore.emission import KernelCode
from superkernel.codegen.aicore.layer import STORE_FENCE, WAIT_FUNCTION
from superkernel.codegen.aicore.scalar import I64
from superkernel.codegen.aicore.statements import define, store, word
from superkernel.core.errors import InternalError
from superkernel.sync.aicore.plan import AicorePlan, OperandWait, Run
from superkernel.target.aicore import AicoreTarget
from superkernel.target.engines import Engine, command, spec_of
from superkernel.target.engines.encoding import stores
from superkernel.target.engines.layout import DOORBELL, WINDOW_BYTES, layout, word_offset

ENTRY_FLAG, ENTRY_ORDER, ENTRY_DRAIN = 1, 2, 3
ENTRY_BITS, KIND_BITS, ENGINE_BITS, ENTRIES = 15, 2, 4, 4
PEER_BITS = 3  # of the operand `peer`

_Need = tuple[int, int | None]
"""A wait entry, and the event that it takes (None: an order between engines of the core itself)."""


@dataclass(frozen=True)
class Waits:
    """What a kernel is to wait for: `entries`, packed; per operand the `masks` of those it needs; which of them are
    `flags`, that a core without units must take too; and entries that must stand ahead of the kernel."""

    entries: int
    masks: dict[int, int]
    flags: int
    early: tuple[int, ...]


def wait_entries(plan: AicorePlan, step: Run, code: KernelCode, source: Engine) -> Waits:
    """The entries of a call, and of each operand a mask of those it needs. What does not fit is waited for ahead of
    the kernel. Two events may have the same flag: it is waited for once for each."""
    numbers: dict[_Need, int] = {}
    masks: dict[int, int] = {}
    early: list[_Need] = []
    # The plan's fences are for loads by MTE2; what the control unit reads itself waits for the core's own stores.
    own = [OperandWait(o, (), True) for o in sorted(code.scalar) if o in code.waits]
    for wait in (*step.waits, *own):
        needed: list[_Need] = [(ENTRY_FLAG | plan.events[e].flag << KIND_BITS, e) for e in wait.events]
        if wait.fence:
            # A drain: a flag from an engine to the control unit takes far longer (sync.engine_register_ns).
            if wait.operand in code.scalar:
                needed.append((ENTRY_DRAIN | 1 << source.value + KIND_BITS, None))
            else:
                order = ENTRY_ORDER | source.value << KIND_BITS | Engine.MTE2.value << KIND_BITS + ENGINE_BITS
                needed.append((order, None))
        for need in needed:
            number = numbers.get(need, len(numbers))
            if need in early or number == ENTRIES or wait.operand not in code.waits:
                early += [need] if need not in early else []
                continue
            numbers[need] = number
            masks[wait.operand] = masks.get(wait.operand, 0) | 1 << number
    kept = {n: need[0] for need, n in numbers.items() if need not in early}
    for operand in masks:
        masks[operand] &= sum(1 << n for n in kept)
    packed = sum(entry << ENTRY_BITS * n for n, entry in kept.items())
    flags = sum(1 << n for n, entry in kept.items() if entry & (1 << KIND_BITS) - 1 == ENTRY_FLAG)
    return Waits(packed, masks, flags, tuple(entry for entry, _ in early))


def emit_wait(module: ir.Module, target: AicoreTarget) -> None:
    """`sk_wait(mask, entries)`: the entries that the mask names, one after the other."""
    function, b = define(module, WAIT_FUNCTION, 2)
    page = target.map.page_address
    waiting = command("cross_wait", flag=0)
    set_word, wait_word = (
        command(n, engine=Engine.MTE2, peer="mte3", flag=STORE_FENCE) for n in ("set_flag", "wait_flag")
    )
    names = ("head", "test", "named", "flag", "order", "drain", "after", "done")
    head, test, named, flag, order, drain, after, done = (function.append_basic_block(n) for n in names)
    b.branch(head)
    b.position_at_end(head)
    mask, entries = b.phi(I64), b.phi(I64)
    mask.add_incoming(function.args[0], function.entry_basic_block)
    entries.add_incoming(function.args[1], function.entry_basic_block)
    b.cbranch(b.icmp_unsigned("==", mask, word(0)), done, test)
    b.position_at_end(test)
    b.cbranch(b.icmp_unsigned("!=", b.and_(mask, word(1)), word(0)), named, after)
    b.position_at_end(named)
    entry = b.and_(entries, word((1 << ENTRY_BITS) - 1))
    cases = b.switch(b.and_(entry, word((1 << KIND_BITS) - 1)), flag)
    cases.add_case(word(ENTRY_ORDER), order)
    cases.add_case(word(ENTRY_DRAIN), drain)
    b.position_at_end(flag)
    (address, doorbell), shift = stores(waiting, target)[-1], _shift_of("cross_wait", "flag")
    store(b, word(address), b.or_(word(doorbell), b.shl(b.lshr(entry, word(KIND_BITS)), word(shift))))
    b.branch(after)
    b.position_at_end(order)
    engine_mask = word((1 << ENGINE_BITS) - 1)
    source = b.and_(b.lshr(entry, word(KIND_BITS)), engine_mask)
    later = b.and_(b.lshr(entry, word(KIND_BITS + ENGINE_BITS)), engine_mask)
    for engine, peer, made in ((source, later, set_word), (later, source, wait_word)):
        bell = b.add(word(page + word_offset(Engine(0), DOORBELL)), b.mul(engine, word(WINDOW_BYTES)))
        at = _shift_of(made.name, "peer")
        base = stores(made, target)[-1][1] & ~(((1 << PEER_BITS) - 1) << at)
        store(b, bell, b.or_(word(base), b.shl(peer, word(at))))
    b.branch(after)
    b.position_at_end(drain)
    (address, doorbell), shift = stores(command("drain", engines=1), target)[-1], _shift_of("drain", "engines")
    engines = b.lshr(entry, word(KIND_BITS))
    store(b, word(address), b.or_(word(doorbell & ~(1 << shift)), b.shl(engines, word(shift))))
    b.branch(after)
    b.position_at_end(after)
    mask.add_incoming(b.lshr(mask, word(1)), after)
    entries.add_incoming(b.lshr(entries, word(ENTRY_BITS)), after)
    b.branch(head)
    b.position_at_end(done)
    b.ret_void()


def _shift_of(name: str, operand: str) -> int:
    for slot in layout(spec_of(name)):
        if slot.operand == operand and slot.word == DOORBELL:
            return slot.shift
    raise InternalError(f"{name}: {operand} is not in the doorbell")
