"""Ranges that give groups what their own cores read: what is taken, what is left alone, and what a plan must not say
of values that groups compute each for themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import models
import numpy as np
import pytest

import superkernel as sk
from superkernel.backends.aicore.compiled import AicoreCompiled
from superkernel.core.dtypes import DType
from superkernel.core.tensor import Region, TensorType
from superkernel.ir.body import Body, Operand, PointwiseProgram, SubOperator
from superkernel.ir.body import Role as Use
from superkernel.ir.graph import Graph
from superkernel.scheduler.aicore.cores import Cores
from superkernel.scheduler.aicore.locality import Rematerialised, rematerialise
from superkernel.scheduler.aicore.place import ranges
from superkernel.scheduler.families.aicore.base import AicoreKernelType, AicoreTiling
from superkernel.scheduler.grouping import ValueBuffer
from superkernel.scheduler.schedule import MemoryAddress, Space, Task
from superkernel.scheduler.tiling import Access
from superkernel.sync.aicore.plan import AicorePlan, Form
from superkernel.sync.aicore.verify import check_aicore_plan
from superkernel.target.aicore import AicoreTarget, load_target

A3 = load_target("a3")
BLOCK, UNITS = 64, 48
KIND = TensorType(DType.I8, (BLOCK * UNITS,))
INPUT = MemoryAddress(Space.INPUT, 0, 0)


@dataclass(frozen=True)
class _Tiling(AicoreTiling):
    """Each unit writes its part of the last operand, and reads the same part of the others, or all of them."""

    kind: AicoreKernelType
    count: int
    whole: bool
    cycles: float
    inputs: int

    @property
    def kernel_type(self) -> AicoreKernelType:
        return self.kind

    @property
    def units(self) -> int:
        return self.count

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        size = KIND.nbytes // self.count
        own = (Region(begin * size, (end - begin) * size),)
        reads = (Region(0, KIND.nbytes),) if self.whole else own
        return (*(Access(k, False, reads) for k in range(self.inputs)), Access(self.inputs, True, own))

    def cost_cycles(self, body: Body, begin: int, end: int, target: AicoreTarget) -> float:
        return self.cycles * (end - begin)


@dataclass
class _Program:
    """Sub-operators of a test."""

    subops: list[SubOperator] = field(default_factory=list)
    tilings: list[_Tiling] = field(default_factory=list)
    buffers: dict[str, ValueBuffer] = field(default_factory=lambda: {"in": ValueBuffer(KIND, INPUT)})

    def add(
        self,
        kind: AicoreKernelType,
        units: int,
        reads: Sequence[str],
        out: str,
        *,
        whole: bool = False,
        cycles: float = 10.0,
    ) -> None:
        operands = (*(Operand(Use.INPUT, KIND) for _ in reads), Operand(Use.OUTPUT, KIND))
        body = Body(None, (), operands, (), (), (), PointwiseProgram((1,), (), (), ()))
        self.subops.append(SubOperator(len(self.subops), out, body, (*reads, out), (out,), "aicore.test"))
        self.tilings.append(_Tiling(kind, units, whole, cycles, len(reads)))
        self.buffers.setdefault(out, ValueBuffer(KIND))

    def rematerialised(self) -> Rematerialised:
        cores = Cores(A3)
        spans = [ranges(tiling, cores) for tiling in self.tilings]
        return rematerialise(self.subops, self.tilings, spans, self.buffers, cores, A3)

    def given(self, index: int) -> tuple[tuple[int, int, int, object], ...]:
        return tuple(ranges(self.tilings[index], Cores(A3)))


CUBE, VECTOR = AicoreKernelType.CUBE, AicoreKernelType.VECTOR


def test_each_group_computes_a_small_value_for_itself() -> None:
    program = _Program()
    program.add(VECTOR, 1, ["in"], "norm")
    program.add(CUBE, 24, ["norm"], "product", whole=True)
    found = program.rematerialised()
    cores = Cores(A3)
    assert {cores.group(core) for core, *_ in found.spans[0]} == set(range(24))
    assert all((begin, end) == (0, 1) for _, begin, end, _ in found.spans[0])
    (copies,) = found.copies
    assert (copies.subop, set(copies.uses), copies.count) == (0, {(0, 1), (1, 0)}, 24)
    assert copies.stride >= KIND.nbytes
    assert found.subops[1].values[0] == found.subops[0].values[1] != "norm"
    assert "each for itself" in found.notes[0]


def test_what_groups_read_apart_is_divided_without_copies() -> None:
    program = _Program()
    program.add(VECTOR, 48, ["in"], "rows")
    program.add(CUBE, 12, ["rows"], "product")
    found = program.rematerialised()
    cores = Cores(A3)
    assert found.copies == ()
    units = sorted((begin, end) for _, begin, end, _ in found.spans[0])
    assert units[0][0] == 0
    assert units[-1][1] == 48
    assert all(a[1] == b[0] for a, b in pairwise(units))
    for core, begin, end, _ in found.spans[0]:
        assert 4 * cores.group(core) <= begin < end <= 4 * cores.group(core) + 4


@pytest.mark.parametrize("late", [True, False])
def test_readers_that_hear_of_all_cores_anyway_do_not_count(late: bool) -> None:
    """A reader of all rows keeps them where they are, unless it stands behind a flag of all cores."""
    program = _Program()
    program.add(VECTOR, 48, ["in"], "rows")
    program.add(CUBE, 12, ["rows"], "product", cycles=2000.0)
    if late:
        program.add(VECTOR, 48, ["product"], "mixed", whole=True)
    program.add(VECTOR, 48, ["rows"], "sums", whole=True)
    found = program.rematerialised()
    moved = found.spans[0] != program.given(0)
    assert moved is late
    assert found.copies == ()
    if late:
        alone = _Program()
        alone.add(VECTOR, 48, ["in"], "rows")
        alone.add(CUBE, 12, ["rows"], "product", cycles=2000.0)
        assert found.spans[0] == alone.rematerialised().spans[0]


def test_late_readers_find_what_they_need_in_copies() -> None:
    program = _Program()
    program.add(VECTOR, 2, ["in"], "norm")
    program.add(CUBE, 12, ["norm"], "product", whole=True, cycles=2000.0)
    program.add(VECTOR, 48, ["product"], "mixed", whole=True)
    program.add(VECTOR, 48, ["norm"], "sums", whole=True)
    found = program.rematerialised()
    cores = Cores(A3)
    (copies,) = found.copies
    assert set(copies.uses) == {(0, 1), (1, 0), (3, 0)}
    for group in range(24):  # the product is computed by 12 of them, the sums by all
        units = {u for core, a, b, _ in found.spans[0] if cores.group(core) == group for u in range(a, b)}
        assert units == {0, 1}


def test_both_vector_cores_of_a_group_share_its_units() -> None:
    program = _Program()
    program.add(VECTOR, 48, ["in"], "rows", cycles=200.0)
    program.add(CUBE, 12, ["rows"], "product")
    assert len(program.rematerialised().spans[0]) == 24


@pytest.mark.parametrize("why", ["expensive", "output", "concatenation", "scope", "type", "own core"])
def test_left_where_it_is(why: str) -> None:
    program = _Program()
    if why == "own core":  # the producer's rows lie on the reader's own cores: moving one parts the two
        program.add(VECTOR, 48, ["in"], "before", cycles=900.0)
        program.add(VECTOR, 48, ["before"], "norm")
    else:
        program.add(VECTOR, 48 if why == "expensive" else 1, ["in"], "norm", cycles=200.0)
    if why == "concatenation":
        program.add(VECTOR, 1, ["in"], "norm")
    at = len(program.subops) - 1
    program.add(CUBE, 24, ["norm"], "product", whole=True)
    if why == "output":
        program.buffers["norm"] = ValueBuffer(KIND, MemoryAddress(Space.OUTPUT, 0, 0))
    if why == "scope":
        program.subops[at] = replace(program.subops[at], scope="front")
    if why == "type":
        program.subops[at] = replace(program.subops[at], kernel_type=VECTOR.value)
    found = program.rematerialised()
    assert found.copies == ()
    assert found.notes == {}
    assert all(found.spans[i] == program.given(i) for i in range(len(program.subops)))


def _decoder() -> Graph:
    return models.decode_step(layers=1)


@pytest.fixture(scope="module")
def kernel() -> sk.Kernel:
    return sk.compile(_decoder(), target="a3")


@pytest.fixture(scope="module")
def decoder(kernel: sk.Kernel) -> AicoreCompiled:
    made = kernel._compiled
    assert isinstance(made, AicoreCompiled)
    return made


def test_a_decoder_waits_for_all_cores_less_often(kernel: sk.Kernel, decoder: AicoreCompiled) -> None:
    off = sk.compile(_decoder(), target="a3", options={"locality": "off"})._compiled
    assert isinstance(off, AicoreCompiled)
    wide = [sum(b.form is Form.ALL for b in c.plan.boundaries) for c in (decoder, off)]
    assert wide[0] < wide[1]
    assert any(b.form is Form.GROUP for b in decoder.plan.boundaries)
    assert off.schedule.copies == ()
    assert decoder.schedule.copies
    norm = next(s for s in decoder.schedule.subops if s.body.op == "rms_norm")
    assert "each for itself" in str(kernel.explain(norm.nodes[0]))


def test_a_decoder_computes_the_same(decoder: AicoreCompiled) -> None:
    results = []
    for locality in ("auto", "off"):
        kernel = sk.compile(_decoder(), target="a3", options={"locality": locality})
        results.append(kernel.run({"token": np.array([7]), "position": np.array([5])}).outputs["logits"])
    assert np.array_equal(results[0], results[1])


def _with_tasks(plan: AicorePlan, tasks: Sequence[Task]) -> AicorePlan:
    return replace(plan, tasks=tuple(replace(task, index=n) for n, task in enumerate(tasks)))


@pytest.mark.parametrize("what", ["left out", "cut short", "other group", "overwritten", "invented"])
def test_the_verifier_rejects_copies_that_are_not_there(decoder: AicoreCompiled, what: str) -> None:
    plan = decoder.plan
    units = {s.index: t.units for s, t in zip(decoder.schedule.subops, decoder.schedule.tilings, strict=True)}
    assert check_aicore_plan(plan, units)[0] == []
    copies = max(plan.copies, key=lambda c: len(c.uses))
    reader, operand = min((i, k) for i, k in copies.uses if i > copies.subop)
    at = next(n for n, t in enumerate(plan.tasks) if t.subop == copies.subop)
    tasks = list(plan.tasks)
    if what == "left out":
        del tasks[at]
    elif what == "cut short":
        short = tuple(
            replace(a, regions=tuple(Region(r.start, r.length - 2) for r in a.regions)) if a.write else a
            for a in tasks[at].accesses
        )
        tasks[at] = replace(tasks[at], accesses=short)
    elif what == "other group":  # behind all of them
        n = next(n for n, t in enumerate(tasks) if t.subop == reader and any(a.operand == operand for a in t.accesses))
        moved = tuple(
            replace(a, regions=tuple(r.shifted(copies.count * copies.stride) for r in a.regions))
            if a.operand == operand
            else a
            for a in tasks[n].accesses
        )
        tasks[n] = replace(tasks[n], accesses=moved)
    elif what == "overwritten":  # by the first of several readers
        later = next(t for t in tasks if any(t.subop > reader and (t.subop, k) in copies.uses for k in range(9)))
        stray = next(a for a in later.accesses if (later.subop, a.operand) in copies.uses)
        n = next(n for n, t in enumerate(tasks) if t.subop == reader)
        tasks[n] = replace(tasks[n], accesses=(*tasks[n].accesses, replace(stray, write=True, operand=99)))
    else:
        tasks[at] = replace(tasks[at], end=tasks[at].end + 1)
    wrong, certificate = check_aicore_plan(_with_tasks(plan, tasks), units)
    assert certificate is None
    told = " ".join(map(str, wrong))
    assert ("units are invented" if what == "invented" else "was not computed for it") in told
