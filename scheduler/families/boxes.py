"""From index boxes to byte regions: the bookkeeping of all tilings.

Model: a view or a program (epilogue, prologue) turns the box of coordinates that a unit range computes into byte
regions of operands; `AccessSet` collects them per operand and direction.

Invariant: regions of reads never claim less than is touched; those of writes are exact.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from superkernel.core.tensor import MAX_REGIONS, Box, Region, joined_regions, regions_of_box
from superkernel.ir.body import Body, PointwiseProgram
from superkernel.ir.collapse import exact_regions
from superkernel.scheduler.tiling import Access


class AccessSet:
    """Collects byte regions by operand and direction."""

    def __init__(self, body: Body) -> None:
        self._body = body
        self._found: dict[tuple[int, bool], dict[Region, None]] = {}

    def add(self, operand: int, write: bool, regions: Iterable[Region]) -> None:
        """More regions of an operand; the same region twice counts once."""
        self._found.setdefault((operand, write), {}).update(dict.fromkeys(regions))

    def view(self, operand: int, box: Box, strides: Sequence[int], offset: int, write: bool = False) -> None:
        """The part of an affine view that a box touches."""
        itemsize = self._body.operands[operand].type.dtype.itemsize
        regions = exact_regions if write else regions_of_box
        self.add(operand, write, regions(box, strides, itemsize, offset))

    def whole(self, operand: int) -> None:
        """All of an operand is read."""
        self.add(operand, False, (Region(0, self._body.operands[operand].type.nbytes),))

    def program(self, program: PointwiseProgram, *boxes: Box) -> None:
        """What a program reads and writes at the coordinates of boxes."""
        for source in program.inputs:
            for box in boxes if source.source >= 0 else ():
                self.view(source.source, box, source.strides, source.offset)
        for target in program.outputs:
            for box in boxes if target.target >= 0 else ():
                self.view(target.target, box, target.strides, target.offset, write=True)

    def result(self) -> tuple[Access, ...]:
        """One access per operand and direction, reads first, in operand order; empty ones left out. Of very many
        regions those that touch are one."""
        keys = sorted(self._found, key=lambda k: (k[1], k[0]))
        found = {key: tuple(regions) for key, regions in self._found.items() if regions}
        found |= {key: tuple(joined_regions(many)) for key, many in found.items() if len(many) > MAX_REGIONS}
        return tuple(Access(o, w, found[o, w]) for o, w in keys if (o, w) in found)
