"""Where a program that was seen has fences: lines made by hand."""

from __future__ import annotations

from typing import Any

from hand_lines import Kernel, Launch, kernel, set_flag, steps_of, take
from hand_plans import read, write

STORES = kernel(0, accesses=(write(0, 64, 1),))


def fenced(*calls: Kernel) -> str:
    """The cube cores' runs."""
    text = steps_of(Launch(own={0: calls}))
    return text.removeprefix("program cube\n  ").removesuffix("\nprogram vector").replace("\n  ", ", ")


def test_a_fence_is_where_loads_come_behind_all_stores_of_earlier_calls() -> None:
    assert fenced(STORES, kernel(1, uses={0: (0, 1), 1: (0, 0), 2: (0, None)})) == "run 0, run 1 [operand 0: fence]"
    assert fenced(kernel(0, uses={3: (0, 0)})) == "run 0 [operand 3: fence]"
    assert fenced(STORES, kernel(1, uses={0: (None, 1)})) == "run 0, run 1 [operand 0: fence]"


def test_a_fence_and_waits_of_one_operand() -> None:
    vector = [STORES, kernel(1, take(0), uses={0: (1, 1), 1: (1, 0)})]
    assert steps_of(Launch([set_flag(0)], vector)).endswith("run 0\n  run 1 [operand 0: 0 fence] [operand 1: 0]")


def test_a_fence_is_one_where_it_is_one_on_all_cores() -> None:
    sure, less = (kernel(1, uses={0: (0, number), 1: (0, 1)}) for number in (1, 0))
    launch = Launch([STORES, sure], own={1: [STORES, less]})
    assert "run 1 [operand 1: fence]" in steps_of(launch)


def reads(subop: int, fence: int | None, start: int = 0, operand: int | None = 0, **form: Any) -> Kernel:
    """Loads 64 bytes behind the stores of so many calls."""
    access = read(start, 64, operand, **form)
    return kernel(subop, uses={0: (0, fence)}, accesses=(access,))


FENCE = kernel(1, uses={7: (0, 1)})


def test_what_a_fence_promises_of_loads_further_on_is_held_against_them() -> None:
    """Behind it, a load of what was stored ahead of it: such a load comes behind the store, or the fence is none."""
    kept = "run 0, run 1 [operand 7: fence], run 2"
    none = "run 0, run 1, run 2"
    assert fenced(STORES, FENCE, reads(2, 1)) == kept
    assert fenced(STORES, FENCE, reads(2, 0)) == none
    assert fenced(STORES, FENCE, reads(2, None)) == kept, "it loads nothing"
    assert fenced(STORES, FENCE, reads(2, 0, operand=None)) == none, "an access of no operand is any operand's"


def test_loads_of_what_nobody_stored_break_no_promise() -> None:
    kept = "run 0, run 1 [operand 7: fence], run 2"
    assert fenced(STORES, FENCE, reads(2, 0, start=64)) == kept
    assert fenced(STORES, FENCE, reads(2, 0, slot=1)) == kept
    assert fenced(STORES, FENCE, reads(2, 0, operand=5)) == kept, "another operand, which loads nothing"
    stores = kernel(2, uses={0: (0, 0)}, accesses=(write(0, 64, 0),))
    assert fenced(STORES, FENCE, stores) == kept, "a store"
    assert fenced(reads(0, None), FENCE, reads(2, 0)) == kept, "loaded before, not stored"


def test_a_fence_promises_nothing_of_stores_behind_it() -> None:
    later = kernel(2, accesses=(write(0, 64, 1),))
    assert fenced(kernel(0), FENCE, later, reads(3, 1)) == "run 0, run 1 [operand 7: fence], run 2, run 3"
    assert fenced(kernel(0), FENCE, later, reads(3, 2)) == "run 0, run 1 [operand 7: fence], run 2, run 3"


def test_the_earliest_load_of_a_call_counts() -> None:
    """Of two operands one comes behind the store."""
    both = kernel(2, uses={0: (0, 1), 1: (0, 0)}, accesses=(read(0, 64, 0), read(0, 64, 1)))
    assert fenced(STORES, FENCE, both) == "run 0, run 1, run 2"
    other = kernel(2, uses={0: (0, 0), 1: (0, 1)}, accesses=(read(64, 64, 0), read(0, 64, 1)))
    assert fenced(STORES, FENCE, other) == "run 0, run 1 [operand 7: fence], run 2"


def test_all_fences_that_a_load_belies_are_none() -> None:
    """And none that was ahead of the store, or stands behind the load."""
    second, behind = kernel(3, uses={6: (0, 3)}), kernel(5, uses={5: (0, 5)})
    first = kernel(0, uses={4: (0, 0)})
    stores = kernel(1, accesses=(write(0, 64, 1),))
    calls = [first, stores, kernel(2, uses={7: (0, 2)}), second, reads(4, 1), behind]
    assert fenced(*calls) == "run 0 [operand 4: fence], run 1, run 2, run 3, run 4, run 5 [operand 5: fence]"


def test_a_load_that_knows_of_the_first_fences_stores_leaves_it() -> None:
    second = kernel(2, accesses=(write(64, 64, 1),))
    third = kernel(3, uses={6: (0, 3)})
    calls = [STORES, FENCE, second, third]
    kept = "run 0, run 1 [operand 7: fence], run 2, run 3, run 4"
    assert fenced(*calls, reads(4, 1, start=64)) == kept
    assert fenced(*calls, reads(4, 1)) == kept.replace("run 3,", "run 3 [operand 6: fence],")


def test_fences_hold_over_stretches_and_not_over_launches() -> None:
    stretches = Launch([STORES, set_flag(0), FENCE, reads(2, 0)], [take(0)])
    assert "fence" not in steps_of(stretches)
    launches = [Launch([STORES]), Launch([kernel(1, uses={7: (0, 0)}), reads(2, 0)])]
    assert "run 1 [operand 7: fence]\n  run 2" in steps_of(*launches)
