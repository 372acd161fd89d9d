"""The explorer of accelerator plans, and the planner and the verifier held against it.

The explorer runs plans by the hardware's rule alone: a wait takes the next count of a flag, whatever it is called.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from hand_plans import ALL, GROUP, NOTIFY, TYPE, Row, plan_of, read, tasks_of, write
from seeds import seeds

from superkernel.analysis.random_aicore import CUBE, MINI, VECTOR, BufferOp, chain, random_ops, schedule_of
from superkernel.core.errors import InternalError
from superkernel.sync.aicore.explore import explore_aicore
from superkernel.sync.aicore.mutate import edits, rearranged
from superkernel.sync.aicore.plan import (
    AicorePlan,
    Await,
    CoreKind,
    Drain,
    Event,
    LaunchEnd,
    Mode,
    OperandWait,
    Pause,
    Prefetch,
    Run,
    Signal,
)
from superkernel.sync.aicore.planner import plan_aicore
from superkernel.sync.aicore.verify import check_aicore_plan, verify_aicore
from superkernel.sync.explore import Exploration


def _two_products(flags: int = 7) -> AicorePlan:
    """Two products, and a third that reads both by operands of its own: two events, on one flag where flags are few."""
    target = MINI.replaced({"sync.flags_per_core": flags})
    ops = [BufferOp(CUBE, 4, (), 0), BufferOp(CUBE, 4, (), 1), BufferOp(CUBE, 4, ((0, True), (1, True)), 2)]
    return plan_aicore(schedule_of(ops, target), target)


def _waiting(plan: AicorePlan, kind: CoreKind, *waits: OperandWait) -> AicorePlan:
    """The plan with other waits at the last kernel of a type."""
    program = plan.programs[kind]
    at = max(n for n, step in enumerate(program) if isinstance(step, Run))
    run = program[at]
    assert isinstance(run, Run)
    return _with(plan, kind, *program[:at], replace(run, waits=waits), *program[at + 1 :])


def _with(plan: AicorePlan, kind: CoreKind, *steps: Any) -> AicorePlan:
    return replace(plan, programs={**plan.programs, kind: steps})


def test_each_operand_needs_as_many_takes_of_a_flag_as_its_data_is_old() -> None:
    plan = _two_products()
    assert len({event.flag for event in plan.events}) == 1
    verify_aicore(plan)
    assert not explore_aicore(plan, limit=200, seed=0).wrong


@pytest.mark.parametrize(
    "waits",
    [
        (OperandWait(0, (0,), False), OperandWait(1, (1,), False)),  # comes to operand 1 first: the count of event 0
        (OperandWait(0, (1,), False), OperandWait(1, (0,), False)),
        (OperandWait(0, (0, 1), False),),
        (OperandWait(0, (), False), OperandWait(1, (0, 1), False)),
    ],
)
def test_a_take_of_a_flag_is_not_the_event_that_it_names(waits: tuple[OperandWait, ...]) -> None:
    broken = _waiting(_two_products(), CoreKind.CUBE, *waits)
    wrong, certificate = check_aicore_plan(broken)
    assert certificate is None
    assert "race" in wrong[0].message
    assert "reads at operand" in explore_aicore(broken, limit=200, seed=0).wrong


def test_names_do_not_matter_where_counts_are_right() -> None:
    """Both events at operand 1 in the other order, or only the second's name at operand 0: the same counts."""
    for first, second in (((0,), (1, 0)), ((1,), (0, 1))):
        plan = _waiting(_two_products(), CoreKind.CUBE, OperandWait(0, first, False), OperandWait(1, second, False))
        verify_aicore(plan)
        assert not explore_aicore(plan, limit=200, seed=0).wrong


def test_with_flags_of_their_own_operands_wait_for_their_own_events() -> None:
    """The same waits that are a race on one flag are none on two."""
    plan = _two_products(flags=16)
    assert len({event.flag for event in plan.events}) == 2
    plan = _waiting(plan, CoreKind.CUBE, OperandWait(0, (0,), False), OperandWait(1, (1,), False))
    verify_aicore(plan)
    assert not explore_aicore(plan, limit=200, seed=0).wrong


def test_pending_events_are_taken_behind_a_kernel_that_takes_earlier_ones() -> None:
    """Few flags that count to two: many events are under way when a kernel takes the first of them."""
    target = MINI.replaced({"sync.flags_per_core": 5, "sync.flag_count_max": 2})
    for seed in range(60):
        schedule = schedule_of(random_ops(random.Random(seed), 3), target)
        plan = plan_aicore(schedule, target)
        verify_aicore(plan)
        for kind in CoreKind:
            taken = [e for s in plan.programs[kind] if isinstance(s, (Await, Run)) for e in _events(s)]
            for flag in {plan.events[e].flag for e in taken}:
                of_flag = [e for e in dict.fromkeys(taken) if plan.events[e].flag == flag]
                assert of_flag == sorted(of_flag)


def _events(step: Await | Run) -> list[int]:
    return [step.event] if isinstance(step, Await) else [e for w in step.waits for e in w.events]


# The explorer's own canaries ------------------------------------------------------------------------------------------


def test_the_explorer_finds_a_missing_fence() -> None:
    plan = plan_aicore(schedule_of(chain(VECTOR, VECTOR)), MINI)
    assert not explore_aicore(plan, limit=100, seed=0).wrong
    bare = _waiting(plan, CoreKind.VECTOR)
    assert "reads at operand" in explore_aicore(bare, limit=100, seed=0).wrong


def test_the_explorer_finds_a_deadlock() -> None:
    plan = plan_aicore(schedule_of([BufferOp(CUBE, 2, (), 0), BufferOp(VECTOR, 4, (), 1)]), MINI)
    events = (Event(0, Mode.GROUP, CoreKind.CUBE, 8, 0), Event(1, Mode.GROUP, CoreKind.VECTOR, 9, 0))
    plan = replace(plan, events=events)
    plan = _with(plan, CoreKind.CUBE, Await(1, 0), *plan.programs[CoreKind.CUBE], Signal(0))
    plan = _with(plan, CoreKind.VECTOR, Await(0, 0), *plan.programs[CoreKind.VECTOR], Signal(1))
    assert "deadlock" in explore_aicore(plan, limit=10, seed=0).wrong
    assert "deadlock" in explore_aicore(plan, limit=10).wrong


def test_the_explorer_finds_counts_that_are_left_over_or_too_high() -> None:
    plan = plan_aicore(schedule_of([BufferOp(CUBE, 2, (), 0)]), MINI)
    plan = replace(plan, events=(Event(0, Mode.TYPE, CoreKind.CUBE, 3, 0),))
    untaken = _with(plan, CoreKind.CUBE, *plan.programs[CoreKind.CUBE], Signal(0))
    assert "flag 3 still counts 1" in explore_aicore(untaken, limit=5, seed=0).wrong
    high = replace(_two_products(), flag_count_max=1)
    assert "counts to 2" in explore_aicore(high, limit=100, seed=0).wrong
    assert check_aicore_plan(high)[1] is None


def test_the_explorer_finds_a_lost_overwrite() -> None:
    """The last writer of a buffer that nobody reads."""
    schedule = schedule_of([BufferOp(CUBE, 2, (), 0), BufferOp(VECTOR, 4, (), 0)])
    plan = plan_aicore(schedule, MINI)
    assert not explore_aicore(plan, limit=100, seed=0).wrong
    programs = {k: tuple(Run(s.subop) for s in steps if isinstance(s, Run)) for k, steps in plan.programs.items()}
    bare = replace(plan, events=(), programs=programs)
    assert "final memory" in explore_aicore(bare, limit=100, seed=0).wrong


def test_a_tiny_plan_is_explored_exhaustively() -> None:
    target = MINI.replaced({"device.groups": 1, "device.cube_cores": 1, "device.vector_cores": 2})
    plan = plan_aicore(schedule_of([BufferOp(CUBE, 1, (), 0)], target), target)
    found = explore_aicore(plan, limit=100)
    assert found.complete
    assert not found.wrong


def test_what_is_not_explored_is_refused() -> None:
    for more in ({"barriers": {0: 1}}, {"service": ((), (Prefetch(0, 0, 8),))}):
        with pytest.raises(InternalError, match="barriers"):
            explore_aicore(replace(_two_products(), **more), limit=1)
    assert not explore_aicore(replace(_two_products(), service=((), ())), limit=1).wrong


# By hand --------------------------------------------------------------------------------------------------------------


def wrong_of(*rows: Row, **programs: Any) -> str:
    """What goes wrong in some of many random interleavings."""
    return explore_aicore(plan_of(tasks_of(*rows), **programs), limit=100, seed=0).wrong


def reads(task: int, core: int, operand: int = 0) -> str:
    """Of tasks whose sub-operators have their numbers."""
    where = f"task {task} (sub-operator {task}, core {core}) reads at operand {operand}"
    return f"{where} what another task than in the global order wrote"


STORE: Row = (0, 0, (write(0, 8, 1),))
FROM_CUBE = (GROUP, CoreKind.CUBE, 0)


def test_interleavings_are_counted() -> None:
    """Of two cores with a step, and with two; one at a time, and as many as are asked for."""
    assert explore_aicore(plan_of((), [Drain()])) == Exploration(2, True)
    two = plan_of((), [Drain(), Drain()])
    assert explore_aicore(two) == Exploration(6, True)
    assert explore_aicore(two, limit=5) == Exploration(5, False)
    assert explore_aicore(two, limit=5, seed=1) == Exploration(5, False)
    assert explore_aicore(plan_of((), vector=[Drain(), Drain()])) == Exploration(100, False), "unless told otherwise"
    assert explore_aicore(plan_of(())) == Exploration(1, True)


def test_random_runs_of_one_seed_are_the_same() -> None:
    plan = plan_of(tasks_of(STORE, (1, 2, (read(0, 8),))), [Run(0)], [Run(1)])
    numbers = set()
    for seed in range(8):
        found = explore_aicore(plan, seed=seed)
        assert found == Exploration(found.interleavings, False, reads(1, 2))
        assert found == explore_aicore(plan, limit=found.interleavings, seed=seed)
        before = found.interleavings - 1
        assert explore_aicore(plan, limit=before, seed=seed) == Exploration(before, False)
        numbers.add(before)
    assert len(numbers) > 1


def test_random_runs_have_cores_and_queues_fall_far_behind() -> None:
    """Behind hundreds of moves of all others: a core's only store, and a core whose turn comes late."""
    reader = [*[Drain()] * 100, Run(1)]
    assert wrong_of((0, 0, (write(0, 8),)), (1, 2, (read(0, 8),)), cube=[Run(0)], vector=reader) == reads(1, 2)
    writer = [*[Drain()] * 100, Run(1)]
    assert wrong_of((0, 2, (read(0, 8),)), (1, 0, (write(0, 8),)), cube=writer, vector=[Run(0)]) == reads(0, 2)


@pytest.mark.parametrize(
    ("between", "wait", "right"),
    [
        ([], (), False),
        ([Drain()], (), True),
        ([], (OperandWait(0, (), True),), True),
        ([], (OperandWait(0, (), False),), False),
        ([], (OperandWait(1, (), True),), False),
    ],
)
def test_a_load_overtakes_stores_of_its_own_core(
    between: list[Any], wait: tuple[OperandWait, ...], right: bool
) -> None:
    found = wrong_of(STORE, (1, 0, (read(0, 8, 0),)), cube=[Run(0), *between, Run(1, wait)])
    assert found == ("" if right else reads(1, 0))


def test_a_group_is_told_by_its_own_cores() -> None:
    programs = {"cube": [Run(0), Signal(0)], "vector": [Await(0, 1), Run(1)]}
    for core, right in ((2, True), (3, True), (4, False)):
        found = wrong_of(STORE, (1, core, (read(0, 8),)), events=[FROM_CUBE], **programs)
        assert found == ("" if right else reads(1, core))


def test_all_of_a_type_and_all_cores_are_told_by_all() -> None:
    """The slowest of them: the one that stores."""
    of_type = {"vector": [Run(0), Signal(0), Await(0, 1), Run(1)], "events": [(TYPE, CoreKind.VECTOR, 0)]}
    assert wrong_of((0, 5, (write(0, 8),)), (1, 2, (read(0, 8),)), **of_type) == ""
    both = {"cube": [Signal(0), Await(0, 1), Run(1)], "vector": [Run(0), Signal(0), Await(0, 1), Run(1)]}
    for core in (0, 2):
        assert wrong_of((0, 5, (write(0, 8),)), (1, core, (read(0, 8),)), **both, events=[(ALL, None, 0)]) == ""


def test_a_signal_ahead_of_what_it_tells_of() -> None:
    found = wrong_of(
        STORE, (1, 2, (read(0, 8),)), cube=[Signal(0), Run(0)], vector=[Await(0, 1), Run(1)], events=[FROM_CUBE]
    )
    assert found == reads(1, 2)


def test_a_count_has_its_limit() -> None:
    """Where a flag may be signalled three times ahead of the first take."""
    for limit in (2, 3):
        found = wrong_of(
            cube=[Signal(0), Signal(1), Signal(2)],
            vector=[Await(0, 0), Await(1, 0), Await(2, 0)],
            events=[FROM_CUBE] * 3,
            flag_count_max=limit,
        )
        assert found.rstrip("2345") == ("flag 0 counts to 3 on core " if limit == 2 else "")


def test_a_count_that_is_left_over() -> None:
    left = "flag 0 still counts 1 on core 2 where a launch ends"
    assert wrong_of(cube=[Signal(0)], events=[FROM_CUBE]) == left
    launches = {"cube": [Signal(0), LaunchEnd(1)], "vector": [LaunchEnd(1), Await(0, 1)], "events": [FROM_CUBE]}
    assert wrong_of(**launches) == left
    taken = {"cube": [Signal(0), LaunchEnd(1)], "vector": [Await(0, 1), LaunchEnd(1)], "events": [FROM_CUBE]}
    assert wrong_of(**taken) == ""
    two = {"cube": [Signal(0), Signal(1)], "vector": [Await(0, 1)], "events": [FROM_CUBE] * 2}
    assert wrong_of(**two) == left


def test_a_word_is_one_events_and_stays() -> None:
    """Numbers of words do not tell events apart here, and whoever waits again passes."""
    words = [(NOTIFY, CoreKind.CUBE, 0, CoreKind.VECTOR), (NOTIFY, CoreKind.CUBE, 0, CoreKind.VECTOR)]
    cube = [Signal(0), Run(0), Signal(1)]
    row: Row = (1, 2, (read(0, 8),))
    assert wrong_of(STORE, row, cube=cube, vector=[Await(1, 1), Await(1, 1), Run(1)], events=words) == ""
    assert wrong_of(STORE, row, cube=cube, vector=[Await(0, 1), Run(1)], events=words) == reads(1, 2)
    slow: Row = (0, 1, (write(0, 8, 1),))
    assert wrong_of(slow, row, cube=cube, vector=[Await(1, 1), Run(1)], events=words) == "", "all setters count"


def test_a_word_does_not_pass_a_limit() -> None:
    words = [(NOTIFY, CoreKind.CUBE, n, CoreKind.VECTOR) for n in range(3)]
    assert wrong_of(cube=[Signal(0), Signal(1), Signal(2)], events=words, flag_count_max=0) == ""


def test_a_word_and_a_flag_of_one_number_are_two() -> None:
    events = [(NOTIFY, CoreKind.CUBE, 0, CoreKind.VECTOR), FROM_CUBE]
    assert wrong_of(cube=[Signal(0), Signal(1)], vector=[Await(0, 0), Await(1, 0)], events=events) == ""


def test_a_flag_counts_where_it_is_received_alone() -> None:
    """Its setters, whom the receivers answer ahead of its second use, have no count of it."""
    found = wrong_of(
        cube=[Signal(0), Await(1, 0), Signal(2)],
        vector=[Await(0, 0), Signal(1), Await(2, 0)],
        events=[FROM_CUBE, (GROUP, CoreKind.VECTOR, 1), FROM_CUBE],
        flag_count_max=1,
    )
    assert found == ""


def test_a_deadlock_says_who_stands_where() -> None:
    vector = [Drain(), Await(0, 4)]
    found = wrong_of(vector=vector, events=[FROM_CUBE])
    assert found == "deadlock: " + ", ".join(f"core {core} at step 1: await 0 for 4" for core in (2, 3, 4, 5))
    together = [Await(0, 1)]  # at the same step, which is no end of a launch
    found = wrong_of(cube=together, vector=together, events=[(ALL, None, 0)])
    assert found == "deadlock: " + ", ".join(f"core {core} at step 0: await 0 for 1" for core in range(6))


def test_launches_end_together() -> None:
    """Behind all stores; of another launch's end, or none, nobody comes further."""
    row: Row = (1, 2, (read(0, 8),))
    cube = [Run(0), LaunchEnd(1)]
    assert wrong_of(STORE, row, cube=cube, vector=[LaunchEnd(1), Run(1)]) == ""
    assert wrong_of(STORE, row, cube=cube, vector=[Run(1), LaunchEnd(1)]) == reads(1, 2)
    stand = "deadlock: core 0 at step 0: cut ahead of 1, core 1 at step 0: cut ahead of 1"
    assert wrong_of(cube=[LaunchEnd(1)]) == stand
    nobody_runs_it = "the final memory differs from that of the global order"
    assert wrong_of(STORE, cube=[LaunchEnd(0)], vector=[LaunchEnd(0)]) == nobody_runs_it
    others = "".join(f", core {core} at step 0: cut ahead of 2" for core in (2, 3, 4, 5))
    assert wrong_of(cube=[LaunchEnd(1)], vector=[LaunchEnd(2)]) == stand + others


def test_what_numpy_computes_between_launches_is_stored() -> None:
    rows: list[Row] = [STORE, (1, 0, (read(0, 8), write(8, 8))), (2, 2, (read(8, 8),))]
    assert wrong_of(*rows, cube=[Run(0), Pause(1)], vector=[Pause(1), Run(2)]) == ""
    assert wrong_of(*rows, cube=[Run(0), LaunchEnd(2)], vector=[LaunchEnd(2), Run(2)]) == reads(2, 2)


def waiting(*waits: OperandWait, core: int = 2) -> str:
    """A vector core whose operand 1 reads what a cube core stores, and whose operand 0 reads what nobody does."""
    return wrong_of(
        STORE, (1, core, (read(16, 8, 0), read(0, 8, 1), write(32, 8, 2))),
        cube=[Run(0), Signal(0)], vector=[Run(1, waits)], events=[FROM_CUBE],
    )  # fmt: skip


def test_a_kernel_waits_ahead_of_an_operand() -> None:
    """In any order of operands; those without units, and behind operands that are not there, at its end."""
    assert waiting(OperandWait(1, (0,), False)) == ""
    assert waiting(OperandWait(0, (0,), False)) == reads(1, 2, 1)
    assert waiting(OperandWait(-2, (0,), False)) == reads(1, 2, 1)
    assert waiting() in (reads(1, 2, 1), "flag 0 still counts 1 on core 2 where a launch ends")


def test_an_event_that_several_operands_name_is_taken_once() -> None:
    both = [OperandWait(operand, (0,), False) for operand in (0, 1)]
    assert waiting(*both) == ""
    assert waiting(OperandWait(1, (0, 0), False)) == ""
    assert waiting(OperandWait(1, (0,), False), OperandWait(-2, (0,), False)) == ""


def test_a_core_without_units_has_nothing_to_order() -> None:
    """It takes what is there, and no fence holds it."""
    fences = [OperandWait(1, (0,), True), OperandWait(-2, (), True)]
    assert waiting(*fences) == ""


def test_each_access_of_an_operand_is_looked_at() -> None:
    """One that names no operand is the first one's."""
    rows: list[Row] = [(0, 0, (write(0, 8, 1), write(64, 8, 1))), (1, 2, (read(16, 8), read(64, 8)))]
    assert wrong_of(*rows, cube=[Run(0)], vector=[Run(1)]) == reads(1, 2)
    waits = (OperandWait(0, (0,), False),)
    assert wrong_of(*rows, cube=[Run(0), Signal(0)], vector=[Run(1, waits)], events=[FROM_CUBE]) == ""


def test_stores_of_two_cores_without_order() -> None:
    lost = "the final memory differs from that of the global order"
    assert wrong_of(STORE, (1, 2, (write(0, 8),)), cube=[Run(0)], vector=[Run(1)]) == lost
    assert wrong_of(STORE, (1, 2, (write(8, 8),)), cube=[Run(0)], vector=[Run(1)]) == ""


# Planner and verifier against it --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", seeds(16))
def test_what_is_accepted_goes_right_when_run(seed: int) -> None:
    """Plans with few flags, and mutants of them: those that the verifier accepts find no wrong interleaving, most of
    those that it refuses do."""
    rng = random.Random(seed)
    flags, count_max = rng.choice([5, 6, 7, 8, 10, 16]), rng.choice([1, 2, 3, 15])
    target = MINI.replaced({"sync.flags_per_core": flags, "sync.flag_count_max": count_max})
    schedule = schedule_of(random_ops(rng, rng.randint(2, 6)), target)
    plan = plan_aicore(schedule, target, early_start=rng.random() < 0.8)
    verify_aicore(plan)
    assert not explore_aicore(plan, limit=20, seed=seed).wrong
    tried = [*edits(plan), *rearranged(plan)]
    shown = refused = 0
    for name, mutant in rng.sample(tried, min(12, len(tried))):
        _, certificate = check_aicore_plan(mutant)
        wrong = explore_aicore(mutant, limit=25, seed=seed).wrong
        if certificate is None:
            refused, shown = refused + 1, shown + bool(wrong)
        else:
            assert not wrong, name
    assert shown >= 0.6 * refused or refused < 5
