"""What harts were seen to do, made a plan again: lines made by hand, with a fault at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hand_lines import (
    MEANT,
    SHAPE,
    Launch,
    Steps,
    add,
    fetch,
    kernel,
    lines,
    rebuilt,
    refused,
    set_flag,
    steps_of,
    store,
    take,
    until,
)
from hand_plans import ALL, CUBE, TYPE

from superkernel.sync.aicore.plan import AicorePlan, AwaitCount, CoreKind, LaunchEnd, Pause, Prefetch, Run
from superkernel.sync.aicore.verify_program import BEHIND
from superkernel.sync.aicore.verify_seen import Returned, Seen

NO_PROGRAMS = "program cube\nprogram vector"


# Signals and waits ----------------------------------------------------------------------------------------------------


def test_cube_cores_compute_and_vector_cores_go_on() -> None:
    assert steps_of(Launch([kernel(0), set_flag(1)], [take(1), kernel(1)])) == lines(
        "event 0 mode group setters cube flag 1 after 0",
        "program cube", "run 0", "signal 0",
        "program vector", "await 0 for 1", "run 1",
    )  # fmt: skip


def test_a_signal_ahead_of_all_calls() -> None:
    assert steps_of(Launch([set_flag(0), kernel(4)], [take(0)])) == lines(
        "event 0 mode group setters cube flag 0 after -1",
        "program cube", "signal 0", "run 4",
        "program vector", "await 0 for -1",
    )  # fmt: skip


def test_a_signal_comes_behind_what_any_core_of_its_type_has_called_in_any_launch() -> None:
    first = Launch(own={0: [kernel(0)], 1: [kernel(0), kernel(3)]})
    second = Launch([set_flag(0)], [take(0)])
    assert steps_of(first, second) == lines(
        "event 0 mode group setters cube flag 0 after 3",
        "program cube", "run 0", "run 3", "cut ahead of -1", "signal 0",
        "program vector", "cut ahead of -1", "await 0 for -1",
    )  # fmt: skip


def test_the_nth_take_of_a_flag_is_of_its_nth_signal() -> None:
    cube = [kernel(0), set_flag(1), kernel(1), set_flag(0), kernel(2), set_flag(1)]
    assert steps_of(Launch(cube, [take(1), kernel(3), take(1), kernel(4), take(0)])) == lines(
        "event 0 mode group setters cube flag 1 after 0",
        "event 1 mode group setters cube flag 0 after 1",
        "event 2 mode group setters cube flag 1 after 2",
        "program cube", "run 0", "signal 0", "run 1", "signal 1", "run 2", "signal 2",
        "program vector", "await 0 for 3", "run 3", "await 2 for 4", "run 4", "await 1 for -1",
    )  # fmt: skip


def test_flags_are_counted_over_launches() -> None:
    one = Launch([kernel(0), set_flag(0)], [take(0)])
    two = Launch([kernel(1), set_flag(0)], [take(0), kernel(2)])
    assert steps_of(one, two) == lines(
        "event 0 mode group setters cube flag 0 after 0",
        "event 1 mode group setters cube flag 0 after 1",
        "program cube", "run 0", "signal 0", "cut ahead of 1", "run 1", "signal 1",
        "program vector", "await 0 for -1", "cut ahead of 1", "await 1 for 2", "run 2",
    )  # fmt: skip


def test_an_event_of_all_cores_is_one() -> None:
    """Cube cores come first in what it says that it stands behind."""
    both = [set_flag(2, ALL), take(2)]
    assert steps_of(Launch([kernel(0), *both], [kernel(1), *both])) == lines(
        "event 0 mode all setters all flag 2 after 0",
        "program cube", "run 0", "signal 0", "await 0 for -1",
        "program vector", "run 1", "signal 0", "await 0 for -1",
    )  # fmt: skip


def test_flags_of_two_types_of_setters_are_two() -> None:
    """Each type takes what the other gave, and one of them what its own cores did."""
    cube: Steps = [kernel(0), set_flag(0), take(0), set_flag(1, TYPE), take(1)]
    assert steps_of(Launch(cube, [kernel(1), set_flag(0), take(0)])) == lines(
        "event 0 mode group setters cube flag 0 after 0",
        "event 1 mode type setters cube flag 1 after 0",
        "event 2 mode group setters vector flag 0 after 1",
        "program cube", "run 0", "signal 0", "await 2 for -1", "signal 1", "await 1 for -1",
        "program vector", "run 1", "signal 2", "await 0 for -1",
    )  # fmt: skip


def test_a_wait_for_what_nobody_signals_is_refused() -> None:
    assert refused(Launch([kernel(0), set_flag(0)], [take(0), take(0)])) == [
        "vector cores, flag 0, take 1: a wait for what nobody signals; expected one event; found 0"
    ]
    assert refused(Launch([kernel(0), take(0)])) == [
        "cube cores, flag 0, take 0: a wait for what nobody signals; expected one event; found 0"
    ]


def test_a_wait_inside_a_kernel_for_what_nobody_signals_is_no_step() -> None:
    plan, wrong = rebuilt(Launch(vector=[kernel(0, take(3))]))
    assert wrong == ["vector cores, flag 3, take 0: a wait for what nobody signals; expected one event; found 0"]
    assert str(plan).endswith("program vector\n  run 0")


def test_a_flag_that_two_kinds_of_events_use_is_refused() -> None:
    assert refused(Launch([kernel(0), set_flag(0)], [kernel(1), set_flag(0, TYPE), take(0), take(0)])) == [
        "vector cores, flag 0, take 0: a flag is used by two kinds of events; expected one event; found 2",
        "vector cores, flag 0, take 1: a wait for what nobody signals; expected one event; found 0",
    ]


def test_a_signal_that_may_be_seen_too_early_is_refused() -> None:
    early = set_flag(0, complete=0)
    assert refused(Launch([kernel(0), early], [take(0)])) == [
        f"launch 0, core {core}: {early}: a signal may be seen before what it tells of is done; expected 1"
        for core in (0, 1)
    ]


def test_cores_of_a_type_that_signal_differently_are_refused() -> None:
    """By themselves: what would follow from it is not told, and no plan is made of it."""
    stranger = [kernel(0), set_flag(0), set_flag(0, TYPE)]
    inside = Launch([kernel(0), set_flag(0)], [kernel(1, set_flag(3))], own={1: stranger}, behind=[[until(1, 1)]])
    plan, wrong = rebuilt(inside)
    assert wrong == [
        "launch 0, core 1: cores of a type signal differently; expected [('flag', 0, 'group'), ()]; "
        "found [('flag', 0, 'group'), ('flag', 0, 'type'), ()]"
    ]
    assert str(plan).split("\n", 1)[1] == NO_PROGRAMS
    assert plan.service == ()


@pytest.mark.parametrize(
    "other",
    [set_flag(1), set_flag(0, TYPE), add(0), add(9, 2), add(8)],
    ids=["flag", "mode", "word", "value", "another word"],
)
def test_signals_differ_by_flag_mode_word_and_value(other: Seen) -> None:
    ours = add(9) if other in (add(9, 2), add(8)) else set_flag(0)
    found = refused(Launch([ours], own={1: [other]}))
    assert "launch 0, core 1: cores of a type signal differently" in found[-1]


def test_cores_of_a_type_that_wait_differently_are_refused() -> None:
    launch = Launch([set_flag(0), set_flag(1)], [kernel(3), take(0), take(1)], own={4: [kernel(3), take(0)]})
    assert refused(launch) == [
        "vector core 2, stretch with sub-operators [3]: cores of a type wait differently; "
        "expected [('flag', 0, 0), ('flag', 1, 0)]; found [('flag', 0, 0)]"
    ]


def test_calls_out_of_order_are_refused() -> None:
    assert refused(Launch([kernel(1), kernel(0)])) == [
        f"launch 0, core {core}: calls leave the global order; expected [0, 1]; found [1, 0]" for core in (0, 1)
    ]
    assert refused(Launch(own={1: [kernel(2), kernel(2)]})) == [
        "launch 0, core 1: calls leave the global order; expected [2]; found [2, 2]"
    ]


def test_a_core_that_prefetches_is_refused() -> None:
    assert refused(Launch(own={3: [fetch(0, 64)]})) == ["launch 0, core 3: a core prefetches constants"]


def test_a_device_without_cube_cores() -> None:
    vector = replace(SHAPE, cube_cores=0)
    both = [set_flag(1, TYPE), take(1)]
    assert steps_of(Launch(vector=[kernel(0), *both, kernel(1)]), shape=vector) == lines(
        "event 0 mode type setters vector flag 1 after 0",
        "program cube",
        "program vector", "run 0", "signal 0", "await 0 for 1", "run 1",
    )  # fmt: skip


# Where waits stand ----------------------------------------------------------------------------------------------------


def test_a_wait_stands_where_the_last_core_had_it() -> None:
    """Ahead of a run on one core, behind it on another: it tells the accesses of none."""
    launch = Launch([set_flag(0)], [take(0), kernel(0), kernel(1)], own={5: [kernel(0), take(0), kernel(1)]})
    assert steps_of(launch) == lines(
        "event 0 mode group setters cube flag 0 after -1",
        "program cube", "signal 0",
        "program vector", "run 0", "await 0 for 1", "run 1",
    )  # fmt: skip
    launch = Launch([set_flag(0)], [kernel(0), take(0), kernel(1)], own={2: [take(0), kernel(0), kernel(1)]})
    assert "run 0\n  await 0 for 1\n  run 1" in steps_of(launch)


def test_a_core_without_units_of_a_run_does_not_hold_its_waits_back() -> None:
    """It waits behind its own last run, which is ahead of what it does not run."""
    launch = Launch(
        [set_flag(0)],
        [kernel(0), kernel(1), take(0), kernel(2)],
        own={4: [kernel(0), take(0), kernel(2)], 5: [take(0), kernel(2)]},
    )
    assert "run 0\n  run 1\n  await 0 for 2\n  run 2" in steps_of(launch)


def test_a_wait_behind_all_runs_is_for_none() -> None:
    assert steps_of(Launch([set_flag(0)], [kernel(0), take(0)])).endswith("run 0\n  await 0 for -1")


def test_a_wait_inside_a_kernel_is_of_the_operands_behind_it() -> None:
    inside = kernel(3, take(0), take(1), uses={0: (0, None), 1: (1, None), 2: (2, None), 3: (3, None)})
    assert steps_of(Launch([set_flag(0), set_flag(1)], [inside])) == lines(
        "event 0 mode group setters cube flag 0 after -1",
        "event 1 mode group setters cube flag 1 after -1",
        "program cube", "signal 0", "signal 1",
        "program vector", "run 3 [operand 1: 0] [operand 2: 0 1] [operand 3: 0 1]",
    )  # fmt: skip


def test_waits_are_counted_from_the_launchs_first() -> None:
    """Those of earlier stretches and of flags inside kernels count, those ahead of the run are no operand's."""
    signals = [set_flag(0), set_flag(1), set_flag(2)]
    barrier = kernel(0, set_flag(3, TYPE), take(3))
    inside = kernel(1, take(1), take(2), uses={0: (4, None), 1: (3, None)})
    cube: Steps = [*signals, take(0)]
    assert steps_of(Launch(cube, [barrier, take(0), set_flag(0), inside])) == lines(
        "event 0 mode group setters cube flag 0 after -1",
        "event 1 mode group setters cube flag 1 after -1",
        "event 2 mode group setters cube flag 2 after -1",
        "event 3 mode group setters vector flag 0 after 0",
        "program cube", "signal 0", "signal 1", "signal 2", "await 3 for -1",
        "program vector", "run 0", "await 0 for -1", "signal 3", "run 1 [operand 0: 1 2] [operand 1: 1]",
    )  # fmt: skip


def test_an_operand_has_the_waits_that_all_cores_had_passed() -> None:
    """What is sure of no operand was passed at the kernel's end."""
    sure = kernel(0, take(0), take(1), uses={0: (2, None), 1: (1, None)})
    less = kernel(0, take(1), take(0), uses={0: (1, None), 1: (0, None)})
    signals = [set_flag(0), set_flag(1)]
    text = steps_of(Launch(signals, [sure], own={3: [less]}))
    assert text.endswith(f"run 0 [operand 0: 1] [operand {BEHIND}: 0]")


def test_an_operand_that_one_core_does_not_touch_has_the_others_waits() -> None:
    text = steps_of(
        Launch(
            [set_flag(0)], [kernel(0, take(0), uses={1: (1, None)})], own={2: [kernel(0, take(0), uses={0: (0, None)})]}
        )
    )
    assert text.endswith("run 0 [operand 1: 0]")


def test_a_wait_ahead_of_one_call_and_inside_another_is_inside() -> None:
    inside = kernel(0, take(0), uses={0: (1, None)})
    launch = Launch([set_flag(0)], [inside], own={4: [take(0), kernel(0, uses={0: (1, None)})]})
    assert steps_of(launch).endswith("program vector\n  run 0 [operand 0: 0]")


def test_waits_inside_one_of_several_kernels() -> None:
    inside = kernel(2, take(0), uses={0: (1, None)})
    assert steps_of(Launch([set_flag(0), set_flag(1)], [kernel(0), kernel(1), inside, take(1), kernel(4)])).endswith(
        "program vector\n  run 0\n  run 1\n  run 2 [operand 0: 0]\n  await 1 for 4\n  run 4"
    )


def test_what_a_kernel_was_told_to_take_for_an_operand_that_it_did_not_touch() -> None:
    """Of two counts of a flag the first, where it was told to take one; and all that was taken ahead of it."""
    signals = [set_flag(0), set_flag(0), set_flag(1), set_flag(2)]
    inside = kernel(
        1, take(0), take(0), take(1), uses={0: (None, None), 1: (None, None), 2: (None, None), 3: (4, None)},
        told={0: [0], 1: [0, 0], 2: [1]},
    )  # fmt: skip
    text = steps_of(Launch(signals, [take(2), kernel(0), inside]))
    assert text.endswith(
        "await 3 for 0\n  run 0\n  run 1 [operand 0: 0] [operand 1: 0 1] [operand 2: 2] [operand 3: 0 1 2]"
    )


def test_what_was_taken_ahead_of_a_call_is_sure_though_another_core_took_it_inside() -> None:
    told = kernel(1, take(0), uses={0: (None, None)}, told={0: [0]})
    ahead = kernel(1, uses={0: (None, None)}, told={0: []})
    other = kernel(1, take(0), uses={0: (None, None)}, told={0: []})
    assert steps_of(Launch([set_flag(0)], [told], own={2: [take(0), ahead]})).endswith("run 1 [operand 0: 0]")
    assert steps_of(Launch([set_flag(0)], [told], own={2: [other]})).endswith(f"run 1 [operand {BEHIND}: 0]")


def test_a_flag_that_was_taken_ahead_of_a_call_is_not_the_one_that_it_was_told_to_take() -> None:
    inside = kernel(1, take(0), uses={0: (None, None)}, told={0: [0]})
    text = steps_of(Launch([set_flag(0), set_flag(0)], [take(0), inside]))
    assert text.endswith("program vector\n  await 0 for 1\n  run 1 [operand 0: 1]")


def test_what_is_taken_behind_a_call_is_not_sure() -> None:
    """By a core whose wait stands inside a later run."""
    untouched = kernel(0, uses={0: (None, None)}, told={0: [0]})
    later = kernel(1, take(0), uses={0: (None, None)}, told={0: [0]})
    text = steps_of(Launch([set_flag(0)], [untouched, later]))
    assert text.endswith("program vector\n  run 0\n  run 1 [operand 0: 0]")


def test_a_word_is_not_a_flag_of_its_number() -> None:
    inside = kernel(0, until(7, 2), uses={0: (None, None)}, told={0: [7]})
    text = steps_of(Launch([add(7)], [inside]))
    assert text.endswith(f"run 0 [operand {BEHIND}: 0]")


# Words in memory ------------------------------------------------------------------------------------------------------


def test_words_are_numbered_and_awaited_for_all_setters() -> None:
    """A word that is set, and not counted up, has no number."""
    cube = [kernel(0), add(50), add(40)]
    launch = Launch(cube, [until(40, 2), kernel(1), until(50, 2)], own={0: [kernel(0), store(30, 1), *cube[1:]]})
    text = steps_of(launch)
    assert text.startswith(
        lines(
            "event 0 mode notify setters cube to vector word 1 after 0",
            "event 1 mode notify setters cube to vector word 0 after 0",
        )
    )
    assert text.endswith("program vector\n  await 1 for 1\n  run 1\n  await 0 for -1")


def test_a_word_is_awaited_for_all_setters_of_all_runs() -> None:
    launch = Launch([kernel(0), add(50)], [until(50, 6), kernel(1)])
    assert "await 0 for 1" in steps_of(launch, run=3)
    wait = until(50, 6)
    assert refused(launch, run=4) == [
        f"launch 0, core {core}: {wait}: a word is awaited for another count; expected 8; found 6"
        for core in (2, 3, 4, 5)
    ]


def test_words_that_are_counted_up_have_no_next_number() -> None:
    """Of a type's first core either: they are the plan's, not the service hart's."""
    text = steps_of(*[Launch([add(50)], [until(50, 4)])] * 2)
    assert text.startswith(
        lines(
            "event 0 mode notify setters cube to vector word 0 after -1",
            "event 1 mode notify setters cube to vector word 0 after -1",
        )
    )


def test_setters_are_those_of_the_word_that_add_one_to_it() -> None:
    """In any launch, each of them once, though it adds twice."""
    first = Launch([kernel(0), add(50)], [store(50, 1)], own={2: [store(50, 1), store(60, 1)]})
    second = Launch([add(60)], [until(50, 2), until(60, 2)])
    _, wrong = rebuilt(first, second)
    assert not [text for text in wrong if "awaited for another count" in text]
    twice = Launch([add(50), add(50)], [until(50, 2)])
    assert not [text for text in rebuilt(twice)[1] if "awaited for another count" in text]


def test_a_word_is_counted_up_by_one() -> None:
    more = add(50, 2)
    found = refused(Launch([more], [until(50, 0)]))
    closed = replace(more, complete=0)
    assert found == [f"{closed}: a word is not counted up by one; expected 1; found 2"]


def test_a_word_is_awaited_by_harts_of_one_type() -> None:
    closed = replace(add(50), complete=0)
    told = f"{closed}: a word is not awaited by harts of one type; expected 1; found"
    assert refused(Launch([add(50)])) == [f"{told} 0"]
    assert refused(Launch([add(50), until(50, 2)], [until(50, 2)]))[0] == f"{told} 2"
    assert refused(Launch([add(50)], [until(51, 0)])) == [
        f"{told} 0",
        "vector cores, word 51, take 0: a wait for what nobody signals; expected one event; found 0",
    ]


def test_the_aicpu_hart_is_told_and_tells() -> None:
    tiled = replace(SHAPE, aicpu=True)
    launch = Launch([kernel(0), add(50)], [until(60, 1), kernel(2)], behind=[[until(50, 2), kernel(1), add(60)]])
    assert steps_of(launch, shape=tiled) == lines(
        "event 0 mode notify setters cube to aicpu word 0 after 0",
        "event 1 mode notify setters aicpu to vector word 1 after 1",
        "program cube", "run 0", "signal 0",
        "program vector", "await 1 for 2", "run 2",
        "program aicpu", "await 0 for 1", "run 1", "signal 1",
    )  # fmt: skip


def test_a_kernel_that_counts_a_word_up_is_refused() -> None:
    closed = add(50, complete=1)
    assert refused(Launch([kernel(0, add(50))], [until(50, 2)])) == [
        f"launch 0, core {core}: {closed}: a kernel signals others" for core in (0, 1)
    ]


# Launches -------------------------------------------------------------------------------------------------------------


def test_between_launches_numpy_computes_what_is_meant_to_be() -> None:
    meant = replace(MEANT, programs={CUBE: (Run(0), LaunchEnd(2), Pause(3), LaunchEnd(9)), CoreKind.VECTOR: ()})
    rows = [Launch(own={1: [kernel(0)]}), Launch([kernel(2)]), Launch(vector=[kernel(4)]), Launch(), Launch()]
    assert steps_of(*rows, meant=meant) == lines(
        "program cube", "run 0", "cut ahead of 2", "run 2", "pause for 3", "cut ahead of -1", "cut ahead of -1",
        "program vector", "cut ahead of 2", "pause for 3", "run 4", "cut ahead of -1", "cut ahead of -1",
    )  # fmt: skip


def test_a_launch_begins_with_the_first_sub_operator_of_any_hart() -> None:
    text = steps_of(Launch(), Launch([kernel(5)], [kernel(3), kernel(7)]))
    assert text == lines(
        "program cube", "cut ahead of 3", "run 5", "program vector", "cut ahead of 3", "run 3", "run 7"
    )  # fmt: skip


# The service hart -----------------------------------------------------------------------------------------------------

CUBE_WORD, VECTOR_WORD, OWN = 10, 11, 12
DONE = [store(OWN, 1), until(OWN, 1)]
COUNTED = Launch([kernel(0), kernel(1)], own={0: [kernel(0), store(CUBE_WORD, 1), kernel(1), store(CUBE_WORD, 2)]})


def meant_to_fetch(*launches: tuple[int, ...]) -> AicorePlan:
    """SDMA prefetches for these sub-operators."""
    made = tuple(tuple(Prefetch(subop, 0, 1) for subop in subops) for subops in launches)
    return replace(MEANT, service=tuple((AwaitCount(CUBE, 1), *row) for row in made))


def served(*events: Any) -> Launch:
    return replace(COUNTED, behind=[list(events)])


def test_the_service_hart_follows_a_types_first_core() -> None:
    launch = served(fetch(64, 32), until(CUBE_WORD, 2), fetch(128, 16), *DONE)
    assert steps_of(launch, meant=meant_to_fetch((5, 6))) == lines(
        "program cube", "run 0", "notify 1", "run 1", "notify 2",
        "program vector",
        "service 0", "prefetch 32 bytes at 64 for 5", "await cube count 2", "prefetch 16 bytes at 128 for 6",
    )  # fmt: skip


def test_words_of_the_service_go_on_over_launches_and_runs() -> None:
    """Each launch counts from what the one before has left."""

    def launch(before: int, done: int) -> Launch:
        cube = [kernel(0), store(CUBE_WORD, before + 1), kernel(1), store(CUBE_WORD, before + 2)]
        vector = [store(VECTOR_WORD, 7 + done)]
        hart = [until(CUBE_WORD, before + 2), until(VECTOR_WORD, 7 + done), fetch(0, 8)]
        behind = [*hart, store(OWN, done), until(OWN, done)]
        return Launch([kernel(0), kernel(1)], own={0: cube, 2: vector}, behind=[behind])

    words = {CUBE_WORD: 4, VECTOR_WORD: 7}
    text = steps_of(launch(4, 1), launch(6, 2), meant=meant_to_fetch((5,), (6,)), words=words)
    waits = ["await cube count 2", "await vector count 1"]
    one, two = ([f"service {n}", *waits, f"prefetch 8 bytes at 0 for {5 + n}"] for n in (0, 1))
    assert text.endswith(lines(*one, *two))
    assert words == {CUBE_WORD: 8, VECTOR_WORD: 9, OWN: 2}
    assert text.count("notify 1") == 4
    assert text.count("notify 2") == 2


def test_a_core_that_counts_stands_where_its_runs_do() -> None:
    """Ahead of all of them, and behind one that is not the launch's first."""
    own = {0: [store(CUBE_WORD, 1), kernel(0), kernel(2), store(CUBE_WORD, 2)]}
    text = steps_of(Launch([kernel(0), kernel(1), kernel(2)], own=own))
    assert text.startswith(lines("program cube", "notify 1", "run 0", "run 1", "run 2", "notify 2"))


def test_a_count_before_its_work_is_done_is_refused() -> None:
    early = store(CUBE_WORD, 1, complete=0)
    assert refused(Launch(own={0: [kernel(0), early]})) == [
        f"launch 0, core 0: {early}: a signal may be seen before what it tells of is done; expected 1"
    ]


def test_a_word_that_does_not_get_its_next_number_is_refused() -> None:
    told = "a word does not get its next number"
    wrong = store(CUBE_WORD, 2, complete=0)
    assert refused(Launch(own={0: [wrong]})) == [f"launch 0, core 0: {wrong}: {told}; expected 1; found 2"]
    wrong = store(OWN, 3)
    launch = served(fetch(0, 8), wrong, until(OWN, 3))
    closed = replace(wrong, complete=0)
    assert refused(launch, meant=meant_to_fetch((5,)), words={OWN: 1}) == [
        f"launch 0, service hart: {closed}: {told}; expected 2; found 3"
    ]


def test_another_core_than_the_first_that_counts_is_refused() -> None:
    told = "another core than the first counts for the service hart"
    assert refused(Launch(own={1: [store(CUBE_WORD, 1)]})) == [f"cube cores: {told}"]
    assert refused(Launch(own={4: [store(VECTOR_WORD, 1)]})) == [f"vector cores: {told}"]


def test_prefetches_that_are_left_out_or_invented_are_refused() -> None:
    told = "launch 0, service hart: prefetches are left out or invented; expected"
    launch = served(fetch(0, 8), *DONE)
    assert refused(launch, meant=meant_to_fetch((5, 6))) == [f"{told} 2; found 1"]
    assert refused(launch) == [f"{told} 0; found 1"]
    assert refused(COUNTED, meant=meant_to_fetch((5,))) == [f"{told} 1; found 0"]
    more = served(fetch(0, 8), fetch(8, 8), *DONE)
    plan, wrong = rebuilt(more, meant=meant_to_fetch((5,)))
    assert wrong == [f"{told} 1; found 2"]
    assert plan.service == ((Prefetch(5, 0, 8),),)


def test_a_service_hart_that_ends_before_its_prefetches_is_refused() -> None:
    told = ["launch 0, service hart: the service hart ends before its prefetches"]
    meant = meant_to_fetch((5,))
    assert refused(served(fetch(0, 8)), meant=meant) == told
    assert refused(served(fetch(0, 8), store(OWN, 1)), meant=meant) == told
    assert refused(served(fetch(0, 8), until(CUBE_WORD, 1)), meant=meant) == told


@pytest.mark.parametrize(
    "step",
    [until(CUBE_WORD + 50, 1), Returned(), add(CUBE_WORD, complete=0), take(0), set_flag(0, complete=0)],
    ids=["a word of nobody", "return", "count", "flag", "signal"],
)
def test_what_is_not_a_step_of_the_service_hart_is_refused(step: Seen) -> None:
    launch = served(fetch(0, 8), step, *DONE)
    assert f"launch 0, service hart: {step}: not a step of the service hart" in refused(
        launch, meant=meant_to_fetch((5,))
    )


@pytest.mark.parametrize(
    "step",
    [fetch(8, 8), until(CUBE_WORD, 1), store(OWN, 2, complete=0), until(OWN, 2), until(CUBE_WORD, 2)],
    ids=["fetch", "count", "store", "later", "another"],
)
def test_behind_its_own_word_the_service_hart_waits_for_that_alone(step: Seen) -> None:
    launch = served(fetch(0, 8), DONE[0], step, DONE[1])
    assert refused(launch, meant=meant_to_fetch((5,))) == [
        f"launch 0, service hart: {step}: not a step of the service hart"
    ]


def test_a_hart_without_a_program_that_does_something_is_refused() -> None:
    harts = replace(COUNTED, behind=[[], [until(1, 1)], [take(0)]])
    assert refused(harts) == [f"launch 0, hart {n}: a hart without a program does something" for n in (7, 8)]
    assert rebuilt(replace(COUNTED, behind=[[], [], []]))[1] == []


def test_a_launch_without_a_meant_service_has_none() -> None:
    text = steps_of(COUNTED, Launch(), meant=meant_to_fetch(()))
    assert "service" not in text
    assert refused(COUNTED, served(fetch(0, 8), *DONE), meant=meant_to_fetch(()))[0].startswith("launch 1")
