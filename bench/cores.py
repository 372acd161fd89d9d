"""Measuring while the CPUs are cores of their own.

The host of a virtual machine decides where its CPUs run. For some tens of milliseconds at a time, most often where one
of them was idle before, two may be the hardware threads of one core: together they then get little more done than one
alone. What is measured meanwhile says nothing about two cores, so it is measured again, and how often that happened is
part of the result.

A look costs a millisecond: reads from the second-level cache, which hardware threads share, by all CPUs against one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import machine

T = TypeVar("T")

BYTES = 128 << 10  # per CPU
SHARE_MIN = 0.75  # of one's speed, per CPU while all read; hardware threads of one core reach half
ATTEMPTS = 4
LOOKS = 20  # while waiting for a core each
LOOK_GAP_S = 0.01


def are_apart(threads: int) -> bool:
    """Whether so many CPUs are cores of their own now."""
    if threads < 2:
        return True
    one = machine.read_gb_per_s(BYTES, 1)
    return machine.read_gb_per_s(BYTES * threads, threads) >= SHARE_MIN * threads * one


@dataclass
class OwnCores:
    """Takes measurements on `threads` CPUs, and counts those that were taken, and those of them taken again."""

    threads: int
    taken: int = 0
    repeated: int = 0

    def measure(self, call: Callable[[], T]) -> T:
        """What `call` returns where the CPUs are cores of their own before and after it; the last of a few attempts
        where they never are."""
        self.taken += 1
        for _ in range(ATTEMPTS - 1):
            before = self._wait()
            found = call()
            if before and are_apart(self.threads):
                return found
            self.repeated += 1
        self._wait()
        return call()

    def _wait(self) -> bool:
        """Until the CPUs are cores of their own, for a fraction of a second at most."""
        for _ in range(LOOKS):
            if are_apart(self.threads):
                return True
            time.sleep(LOOK_GAP_S)
        return False
