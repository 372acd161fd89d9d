"""Which kernels compute convolutions of images that lie channels last, and which cuts of them are worth weighing: see
`nhwc_tiling` for the cuts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.core.formats import (
    BF16,
    BF16_TILES,
    BYTES,
    BYTES_TILES,
    INT8,
    INT8_TILES,
    TILE_ROWS,
    NumberFormat,
)
from superkernel.ir.body import Body, Role, View
from superkernel.ops.opdef import BYTES as BYTE_TYPES
from superkernel.registry.predicates import Reason, one_of
from superkernel.registry.records import KernelRole
from superkernel.registry.requirement import CHANNELS_LAST
from superkernel.scheduler.families.conv import (
    CHANNELS,
    IGEMM,
    PIXELS,
    ConvFamily,
)
from superkernel.scheduler.families.conv_form import ConvForm
from superkernel.scheduler.families.costing import MANY_CORES, band_counts, best_whole_and_shared
from superkernel.scheduler.families.kernel import CONSTANT_WEIGHT, VOLUME, ByteKernelDef, HostTiling, ReducedKernelDef
from superkernel.scheduler.families.matmul import INT8_DEPTHS
from superkernel.scheduler.families.nhwc_form import form_for
from superkernel.scheduler.families.nhwc_tiling import SUM_TILES, NhwcTiling, joined_lines, nhwc_tiling, register_tiles
from superkernel.target.cpu import CpuTarget

_EVEN_CORES = (2, 4)  # numbers of cores for which equal shares are looked for...
_PIECES = (2, 4, 8, 16)  # ...in rows of so many lines of equal length...
_EVENER = 0.98  # ...that bring the longest share at least down to this


class NhwcFamily(ConvFamily):
    """Convolutions with constant weights of images that lie channels last (any other layout is read too), in f32 or, of
    f32 images, in reduced precision."""

    def __init__(self, *numbers: NumberFormat) -> None:
        super().__init__(*numbers)
        types = "f32" if numbers else "f32, f16 or bf16"
        self.expectation = f"conv in one to three dimensions, {types}, with constant weights"

    ranks = (3, 4, 5)

    def serves(self, body: Body) -> bool:
        x = body.anchor_input_types[0]
        return super().serves(body) and not (self.numbers and x is not None and x.dtype is not DType.F32)

    def reads_any_order(self, kernel: str, slot: int) -> bool:
        return True

    def tilings(self, kernel: str, body: Body, target: CpuTarget) -> Sequence[HostTiling]:
        self._require(kernel, body)
        number = self.format_on(target)
        form = form_for(number, body)
        if number.tiled:
            _require_tiles(kernel, number, target)
        axes = [PIXELS, CHANNELS] if form.pixels * 4 <= form.channels * form.taps * 8 else [PIXELS]
        shapes = [_shape_in_tiles(form, number, target)] if number.tiled else _shapes(form, target)
        found = [self.tiling(form, axis, shape, target) for axis in axes for shape in shapes]

        def cost(tiling: NhwcTiling) -> float:
            return tiling.cost_ns(body, 0, tiling.units, target)

        def longest(tiling: NhwcTiling, cores: int) -> float:
            cuts = [tiling.units * i // cores for i in range(cores + 1)]
            return max(tiling.cost_ns(body, a, b, target) for a, b in pairwise(cuts))

        best = [min((t for t in found if t.axis == axis), key=cost) for axis in axes]
        even = [self.tiling(form, PIXELS, s, target, n) for s in shapes for n in _PIECES if form.out_height == 1]
        for cores in _EVEN_CORES:
            shared = [t for t in even if t.units >= cores and longest(t, cores) < _EVENER * longest(best[0], cores)]
            best += [min(shared, key=lambda t: longest(t, cores))] if shared else []
        if target.cores > MANY_CORES and not number.scales_rows:
            pieces = [target.cores, 2 * target.cores] if form.out_height == 1 else []
            even = [self.tiling(form, PIXELS, s, target, n) for s in shapes for n in pieces]
            best += best_whole_and_shared(body, even, target)
            for bands in (1, *band_counts(best[0].blocks, target)):
                banded = [self.tiling(form, CHANNELS, s, target, bands=bands) for s in shapes]
                wide = [t for t in banded if t.channel_tiles > 1 and (bands - 1) * t.band_blocks < t.blocks]
                best += best_whole_and_shared(body, wide, target)
        return sorted(dict.fromkeys(best), key=cost)

    def tiling(
        self,
        form: ConvForm,
        axis: str,
        shape: tuple[int, int, int],
        target: CpuTarget,
        pieces: int = 0,
        bands: int = 1,
    ) -> NhwcTiling:
        """The tiling with a register tile of (positions, vectors, lanes); `pieces`: see `cut_lines`."""
        return nhwc_tiling(form, axis, shape, target, self.format_on(target), pieces, bands)


class ByteConvFamily(NhwcFamily):
    """Convolutions of bytes with constant signed weights, exact in i32."""

    def __init__(self, *numbers: NumberFormat) -> None:
        super().__init__(*numbers)
        self.expectation = "conv_integer in one to three dimensions, constant i8 weights without a zero point"

    def serves(self, body: Body) -> bool:
        x, weights = body.anchor_input_types[0], body.anchor_inputs[1]
        if body.op != "conv_integer" or x is None or x.rank not in (3, 4, 5) or not isinstance(weights, View):
            return False
        plain = all(source is None or isinstance(source, View) for source in body.anchor_inputs[2:4])
        factor = body.operands[weights.operand]
        signed = factor.role is Role.CONSTANT and factor.type.dtype is DType.I8
        return plain and signed and body.anchor_inputs[4:] in ((), (None,))


def _shapes(form: ConvForm, target: CpuTarget) -> list[tuple[int, int, int]]:
    """(positions, vectors, lanes) of register tiles worth a look: balanced over a row, or tall."""
    found = []
    for tall, vectors, lanes in register_tiles(form, target):
        tiles = max(1, -(-form.out_width // tall))
        found.append((max(1, -(-form.out_width // tiles)), vectors, lanes))
        found.append((min(tall, max(1, form.out_width)), vectors, lanes))
    return list(dict.fromkeys(found))


def _require_tiles(kernel: str, number: NumberFormat, target: CpuTarget) -> None:
    """Raises UnsupportedError where there are no tiles."""
    if not number.native:
        raise UnsupportedError(
            "this CPU has no tiles", location=f"kernel {kernel!r}", expected=number.feature, found=target.features
        )


def _shape_in_tiles(form: ConvForm, number: NumberFormat, target: CpuTarget) -> tuple[int, int, int]:
    """(positions, vectors, lanes) of the results that the CPU's tiles of sums hold: two by two, of one line or of
    several; four by one where lines have few positions; or one row of tiles, where a line has no more and lines go one
    by one."""
    alone = number.scales_rows or form.out_height == 1
    tall, most = 2 * TILE_ROWS, 2
    if form.out_width <= TILE_ROWS:
        tall, most = TILE_ROWS, SUM_TILES if alone else 2 if 2 * joined_lines(form) * form.out_width > TILE_ROWS else 1
    lanes, tiles = max(1, target.vector_bytes // 4), max(1, -(-form.out_width // tall))
    columns = TILE_ROWS * max(1, min(most, -(-form.out_channels // TILE_ROWS)))
    return max(1, -(-form.out_width // tiles)), columns // lanes, lanes


_BF16 = ReducedKernelDef(
    id="host.conv.nhwc_bf16",
    ops=("conv",),
    family=NhwcFamily(BF16),
    emitter="conv_nhwc",
    micro="conv",
    modifier="nhwc",
    limits=(VOLUME,),
    layout=CHANNELS_LAST,
    code_bytes=6144,
)
_BYTES = ByteKernelDef(
    id="host.conv.bytes",
    ops=("conv_integer",),
    family=ByteConvFamily(BYTES),
    emitter="conv_nhwc",
    micro="conv",
    modifier="nhwc",
    others=(frozenset({DType.I8}), frozenset({DType.I32}), BYTE_TYPES),
    limits=(
        VOLUME,
        INT8_DEPTHS,
        one_of(Reason.CONSTANT, "in4.dtype", None),
        one_of(Reason.ATTRIBUTE, "attr.padding", 0),
    ),
    layout=CHANNELS_LAST,
    code_bytes=6144,
)
KERNELS = (
    replace(
        IGEMM,
        id="host.conv.nhwc",
        family=NhwcFamily(),
        emitter="conv_nhwc",
        micro="conv",
        modifier="nhwc",
        limits=(CONSTANT_WEIGHT, VOLUME),
        layout=CHANNELS_LAST,
        tiles={},
    ),
    _BF16,
    _BYTES,
    replace(_BF16, id="host.conv.nhwc_bf16_tiles", family=NhwcFamily(BF16_TILES), code_bytes=4096),
    replace(_BYTES, id="host.conv.bytes_tiles", family=ByteConvFamily(BYTES_TILES), code_bytes=4096),
    replace(_BYTES, id="host.conv.bytes_any", modifier="any", layout=None, role=KernelRole.GENERIC),
    replace(_BF16, id="host.conv.nhwc_int8", family=NhwcFamily(INT8), limits=(VOLUME, INT8_DEPTHS)),
    replace(
        _BF16,
        id="host.conv.nhwc_int8_tiles",
        family=NhwcFamily(INT8_TILES),
        limits=(VOLUME, INT8_DEPTHS),
        code_bytes=4096,
    ),
)
