"""What cores were seen to do to one another inside kernels: lines made by hand, with a fault at a time."""

from __future__ import annotations

from dataclasses import replace

from hand_lines import (
    SHAPE,
    Kernel,
    Launch,
    Steps,
    add,
    kernel,
    lines,
    rebuilt,
    refused,
    set_flag,
    steps_of,
    take,
    until,
)
from hand_plans import ALL, TYPE

from superkernel.sync.aicore.plan import Mode


def pair(cube: Kernel, vector: Kernel, own: dict[int, Kernel] | None = None) -> Launch:
    return Launch([cube], [vector], own={core: [call] for core, call in (own or {}).items()})


GIVES = kernel(0, set_flag(3), take(2))
TAKES = kernel(0, take(3), set_flag(2))


def inside_refused(core: int, flag: int, expected: int, found: int) -> str:
    return (
        f"launch 0, sub-operator 0, core {core}, flag {flag}: cores signal one another inside a kernel, "
        f"and not as often as they wait; expected {expected}; found {found}"
    )


def test_cores_of_a_group_signal_one_another() -> None:
    """A cube core takes once what its vector cores have both given."""
    assert steps_of(pair(GIVES, TAKES)) == lines("program cube", "run 0", "program vector", "run 0")


def test_one_group_may_run_what_the_other_does_not() -> None:
    launch = Launch(own={0: [GIVES], 2: [TAKES], 3: [TAKES]})
    assert steps_of(launch) == lines("program cube", "run 0", "program vector", "run 0")


def test_the_waits_of_a_kernel_that_are_not_for_its_own_flags_are_the_plans() -> None:
    first = kernel(0, take(0), take(3), set_flag(2), uses={0: (1, None)})
    launch = Launch([set_flag(0), GIVES], [first])
    assert steps_of(launch) == lines(
        "event 0 mode group setters cube flag 0 after -1",
        "program cube", "signal 0", "run 0",
        "program vector", "run 0 [operand 0: 0]",
    )  # fmt: skip


def test_words_that_a_kernel_awaits_are_no_flags() -> None:
    first = kernel(0, until(50, 2), take(3), set_flag(2), uses={0: (1, None)})
    assert steps_of(Launch([add(50), GIVES], [first])) == lines(
        "event 0 mode notify setters cube to vector word 0 after -1",
        "program cube", "signal 0", "run 0",
        "program vector", "run 0 [operand 0: 0]",
    )  # fmt: skip


def test_a_core_that_takes_less_or_more_than_it_is_given_is_refused() -> None:
    assert refused(pair(GIVES, TAKES, {3: kernel(0, set_flag(2))})) == [inside_refused(3, 3, 1, 0)]
    assert refused(pair(GIVES, TAKES, {3: kernel(0, take(3), take(3), set_flag(2))})) == [inside_refused(3, 3, 1, 2)]
    assert refused(pair(GIVES, TAKES, {1: kernel(0, set_flag(3))})) == [inside_refused(1, 2, 1, 0)]


def test_cores_of_a_group_give_alike() -> None:
    assert refused(pair(GIVES, TAKES, {3: kernel(0, take(3))})) == [inside_refused(0, 2, 0, 1)]
    more = kernel(0, take(3), set_flag(2), set_flag(2))
    assert refused(pair(GIVES, TAKES, {4: more})) == [inside_refused(1, 2, 1, 1)]


def test_a_core_of_the_group_that_does_not_run_it_takes_nothing() -> None:
    """What it was given is left."""
    assert refused(Launch([GIVES], [TAKES], own={5: []})) == [inside_refused(1, 2, 0, 1), inside_refused(5, 3, 1, 0)]


def test_a_kernel_that_signals_all_cores_is_refused() -> None:
    everybody = kernel(0, set_flag(1, ALL), take(1))
    found = refused(Launch([everybody], [everybody]))
    assert found == [inside_refused(core, 1, 0, 1) for core in range(6)]
    alone = refused(Launch(own={0: [kernel(0, set_flag(1, ALL))]}))
    assert alone == [inside_refused(0, 1, 0, 0)]


PAIR = Mode.PAIR
PAIR_GIVES = kernel(0, set_flag(3, PAIR), take(2))
PAIR_TAKES = kernel(0, take(3), set_flag(2, PAIR))


def test_a_cube_core_and_its_first_vector_core_signal_one_another() -> None:
    """2 is the first vector core of 0, 4 that of 1."""
    launch = Launch([PAIR_GIVES], [kernel(0)], own={2: [PAIR_TAKES], 4: [PAIR_TAKES]})
    assert steps_of(launch) == lines("program cube", "run 0", "program vector", "run 0")


def test_other_vector_cores_are_given_nothing_by_pairs_and_give_nothing() -> None:
    assert refused(pair(PAIR_GIVES, PAIR_TAKES)) == [inside_refused(3, 3, 0, 1), inside_refused(5, 3, 0, 1)]
    only_second = Launch(
        [PAIR_GIVES], [kernel(0, take(3))], own={core: [kernel(0, set_flag(2, PAIR))] for core in (3, 5)}
    )
    assert refused(only_second) == [inside_refused(core, 2, 0, 1) for core in (0, 1)]


def test_a_device_without_cube_cores_has_barriers() -> None:
    vector = replace(SHAPE, cube_cores=0)
    barrier = kernel(0, set_flag(1, TYPE), take(1))
    assert steps_of(Launch(vector=[barrier]), shape=vector) == lines("program cube", "program vector", "run 0")


MEETS = kernel(1, set_flag(2, TYPE), take(2), set_flag(3, TYPE), take(3))
JOINS: Steps = [set_flag(2, TYPE), take(2), set_flag(3, TYPE), take(3)]


def test_cores_that_meet_inside_a_kernel_and_those_that_join() -> None:
    plan, wrong = rebuilt(Launch(vector=[MEETS, kernel(2)], own={4: [*JOINS, kernel(2)]}))
    assert wrong == []
    assert plan.barriers == {1: 2}
    assert str(plan).endswith("program vector\n  run 1 barriers 2\n  run 2")
    assert rebuilt(Launch([kernel(0)]))[0].barriers == {}


def test_a_core_that_does_not_join_is_refused() -> None:
    told = "deadlock: cores meet inside a kernel, and others never come"
    assert refused(Launch(vector=[MEETS], own={5: []})) == [
        f"vector core 3, sub-operators [1]: {told}; expected 2; found 0"
    ]
    half = [*JOINS[:2], kernel(2)]
    assert refused(Launch(vector=[MEETS, kernel(2)], own={2: half})) == [
        f"vector core 0, sub-operators [1]: {told}; expected 2; found 1"
    ]
    assert refused(Launch(vector=[MEETS, *JOINS])) == [
        f"vector core {n}, sub-operators []: {told}; expected 0; found 2" for n in range(4)
    ]


def test_what_others_run_without_a_barrier_is_joined_by_nobody() -> None:
    assert steps_of(Launch(vector=[MEETS, kernel(3)], own={2: [MEETS]})).endswith("run 1\n  run 3")


def test_joined_barriers_are_told_of_their_own_kernels() -> None:
    once = kernel(4, set_flag(2, TYPE), take(2))
    launch = Launch(vector=[MEETS, once], own={3: [*JOINS, once], 4: [MEETS, *JOINS[:2]]})
    assert steps_of(launch).endswith("program vector\n  run 1 barriers 2\n  run 4 barriers 1")


def test_cores_that_do_not_meet_equally_often_are_refused() -> None:
    once = kernel(1, set_flag(2, TYPE), take(2))
    found = refused(Launch(vector=[MEETS], own={2: [once]}))
    assert found == ["launch 0, sub-operator 1, core 2: cores meet inside a kernel, and not equally often"]


def test_a_core_that_leaves_a_barrier_unawaited_is_refused() -> None:
    found = refused(Launch(vector=[kernel(0, set_flag(1, TYPE))]))
    assert found == [inside_refused(core, 1, 1, 0) for core in (2, 3, 4, 5)]


def test_each_sub_operator_and_launch_is_looked_at_by_itself() -> None:
    """What one kernel leaves is not for the next one to take."""
    gives, takes = kernel(0, set_flag(3)), kernel(1, take(3))
    told = "cores signal one another inside a kernel, and not as often as they wait"
    wanted = [
        *(f"launch 0, sub-operator 0, core {core}, flag 3: {told}; expected 1; found 0" for core in (2, 3, 4, 5)),
        *(f"launch {{}}, sub-operator 1, core {core}, flag 3: {told}; expected 0; found 1" for core in (2, 3, 4, 5)),
    ]
    assert refused(Launch([gives], [kernel(0), takes])) == [text.format(0) for text in wanted]
    assert refused(Launch([gives], [kernel(0)]), Launch(vector=[takes])) == [text.format(1) for text in wanted]
