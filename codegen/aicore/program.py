"""The program around the kernels: what each type of core runs from start to end, as LLVM IR.

Model: `sk_main(hart)` reads the launch number from the hart's private memory and runs that launch: number k < SINGLE
is the k-th part of the fused kernel (one, unless sub-operators without a kernel or scopes split it), number SINGLE + i
is sub-operator i alone. A launch is one function per core type (`launch`), a straight line of the plan's steps. The
units of each core stand in its private memory, two 32-bit numbers per sub-operator that its type runs; everything else
is a constant in the code, which all cores of a type share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from llvmlite import ir

from superkernel.codegen.aicore.launch import Launch
from superkernel.codegen.aicore.memory_map import LAUNCH_WORD
from superkernel.codegen.aicore.program_spec import SINGLE, ProgramSpec, launch_name, parts_of, ranges_of, single_name
from superkernel.codegen.aicore.scalar import I64, Scalar, declare, load_volatile
from superkernel.codegen.aicore.service_program import emit_services
from superkernel.codegen.aicore.statements import define, word
from superkernel.codegen.aicore.wait_entries import emit_wait
from superkernel.sync.aicore.plan import AICPU, CoreKind, HartKind, Notify, Run
from superkernel.target.aicore import AicoreTarget

USUAL = 1 << 16  # how much more often the fused kernel is launched: the compiler tests for it first


def emit_program(spec: ProgramSpec, target: AicoreTarget) -> str:
    """IR text of the fused launches, the wait function and `sk_main`."""
    module = ir.Module(name="program")
    emit_wait(module, target)
    fused: dict[HartKind, list[ir.Function]] = {}
    singles: dict[HartKind, dict[int, ir.Function]] = {}
    tables = ranges_of(spec.plan, spec.calls)
    for kind in spec.plan.programs:
        parts = parts_of(spec.plan.programs[kind])
        fused[kind] = [
            Launch(module, spec, target, kind, launch_name(number, kind), tables[kind]).emit(
                steps, ends_run=number == len(parts) - 1
            )
            for number, steps in enumerate(parts)
        ]
        singles[kind] = {subop: declare(module, single_name(subop, kind), 2) for subop in tables[kind]}
    launches = [parts_of(spec.plan.programs[kind]) for kind in CoreKind]
    notified = [
        {kind: sum(isinstance(s, Notify) for s in steps) for kind, steps in zip(CoreKind, rows, strict=True)}
        for rows in zip(*launches, strict=True)
    ]
    services = emit_services(module, spec.plan, spec.constants, notified, target)
    _emit_main(module, spec, fused, singles, services)
    return str(module)


def emit_singles(spec: ProgramSpec, target: AicoreTarget) -> str:
    """IR text of the launches of one sub-operator each. A module of their own: stubs change nothing in it."""
    module = ir.Module(name="singles")
    for kind, table in ranges_of(spec.plan, spec.calls).items():
        for subop in table:
            Launch(module, spec, target, kind, single_name(subop, kind), table).emit(
                [Run(subop, barriers=call.barriers if (call := spec.calls[subop]) is not None else 0)]
            )
    return str(module)


def _emit_main(
    module: ir.Module,
    spec: ProgramSpec,
    fused: Mapping[HartKind, Sequence[ir.Function]],
    singles: Mapping[HartKind, Mapping[int, ir.Function]],
    services: Mapping[int, ir.Function],
) -> None:
    """`sk_main(hart)`: the launch that the private memory asks for, for this type of core; behind the cores the hart
    that computes tilings, where the plan has one, and the service hart."""
    function, b = define(module, "sk_main", 1)
    hart = function.args[0]
    base = ir.GlobalVariable(module, ir.IntType(8), "sk_private")
    address = b.ptrtoint(base, I64)
    private = b.add(address, b.mul(hart, word(spec.private_bytes)))
    number = load_volatile(b, Scalar(b, b.add(private, word(8 * LAUNCH_WORD))), I64)
    idle = function.append_basic_block("idle")
    ir.IRBuilder(idle).ret_void()
    cube, other, vector = (function.append_basic_block(n) for n in ("cube", "other", "vector"))
    b.cbranch(b.icmp_unsigned("<", hart, word(spec.plan.cube_cores)), cube, other)
    b.position_at_end(other)
    service = function.append_basic_block("service") if services else idle
    if services:
        _emit_cases(ir.IRBuilder(service), number, idle, services.items(), [private])
    beyond = function.append_basic_block("beyond")
    b.cbranch(b.icmp_unsigned("<", hart, word(spec.plan.total)), vector, beyond)
    blocks: dict[HartKind, ir.Block] = {CoreKind.CUBE: cube, CoreKind.VECTOR: vector}
    b.position_at_end(beyond)
    if AICPU in fused:
        tiling, beyond = (function.append_basic_block(n) for n in ("tiling", "behind"))
        b.cbranch(b.icmp_unsigned("==", hart, word(spec.plan.total)), tiling, beyond)
        blocks[AICPU] = tiling
        b.position_at_end(beyond)
    b.cbranch(b.icmp_unsigned("==", hart, word(spec.plan.harts)), service, idle)
    for kind in fused:
        b.position_at_end(blocks[kind])
        first = spec.plan.cores(kind).start
        core = b.sub(hart, word(first)) if first else hart
        numbered = [*enumerate(fused[kind]), *((SINGLE + i, f) for i, f in singles[kind].items())]
        cases = _emit_cases(b, number, idle, numbered, [core, private])
        cases.set_weights([1, *(USUAL if value < SINGLE else 1 for value, _ in numbered)])


def _emit_cases(
    b: ir.IRBuilder, number: ir.Value, idle: ir.Block, launches: Iterable[tuple[int, ir.Function]],
    arguments: Sequence[ir.Value],
) -> ir.instructions.SwitchInstr:  # fmt: skip
    """Calls the launch of a number, and returns."""
    cases = b.switch(number, idle)
    for value, launch in launches:
        here = b.function.append_basic_block(launch.name)
        cases.add_case(word(value), here)
        inner = ir.IRBuilder(here)
        inner.call(launch, arguments, tail=True)
        inner.ret_void()
    return cases
