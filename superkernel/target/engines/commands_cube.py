"""Commands of the cube core's inside: MTE1 fills L0A and L0B from L1, M multiplies into L0C."""

from __future__ import annotations

from superkernel.core.dtypes import DType
from superkernel.target.engines.build import choice, count, element, local, reads, size, stride, writes
from superkernel.target.engines.model import CommandSpec, Engine, Local

_INPUTS = ((DType.F16,), (DType.BF16,), (DType.F32,), (DType.I8,))
_PRODUCTS = ((DType.F16, DType.F32), (DType.BF16, DType.F32), (DType.F32, DType.F32), (DType.I8, DType.I32))


def _fractals(rows: str) -> str:
    """Bytes of rows x k elements in the layout of L0A and L0B."""
    return f"ceil_div({rows}, cube.m) * ceil_div(k * item0, memory.block_bytes) * memory.fractal_bytes"


def _load(memory: Local, opcode: int, rows: str, what: str, order: str) -> CommandSpec:
    """A matrix from L1 into L0A or L0B, as it lies or transposed."""
    rate = f"rates.l1_to_{memory.value}_gb_per_s"
    straight, across = ("k", rows) if memory is Local.L0B else (rows, "k")
    lines = f"choose(transpose == 'yes', {across}, {straight})"
    line_bytes = f"choose(transpose == 'yes', {straight}, {across}) * item0"
    return CommandSpec(
        f"l1_to_{memory.value}",
        opcode,
        (Engine.MTE1,),
        f"Reads a row-major matrix of {what} elements from L1 ({straight} rows of {across} elements, rows "
        f"src_stride bytes apart; with transpose `yes` the matrix lies transposed: {across} rows of {straight} "
        f"elements) and writes it to {memory.value.upper()} in the layout of {memory.value.upper()}{order}. "
        "Elements of the last fractals outside the matrix are written as zero.",
        (
            local("dst", memory, "first fractal written"),
            local("src", Local.L1, "first element read", align="item0"),
            count(rows, f"{rows} of the product"),
            count("k", "depth of the product"),
            stride("src_stride", "from row to row read; at least a row's bytes, or 0", align="item0"),
            choice("transpose", "how the matrix lies in L1", "no", "yes"),
        ),
        types=_INPUTS,
        type_names=("element",),
        accesses=(reads("src", line_bytes, lines, "src_stride"), writes("dst", _fractals(rows))),
        start_up="dma.local_startup_cycles",
        beats=f"transfer({rate}, {_fractals(rows)})",
    )


_IM2COL = CommandSpec(
    "l1_im2col",
    0x22,
    (Engine.MTE1,),
    "Writes m rows of k elements to L0A in the layout of L0A, elements of the last fractals outside them as zero. "
    "The image lies in L1 row-major as height x width x channels. Row i belongs to the output position p = "
    "m_first + i: output row p / out_width, output column p mod out_width. Column j belongs to the filter's "
    "element q = k_first + j: filter row q / (kernel_w x channels), filter column (q / channels) mod kernel_w, "
    "channel q mod channels. The element is the image's at y = output row x stride_h - pad_top + filter row x "
    "dilation_h, x = output column x stride_w - pad_left + filter column x dilation_w and that channel, or pad "
    "where y is not in 0..height-1 or x not in 0..width-1. A filter row of kernel_h or more also gives pad. Bytes "
    "of the image that no element needs are not read.",
    (
        local("dst", Local.L0A, "first fractal written"),
        local("src", Local.L1, "first element of the image", align="item0"),
        count("m", "rows written"),
        count("k", "columns written"),
        count("m_first", "first output position", bits=24, low=0, default=0),
        count("k_first", "first element of the filter", bits=20, low=0, default=0),
        count("height", "rows of the image"),
        count("width", "columns of the image"),
        count("channels", "channels of the image"),
        count("out_width", "columns of the output"),
        count("kernel_h", "rows of the filter", bits=8),
        count("kernel_w", "columns of the filter", bits=8),
        count("stride_h", "step of the filter down", bits=6, default=1),
        count("stride_w", "step of the filter across", bits=6, default=1),
        count("dilation_h", "distance of filter rows", bits=8, default=1),
        count("dilation_w", "distance of filter columns", bits=8, default=1),
        count("pad_top", "rows of padding above", bits=8, low=0, default=0),
        count("pad_left", "columns of padding on the left", bits=8, low=0, default=0),
        element("pad", "the padding", default=0),
    ),
    types=_INPUTS,
    type_names=("element",),
    # The image as a whole bounds what is read.
    accesses=(reads("src", "height * width * channels * item0"), writes("dst", _fractals("m"))),
    start_up="dma.local_startup_cycles",
    beats=f"transfer(rates.l1_to_l0a_gb_per_s, {_fractals('m')})",
)


def _copy(memory: Local, opcode: int, what: str) -> CommandSpec:
    """What lies in L1 as L0A or L0B have it."""
    name = memory.value
    return CommandSpec(
        f"l1_to_{name}_raw",
        opcode,
        (Engine.MTE1,),
        f"Copies bytes that lie in L1 in the layout of {name.upper()} already ({what} laid out by the compiler).",
        (
            local("dst", memory, "first fractal written"),
            local("src", Local.L1, "first byte read"),
            size("bytes", "how many; whole fractals", align="memory.fractal_bytes"),
        ),
        accesses=(reads("src", "bytes"), writes("dst", "bytes")),
        start_up="dma.local_startup_cycles",
        beats=f"transfer(rates.l1_to_{name}_gb_per_s, bytes)",
    )


_ACCUMULATORS = "ceil_div(m, cube.m) * ceil_div(n, cube.n) * memory.accumulator_bytes"

_MMAD = CommandSpec(
    "mmad",
    0x30,
    (Engine.M,),
    "C = A x B, or C = C + A x B with mode `accumulate`: A is the m x k matrix at a (layout of L0A, for this m "
    "and k), B the k x n matrix at b (layout of L0B), C the m x n matrix at c (layout of L0C). Each accumulator "
    "starts from +0 (`init`) or from its value and takes k steps in ascending order of k: acc = acc + A[i,k] x "
    "B[k,j]. Into f32: each step is one fused multiply-add with one rounding to nearest even of the exact sum, "
    "operands widened to f32 exactly; every NaN is the canonical one. Into i32: modulo 2^32. Accumulators of the "
    "last blocks outside m x n become 0 with `init` and keep their values with `accumulate`.",
    (
        local("c", Local.L0C, "first block of accumulators"),
        local("a", Local.L0A, "first fractal of A"),
        local("b", Local.L0B, "first fractal of B"),
        count("m", "rows of A and C"),
        count("k", "columns of A, rows of B"),
        count("n", "columns of B and C"),
        choice("mode", "what an accumulator starts from", "init", "accumulate"),
    ),
    types=_PRODUCTS,
    type_names=("input", "accumulator"),
    accesses=(
        reads("a", _fractals("m")),
        reads("b", _fractals("n")),
        reads("c", _ACCUMULATORS, when="mode == 'accumulate'"),
        writes("c", _ACCUMULATORS),
    ),
    start_up="cube.startup_cycles",
    beats="ceil_div(m, cube.m) * ceil_div(n, cube.n) * ceil_div(k, depth())",
)

CUBE_COMMANDS = (
    _load(Local.L0A, 0x20, "m", "m x k", ""),
    _load(Local.L0B, 0x21, "n", "k x n", " (which holds the transpose)"),
    _IM2COL,
    _copy(Local.L0A, 0x23, "constants"),
    _copy(Local.L0B, 0x24, "weights"),
    _MMAD,
)
