"""The certificate speaks of the code that runs: whatever code generation or planning gets wrong is refused, though the
plan's own proof does not see it."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

import superkernel as sk
from superkernel.backends.host.backend import HostBackend
from superkernel.cli import main
from superkernel.codegen.cache import ObjectCache
from superkernel.codegen.host import entry, image
from superkernel.codegen.host.entry_spec import EntrySpec, RunTask, SetCount, Step, TaskSpec, WaitFor
from superkernel.codegen.host.image import ImageBuilder
from superkernel.compilation.compiled import Planned
from superkernel.compilation.planned import PlanStore
from superkernel.core.errors import FileFormatError, VerificationError
from superkernel.ir.graph import Graph
from superkernel.scheduler.schedule import MemoryAddress, Schedule, Space, absolute
from superkernel.sync.plan import Plan, Wait
from superkernel.sync.verify import Certificate

Patch = pytest.MonkeyPatch
ROWS = 256


def graph() -> Graph:
    """Rows are shared out, then crossed: the second product waits for all of the first; a difference, for the order of
    its operands; two sums of equal shape, for their kernels."""
    b = sk.GraphBuilder("attested")
    x, y = b.input("x", (ROWS, ROWS)), b.input("y", (ROWS, ROWS))
    product = b.matmul(x, y)
    crossed = b.matmul(b.transpose(product, perm=(1, 0)), x)
    rows = b.softmax(crossed, axis=1)
    columns = b.softmax(b.transpose(rows, perm=(1, 0)), axis=1)
    b.output(b.matmul(rows - columns, product), "r")
    b.output(b.reduce_max(columns, axes=(1,)), "s")
    return b.graph()


@pytest.fixture(scope="module", autouse=True)
def _own_cache_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Nobody else meets what is kept here; kernels are compiled once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SK_CACHE_DIR", str(tmp_path_factory.mktemp("attest")))
        yield


def compiled(threads: int = 2) -> sk.Kernel:
    return sk.compile(graph(), threads=threads, options=sk.Options(cost_placement=False))


def refusal(threads: int = 2) -> str:
    with pytest.raises(VerificationError) as caught:
        compiled(threads)
    return str(caught.value)


def emitting(patch: Patch, change: Callable[[EntrySpec], EntrySpec]) -> None:
    """Code generation with a fault: it emits another program than it was given."""
    honest = ImageBuilder._entry_spec

    def faulty(self: ImageBuilder, symbols: Sequence[str | None]) -> EntrySpec:
        spec = honest(self, symbols)
        changed = change(spec)
        assert changed != spec, "the fault is none"
        return changed

    patch.setattr(ImageBuilder, "_entry_spec", faulty)


def with_steps(spec: EntrySpec, change: Callable[[int, tuple[Step, ...]], Sequence[Step]]) -> EntrySpec:
    return replace(spec, programs=tuple(tuple(change(core, steps)) for core, steps in enumerate(spec.programs)))


def with_tasks(spec: EntrySpec, change: Callable[[TaskSpec], TaskSpec]) -> EntrySpec:
    return replace(spec, tasks=tuple(map(change, spec.tasks)))


def no_waits(spec: EntrySpec) -> EntrySpec:
    return with_steps(spec, lambda _, steps: [step for step in steps if not isinstance(step, WaitFor)])


def early_waits(spec: EntrySpec) -> EntrySpec:
    """Each wait for more than one set waits for one less."""
    return with_steps(
        spec, lambda _, steps: [replace(s, count=max(1, s.count - 1)) if isinstance(s, WaitFor) else s for s in steps]
    )


def early_sets(spec: EntrySpec) -> EntrySpec:
    """Each set comes ahead of the task that it tells of."""

    def change(_: int, steps: tuple[Step, ...]) -> list[Step]:
        found = list(steps)
        for at in range(1, len(found)):
            if isinstance(found[at], SetCount):
                found[at - 1], found[at] = found[at], found[at - 1]
        return found

    return with_steps(spec, change)


def no_sets(spec: EntrySpec) -> EntrySpec:
    return with_steps(spec, lambda core, steps: [s for s in steps if core or not isinstance(s, SetCount)])


def swapped_arguments(spec: EntrySpec) -> EntrySpec:
    """The first two operands of the difference, which are of one type."""
    worst = max(task.subop for task in spec.tasks if len(task.operands) >= 3)

    def change(task: TaskSpec) -> TaskSpec:
        first, second, *rest = task.operands
        return replace(task, operands=(second, first, *rest)) if task.subop == worst else task

    return with_tasks(spec, change)


def wrong_units(spec: EntrySpec) -> EntrySpec:
    return with_tasks(spec, lambda task: replace(task, begin=0) if task.core == 1 else task)


def units_left_out(spec: EntrySpec) -> EntrySpec:
    return with_tasks(spec, lambda task: replace(task, end=task.end - 1) if task.core == 1 else task)


def wrong_kernel(spec: EntrySpec) -> EntrySpec:
    """Another kernel with as many operands."""
    first = spec.tasks[0]
    other = next(t for t in spec.tasks if t.symbol != first.symbol and len(t.operands) == len(first.operands))
    return with_tasks(spec, lambda task: replace(task, symbol=other.symbol) if task == first else task)


def wrong_place(spec: EntrySpec) -> EntrySpec:
    """Task 0 works 64 bytes further on."""
    first = spec.tasks[0]
    moved = tuple(replace(place, offset=place.offset + 64) for place in first.operands)
    return with_tasks(spec, lambda task: replace(task, operands=moved) if task == first else task)


def others_scratch(spec: EntrySpec) -> EntrySpec:
    return with_tasks(spec, lambda task: replace(task, core=1 - task.core) if task.subop == 0 else task)


def task_left_out(spec: EntrySpec) -> EntrySpec:
    return with_steps(spec, lambda core, steps: steps[:-1] if core == 0 else steps)


def tasks_swapped(spec: EntrySpec) -> EntrySpec:
    """Core 0 does its last two tasks in the other order, each behind the other's waits."""

    def change(core: int, steps: tuple[Step, ...]) -> Sequence[Step]:
        if core:
            return steps
        one, other = [at for at, step in enumerate(steps) if isinstance(step, RunTask)][-2:]
        found = list(steps)
        found[one], found[other] = found[other], found[one]
        return found

    return with_steps(spec, change)


EMISSION: dict[Callable[[EntrySpec], EntrySpec], str] = {
    no_waits: "race",
    early_waits: "race",
    early_sets: "race",
    no_sets: "earlier launch",
    swapped_arguments: "bytes are not its own",
    wrong_units: "done twice",
    units_left_out: "units are left out",
    wrong_kernel: "not its kernel",
    wrong_place: "behind its memory",
    others_scratch: "run one by one",
    task_left_out: "run one by one",
    tasks_swapped: "run one by one",
}


@pytest.mark.parametrize("fault", EMISSION, ids=lambda fault: fault.__name__)
def test_a_fault_in_emission_is_refused(fault: Callable[[EntrySpec], EntrySpec], monkeypatch: Patch) -> None:
    emitting(monkeypatch, fault)
    assert EMISSION[fault] in refusal()


COUNTER = "getelementptr inbounds i64, ptr %flags, i64"
TEXT = {
    # In line, a wait looks for less: it is never met with.
    "fast path is always open": (r"(%ok\d+ = icmp uge i64 %s\d+), %t\d+", r"\1, 0", "race"),
    # In line, it looks at a counter that is neither its own nor the awaited one's.
    "fast path looks elsewhere": (
        r"(?s)(i32 @core_0\(.*?)(%s\d+ = load atomic i64, ptr) %flag\.\d+",
        rf"\1%elsewhere = {COUNTER} 32\n  \2 %elsewhere",
        "launched",
    ),
    "passes one too late": ("icmp uge i64 %seen, %threshold", "icmp ugt i64 %seen, %threshold", "not passed at"),
    "passes one too early": (
        "%reached = icmp uge i64 %seen, %threshold",
        "%more = add i64 %seen, 1\n  %reached = icmp uge i64 %more, %threshold",
        "passes before",
    ),
    "spins without asking": (r"%tired = icmp uge i32 [^\n]*", "%tired = icmp ugt i32 %limit, -1", "for ever"),
    "sets another's": (rf"(?s)(i32 @core_0\(.*?%flag\.own = {COUNTER} )0", r"\g<1>16", "not its counter"),
    "forgets the launches before": (r"(%v\d+ = add i64) %first\.own", r"\1 0", "not its next count"),
    "profiled otherwise": (r"(?s)(i32 @profiled_0\(.*?)  call i32 @task_0\(ptr %ctx\)\n", r"\1", "when it is profiled"),
}  # fmt: skip


@pytest.mark.parametrize("fault", TEXT)
def test_a_fault_in_the_text_is_refused(fault: str, monkeypatch: Patch) -> None:
    """Waits and sets are judged by what they do."""
    old, new, says = TEXT[fault]
    # Entries that nobody kept: with more sub-operators than there are.
    emitting(monkeypatch, lambda spec: replace(spec, subops=spec.subops + 1 + list(TEXT).index(fault)))
    emitted: list[tuple[str, str]] = []

    def faulty(emit: Callable[..., str]) -> Callable[..., str]:
        def changed(*args: Any) -> str:
            text = emit(*args)
            emitted.append((text, re.sub(old, new, text)))
            return emitted[-1][1]

        return changed

    get, put = ObjectCache.get, ObjectCache.put
    monkeypatch.setattr(ObjectCache, "get", lambda own, key: None if key.startswith("waits ") else get(own, key))
    monkeypatch.setattr(ObjectCache, "put", lambda own, key, data: key.startswith("waits ") or put(own, key, data))
    monkeypatch.setattr(image, "writes_entries", lambda cpu: False)  # but by LLVM, as for other CPUs
    for emit in (entry.emit_entries, entry.emit_waits):
        monkeypatch.setattr(entry, emit.__name__, faulty(emit))
    assert says in refusal(3)
    assert sum(before != after for before, after in emitted) == 1


def planning(patch: Patch, change: Callable[[Planned[Plan]], Planned[Plan]]) -> None:
    """A plan with a fault that its proof does not see. Plans are then made anew, and not kept."""
    patch.setattr(HostBackend, "plan_type", None)
    honest = HostBackend.planner

    def faulty(self: HostBackend, job: Any) -> Any:
        planner = honest(self, job)
        plan = planner.plan
        patch.setattr(planner, "plan", lambda scheduled: change(plan(scheduled)))
        return planner

    patch.setattr(HostBackend, "planner", faulty)


def _with_schedule(planned: Planned[Plan], schedule: Schedule) -> Planned[Plan]:
    return replace(planned, schedule=schedule, plan=replace(planned.plan, tasks=schedule.tasks))


def one_address(planned: Planned[Plan]) -> Planned[Plan]:
    """All buffers of the arena at its start; what tasks say they touch stays as it was."""
    schedule = planned.schedule
    addresses = tuple(
        tuple(MemoryAddress(a.space, 0, 0) if a.space is Space.ARENA else a for a in row) for row in schedule.addresses
    )
    return replace(planned, schedule=replace(schedule, addresses=addresses))


def one_address_that_tasks_know(planned: Planned[Plan]) -> Planned[Plan]:
    """The same, and tasks say so: nothing but the check of the memory can see it."""
    lying = one_address(planned).schedule
    tasks = tuple(
        replace(t, accesses=absolute(
            lying.tilings[t.subop].accesses(lying.subops[t.subop].body, t.begin, t.end), lying.addresses[t.subop]
        ))
        for t in lying.tasks
    )  # fmt: skip
    return _with_schedule(planned, replace(lying, tasks=tasks))


def nothing_touched(planned: Planned[Plan]) -> Planned[Plan]:
    """Tasks without accesses, and so without waits."""
    tasks = tuple(replace(task, accesses=()) for task in planned.schedule.tasks)
    programs = tuple(tuple(s for s in steps if not isinstance(s, Wait)) for steps in planned.plan.programs)
    plan = replace(planned.plan, tasks=tasks, programs=programs, reasons=(), boundaries=())
    return replace(planned, schedule=replace(planned.schedule, tasks=tasks), plan=plan)


@pytest.mark.parametrize(
    ("fault", "threads", "says"),
    [
        (one_address, 2, "overwrites one operand"),
        (one_address, 1, "overwrites one operand"),
        (one_address_that_tasks_know, 1, "overwrites one operand"),
        (nothing_touched, 2, "race"),
    ],
)
def test_a_fault_in_the_plan_is_refused(
    fault: Callable[[Planned[Plan]], Planned[Plan]], threads: int, says: str, monkeypatch: Patch
) -> None:
    planning(monkeypatch, fault)
    assert says in refusal(threads)


def test_the_certificate_says_what_it_covers() -> None:
    kernel = compiled()
    again, alone = compiled(), compiled(threads=1)
    certificate = kernel.certificate
    assert isinstance(certificate, Certificate)
    emitted = certificate.emitted
    assert emitted is not None
    assert all((emitted.program, emitted.addresses, emitted.accesses, emitted.objects))
    assert again.certificate == certificate
    assert alone.certificate != certificate
    assert "does not cover" in str(kernel.certificate)


def test_a_program_that_is_not_its_plan_has_a_proof_of_its_own(monkeypatch: Patch) -> None:
    """At its end each core sets once more, and core 0 waits for core 1: harmless, and counted."""
    planned = compiled().certificate
    assert isinstance(planned, Certificate)

    def longer(spec: EntrySpec) -> EntrySpec:
        sets = tuple(count + 1 for count in spec.sets)
        wait = WaitFor(1, sets[1], planned.waits)
        changed = with_steps(spec, lambda core, steps: [*steps, SetCount(sets[core]), *([] if core else [wait])])
        return replace(changed, sets=sets)

    emitting(monkeypatch, longer)
    found = compiled().certificate
    assert isinstance(found, Certificate)
    assert (found.waits, found.sets) == (planned.waits + 1, planned.sets + 2)
    assert found.conflicting_pairs == planned.conflicting_pairs


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (one_address, "overwrites one operand"),
        (one_address_that_tasks_know, "race"),
        (nothing_touched, "race"),
    ],
)
def test_a_plan_from_the_cache_is_attested(
    fault: Callable[[Planned[Plan]], Planned[Plan]], says: str, monkeypatch: Patch
) -> None:
    """What was kept is judged anew: two buffers at one address in the entry, or no waits, are found."""
    kept = compiled().certificate
    assert compiled().certificate == kept
    honest = PlanStore.find

    def forged(self: PlanStore[Planned[Plan]]) -> Planned[Plan] | None:
        found = honest(self)
        assert found is not None
        return fault(found)

    monkeypatch.setattr(PlanStore, "find", forged)
    assert says in refusal()


def test_an_object_from_the_cache_is_attested(tmp_path: Path, monkeypatch: Patch) -> None:
    """An entry that was forged, its sum computed anew: workers that wait for nobody are found."""
    monkeypatch.setenv("SK_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(image, "writes_entries", lambda cpu: False)  # what is written as bytes is not cached
    entries: list[tuple[ObjectCache, str, bytes]] = []
    honest = ObjectCache.put

    def noted(self: ObjectCache, key: str, data: bytes) -> None:
        if key.startswith("entries "):
            entries.append((self, key, data))
        honest(self, key, data)

    monkeypatch.setattr(ObjectCache, "put", noted)
    kept = compiled().certificate
    with pytest.MonkeyPatch.context() as patch:
        emitting(patch, no_waits)
        assert "race" in refusal()
    assert compiled().certificate == kept
    (cache, key, data), (_, forged_key, forged) = entries
    assert key != forged_key
    honest(cache, key, forged)
    assert "race" in refusal()
    honest(cache, key, data)
    assert compiled().certificate == kept


def test_a_saved_kernel_is_attested_when_it_is_loaded(
    tmp_path: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel, path = compiled(), tmp_path / "kernel.skm"
    kernel.save(path)
    assert main(["verify", str(path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert isinstance(kernel.certificate, Certificate)
    assert shown == asdict(kernel.certificate)
    emitting(monkeypatch, no_waits)
    assert main(["verify", str(path)]) == 1
    assert "race" in capsys.readouterr().err


def test_a_saved_kernel_has_its_certificate(tmp_path: Path) -> None:
    """A file whose sums are right, and whose certificate is of another program."""
    path, other = tmp_path / "kernel.skm", tmp_path / "other.skm"
    compiled().save(path)
    with zipfile.ZipFile(path) as whole, zipfile.ZipFile(other, "w", zipfile.ZIP_STORED) as changed:
        for name in whole.namelist():
            data = whole.read(name)
            changed.writestr(name, data.replace(b"accesses ", b"accesses 0") if name == "superkernel.json" else data)
    sk.load(path, threads=2)
    with pytest.raises(FileFormatError, match="not the program of its certificate"):
        sk.load(other, threads=2)
