"""The accelerator's certificate speaks of the linked program: whatever emission gets wrong is refused, though the
plan's own proof does not see it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import superkernel as sk
from superkernel.backends.aicore.backend import AicoreBackend
from superkernel.backends.aicore.compiled import AicorePlanned
from superkernel.backends.aicore.planner import AicorePlanner
from superkernel.codegen.aicore import launch as launches
from superkernel.codegen.aicore import program
from superkernel.codegen.aicore.image import AicoreImageBuilder, Contents
from superkernel.codegen.aicore.launch import Launch
from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.memory_events import MemoryEvents
from superkernel.codegen.aicore.program_spec import KernelCall
from superkernel.codegen.aicore.statements import issue, word
from superkernel.codegen.aicore.wait_entries import Waits, wait_entries
from superkernel.core.errors import VerificationError
from superkernel.ir.body import Body
from superkernel.ir.graph import Graph
from superkernel.scheduler.families.aicore.base import AicoreTiling, CoreRole
from superkernel.scheduler.schedule import MemoryAddress, Space
from superkernel.scheduler.tiling import Access
from superkernel.sync.aicore.plan import Event, Mode, Run, Signal, Step
from superkernel.sync.aicore.verify import AicoreCertificate
from superkernel.target.engines import Engine, command

Patch = pytest.MonkeyPatch


@pytest.fixture(scope="module", autouse=True)
def _own_cache_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nobody else meets what is kept here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SK_CACHE_DIR", str(tmp_path_factory.mktemp("attest")))
        yield


def graph() -> Graph:
    """Both types of cores wait for one another, in both ways; a vector core reads what it wrote itself; a difference,
    for the order of its operands."""
    b = sk.GraphBuilder("attested")
    x, y = b.input("x", (64, 128)), b.input("y", (128, 64))
    product = b.matmul(x, y)
    rows = b.softmax(product, axis=1)
    again = b.matmul(rows, b.transpose(rows, perm=(1, 0)))
    b.output(b.softmax(again, axis=1) - rows, "r")
    b.output(b.reduce_max(rows, axes=(1,)), "s")
    return b.graph()


def compiled(**options: Any) -> sk.Kernel:
    return sk.compile(graph(), target="mini", options=sk.Options(locality="off", preload="none", **options))


def refusal(**options: Any) -> str:
    with pytest.raises(VerificationError) as caught:
        compiled(**options)
    return str(caught.value)


def test_the_certificate_says_what_it_covers() -> None:
    kernel = compiled()
    certificate = kernel.certificate
    assert isinstance(certificate, AicoreCertificate)
    emitted = certificate.emitted
    assert emitted is not None
    assert all((emitted.program, emitted.addresses, emitted.accesses, emitted.objects))
    assert compiled().certificate == certificate
    assert sk.compile(graph(), target="mini").certificate != certificate
    assert "does not cover" in str(certificate)


# Faults in the launches -----------------------------------------------------------------------------------------------


def steps_of(patch: Patch, change: Callable[[list[Step]], Sequence[Step]]) -> None:
    """Each launch of the fused program emits other steps than it was given."""
    honest = Launch.emit

    def faulty(self: Launch, steps: Sequence[Step], *, ends_run: bool = False) -> object:
        return honest(self, change(list(steps)), ends_run=ends_run)

    patch.setattr(Launch, "emit", faulty)


def no_waits_ahead(patch: Patch) -> None:
    """What is waited for ahead of a kernel and not inside it is left out."""
    honest = Launch._run

    def faulty(self: Launch, step: Run) -> None:
        honest(self, replace(step, waits=()))

    patch.setattr(Launch, "_run", faulty)


def one_wait_left_out(patch: Patch) -> None:
    """Of all waits inside kernels, the last one of an operand."""

    def faulty(*arguments: object) -> Waits:
        found = wait_entries(*arguments)  # type: ignore[arg-type]
        return replace(found, masks=dict(list(found.masks.items())[:-1]))

    patch.setattr(launches, "wait_entries", faulty)


def no_fence(patch: Patch) -> None:
    """Nothing orders a core's stores ahead of its loads."""
    honest = Launch._run

    def faulty(self: Launch, step: Run) -> None:
        honest(self, replace(step, waits=tuple(replace(wait, fence=False) for wait in step.waits)))

    patch.setattr(Launch, "_run", faulty)


def another_flag(patch: Patch) -> None:
    honest = Launch._signal

    def faulty(self: Launch, event: Event) -> None:
        honest(self, replace(event, flag=event.flag + 1))

    patch.setattr(Launch, "_signal", faulty)


def another_mode(patch: Patch) -> None:
    """Only one's own type is told."""
    honest = Launch._signal

    def faulty(self: Launch, event: Event) -> None:
        honest(self, replace(event, mode=Mode.TYPE) if event.mode is Mode.ALL else event)

    patch.setattr(Launch, "_signal", faulty)


def early_signals(patch: Patch) -> None:
    """Each signal behind a run comes ahead of it."""

    def change(steps: list[Step]) -> list[Step]:
        for at in range(1, len(steps)):
            if isinstance(steps[at], Signal) and isinstance(steps[at - 1], Run):
                steps[at - 1], steps[at] = steps[at], steps[at - 1]
        return steps

    steps_of(patch, change)


def signal_on_another_engine(patch: Patch) -> None:
    """The control unit signals by itself, while the engine that stores is at work."""

    def faulty(self: Launch, event: Event) -> None:
        made = command("cross_set", engine=Engine.CONTROL, flag=event.flag, mode=event.mode.value)
        issue(self.b, self.target, made)

    patch.setattr(Launch, "_signal", faulty)


def kernel_left_out(patch: Patch) -> None:
    """The last one of each launch."""

    def change(steps: list[Step]) -> list[Step]:
        last = max(at for at, step in enumerate(steps) if isinstance(step, Run))
        return steps[:last] + steps[last + 1 :]

    steps_of(patch, change)


def kernels_swapped(patch: Patch) -> None:
    def change(steps: list[Step]) -> list[Step]:
        runs = [at for at, step in enumerate(steps) if isinstance(step, Run)]
        if len(runs) > 1:
            steps[runs[0]], steps[runs[1]] = steps[runs[1]], steps[runs[0]]
        return steps

    steps_of(patch, change)


def no_drain(patch: Patch) -> None:
    patch.setattr(Launch, "_drain", lambda self: None)


def calls(patch: Patch, change: Callable[[KernelCall], KernelCall]) -> None:
    """Kernels are called otherwise."""
    honest = AicoreImageBuilder._call

    def faulty(self: AicoreImageBuilder, index: int) -> KernelCall | None:
        call = honest(self, index)
        return None if call is None else change(call)

    patch.setattr(AicoreImageBuilder, "_call", faulty)


def another_address(patch: Patch) -> None:
    calls(patch, lambda call: replace(call, addresses=tuple(a + 512 for a in call.addresses)))


def operands_swapped(patch: Patch) -> None:
    """Of kernels with three operands or more the first two, which the difference has of one type."""
    calls(patch, lambda call: replace(call, addresses=(call.addresses[1], call.addresses[0], *call.addresses[2:])))


def units(patch: Patch, begin: int, end: int) -> None:
    """Each core's ranges begin and end so much later."""
    honest = AicoreImageBuilder._parameters

    def faulty(self: AicoreImageBuilder, made: tuple[KernelCall | None, ...]) -> list[Contents]:
        found = []
        for part in honest(self, made):
            pairs = part.data.view(np.uint32).reshape(-1, 2).astype(np.int64)
            pairs += np.array([begin, end]) * (pairs[:, :1] < pairs[:, 1:])
            found.append(replace(part, value=np.maximum(pairs, 0).astype(np.uint32)))
        return found

    patch.setattr(AicoreImageBuilder, "_parameters", faulty)


def units_left_out(patch: Patch) -> None:
    units(patch, 0, -1)


def units_twice(patch: Patch) -> None:
    units(patch, -1, 0)


def waits_behind(patch: Patch) -> None:
    """Kernels wait when they have done their work."""
    patch.setattr(KernelBuilder, "_acquire", lambda self, operands: None)


def engines_do_not_wait(patch: Patch) -> None:
    """Of the flags between engines only the sets are left."""
    honest = KernelBuilder._flag

    def faulty(self: KernelBuilder, name: str, *rest: object) -> None:
        if name != "wait_flag":
            honest(self, name, *rest)  # type: ignore[arg-type]

    patch.setattr(KernelBuilder, "_flag", faulty)


FAULTS: dict[Callable[[Patch], None], str] = {
    no_waits_ahead: "wait",
    one_wait_left_out: "not awaited as often",
    no_fence: "race",
    another_flag: "nobody signals",
    another_mode: "race",
    early_signals: "race",
    signal_on_another_engine: "signal may be seen before",
    kernel_left_out: "calls are left out",
    kernels_swapped: "not its kernel",
    no_drain: "ends before its engines",
    another_address: "bytes",
    operands_swapped: "bytes",
    units_left_out: "calls are left out",
    units_twice: "units",
    waits_behind: "race",
    engines_do_not_wait: "flag is left set",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_in_emission_is_refused(fault: Callable[[Patch], None], monkeypatch: Patch) -> None:
    fault(monkeypatch)
    found = refusal()
    assert FAULTS[fault] in found, found


def test_a_launch_that_is_left_out_is_refused(monkeypatch: Patch) -> None:
    """Of a program of several launches the second one does nothing."""
    honest = program._emit_cases

    def faulty(b: Any, number: Any, idle: Any, launches: Any, arguments: Any) -> Any:
        nobody = 1 << 30
        return honest(b, number, idle, [(nobody if n == 1 else n, launch) for n, launch in launches], arguments)

    monkeypatch.setattr(program, "_emit_cases", faulty)
    assert "not its kernel" in refusal(launches="single")


def test_words_in_memory_count_runs(monkeypatch: Patch) -> None:
    """The hart that computes tilings is told through words in memory: one that is awaited as if each run were the first
    lets the second run pass too early."""
    b = sk.GraphBuilder("tiled")
    x, w = b.input("x", (32, 64), "f16"), b.input("w", (4, 64, 64), "f16")
    b.output(b.grouped_matmul(x, w, b.input("counts", (4,), "i32")), "r")
    made = b.graph()
    assert any(event.mode is Mode.NOTIFY for event in sk.compile(made, target="mini")._compiled.plan.events)
    honest = MemoryEvents._run
    monkeypatch.setattr(MemoryEvents, "_run", lambda self: (honest(self), word(1))[1])
    with pytest.raises(VerificationError, match="awaited for another count"):
        sk.compile(made, target="mini")


# Faults in the plan ---------------------------------------------------------------------------------------------------


def planning(patch: Patch, change: Callable[[AicorePlanned], AicorePlanned]) -> None:
    """A plan with a fault that its proof does not see."""
    honest = AicorePlanner.plan
    patch.setattr(AicorePlanner, "plan", lambda self, scheduled: change(honest(self, scheduled)))
    patch.setattr(AicoreBackend, "verify", lambda self, planned: None)


def one_address(planned: AicorePlanned) -> AicorePlanned:
    """All buffers of the arena at its start."""
    schedule = planned.schedule
    rows = tuple(
        tuple(MemoryAddress(a.space, 0, 0) if a.space is Space.ARENA else a for a in row) for row in schedule.addresses
    )
    return replace(planned, schedule=replace(schedule, addresses=rows))


def nothing_touched(planned: AicorePlanned) -> AicorePlanned:
    """Tasks without accesses, and so without events."""
    tasks = tuple(replace(task, accesses=()) for task in planned.schedule.tasks)
    programs = {
        kind: tuple(Run(step.subop) for step in steps if isinstance(step, Run))
        for kind, steps in planned.plan.programs.items()
    }
    plan = replace(planned.plan, tasks=tasks, programs=programs, events=(), boundaries=())
    return replace(planned, schedule=replace(planned.schedule, tasks=tasks), plan=plan)


@pytest.mark.parametrize(("fault", "says"), [(one_address, "bytes are not its own"), (nothing_touched, "race")])
def test_a_fault_in_the_plan_is_refused(
    fault: Callable[[AicorePlanned], AicorePlanned], says: str, monkeypatch: Patch
) -> None:
    planning(monkeypatch, fault)
    assert says in refusal()


def test_a_kernel_is_held_to_its_tiling(monkeypatch: Patch) -> None:
    """A tiling that declares less than its kernel reads is found out, though plan and program agree on it."""
    honest = AicoreTiling.role_accesses

    def faulty(self: AicoreTiling, body: Body, begin: int, end: int, role: CoreRole) -> tuple[Access, ...]:
        return tuple(
            a
            if a.write
            else replace(a, regions=(replace(a.regions[0], length=a.regions[0].length - 1), *a.regions[1:]))
            for a in honest(self, body, begin, end, role)
        )

    monkeypatch.setattr(AicoreTiling, "role_accesses", faulty)
    assert "a read that is not declared" in refusal()
