"""The verifier rejects each kind of wrong plan, says which, and shares nothing with the planner."""

from __future__ import annotations

import ast
import random
from dataclasses import replace
from pathlib import Path

import pytest
from random_plans import bytes_of, minimal
from seeds import seeds

import superkernel.sync.verify as verifier
from superkernel.analysis.random_plans import random_accesses, random_schedule, read, schedule_of, write
from superkernel.core.errors import VerificationError
from superkernel.core.tensor import Region
from superkernel.scheduler.schedule import MemoryAccess, Space, Task
from superkernel.sync.plan import Plan, Set, Step, TaskStep, Wait
from superkernel.sync.verify import Emitted, check, verify


def pair() -> Plan:
    tasks = [Task(0, 0, 0, 0, 1, (write(0, 8),)), Task(1, 1, 1, 0, 1, (read(0, 8), write(8, 8)))]
    return minimal(schedule_of(2, tasks))


def with_programs(plan: Plan, *programs: tuple[Step, ...]) -> Plan:
    return replace(plan, programs=programs)


def messages(plan: Plan, units: dict[int, int] | None = None) -> str:
    wrong, certificate = check(plan, units)
    assert bool(wrong) == (certificate is None)
    return "\n".join(map(str, wrong))


WAIT = Wait(0, 1, 1, 0)


ENDS = "sets do not end at the declared number"
COUNT_UP = "sets do not count up"
ORDER = "bodies leave the global order"
REACH = "the threshold is never reached, or reached before the launch"
ON_0, ON_1, WAITS = "core 0, task 0", "core 1, task 1", "core 1, boundary 1, wait 0"


@pytest.mark.parametrize(
    ("programs", "wrong"),
    [
        (((TaskStep(0), Set(1)), (WAIT,)), [("task never runs", ON_1)]),
        (((TaskStep(0), Set(1), TaskStep(0)), (WAIT, TaskStep(1))), [("task runs twice", ON_0)]),
        (
            ((TaskStep(0), TaskStep(1), Set(1)), (WAIT,)),
            [("task runs on the wrong core", "core 0, task 1", "1", "0")],
        ),
        *(
            (((TaskStep(0), Set(1)), (WAIT, TaskStep(n), TaskStep(1))), [("no such task", f"core 1, task {n}")])
            for n in (2, 7, -1)
        ),
        (((TaskStep(0), Set(1), Set(1)), (WAIT, TaskStep(1))), [(COUNT_UP, "core 0", "", "[1, 1]")]),
        (((TaskStep(0), Set(0), Set(1)), (WAIT, TaskStep(1))), [(COUNT_UP, "core 0", "", "[0, 1]")]),
        (
            ((TaskStep(0), *([Set(1)] * 25)), (WAIT, TaskStep(1))),
            [(COUNT_UP, "core 0", "", str([1] * 20))],
        ),
        (((TaskStep(0), Set(2)), (WAIT, TaskStep(1))), [(ENDS, "core 0", "1", "2")]),
        (((TaskStep(0), Set(1), Set(2)), (WAIT, TaskStep(1))), [(ENDS, "core 0", "1", "2")]),
        (((TaskStep(0),), (WAIT, TaskStep(1))), [(ENDS, "core 0", "1", "0")]),
        (((TaskStep(0), Set(1)), (Wait(0, 2, 1, 0), TaskStep(1))), [(REACH, WAITS, "1 to 1", "2")]),
        (((TaskStep(0), Set(1)), (Wait(0, 0, 1, 0), TaskStep(1))), [(REACH, WAITS, "1 to 1", "0")]),
        *(
            (
                ((TaskStep(0), Set(1)), (Wait(n, 1, 1, 0), TaskStep(1))),
                [("wait for a core that cannot signal", WAITS, "", str(n))],
            )
            for n in (1, 2, 5, -1)
        ),
        (((TaskStep(0), Set(1)), (WAIT, WAIT, TaskStep(1))), [("wait index is used twice", WAITS)]),
    ],
)
def test_each_structural_fault_is_told_and_nothing_else(
    programs: tuple[tuple[Step, ...], ...], wrong: list[tuple[str, ...]]
) -> None:
    found, certificate = check(with_programs(pair(), *programs))
    told = [(v.message, v.location, v.expected, v.found) for v in found]
    assert told == [tuple([*row, "", ""][:4]) for row in wrong]
    assert certificate is None


@pytest.mark.parametrize("cores", [0, 1, 3])
def test_a_plan_of_nothing_is_proved(cores: int) -> None:
    certificate = verify(Plan((), ((),) * cores, (0,) * cores, (), ()))
    assert (certificate.tasks, certificate.cores, certificate.waits, certificate.sets) == (0, cores, 0, 0)


def test_an_index_that_two_waits_have_is_told_where_the_second_one_stands() -> None:
    """On the same core or on another one, whatever the others wait for."""
    tasks = [Task(n, n, n, 0, 1, (read(0, 8) if n else write(0, 8),)) for n in range(3)]

    def told(*third: Wait) -> list[tuple[str, str]]:
        programs: tuple[tuple[Step, ...], ...] = (
            (TaskStep(0), Set(1)),
            (Wait(0, 1, 1, 7), TaskStep(1)),
            (*third, TaskStep(2)),
        )
        return [(v.message, v.location) for v in check(Plan(tuple(tasks), programs, (1, 0, 0), (), ()))[0]]

    assert told(Wait(0, 1, 2, 8)) == []
    for index, count in ((7, 1), (8, 2)):
        wrong = ("wait index is used twice", f"core 2, boundary 2, wait {index}")
        assert told(*[Wait(0, 1, 2, index)] * count) == [wrong]


@pytest.mark.parametrize(
    "programs",
    [((TaskStep(0), Set(1)), (TaskStep(1), WAIT)), ((Set(1), TaskStep(0)), (WAIT, TaskStep(1)))],
)
def test_a_wait_too_late_and_a_set_too_early_are_races(programs: tuple[tuple[Step, ...], ...]) -> None:
    assert "race" in messages(with_programs(pair(), *programs))


def test_counts_may_be_left_out_and_a_later_one_tells_of_all_before() -> None:
    """Sets of 2 and of 5: whoever waits for 1 waits for 2; for 3, for 5."""
    tasks = [Task(n, n, 0, 0, 1, (write(8 * n, 8),)) for n in range(2)]
    tasks.append(Task(2, 2, 1, 0, 1, (read(8, 8),)))
    mine = (TaskStep(0), Set(2), TaskStep(1), Set(5))

    def text(count: int) -> str:
        return messages(Plan(tuple(tasks), (mine, (Wait(0, count, 2, 0), TaskStep(2))), (5, 0), (), ()))

    for count in (1, 2):
        assert "race: tasks 1 " in text(count)
    for count in (3, 4, 5):
        assert text(count) == ""


def test_a_race_names_tasks_bytes_and_the_missing_wait() -> None:
    text = messages(with_programs(pair(), (TaskStep(0), Set(1)), (TaskStep(1),)))
    assert "tasks 0" in text
    assert "and 1 " in text
    assert "arena0" in text
    assert "a wait on core 0 before task 1" in text


def test_a_deadlock_is_found_and_all_its_waits_are_told() -> None:
    tasks = [Task(i, 0, i, i, i + 1, (write(8 * i, 8),)) for i in range(2)]
    programs = ((Wait(1, 1, 0, 0), TaskStep(0), Set(1)), (Wait(0, 1, 0, 1), TaskStep(1), Set(1)))
    text = messages(Plan(tuple(tasks), programs, (1, 1), (), ()))
    assert text.count("deadlock") == 2


def test_a_deadlock_tells_of_each_core_where_it_stands_and_how_far_the_other_comes() -> None:
    """Each waits for the other's second set, and has one more wait behind that."""
    tasks = [Task(i, i // 2, i % 2, i % 2, i % 2 + 1, (write(8 * i, 8),)) for i in range(4)]
    programs = tuple(
        (TaskStep(core), Set(1), Wait(1 - core, 2, 1, core), Wait(1 - core, 1, 1, 2 + core), TaskStep(2 + core), Set(2))
        for core in range(2)
    )
    found = check(Plan(tuple(tasks), programs, (2, 2), (), ()))[0]
    assert [(each.location, each.expected, each.found) for each in found] == [
        (f"core {core}, boundary 1, wait {core}", f"core {1 - core} at count 2", "it stops at 1") for core in range(2)
    ]


def test_bodies_out_of_the_global_order() -> None:
    tasks = tuple(Task(i, i, 0, 0, 1, (write(8 * i, 8),)) for i in range(2))
    (found,) = check(Plan(tasks, ((TaskStep(1), TaskStep(0)),), (0,), (), ()))[0]
    assert (found.message, found.location, found.expected) == (ORDER, ON_0, "after task 1")


@pytest.mark.parametrize("space", [Space.INPUT, Space.CONSTANT])
def test_inputs_and_constants_are_never_written(space: Space) -> None:
    task = Task(0, 0, 0, 0, 1, (write(0, 8, space=space),))
    assert f"writes to {space.value}0" in messages(Plan((task,), ((TaskStep(0),),), (0,), (), ()))


@pytest.mark.parametrize(
    ("ranges", "units", "says"),
    [
        ([(0, 2), (3, 4)], 4, "left out or done twice"),
        ([(0, 3), (2, 4)], 4, "left out or done twice"),
        ([(0, 2), (2, 3)], 4, "left out or invented"),
        ([(0, 2), (2, 5)], 4, "left out or invented"),
        ([(0, 0)], 0, "empty unit range"),
    ],
)
def test_units_are_covered_exactly_once(ranges: list[tuple[int, int]], units: int, says: str) -> None:
    tasks = tuple(Task(i, 0, i, b, e, (write(8 * i, 8),)) for i, (b, e) in enumerate(ranges))
    programs = tuple((TaskStep(i),) for i in range(len(tasks)))
    assert says in messages(Plan(tasks, programs, (0,) * len(tasks), (), ()), {0: units})


def test_reading_what_nobody_wrote() -> None:
    task = Task(0, 0, 0, 0, 1, (read(16, 8), write(0, 8)))
    assert "nobody wrote" in messages(Plan((task,), ((TaskStep(0),),), (0,), (), ()))


@pytest.mark.parametrize("count", [40, 5000])
def test_reading_the_gaps_of_a_strided_write(count: int) -> None:
    """Half of each eight bytes is written, however many there are: the other half is nobody's."""
    half = Task(0, 0, 0, 0, 1, (write(0, 4, 8, count),))
    rest = Task(1, 1, 0, 0, 1, (write(4, 4, 8, count),))

    def reading(index: int, *earlier: Task, start: int) -> str:
        tasks = (*earlier, Task(index, index, 0, 0, 1, (read(start, 4, 8, count),)))
        return messages(Plan(tasks, (tuple(TaskStep(t.index) for t in tasks),), (0,), (), ()))

    assert "reads bytes 4..8 of arena0 that nobody wrote" in reading(1, half, start=4)
    assert "nobody wrote" not in reading(1, half, start=0)
    assert "nobody wrote" not in reading(2, half, rest, start=4)
    last = Task(1, 1, 0, 0, 1, (write(4, 4, 8, count - 1),))
    assert f"reads bytes {8 * count - 4}..{8 * count} of" in reading(2, half, last, start=4)


def test_strided_columns_side_by_side_cover_a_matrix() -> None:
    tasks = [Task(c, 0, c, c, c + 1, (write(4 * c, 4, 8, 16),)) for c in range(2)]
    tasks.append(Task(2, 1, 0, 0, 1, (read(0, 128),)))
    assert messages(minimal(schedule_of(2, tasks))) == ""
    assert "nobody wrote" in messages(minimal(schedule_of(2, [*tasks[:1], replace(tasks[2], index=1)])))


def test_parts_of_one_sub_operator_that_collide_are_a_race() -> None:
    tasks = tuple(Task(c, 0, c, c, c + 1, (write(0, 8),)) for c in range(2))
    assert "race" in messages(Plan(tasks, ((TaskStep(0),), (TaskStep(1),)), (0, 0), (), ()))


def test_verify_raises_with_every_violation() -> None:
    plan = with_programs(pair(), (TaskStep(0), Set(2)), (TaskStep(1), TaskStep(1)))
    with pytest.raises(VerificationError) as caught:
        verify(plan)
    assert len(caught.value.violations) >= 2
    assert caught.value.category == "internal"


def test_the_certificate_counts() -> None:
    """Pairs of one task count for nothing, those of one core do."""
    certificate = verify(pair(), {0: 1, 1: 1})
    assert (certificate.tasks, certificate.cores, certificate.waits, certificate.sets) == (2, 2, 1, 1)
    assert (certificate.conflicting_pairs, certificate.cross_core_pairs) == (1, 1)
    tasks = [
        Task(0, 0, 0, 0, 1, (write(0, 8),)),
        Task(1, 1, 0, 0, 1, (read(0, 8), write(4, 8))),
        Task(2, 2, 1, 0, 1, (read(0, 8),)),
    ]
    certificate = verify(minimal(schedule_of(2, tasks)))
    assert (certificate.conflicting_pairs, certificate.cross_core_pairs) == (4, 2)
    assert str(certificate) == (
        "certificate: 3 tasks on 2 cores, 1 wait, 1 set; 4 pairs of accesses whose address ranges meet (2 across "
        "cores): none races; no deadlock"
    )


def test_a_certificate_tells_whether_tasks_of_one_sub_operator_need_an_order() -> None:
    """They do where one reads what another writes, be it behind a wait; not where columns only interleave."""
    columns = [Task(c, 0, c, c, c + 1, (write(4 * c, 4, 8, 16),)) for c in range(2)]
    assert verify(minimal(schedule_of(2, [*columns, Task(2, 1, 0, 0, 1, (read(0, 128),))]))).stepwise
    ordered = [Task(0, 0, 0, 0, 1, (write(0, 8),)), Task(1, 0, 1, 1, 2, (write(4, 8),))]
    steps = ((TaskStep(0), Set(1)), (WAIT, TaskStep(1)))
    assert not verify(with_programs(Plan(tuple(ordered), (), (1, 0), (), ()), *steps)).stepwise
    assert verify(
        with_programs(Plan((ordered[0], replace(ordered[1], accesses=(write(8, 8),))), (), (1, 0), (), ()), *steps)
    ).stepwise
    assert verify(pair()).stepwise


def test_sub_operators_that_come_twice_are_not_stepwise() -> None:
    tasks = [
        Task(0, 0, 0, 0, 1, (write(0, 8),)),
        Task(1, 1, 0, 0, 1, (read(0, 8), write(8, 8))),
        Task(2, 0, 0, 1, 2, (read(8, 8),)),
    ]
    assert not verify(minimal(schedule_of(1, tasks))).stepwise


def test_the_certificate_says_which_code_it_covers() -> None:
    digests = ["".join(letter * 2 for letter in f"{name}0123456789abcdef") for name in "wxyz"]
    certificate = replace(verify(pair()), emitted=Emitted(*digests))
    first = [digest[:16] for digest in digests]
    assert str(certificate).splitlines()[1:] == [
        f"covers the program as loaded: calls, waits and sets {first[0]}, addresses {first[1]}, accesses {first[2]}, "
        f"objects {first[3]}",
        "does not cover: that kernels touch only what their tilings declare, that objects are what the compiler made, "
        "memory order within instructions (docs/reliability.md)",
    ]
    of_plan = replace(certificate, emitted=Emitted("", "", "", digests[3]))
    assert str(of_plan).splitlines()[1:] == [
        "covers the plan only: this system does not let code be changed to record what it does; objects " + first[3]
    ]


def brute_force_races(plan: Plan) -> bool:
    """By sets of bytes and a transitive closure: what the verifier must find, without any of its shortcuts."""

    ordered: dict[int, set[int]] = {}
    knows: list[set[int]] = [set() for _ in plan.programs]
    published: dict[tuple[int, int], set[int]] = {}
    at = [0] * plan.cores
    while any(a < len(p) for a, p in zip(at, plan.programs, strict=True)):
        before = list(at)
        for core, program in enumerate(plan.programs):
            while at[core] < len(program):
                step = program[at[core]]
                if isinstance(step, Wait):
                    if (step.producer, step.count) not in published:
                        break
                    knows[core] = knows[core] | published[step.producer, step.count]
                elif isinstance(step, Set):
                    published[core, step.count] = set(knows[core])
                else:
                    ordered[step.task] = set(knows[core])
                    knows[core].add(step.task)
                at[core] += 1
        if at == before:
            return True
    for later in plan.tasks:
        for earlier in plan.tasks[: later.index]:
            for a in earlier.accesses:
                for b in later.accesses:
                    same = (a.space, a.slot) == (b.space, b.slot) and (a.write or b.write)
                    if same and bytes_of(a) & bytes_of(b) and earlier.index not in ordered[later.index]:
                        return True
    return False


def test_the_verdict_is_that_of_brute_force() -> None:
    """On random plans with random waits taken away: no more and no less than the definition."""
    verdicts = {True: 0, False: 0}
    for seed in seeds(120, new=12):
        rng = random.Random(seed)
        plan = minimal(random_schedule(seed, 3, 8) if seed % 2 else random_accesses(seed))
        if rng.random() < 0.7:
            plan = replace(
                plan,
                programs=tuple(
                    tuple(s for s in p if not isinstance(s, Wait) or rng.random() < 0.8) for p in plan.programs
                ),
            )
        accepted = not check(plan)[0]
        assert accepted == (not brute_force_races(plan)), f"seed {seed}"
        verdicts[accepted] += 1
    assert min(verdicts.values()) > 20


def test_it_imports_nothing_of_the_planner() -> None:
    files = Path(verifier.__file__).parent.glob("verify*.py")
    trees = [ast.parse(file.read_text()) for file in files]
    imported = {n.module for tree in trees for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and n.module}
    own = {m for m in imported if m.startswith("superkernel")}
    assert own <= {
        "superkernel.core.collection",
        "superkernel.core.counted",
        "superkernel.core.errors",
        "superkernel.core.frozen",
        "superkernel.scheduler.schedule",
        "superkernel.scheduler.tiling",
        "superkernel.sync.plan",
        "superkernel.sync.verify_pairs",
        "superkernel.sync.verify_tasks",
        "superkernel.core.tensor",
    }


def test_ten_thousand_tasks_take_little_time() -> None:
    import time

    tasks: list[Task] = []
    for i in range(2500):
        here, there = 4096 * (i % 8), 4096 * ((i - 1) % 8)
        for c in range(4):
            source = () if i == 0 else (MemoryAccess(Space.ARENA, 0, False, (Region(there, 4096),)),)
            tasks.append(Task(len(tasks), i, c, c, c + 1, (*source, write(here + 1024 * c, 1024))))
    schedule = schedule_of(4, tasks)
    plan = minimal(schedule)
    start = time.process_time()
    certificate = verify(plan, dict.fromkeys(range(2500), 4))
    assert certificate.tasks == 10_000
    assert time.process_time() - start < 5.0  # measured 0.5 s alone; the bound only tells linear from quadratic
