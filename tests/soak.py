"""Whether costly checks are made of everything (`make soak`), or of a sample that the run's seed draws, so that what
one run leaves out another has."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar
from zlib import crc32

from seeds import run_seed

enabled = False  # conftest.py: the option --soak

Case = TypeVar("Case")


def chosen(name: str, one_in: int) -> bool:
    """Whether what has this name is checked: one in so many, and all of it in a soak run."""
    return enabled or crc32(f"{run_seed()} {name}".encode()) % one_in == 0


def drawn(cases: Sequence[Case], count: int) -> list[Case]:
    """`count` of the cases, in their order, as the run's seed (`seeds.py`) has it: all of them in a soak run."""
    if enabled:
        return list(cases)
    kept = random.Random(f"{run_seed()} {list(cases)}").sample(range(len(cases)), count)
    return [cases[index] for index in sorted(kept)]
