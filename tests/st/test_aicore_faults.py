"""Faults put one by one into real fused programs: each must end in a named diagnosis of the simulator, in bounded time.

Two kinds. Plans: every single step of the plans of random models is taken out, every event, and some steps are moved or
doubled; the verifier must refuse each of these plans, and the simulator, which gets the program all the same, must
catch it too. Programs: kernels, flags, data and addresses are made faulty where no verifier looks.

A fault that changes nothing would prove nothing: for each kind that may hit a place where it does no harm the share of
harmless ones is bounded, and a harmless one must give the outputs bit by bit.
"""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest
import soak
from aicore_fault_injectors import (
    Faulty,
    bad_marker,
    drop_both,
    empty,
    faulty,
    forward_flags,
    halve,
    in_launch,
    leave_out,
    misalign,
    on_commands,
    on_flags,
    outside,
    overlap,
    ring_sets,
    ring_waits,
    shift_store,
    undefined,
)
from aicore_systems import Workbench, alone_model, fused_model, random_model

from superkernel.backends.aicore.executable import SimExecutable
from superkernel.codegen.aicore.image import AicoreImageBuilder
from superkernel.codegen.aicore.launch import Launch
from superkernel.codegen.aicore.memory_map import PARAMETERS_BYTE, MemoryMap
from superkernel.core.errors import SimulationError
from superkernel.sim.device import Device
from superkernel.sync.aicore.plan import (
    AicorePlan,
    AicpuKind,
    Await,
    CoreKind,
    Mode,
    OperandWait,
    Run,
    Signal,
    Step,
    awaited,
)
from superkernel.sync.aicore.verify import check_aicore_plan
from superkernel.target.engines import Engine

MODELS = range(10)
DRAWN = [-1, *soak.drawn(MODELS, 4)]
"""Models of which every step is taken out: one of all kinds of kernels, others that the run's seed draws."""
HARMLESS = "harmless"
SEEDS = range(6)
FUSED, CHAIN, PRODUCT = -1, -2, -3
_MODELS = {FUSED: fused_model, CHAIN: lambda: alone_model(False), PRODUCT: lambda: alone_model(True)}
_benches: dict[int, Workbench] = {}


def bench_of(seed: int) -> Workbench:
    """A random model, or one of those with negative numbers. In CHAIN and PRODUCT, one sub-operator runs in one turn:
    nothing in local memory is old. Work is cut evenly: where groups compute what they read, each for itself, there are
    no neighbours' units to take, and fewer signals to leave out."""
    if seed not in _benches:
        _benches[seed] = Workbench.of(random_model(seed) if seed >= 0 else _MODELS[seed](), locality="off")
    return _benches[seed]


def outcome(bench: Workbench, executable: SimExecutable, **options: Any) -> str:
    """The kind of the failure; HARMLESS where there is none and the outputs are right. A wrong answer fails here."""
    try:
        run = bench.run(executable, **options)
    except SimulationError as error:
        return error.kind
    assert bench.results(run) == bench.healthy, "a wrong answer that nobody noticed"
    return HARMLESS


# ---- plans


@dataclass(frozen=True)
class Fault:
    """A plan with a fault in it."""

    name: str
    where: str
    plan: AicorePlan
    needs_others: bool = False  # an event that signals of one type alone do not complete


def _edited(plan: AicorePlan, kind: CoreKind | AicpuKind, at: int, *steps: Step) -> AicorePlan:
    steps_of = plan.programs[kind]
    return replace(plan, programs={**plan.programs, kind: (*steps_of[:at], *steps, *steps_of[at + 1 :])})


def removed_steps(plan: AicorePlan) -> Iterator[Fault]:
    """Every single thing that a step does, left out."""
    for kind, steps in plan.programs.items():
        for at, step in enumerate(steps):
            where = f"{kind.value} {at}: {step}"
            if isinstance(step, Signal):
                yield Fault("signal", where, _edited(plan, kind, at))
            elif isinstance(step, Await):
                yield Fault("await", where, _edited(plan, kind, at))
            elif isinstance(step, Run):
                events = dict.fromkeys(e for wait in step.waits for e in wait.events)
                yield Fault("run", where, _edited(plan, kind, at, *(Await(e, step.subop) for e in events)))
                for event in events:
                    waits = tuple(replace(w, events=tuple(e for e in w.events if e != event)) for w in step.waits)
                    yield Fault("wait", f"{where} without {event}", _edited(plan, kind, at, replace(step, waits=waits)))
                for number, wait in enumerate(step.waits):
                    if wait.fence:
                        waits = (*step.waits[:number], replace(wait, fence=False), *step.waits[number + 1 :])
                        yield Fault("fence", where, _edited(plan, kind, at, replace(step, waits=waits)))


def removed_events(plan: AicorePlan) -> Iterator[Fault]:
    """Every event, neither signalled nor awaited: no flag is left over, nobody waits in vain."""
    for gone in plan.events:
        number = {e.index: i for i, e in enumerate(e for e in plan.events if e is not gone)}

        def kept(step: Step, gone: int = gone.index, number: dict[int, int] = number) -> list[Step]:
            if isinstance(step, (Signal, Await)):
                return [] if step.event == gone else [replace(step, event=number[step.event])]
            if isinstance(step, Run):
                waits = tuple(
                    OperandWait(w.operand, tuple(number[e] for e in w.events if e != gone), w.fence) for w in step.waits
                )
                return [replace(step, waits=waits)]
            return [step]

        programs = {kind: tuple(n for step in steps for n in kept(step)) for kind, steps in plan.programs.items()}
        events = tuple(replace(e, index=number[e.index]) for e in plan.events if e is not gone)
        yield Fault("event", str(gone), replace(plan, programs=programs, events=events, boundaries=()))


def altered_steps(plan: AicorePlan) -> Iterator[Fault]:
    """Steps doubled, moved, or meaning another flag."""
    for kind, steps in plan.programs.items():
        for at, step in enumerate(steps):
            where = f"{kind.value} {at}: {step}"
            if isinstance(step, Signal):
                yield Fault("doubled signal", where, _edited(plan, kind, at, step, step))
                flood = _edited(plan, kind, at, *[step] * (plan.flag_count_max + 2))
                yield Fault("flood of signals", where, flood, plan.events[step.event].mode is Mode.ALL)
                run = max((i for i in range(at) if isinstance(steps[i], Run)), default=-1)
                if run >= 0:
                    early = _edited(plan, kind, at)
                    yield Fault("early signal", where, _edited(early, kind, run, step, steps[run]))
            elif isinstance(step, Run) and step.waits:
                events = dict.fromkeys(e for wait in step.waits for e in wait.events)
                late = (replace(step, waits=()), *(Await(e, step.subop) for e in events))
                if events:
                    yield Fault("late wait", where, _edited(plan, kind, at, *late))  # type: ignore[arg-type]
                for event in events:
                    yield Fault("doubled wait", where, _edited(plan, kind, at, Await(event, step.subop), step))


def _units_of(bench: Workbench) -> dict[int, int]:
    compiled = bench.compiled
    return {s.index: t.units for s, t in zip(compiled.schedule.subops, compiled.schedule.tilings, strict=True)}


def _caught(bench: Workbench, fault: Fault) -> str:
    """The kind of failure of the simulator; the verifier has refused the plan."""
    wrong, certificate = check_aicore_plan(fault.plan, _units_of(bench))
    assert wrong, f"{fault.name}, {fault.where}: the verifier accepts it"
    assert certificate is None
    return outcome(bench, bench.build(fault.plan))


@pytest.mark.parametrize("seed", DRAWN)
def test_every_step_is_needed(seed: int) -> None:
    """Verifier and simulator both catch every single step that is missing, and every event; but for an event whose
    work the channels of a MIX kernel between its signal and its await happen to do as well."""
    bench = bench_of(seed)
    plan = bench.compiled.plan
    faults = [*removed_steps(plan), *removed_events(plan)]
    found: Counter[tuple[str, str]] = Counter()
    for fault in faults:
        kind = _caught(bench, fault)
        if kind == HARMLESS:
            assert fault.name == "event", f"{fault.name}, {fault.where}: the simulator did not notice"
            assert _has_mix_between(bench, plan, fault), f"{fault.where}: the simulator did not notice"
        found[fault.name, kind] += 1
    assert sum(n for (_, kind), n in found.items() if kind == HARMLESS) <= 1 + len(faults) // 20
    assert {kind for name, kind in found if name == "signal"} <= {"deadlock"}
    assert {kind for name, kind in found if name == "run"} <= {
        "unwritten_global_read", "unfinished", "deadlock", "race", "leftover_flag",
    }  # fmt: skip
    races = {"race", "unwritten_global_read"}
    assert {kind for name, kind in found if name in ("event", "fence")} <= {*races, HARMLESS}
    assert {kind for name, kind in found if name in ("await", "wait")} <= {*races, "leftover_flag"}
    assert sum(found.values()) == len(faults) > 0
    print(
        f"model {seed}: {len(faults)} faults, " + ", ".join(f"{n} -> {k}: {c}" for (n, k), c in sorted(found.items()))
    )


def _has_mix_between(bench: Workbench, plan: AicorePlan, fault: Fault) -> bool:
    """Whether a MIX kernel runs behind the event's signal and not behind its last await."""
    event = next(e for e in plan.events if str(e) == fault.where)
    taken = max(
        s.subop for p in plan.programs.values() for s in p if isinstance(s, (Await, Run)) and _takes(s, event.index)
    )
    tilings = bench.compiled.schedule.tilings[event.after + 1 : taken + 1]
    return any(t.kernel_type.is_mix for t in tilings)  # type: ignore[attr-defined]


def _takes(step: Step, event: int) -> bool:
    return event in awaited(step)


@pytest.mark.parametrize("seed", DRAWN)
def test_altered_steps(seed: int) -> None:
    bench = bench_of(seed)
    allowed = {
        "doubled signal": {"leftover_flag", "race", "unwritten_global_read", "cross_overflow"},
        "flood of signals": {"cross_overflow", "race", "unwritten_global_read"},
        "early signal": {"race", "unwritten_global_read"},
        "late wait": {"race", "unwritten_global_read"},
        "doubled wait": {"deadlock"},
    }
    mixed = any(t.kernel_type.is_mix for t in bench.compiled.schedule.tilings)  # type: ignore[attr-defined]
    for fault in altered_steps(bench.compiled.plan):
        wrong, _ = check_aicore_plan(fault.plan, _units_of(bench))
        kind = outcome(bench, bench.build(fault.plan))
        also = {"leftover_flag"} if fault.name == "flood of signals" and fault.needs_others else set()
        if not wrong or mixed:  # the step may stand where it was moved to, or channels keep the order too
            also.add(HARMLESS)
        assert kind in allowed[fault.name] | also, (fault.name, fault.where, kind)
        assert wrong or kind == HARMLESS, (fault.name, fault.where, kind)


def test_a_narrower_mode() -> None:
    """Signals for the group where a whole type must meet: the type waits for ever. Where the other type waits for an
    event of the same flag, it takes the signal for that one, and the race is met first."""
    tried = 0
    for seed in (-1, *MODELS):
        bench = bench_of(seed)
        plan = bench.compiled.plan
        for event in plan.events:
            if event.mode is Mode.TYPE:
                events = tuple(replace(e, mode=Mode.GROUP) if e is event else e for e in plan.events)
                taken = any(e.flag == event.flag and e.receivers == events[event.index].receivers for e in plan.events)
                told = {"deadlock", "race"} if taken else {"deadlock"}
                assert outcome(bench, bench.build(replace(plan, events=events))) in told
                tried += 1
    assert tried >= 5


# ---- programs


LOADS = ("gm_to_ub", "gm_to_l1")
STORES = ("ub_to_gm", "ub_to_gm_2d", "l0c_to_gm")
VECTOR = ("v_adds", "v_muls", "v_exp", "v_cast")
ORDER = frozenset({"race", "unwritten_local_read", "unwritten_global_read"})


@dataclass(frozen=True)
class ProgramFault:
    """A fault of programs: the kinds that may be told, and the largest share of places where it does no harm: code that
    this model does not come to, or an order that something else keeps as well."""

    fault: Faulty
    kinds: frozenset[str]
    harmless_max: float = 0.0
    models: tuple[int, ...] = (FUSED,)


def kinds(*names: str) -> frozenset[str]:
    return frozenset(names)


ALONE = (CHAIN, PRODUCT)  # elsewhere old bytes of local memory hide it: a wrong answer, for the reference to find
PROGRAM_FAULTS: dict[str, ProgramFault] = {
    "a ring's wait dropped": ProgramFault(
        on_flags(ring_waits, lambda plan, node, use: plan.waits[node].remove(use)),
        ORDER | kinds("flag_overflow", "leftover_flag"), 0.5,
    ),
    "a ring's set dropped": ProgramFault(
        on_flags(ring_sets, lambda plan, node, use: plan.sets[node].remove(use)), kinds("deadlock"), 0.5
    ),
    "a ring's flag dropped": ProgramFault(on_flags(forward_flags, drop_both), ORDER, 0.5),
    "a credit not given": ProgramFault(in_launch("set_flag"), kinds("deadlock", "race")),
    "a credit not taken back": ProgramFault(
        in_launch("wait_flag", fence=False), kinds("leftover_flag", "flag_overflow", "deadlock")
    ),
    "a fence of local memory not waited for": ProgramFault(
        in_launch("wait_flag", fence=True), ORDER | kinds("leftover_flag", "flag_overflow")
    ),
    "a signal ahead of the stores": ProgramFault(in_launch("cross_set", engine=Engine.CONTROL), ORDER, 0.5),
    "a signal of another flag": ProgramFault(in_launch("cross_set", flag=11), kinds("deadlock")),  # none of the plan's
    "a load too short": ProgramFault(on_commands(LOADS, halve), ORDER, 0.2, ALONE),
    "a load of nothing": ProgramFault(on_commands(LOADS, empty), kinds("bad_operand"), 0.5),
    "a load left out": ProgramFault(on_commands(LOADS, leave_out), ORDER, 0.2, ALONE),
    "a store left out": ProgramFault(
        on_commands(STORES, leave_out), kinds("unwritten_global_read", "unfinished", "race", "deadlock")
    ),
    "a store somewhere else": ProgramFault(
        on_commands(STORES, shift_store), kinds("undeclared_access", "unwritten_global_read")
    ),
    "a local address not aligned": ProgramFault(on_commands(LOADS, misalign), kinds("misaligned"), 0.5),
    "a local address outside": ProgramFault(on_commands(LOADS, outside), kinds("out_of_range", "misaligned"), 0.5),
    "a result over its operand": ProgramFault(
        on_commands(VECTOR, overlap), kinds("illegal_overlap") | ORDER, 0.0, (CHAIN,)
    ),
    "a signal of a channel left out": ProgramFault(on_commands(("cross_set",), leave_out), kinds("deadlock"), 0.7),
    "a wait of a channel left out": ProgramFault(
        on_commands(("cross_wait",), leave_out), ORDER | kinds("leftover_flag", "deadlock", "cross_overflow"), 0.7
    ),
    "an undefined command": ProgramFault(undefined, kinds("undefined_command"), 0.5),
    "a bad marker": ProgramFault(bad_marker, kinds("bad_marker")),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAM_FAULTS)
def test_a_fault_in_the_program(name: str) -> None:
    """At several places; where it does no harm, the outputs are right, bit by bit."""
    program_fault = PROGRAM_FAULTS[name]
    found: Counter[str] = Counter()
    for seed in SEEDS:
        bench = bench_of(program_fault.models[seed % len(program_fault.models)])
        found[outcome(bench, faulty(bench, program_fault.fault, random.Random(seed)))] += 1
    assert set(found) <= program_fault.kinds | {HARMLESS}, found
    assert found[HARMLESS] <= program_fault.harmless_max * len(SEEDS), found
    print(f"{name}: {dict(found)}")


def test_fences_of_local_memory_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers of successive kernels overlap, and the later kernel does not wait. One fence alone is often implied by
    flags of rings; without any, models race."""
    benches = [bench_of(seed) for seed in (FUSED, *MODELS)]
    monkeypatch.setattr(Launch, "_local_fences", lambda *_: [])
    found = Counter(outcome(bench, bench.build()) for bench in benches)
    assert set(found) == {"race", HARMLESS}
    assert found["race"] >= 3


# ---- data, addresses, code


def _units(
    bench: Workbench, edit: Callable[[list[tuple[int, int]]], list[tuple[int, int]]], core: int
) -> SimExecutable:
    """The program with other unit ranges of a core."""
    memory = MemoryMap.of(bench.compiled.target)

    def change(address: int, data: bytearray) -> None:
        if address == memory.private(core) + PARAMETERS_BYTE:
            pairs = [struct.unpack_from("<II", data, at) for at in range(0, len(data), 8)]
            data[:] = b"".join(struct.pack("<II", *pair) for pair in edit(pairs))

    return bench.with_data(change)


WRONG_UNITS = {
    "a neighbour's": kinds("undeclared_access", "deadlock", "race", "bad_operand"),
    "one too few": kinds("unfinished", "unwritten_global_read", "deadlock", "race", "leftover_flag"),
    "far too many": kinds("undeclared_access", "unmapped", "deadlock", "race", "bad_operand", "unwritten_global_read"),
}


@pytest.mark.parametrize("name", WRONG_UNITS)
@pytest.mark.parametrize("seed", SEEDS)
def test_wrong_unit_ranges(seed: int, name: str) -> None:
    """A core that works on a neighbour's unit, one that leaves its last unit out, one that invents units."""
    bench, rng = bench_of(FUSED), random.Random(seed)
    core = rng.choice(sorted({t.core for t in bench.compiled.plan.tasks}))

    def edit(pairs: list[tuple[int, int]]) -> list[tuple[int, int]]:
        place = rng.choice([i for i, (begin, end) in enumerate(pairs) if begin < end])
        begin, end = pairs[place]
        stop = {"a neighbour's": end + 1, "one too few": end - 1, "far too many": 1 << 30}[name]
        return [*pairs[:place], (begin, stop), *pairs[place + 1 :]]

    assert outcome(bench, _units(bench, edit, core)) in WRONG_UNITS[name]


@pytest.mark.parametrize("seed", SEEDS)
def test_two_cores_that_store_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without declared regions, a core that does its neighbour's units as well is a race."""
    bench = bench_of(seed)
    plan = bench.compiled.plan
    vectors = [t for t in plan.tasks if plan.kind(t.core) is CoreKind.VECTOR and t.subop == 0]
    first, second = vectors[0], vectors[1]
    monkeypatch.setattr(Device, "declare", lambda *_, **__: None)
    monkeypatch.setattr(Device, "declare_scratch", lambda *_: None)
    executable = _units(bench, lambda pairs: [(first.begin, second.end), *pairs[1:]], first.core)
    assert outcome(bench, executable) == "race"


@pytest.mark.parametrize(
    ("place", "kind"), [("nothing", "unmapped"), ("code", "code_write"), ("private", "foreign_private")]
)
@pytest.mark.parametrize("seed", range(3))
def test_wrong_addresses(seed: int, place: str, kind: str) -> None:
    """The output of a sub-operator lies where it must not."""
    bench = bench_of(-1)
    memory, rng = MemoryMap.of(bench.compiled.target), random.Random(seed)
    goal = {
        "nothing": memory.ram_address + memory.ram_bytes,
        "code": bench.compiled.image.image.symbol("sk_main").address,
    }
    goal["private"] = memory.private(1)
    index = rng.randrange(len(bench.compiled.schedule.subops))

    def change(builder: AicoreImageBuilder) -> None:
        call = builder._call

        def moved(number: int) -> Any:
            made = call(number)
            if number != index or made is None:
                return made
            return replace(made, addresses=(*made.addresses[:-1], -(-goal[place] // 512) * 512))

        builder._call = moved  # type: ignore[assignment, method-assign]

    # Other cores may come first, whose part of the output lies behind the place.
    assert outcome(bench, bench.build(change=change)) in (kind, *(["undeclared_access"] if place == "code" else []))


RETURNED = kinds("flag_overflow", "unwritten_global_read", "unfinished", "deadlock", "leftover_flag", "race")


@pytest.mark.parametrize(("word", "kind"), [(0, "trap"), (0x0000006F, "instruction_limit"), (0x00008067, None)])
@pytest.mark.parametrize("seed", range(3))
def test_faulty_code(seed: int, word: int, kind: str | None) -> None:
    """A kernel whose first instruction is illegal, jumps to itself, or returns: none hangs."""
    bench, rng = bench_of(-1), random.Random(seed)
    image = bench.compiled.image
    symbol = rng.choice(sorted(s for row in image.symbols for s in row.values()))
    code = image.image.symbol(symbol)
    elf = bytearray(image.elf)
    begin = bytes(bench.compiled.executable.simulate(bench.io).device.read(code.address, 32))
    place = elf.index(begin)
    struct.pack_into("<I", elf, place, word)
    faulty_image = replace(image)
    faulty_image.__dict__["elf"] = bytes(elf)
    found = outcome(bench, bench.executable(faulty_image), max_instructions=200_000)
    assert found in (kinds(kind) if kind else RETURNED), (symbol, found)
