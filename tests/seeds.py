"""Seeds of random tests: fixed ones, past failures, and new ones on every run.

A run has one seed, printed at its end where something failed and in its header; `SK_TEST_SEED=N` repeats it, for
hypothesis too. A failure of a new seed is kept by adding that seed to `past` of its test: the test's name has it, or,
where seeds are gone through in a loop, `--showlocals` shows it.
"""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import Iterable

VARIABLE = "SK_TEST_SEED"


def run_seed() -> int:
    """The seed of this run: the environment's, else drawn and put there, for the processes that share the tests."""
    return int(os.environ.setdefault(VARIABLE, str(secrets.randbelow(1 << 31))))


def seeds(fixed: int | Iterable[int], *, new: int = 1, past: tuple[int, ...] = ()) -> list[int]:
    """What a test is parametrised with: `past` failures first, the `fixed` ones (a number: 0 up to it), and `new`
    ones that the run's seed gives."""
    draw = random.Random(run_seed())
    known = range(fixed) if isinstance(fixed, int) else fixed
    fresh = (draw.randrange(1 << 20, 1 << 31) for _ in range(new))
    return list(dict.fromkeys([*past, *known, *fresh]))
