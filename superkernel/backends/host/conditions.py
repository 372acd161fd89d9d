"""How quiet the machine was while something was measured, and which launches may be believed: `Conditions`.

Model: a launch is *disturbed* where the operating system took the CPU from one of its threads meanwhile (involuntary
context switches, counted by thread and round). Disturbed launches are left out and counted. What is left is *trusted*
where it is half of all launches, or `ENOUGH`: then medians are those of a quiet machine. Else times are of all
launches, and what these consist of and how they compare is withheld. What other processes and the hypervisor took of
the CPUs (/proc/stat) and whether two of our CPUs are one core is said beside that; both slow a launch without
interrupting it. So is a frequency that moved: behind each profiled launch every core runs a chain of additions, a cycle
each, against the invariant counter. Every twentieth at either end is left out of the range: an interrupt lengthens a
chain, too. And so does where a hypervisor puts the CPUs, of one core or of two far apart: what a flag takes from one to
the other, every wait and launch takes with it. It is measured behind the launches.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel import _core
from superkernel.core.errors import MachineError
from superkernel.display.difference import MENTIONED, apart

ENOUGH = 20
_BUSY = (0, 1, 2, 5, 6)  # user, nice, system, irq, softirq
_STEAL = 7
STEADY = 0.05  # part of the highest frequency by which it may move before that is mentioned
_ENDS = (0.05, 0.95)  # quantiles
STAT = Path("/proc/stat")
Array = NDArray[np.float64]
_STAT_TEXT = partial(STAT.read_text, "ascii")


@dataclass(frozen=True, slots=True)
class Conditions:
    """See the module docstring. Shares are parts of 1 of the allowed CPUs' time, None where that was too short;
    `ghz_low`, `ghz_high`: the frequencies that the launches met, None where it cannot be measured; `handover_ns`: a
    flag from the first CPU to the second, None where there is one or one core; `planned_handover_ns`: what the plan
    was made for."""

    launches: int
    left_out: int
    preemptions: int
    others_share: float | None = None
    stolen_share: float | None = None
    shared_cores: bool = False
    trusted: bool = True
    ghz_low: float | None = None
    ghz_high: float | None = None
    handover_ns: float | None = None
    planned_handover_ns: float | None = None

    def sentences(self) -> Iterator[str]:
        """What a reader must know; nothing where the machine was quiet."""
        if not self.trusted:
            yield (
                f"the machine was busy: threads lost their CPU in {self.left_out} of {self.launches} launches; times "
                "are of all launches, and what these consist of is withheld"
            )
        elif self.left_out:
            yield f"{self.left_out} of {self.launches} launches left out: a thread lost its CPU meanwhile"
        if (self.others_share or 0.0) >= MENTIONED:
            yield f"other processes took {self.others_share:.0%} of the CPUs"
        if (self.stolen_share or 0.0) >= MENTIONED:
            yield f"the hypervisor took {self.stolen_share:.0%} of the CPUs"
        if self.shared_cores:
            yield "two of the CPUs are threads of one core: they slow each other"
        if self.ghz_low is not None and self.ghz_high is not None and self.ghz_low < (1 - STEADY) * self.ghz_high:
            yield f"the CPUs ran at {self.ghz_low:.2f} to {self.ghz_high:.2f} GHz: times differ by that too"
        if self.handover_ns and self.planned_handover_ns and apart(self.handover_ns, self.planned_handover_ns):
            yield (
                f"a flag takes {self.handover_ns:.0f} ns from CPU to CPU, and the plan is for "
                f"{self.planned_handover_ns:.0f} ns: the CPUs lie elsewhere than when the machine was measured"
            )


def handover_between(cpus: Sequence[int]) -> float | None:
    """ns of a flag from the first of the CPUs to the second; None where there is one, or threads are refused."""
    if len(cpus) < 2:
        return None
    with suppress(MachineError):
        return _core.Probe(list(cpus[:2])).handover_ns()
    return None


def kept_launches(preemptions: NDArray[np.int64]) -> tuple[NDArray[np.bool_], bool]:
    """Which launches to go by, given how often threads lost their CPU in each, and whether they may be trusted."""
    quiet = preemptions == 0
    kept = int(quiet.sum())
    if 2 * kept >= len(quiet) or kept >= ENOUGH:
        return quiet, True
    return np.ones_like(quiet), False


def frequencies(chain_ticks: NDArray[np.int64], ns_per_tick: float) -> NDArray[np.float64]:
    """GHz from the ticks of chains of additions; those that could not be timed (0) are left out."""
    timed = chain_ticks[chain_ticks > 0]
    return _core.CHAIN_CYCLES / (timed * ns_per_tick)


class Watch:
    """What others take of this process's CPUs from its making on. The readers can be replaced."""

    def __init__(
        self,
        read: Callable[[], str] = _STAT_TEXT,
        own_seconds: Callable[[], float] = time.process_time,
        handover: Callable[[Sequence[int]], float | None] = handover_between,
    ) -> None:
        self._read, self._own_seconds, self._handover = read, own_seconds, handover
        self._cpus = sorted(os.sched_getaffinity(0))
        self._before, self._own = self._ticks(), own_seconds()

    def conditions(
        self,
        preemptions: NDArray[np.int64],
        cores: int,
        ghz: Sequence[float] | Array = (),
        planned_handover_ns: float | None = None,
    ) -> Conditions:
        """Of launches on `cores` threads, given how often they lost their CPU in each, frequencies met, and what a
        flag takes by the plan."""
        _, trusted = kept_launches(preemptions)
        low, high = map(float, np.quantile(ghz, _ENDS)) if len(ghz) else (None, None)
        others, stolen = self._shares()
        return Conditions(
            len(preemptions),
            int((preemptions > 0).sum()),
            int(preemptions.sum()),
            others,
            stolen,
            cores > 1 and _share_a_core(self._cpus),
            trusted,
            low,
            high,
            self._handover(self._cpus) if cores > 1 else None,
            planned_handover_ns if cores > 1 else None,
        )

    def _shares(self) -> tuple[float | None, float | None]:
        spent, own = self._ticks() - self._before, self._own_seconds() - self._own
        whole = float(spent.sum())
        if whole < 10:  # ticks of 10 ms: too few
            return None, None
        busy = float(spent[list(_BUSY)].sum()) - own * os.sysconf("SC_CLK_TCK")
        return min(1.0, max(0.0, busy / whole)), float(spent[_STEAL]) / whole

    def _ticks(self) -> NDArray[np.float64]:
        """Clock ticks of the allowed CPUs by kind of use; guests are part of user time."""
        found = np.zeros(8)
        with suppress(OSError, ValueError):
            names = {f"cpu{number}" for number in self._cpus}
            rows = [line.split() for line in self._read().splitlines()]
            for row in rows:
                if row and row[0] in names and len(row) > 8:
                    found += np.array([float(word) for word in row[1:9]])
        return found


def _share_a_core(cpus: Sequence[int]) -> bool:
    siblings: list[Any] = []
    for cpu in cpus:
        with suppress(OSError):
            siblings.append(Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text("ascii"))
    return len(set(siblings)) < len(siblings)
