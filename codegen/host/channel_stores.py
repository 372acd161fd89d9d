"""Sums of convolutions over channels-last images on their way out: vectors along the channels of positions go through
bias and epilogue, from registers where that is small, else by way of scratch, so that its code stands once."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir

from superkernel.codegen.host.builder import Index, KernelBuilder
from superkernel.codegen.host.gemm_core import Tile, Values, store_tile
from superkernel.codegen.host.loops import strips
from superkernel.codegen.host.program import ProgramEmitter, load_bias
from superkernel.codegen.host.shuffle import resize
from superkernel.ir.body import Body
from superkernel.scheduler.families.conv_form import ConvForm
from superkernel.scheduler.families.costing import program_weight
from superkernel.scheduler.families.window_nhwc import WindowForm

_INLINE_WEIGHT = 8.0  # heaviest epilogue that is repeated for every vector of a register tile


class ChannelStores:
    """Sends vectors along the channels of one position through bias and epilogue. `coords` gives the program's
    coordinates of a position; channels are its dimension 1."""

    def __init__(self, kb: KernelBuilder, body: Body, form: ConvForm | WindowForm) -> None:
        self.kb, self.body, self.form = kb, body, form
        self.epilogue = ProgramEmitter(kb, form.epilogue)
        self.inline = program_weight(form.epilogue) <= _INLINE_WEIGHT

    def coords(self, image: Index, row: Index, column: Index) -> list[Index]:
        """The program's coordinates of an output position; in three dimensions `image` is a plane."""
        depth: Index = 0
        if self.form.spatial == 3:
            image, depth = self.kb.div(image, self.form.depth.size), self.kb.rem(image, self.form.depth.size)
        return [image, 0, *(depth, row, column)[3 - self.form.spatial :]]

    def put(self, coords: Sequence[Index], channel: Index, values: Sequence[ir.Value]) -> None:
        """Vectors side by side from `channel` on, of one position."""
        row = self.epilogue.row(coords, axis=1)
        for value in values:
            lanes = value.type.count if isinstance(value.type, ir.VectorType) else 1
            bias = load_bias(self.kb, self.body, channel, lanes)
            element = value.type.element if isinstance(value.type, ir.VectorType) else value.type
            plus = self.kb.b.fadd if isinstance(element, ir.FloatType) else self.kb.b.add
            row.eval(channel, lanes, [value if bias is None else plus(value, bias)])
            channel = self.kb.add(channel, lanes)

    def put_tile(self, tile: Tile, results: list[Values], coords: list[Index], channel: Index, width: int) -> None:
        """Results[position][vector], `width` channels of positions that are neighbours along the last coordinate.
        Scratch starts with room for the tile."""
        if self.inline:
            for r, vectors in enumerate(results):
                place = [*coords[:-1], self.kb.add(coords[-1], r)]
                self.put(place, channel, self._cut(vectors, tile.lanes, width))
            return
        store_tile(self.kb, tile, results, self.kb.scratch, tile.columns)
        self.put_parked(tile, tile.columns, coords, channel, width)

    def put_parked(
        self, tile: Tile, pitch: int, coords: list[Index], channel: Index, width: int, first: Index = 0
    ) -> None:
        """As `put_tile` for results that lie in scratch from `first` on, positions `pitch` of them apart."""
        kb = self.kb
        with kb.loop(0, tile.rows, name="position") as r:
            place = [*coords[:-1], kb.add(coords[-1], r)]
            start = kb.add(first, kb.mul(r, pitch))

            def part(at: Index, lanes: int, start: Index = start, place: list[Index] = place) -> None:
                value = kb.load(kb.scratch, kb.add(start, at), tile.acc, lanes)
                self.put(place, kb.add(channel, at), [value])

            strips(kb, width, tile.lanes, part)

    def _cut(self, vectors: Values, lanes: int, width: int) -> Values:
        """The vectors that hold the first `width` elements, the last one cut to its part."""
        whole, rest = divmod(width, lanes)
        return [*vectors[:whole], *(resize(self.kb, last, rest) for last in vectors[whole : whole + (rest > 0)])]
