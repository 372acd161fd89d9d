"""Which kernels compute matrix products, and which cuts of them are worth weighing: see `matmul_tiling` for these."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import prod

from superkernel.core import formats
from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.core.formats import TILE_ROWS, NumberFormat
from superkernel.ir.body import Body, Role, View
from superkernel.ops.opdef import BYTES, FLOATS
from superkernel.registry.predicates import Reason, one_of, within
from superkernel.registry.records import KernelRole, Transform
from superkernel.registry.requirement import CHANNELS_LAST
from superkernel.registry.rounding import PRODUCT_SUMS
from superkernel.scheduler.families.costing import MANY_CORES, band_counts
from superkernel.scheduler.families.kernel import (
    CONSTANT_WEIGHT,
    PLANE,
    TIER_FEATURES,
    ByteKernelDef,
    FormatFamily,
    HostKernelDef,
    HostTiling,
    PairedKernelDef,
    ReducedKernelDef,
)
from superkernel.scheduler.families.matmul_form import MatmulForm, form_of, pixel_stride
from superkernel.scheduler.families.matmul_tiling import (
    COLUMNS,
    COPY,
    GEMV_ROWS,
    IN_PLACE,
    PACKED,
    REGISTER_TILES,
    ROWS,
    TILES,
    MatmulTiling,
    is_crowded,
    is_large,
    is_streamed,
    make_tiling,
)
from superkernel.target.cpu import CpuTarget

GEMM_TILES = {tier: shapes[0] for tier, shapes in REGISTER_TILES.items()}
"""Register tile (rows, vectors) by tier, the widest."""

# The rows of a tile one vector wide: it needs a vector of the right factor only every so many multiply-adds, so that
# one which comes from far keeps up. Only where that leaves no row idle, and for few tiles: more reuse the panel anyway.
_TALL_ROWS = {"avx512": 16}
_TALL_TILES = 2
# Vectors of panels of many constants, for few rows and many: the first that pads columns by no more than a share.
_SHARED_VECTORS = {"avx512": (3, 2)}
_PADDED_SHARE = 0.01


def is_packable(body: Body, form: MatmulForm) -> bool:
    """True where the right factor is a constant operand that nothing else in the body reads."""
    right = form.right
    if right.operand < 0 or body.operands[right.operand].role is not Role.CONSTANT:
        return False
    programs = [body.epilogue, *(p for p in (form.left.program, form.right.program) if p is not None)]
    others = [i.source for p in programs for i in p.inputs]
    views = [v.operand for s, v in enumerate(body.anchor_inputs) if isinstance(v, View) and s != right.slot]
    return right.operand not in others + views


class MatmulFamily(FormatFamily):
    """Elements as they are, summed in the type that they ask for; or, of f32 factors whose right one is constant, a
    reduced precision."""

    def accepts_view(self, kernel: str, op: str, slot: int, view: View, dtype: DType) -> bool:
        if op == "conv":
            return slot in (1, 2) or (slot == 0 and view.strides[1] == 1 and pixel_stride(view) is not None)
        return slot < 2

    def accepts_prologue(self, kernel: str, op: str, slot: int) -> bool:
        return slot == 0 and op != "conv"

    def tilings(self, kernel: str, body: Body, target: CpuTarget) -> Sequence[HostTiling]:
        form, number = form_of(body), self.format_on(target) if self.numbers else None
        right = PACKED if is_packable(body, form) else right_mode(form, target)
        if number is not None and right != PACKED:
            raise UnsupportedError(
                "reduced precision needs a constant factor that nothing else reads", location=f"kernel {kernel!r}"
            )
        if number is not None and number.is_integral:
            _require_bytes(kernel, body, form)
        if number is not None and number.tiled and not number.native:
            raise UnsupportedError(
                "this CPU has no tiles", location=f"kernel {kernel!r}", expected=number.feature, found=target.features
            )
        return _cuts(body, right, number, target)


@lru_cache(maxsize=64)  # asked of each kernel of a product that is eligible
def _cuts(body: Body, right: str, number: NumberFormat | None, target: CpuTarget) -> tuple[MatmulTiling, ...]:
    """The tilings of a product, the one that takes least on one core first."""
    form = form_of(body)
    tall = tall_shape(form, target) if right == PACKED and number is None else None
    shapes = [tall] if tall is not None else tile_shapes(form, right, target)
    if number is not None and number.tiled:
        shapes = [_shape_in_tiles(form, target)]
    found = [
        make_tiling(body, axis, rows, vectors, right, target, number)
        for rows, vectors in shapes
        for axis in (COLUMNS, ROWS)
        if axis == COLUMNS or form.rows > rows or form.batch > 1
    ]
    if stores_prologue(form):
        by_rows = make_tiling(body, ROWS, *shapes[0], right, target, number)
        found = [t for t in found if t.axis == ROWS] or [by_rows]
    elif right == PACKED and form.batch == 1:
        found += [banded for t in found for banded in in_bands(body, t, target)]
    return tuple(sorted(found, key=lambda t: t.cost_ns(body, 0, t.units, target)))


def in_bands(body: Body, tiling: MatmulTiling, target: CpuTarget) -> Iterator[MatmulTiling]:
    """The cuts into columns of bands of rows that fewer cores than all would take, each with its own panels, where
    these sum as the tiling's own columns do; and, where rows stay near, into tiles."""
    form, t = form_of(body), tiling
    many = t.axis == COLUMNS and target.cores > MANY_CORES and t.row_tiles > 1
    if many and t.left == IN_PLACE and t.rows_stay_near(target):
        yield replace(t, axis=TILES, block=t.row_tiles, piece=0, group=1)
    for bands in band_counts(t.row_tiles, target) if t.axis == COLUMNS else ():
        made = make_tiling(body, COLUMNS, t.tile_rows, t.vectors, t.right, target, t.format, bands)
        if made.phases == t.phases and form.rows > (bands - 1) * made.band_tiles * made.tile_rows:
            yield made


def _shape_in_tiles(form: MatmulForm, target: CpuTarget) -> tuple[int, int]:
    """Rows and vectors of the results that four of the CPU's tiles hold: two by two, or one row of them where there are
    no more rows."""
    rows, most = (TILE_ROWS, 4) if form.rows <= TILE_ROWS else (2 * TILE_ROWS, 2)
    columns = TILE_ROWS * max(1, min(most, -(-form.columns // TILE_ROWS)))
    return rows, columns * form.acc.itemsize // target.vector_bytes


def _require_bytes(kernel: str, body: Body, form: MatmulForm) -> None:
    """Raises UnsupportedError on what products of bytes do not take: other weights than signed ones whose zero point
    is 0, or a zero point per row."""
    source = None if form.left_zero is None else body.anchor_inputs[form.left_zero]
    rows_alike = source is None or (isinstance(source, View) and prod(source.shape) == 1)
    if form.right.dtype is not DType.I8 or form.right_zero is not None or not rows_alike:
        raise UnsupportedError(
            "not a product of bytes that this kernel computes",
            location=f"kernel {kernel!r}",
            expected="constant i8 weights without a zero point, one zero point for all rows",
            found=str(body.op),
            hint="host.matmul.generic computes every product",
        )


def stores_prologue(form: MatmulForm) -> bool:
    """True where the prologue also writes operands: then every row must be evaluated exactly once."""
    program = form.left.program
    return program is not None and any(o.target >= 0 for o in program.outputs)


def right_mode(form: MatmulForm, target: CpuTarget) -> str:
    """Read in place where rows are contiguous and few tiles would share a copy."""
    right = form.right
    plain = right.program is None and right.dtype is form.acc and right.line == 1 and form.right_zero is None
    return IN_PLACE if plain and form.rows <= 2 * REGISTER_TILES[target.register_tier][0][0] else COPY


def tall_shape(form: MatmulForm, target: CpuTarget) -> tuple[int, int] | None:
    """The register tile for a streamed factor of several vectors and a number of rows that fills such tiles, None for
    others. Its sums have one phase, as those of the tiles that it stands in for."""
    rows, lanes = _TALL_ROWS.get(target.tier, 0), target.vector_bytes // form.acc.itemsize
    if rows == 0 or form.columns <= lanes or form.acc is not DType.F32 or not is_streamed(form, target):
        return None
    tiles = -(-form.rows // rows)
    return (rows, 1) if tiles <= _TALL_TILES and -(-form.rows // tiles) >= rows - 1 else None


def tile_shapes(form: MatmulForm, right: str, target: CpuTarget) -> list[tuple[int, int]]:
    """Register tiles (rows, vectors) worth weighing, least padded work first. Where constants are many, panels are as
    wide for few rows as for many: kernels of both, of one model in several sizes, share what is packed."""
    lanes = max(1, target.vector_bytes // form.acc.itemsize)
    budget = REGISTER_TILES[target.register_tier][0][0] * REGISTER_TILES[target.register_tier][0][1]
    shared = _shared_vectors(form, lanes, target) if right == PACKED and is_large(form, target) else 0
    if form.rows <= GEMV_ROWS:
        widest = 8 if right == IN_PLACE else shared or (4 if form.rows <= 2 else 2)
        vectors = max(1, min(widest, budget // max(1, form.rows), -(-form.columns // lanes)))
        return [(max(1, form.rows), vectors)]
    shapes = [(r, v) for r, v in REGISTER_TILES[target.register_tier] if v == 2 or (v - 1) * lanes < form.columns]
    shapes = [(r, v) for r, v in shapes if v == shared] or shapes
    if form.columns <= lanes:
        shapes = [(REGISTER_TILES[target.register_tier][0][0], 1)]

    def padded(shape: tuple[int, int]) -> float:
        tiles = -(-form.rows // shape[0])
        rows = -(-form.rows // tiles) * tiles
        width = shape[1] * lanes
        conflicts = is_crowded(form) and shape[0] > 8
        return (
            rows
            * (-(-form.columns // width) * width)
            * (1.3 if conflicts else 1.0 if shape[0] * shape[1] > 8 else 1.05)
        )

    return sorted(shapes, key=padded)[:2]


def _shared_vectors(form: MatmulForm, lanes: int, target: CpuTarget) -> int:
    """How wide panels of many constants are."""
    for vectors in _SHARED_VECTORS.get(target.tier, ()):
        if -form.columns % (vectors * lanes) <= _PADDED_SHARE * form.columns:
            return vectors
    return 2


_PACKED, _COPIED = Transform("pack", 1, True), Transform("pack", 1, False)
_FACTORS = FLOATS | {DType.I8, DType.U8, DType.I32, DType.I64, DType.U32, DType.U64}
_FEW_ROWS, _MANY_ROWS = within(Reason.SHAPE, "m", 1, GEMV_ROWS), within(Reason.SHAPE, "m", GEMV_ROWS + 1)
_STREAM_TILES = dict.fromkeys(TIER_FEATURES, (1, 4))
_POINTWISE = (
    PLANE,
    one_of(Reason.SHAPE, "taps", 1),
    *(one_of(Reason.STRIDE, f"stride_{name}", 1) for name in ("rows", "columns")),
    one_of(Reason.GROUPS, "groups", 1),
    one_of(Reason.PADDING, "attr.pads", None, (), (0, 0), (0, 0, 0, 0)),
)
INT8_DEPTHS = within(Reason.SHAPE, "k", 1, 1 << 16)
"""Of sums of products of bytes that surely fit into 32 bits, zero points included."""

_ELEMENTS = HostKernelDef(
    id="host.matmul.packed",
    ops=("matmul",),
    family=MatmulFamily(),
    emitter="matmul",
    micro="gemm",
    dtypes=FLOATS,
    typed=True,
    others=(None,),
    limits=(CONSTANT_WEIGHT,),
    tiles=GEMM_TILES,
    transforms=(_PACKED,),
    rounding=PRODUCT_SUMS,
    code_bytes=8192,
)
_BF16 = ReducedKernelDef(
    id="host.matmul.bf16",
    ops=("matmul",),
    family=MatmulFamily(formats.BF16),
    emitter="matmul",
    micro="gemm",
    tiles=GEMM_TILES,
    code_bytes=12288,
)
_ON_TILES = {"avx512": (2 * TILE_ROWS, 2)}
_BF16_TILES = replace(
    _BF16,
    id="host.matmul.bf16_tiles",
    family=MatmulFamily(formats.BF16_TILES),
    limits=(_MANY_ROWS,),
    tiles=_ON_TILES,
    code_bytes=4096,
)
_PAIRS = PairedKernelDef(
    id="host.matmul.pairs",
    ops=("matmul",),
    family=MatmulFamily(formats.PAIRS),
    emitter="matmul",
    micro="gemm",
    tiles=GEMM_TILES,
    code_bytes=12288,
)
_MANY_PIXELS = within(Reason.SHAPE, "n", GEMV_ROWS + 1)
_PIXELS_BF16 = replace(
    _BF16,
    id="host.conv.bf16",
    ops=("conv",),
    micro="conv",
    limits=_POINTWISE,
    layout=CHANNELS_LAST,
    layouts=frozenset({"dense", "view"}),
    tiles={},
    code_bytes=6144,
)
_BYTES = ByteKernelDef(
    id="host.matmul.bytes",
    ops=("matmul", "matmul_integer"),
    family=MatmulFamily(formats.BYTES),
    emitter="matmul",
    micro="gemm",
    others=(frozenset({DType.I8}), BYTES),
    limits=(INT8_DEPTHS, one_of(Reason.CONSTANT, "in3.dtype", None)),
    tiles=GEMM_TILES,
    code_bytes=8192,
)
KERNELS = (
    _ELEMENTS,
    replace(
        _ELEMENTS,
        id="host.matmul.gemv",
        micro="gemv",
        limits=(CONSTANT_WEIGHT, _FEW_ROWS),
        tiles=_STREAM_TILES,
        code_bytes=4096,
    ),
    replace(_ELEMENTS, id="host.matmul.dynamic", micro="bmm", limits=(), transforms=(_COPIED,)),
    replace(
        _ELEMENTS,
        id="host.matmul.generic",  # any element type: integers with zero points, f64, mixed signedness
        ops=("matmul", "matmul_integer"),
        modifier="generic",
        dtypes=_FACTORS,
        typed=False,
        others=(_FACTORS,),
        role=KernelRole.GENERIC,
        limits=(),
        transforms=(_COPIED,),
    ),
    _BF16,
    replace(
        _BF16,
        id="host.matmul.gemv_bf16",
        micro="gemv",
        limits=(_FEW_ROWS,),
        tiles=_STREAM_TILES,
        code_bytes=6144,
    ),
    _BF16_TILES,
    _PAIRS,
    replace(
        _PAIRS, id="host.matmul.gemv_pairs", micro="gemv", limits=(_FEW_ROWS,), tiles=_STREAM_TILES, code_bytes=6144
    ),
    replace(
        _PAIRS,
        id="host.matmul.pairs_tiles",
        family=MatmulFamily(formats.PAIRS_TILES),
        limits=(_MANY_ROWS,),
        tiles=_ON_TILES,
        code_bytes=4096,
    ),
    replace(
        _BF16_TILES,
        id="host.matmul.int8_tiles",
        family=MatmulFamily(formats.INT8_TILES),
        limits=(_MANY_ROWS, INT8_DEPTHS),
    ),
    replace(_BF16, id="host.matmul.tf32", family=MatmulFamily(formats.BF16X3), modifier="x3"),
    replace(_BF16, id="host.matmul.int8", family=MatmulFamily(formats.INT8), limits=(_MANY_ROWS, INT8_DEPTHS)),
    replace(
        _BF16,
        id="host.matmul.gemv_int8",
        family=MatmulFamily(formats.INT8X2, formats.WEIGHTS8),
        micro="gemv",
        limits=(_FEW_ROWS, INT8_DEPTHS),
        tiles=_STREAM_TILES,
        code_bytes=6144,
    ),
    _BYTES,
    replace(
        _BYTES,
        id="host.matmul.bytes_tiles",
        family=MatmulFamily(formats.BYTES_TILES),
        limits=(*_BYTES.limits, _MANY_ROWS),
        tiles=_ON_TILES,
        code_bytes=4096,
    ),
    _PIXELS_BF16,
    replace(
        _PIXELS_BF16,
        id="host.conv.int8",
        family=MatmulFamily(formats.INT8),
        limits=(*_POINTWISE, _MANY_PIXELS, INT8_DEPTHS),
    ),
    replace(
        _PIXELS_BF16,
        id="host.conv.bf16_tiles",
        family=MatmulFamily(formats.BF16_TILES),
        limits=(*_POINTWISE, _MANY_PIXELS),
    ),
    replace(
        _PIXELS_BF16,
        id="host.conv.int8_tiles",
        family=MatmulFamily(formats.INT8_TILES),
        limits=(*_POINTWISE, _MANY_PIXELS, INT8_DEPTHS),
    ),
)
