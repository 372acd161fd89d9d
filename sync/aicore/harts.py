"""The harts of a plan by type and group: the cores, and behind them the aicpu hart that computes tilings."""

from __future__ import annotations

import numpy as np

from superkernel.scheduler.aicore.cores import Cores
from superkernel.sync.aicore.plan import AICPU, CoreKind, HartKind, Mode


class Harts:
    """`types`: those that a plan has programs for; `total`: their number; of each hart, `group`, -1 where in none,
    `kinds`, and `type`, by its place in `types`."""

    def __init__(self, cores: Cores, tiled: bool) -> None:
        self.cores, self.total = cores, cores.total + tiled
        self.types: tuple[HartKind, ...] = (*CoreKind, *([AICPU] if tiled else []))
        cubes, vectors = cores.cube // cores.groups, cores.vector // cores.groups
        self.group = np.array(
            [*(c // cubes for c in range(cores.cube)), *(v // vectors for v in range(cores.vector)), -1]
        )
        self.kinds = [self.kind(hart) for hart in range(self.total)]
        self.type = np.array([self.types.index(kind) for kind in self.kinds])
        self._of: dict[HartKind, slice] = {
            CoreKind.CUBE: slice(0, cores.cube),
            CoreKind.VECTOR: slice(cores.cube, cores.total),
            AICPU: slice(cores.total, self.total),
        }

    def kind(self, core: int) -> HartKind:
        """The type of a hart."""
        if core >= self.cores.total:
            return AICPU
        return CoreKind.CUBE if core < self.cores.cube else CoreKind.VECTOR

    def of(self, kind: HartKind) -> slice:
        """The harts of a type."""
        return self._of[kind]

    def observed(self, mode: Mode, setters: HartKind | None, core: int) -> list[int]:
        """The setters that a receiver observes."""
        if setters is None:
            return list(range(self.cores.total))
        found = range(self.total)[self.of(setters)]
        return [s for s in found if mode is not Mode.GROUP or self.group[s] == self.group[core]]
