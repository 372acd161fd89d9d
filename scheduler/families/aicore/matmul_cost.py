"""What a cut of a matrix product costs one core.

Model: the kernel's order of loads, steps and stores is played through, chunk by chunk, with one time per engine: MTE2
fills the slots of L1, MTE1 and the cube work chunks off together, FIX stores tiles; a slot is filled again when it has
been worked off. A few tiles are played, the others take as long as the later ones of these. What MTE2 needs is what
is short: hence large tiles, and few and large transfers, because each costs a start-up.

Everything comes from HBM once, at a core's own rate of misses, in equal shares to those who read it.

Not in it: banks and channels that others are at, the wait for what others produce.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from superkernel.ir.body import Body
from superkernel.scheduler.families.aicore.cube import Layout, cube_cycles, fix_cycles
from superkernel.scheduler.families.aicore.matmul import LEFT, MatmulTiling, factors, fix_of
from superkernel.scheduler.families.aicore.matmul_form import product_of
from superkernel.target.aicore import AicoreTarget

PLAYED_MIN, PLAYED_MAX = 4, 9  # tiles
# Cycles of the control unit for a step, a chunk and a tile.
STEP_CONTROL, CHUNK_CONTROL, TILE_CONTROL = 70, 60, 200


def cycles_of(tiling: MatmulTiling, body: Body, units: int, target: AicoreTarget) -> float:
    """Cycles of one core (group) for so many units."""
    figures = _figures(tiling, body, target)
    played = min(units, max(PLAYED_MIN, min(PLAYED_MAX, 2 * tiling.panel_tiles)))
    ends = _play(figures, tiling, played)
    total = ends[-1] if ends else 0.0
    if units > played:
        half = played // 2
        total += (units - played) * (ends[-1] - ends[half - 1]) / (played - half)
    return max(total, units * max(figures.control, figures.vector)) + (figures.vector if units else 0.0)


@dataclass(frozen=True)
class _Figures:
    """Cycles: `groups` to load each group of the kept factor; of each group, by chunk: (load, cube and MTE1 for a half
    of the tile); `fix` for a half, `vector` for what a vector core does of a tile."""

    groups: tuple[int, ...]
    chunks: tuple[tuple[tuple[int, int], ...], ...]
    vectors: int
    fix: int
    vector: float
    control: int
    constant: bool  # the kept factor


@lru_cache(maxsize=4096)
def _figures(tiling: MatmulTiling, body: Body, target: AicoreTarget) -> _Figures:
    product, cut = product_of(body), tiling.cut
    left, right = factors(product, tiling)
    kept, streamed = (left, right) if tiling.kept == LEFT else (right, left)
    m, n = min(tiling.rows, product.rows), min(tiling.columns, product.columns)
    kept_lines, streamed_lines = (m, n) if tiling.kept == LEFT else (n, m)
    part = min(m, tiling.part[0]), min(n, tiling.part[1])

    @lru_cache
    def step(depths: int) -> tuple[int, int]:
        feed = left.feed_cycles(part[0], depths, target) + right.feed_cycles(part[1], depths, target)
        return cube_cycles(*part, depths, product.dtype, target), feed

    @lru_cache
    def chunk(depths: int) -> tuple[int, int]:
        whole, rest = divmod(depths, cut.step)
        cube, feed = (whole * a + (b if rest else 0) for a, b in zip(step(cut.step), step(rest or 1), strict=True))
        return streamed.load_cycles(streamed_lines, depths, target, 1 / tiling.panels), max(cube, feed)

    depths = [min(cut.group, cut.depth - at) for at in range(0, cut.depth, cut.group)]
    chunks = tuple(tuple(chunk(min(cut.chunk, d - at)) for at in range(0, d, cut.chunk)) for d in depths)
    count = sum(map(len, chunks))
    control = tiling.halves * -(-cut.depth // cut.step) * STEP_CONTROL + count * CHUNK_CONTROL + TILE_CONTROL
    fresh = 1 / max(1, tiling.panel_tiles - 1) if len(depths) > 1 else _share_of_panel(tiling, target)
    loads = tuple(kept.load_cycles(kept_lines, d, target, fresh) for d in depths)
    vectors, fix, vector = _store_cycles(tiling, body, *part, target)
    return _Figures(loads, chunks, vectors, fix, vector, control, kept.layout is Layout.PACKED)


def _share_of_panel(tiling: MatmulTiling, target: AicoreTarget) -> float:
    """Of a panel that several cores keep, each one's share."""
    return min(1.0, -(-tiling.units // target.device.cube_cores) / max(1, tiling.panel_tiles))


def _store_cycles(tiling: MatmulTiling, body: Body, m: int, n: int, target: AicoreTarget) -> tuple[int, int, float]:
    """Cycles of FIX's vectors for a tile, of FIX for m x n, and of a vector core's share of a tile."""
    product = product_of(body)
    if not tiling.mix:
        out = product.program.outputs[0]
        item = body.operands[out.target].type.dtype.itemsize
        count = len(fix.vectors) if (fix := fix_of(body)) is not None else 0
        one = target.dma.startup_cycles + target.transfer_cycles("rates.gm_to_l1_gb_per_s", tiling.columns * 4)
        return count * one, fix_cycles(m, n, item, out.strides[-2] * item, target), 0.0
    half = m * n * tiling.halves // tiling.lanes
    program = product.program
    moved = sum(body.operands[i.source].type.dtype.itemsize for i in program.inputs if i.source >= 0 and i.strides[-1])
    loads = target.transfer_cycles("rates.gm_to_ub_gb_per_s", half * (4 + moved))
    computed = half / target.vector.lanes_32bit * max(1, 3 * len(program.instructions))
    start = (2 + len(program.inputs)) * target.dma.startup_cycles
    return 0, fix_cycles(m, n, 4, 0, target), start + max(loads, computed)


def _play(figures: _Figures, tiling: MatmulTiling, units: int) -> list[float]:
    """When each tile is stored."""
    player = _Player(figures, tiling)
    return [player.tile(unit, unit == units - 1) for unit in range(units)]


class _Player:
    """Times of the engines, in the order in which the kernel issues its commands."""

    def __init__(self, figures: _Figures, tiling: MatmulTiling) -> None:
        self.figures, self.tiling = figures, tiling
        self.mte2 = self.cube = self.fix = self.panel = 0.0
        self.ready: list[float] = []  # chunks in L1, not yet worked off
        self.free = [0.0, 0.0]  # when the chunk slots are worked off, oldest first
        self.stored = [0.0] * max(tiling.sums, tiling.halves)
        self.held: tuple[int, int] | None = None
        self.single = len(figures.groups) == 1
        self.ahead = tiling.kept_slots == 2
        self.late = self.single and not self.ahead and not figures.constant and tiling.batch * tiling.panels == 1
        self.coming, self.coming_ready = -1, 0.0
        self.worked = [0.0, 0.0]  # when the panels of two slots are worked off
        if figures.constant and not self.ahead:
            self._hold(0, 0)
        self._load(0, 0, 0)

    def _load(self, unit: int, group: int, chunk: int) -> None:
        self.mte2 = max(self.mte2, self.free.pop(0)) + self.figures.chunks[group][chunk][0]
        self.ready.append(self.mte2)
        if self.ahead and unit // self.tiling.panel_tiles != self.coming:
            self.coming = unit // self.tiling.panel_tiles
            self.mte2 = max(self.mte2, self.worked.pop(0)) + self.figures.groups[0]
            self.coming_ready = self.mte2

    def _hold(self, panel: int, group: int) -> None:
        if self.held != (panel, group):
            self.mte2 = max(self.mte2, self.cube) + self.figures.groups[group]
            self.panel, self.held = self.mte2, (panel, group)

    def tile(self, unit: int, last: bool) -> float:
        """Play a tile."""
        figures, panel = self.figures, unit // self.tiling.panel_tiles
        order = self._order(unit)
        self.mte2 += figures.vectors
        if self.ahead and self.held != (panel, 0):
            if self.held is not None:
                self.worked.append(self.cube)
            self.panel, self.held = self.coming_ready, (panel, 0)
        for place, (group, chunk) in enumerate(order):
            if not self.ahead and not self.late:
                self._hold(panel, group)
            if place + 1 < len(order):
                self._load(unit, *order[place + 1])
            elif not last:
                self._load(unit + 1, *self._order(unit + 1)[0])
            if self.late:
                self._hold(panel, group)
            self.cube = max(self.cube, self.ready.pop(0), self.panel)
            for _ in range(self.tiling.halves):
                if place == 0:
                    self.cube = max(self.cube, self.stored.pop(0))
                self.cube += figures.chunks[group][chunk][1]
                if place + 1 == len(order):
                    self.fix = max(self.fix, self.cube) + figures.fix
                    self.stored.append(self.fix)
            self.free.append(self.cube)
        return self.fix

    def _order(self, unit: int) -> list[tuple[int, int]]:
        """(group, chunk) of a tile: it begins with the group that the tile ahead ended with."""
        count = len(self.figures.groups)
        panel, position = divmod(unit, self.tiling.panel_tiles)
        start = (panel * self.tiling.drift + position * (count - 1)) % count
        groups = [(start + i) % count for i in range(count)]
        return [(g, c) for g in groups for c in range(len(self.figures.chunks[g]))]
