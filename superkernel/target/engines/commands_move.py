"""Commands that move data between global memory and local memories: MTE2, MTE3 and FIX."""

from __future__ import annotations

from superkernel.core.dtypes import DType
from superkernel.target.engines.build import choice, count, element, gm, local, reads, real, size, stride, writes
from superkernel.target.engines.model import TYPE_CODES, CommandSpec, Engine, Local

_ANY_TYPE = tuple((dtype,) for dtype in TYPE_CODES)
_RATES = {Local.L1: "rates.gm_to_l1_gb_per_s", Local.UB: "rates.gm_to_ub_gb_per_s"}
_GM_STRIDE_BITS = 32


def _from_global(memory: Local, opcode: int) -> tuple[CommandSpec, ...]:
    """The loads of MTE2 into one memory: bytes, rows, a constant."""
    name, rate = memory.value, _RATES[memory]
    padded = "(left + cols + right) * item0"
    return (
        CommandSpec(
            f"gm_to_{name}",
            opcode,
            (Engine.MTE2,),
            "Copies bytes.",
            (local("dst", memory, "first byte written"), gm("src", "first byte read"), size("bytes", "how many")),
            accesses=(reads("src", "bytes"), writes("dst", "bytes")),
            start_up="dma.startup_cycles",
            beats=f"gm_transfer({rate}, bytes, src)",
        ),
        CommandSpec(
            f"gm_to_{name}_2d",
            opcode + 1,
            (Engine.MTE2,),
            "For each row r in 0..rows-1, writes from dst + r x dst_stride on: left elements of pad, the cols "
            "elements at src + r x src_stride, right elements of pad. Bytes between rows of the destination keep "
            "their values. src_stride may be anything, 0 too: then every row is the same.",
            (
                local("dst", memory, "first byte of the first row written"),
                gm("src", "first byte of the first row read"),
                count("rows", "rows"),
                count("cols", "elements copied per row"),
                stride("dst_stride", "from row to row written; at least a written row's bytes"),
                stride("src_stride", "from row to row read", bits=_GM_STRIDE_BITS, align=""),
                count("left", "elements of padding before each row", bits=8, low=0, default=0),
                count("right", "elements of padding behind each row", bits=8, low=0, default=0),
                element("pad", "the padding", default=0),
            ),
            types=_ANY_TYPE,
            type_names=("element",),
            accesses=(
                reads("src", "cols * item0", "rows", "src_stride"),
                writes("dst", padded, "rows", "dst_stride"),
            ),
            start_up="dma.startup_cycles",
            beats=(
                f"gm_transfer({rate}, rows * cols * item0, choose(rows == 1, src, src | src_stride))"
                " + (rows - 1) * dma.row_cycles"
            ),
        ),
        CommandSpec(
            f"{name}_fill",
            opcode + 2,
            (Engine.MTE2,),
            "Writes count elements of one value.",
            (
                local("dst", memory, "first byte written"),
                count("count", "elements", bits=20),
                element("value", "the value"),
            ),
            types=_ANY_TYPE,
            type_names=("element",),
            accesses=(writes("dst", "count * item0"),),
            start_up="dma.local_startup_cycles",
            beats=f"transfer({rate}, count * item0)",
        ),
    )


_TO_GLOBAL = (
    CommandSpec(
        "ub_to_gm",
        0x50,
        (Engine.MTE3,),
        "Copies bytes. No byte of global memory outside them is written or read back.",
        (gm("dst", "first byte written"), local("src", Local.UB, "first byte read"), size("bytes", "how many")),
        accesses=(reads("src", "bytes"), writes("dst", "bytes")),
        start_up="dma.store_startup_cycles",
        beats="gm_transfer(rates.ub_to_gm_gb_per_s, bytes, dst)",
    ),
    CommandSpec(
        "ub_to_gm_2d",
        0x51,
        (Engine.MTE3,),
        "For each row r in 0..rows-1, copies row_bytes bytes from src + r x src_stride to dst + r x dst_stride. "
        "No byte of global memory outside the rows is written or read back. src_stride may be 0.",
        (
            gm("dst", "first byte of the first row written"),
            local("src", Local.UB, "first byte of the first row read"),
            count("rows", "rows"),
            size("row_bytes", "bytes per row"),
            stride("dst_stride", "from row to row written; at least row_bytes", bits=_GM_STRIDE_BITS, align=""),
            stride("src_stride", "from row to row read"),
        ),
        accesses=(
            reads("src", "row_bytes", "rows", "src_stride"),
            writes("dst", "row_bytes", "rows", "dst_stride"),
        ),
        start_up="dma.store_startup_cycles",
        beats=(
            "gm_transfer(rates.ub_to_gm_gb_per_s, rows * row_bytes, choose(rows == 1, dst, dst | dst_stride))"
            " + (rows - 1) * dma.row_cycles"
        ),
    ),
)

_F32_TO = tuple((DType.F32, to) for to in (DType.F32, DType.F16, DType.BF16, DType.I8, DType.U8))
_I32_TO = tuple((DType.I32, to) for to in (DType.I32, DType.F32, DType.F16, DType.BF16, DType.I8, DType.U8))

_FIX = (
    CommandSpec(
        "l0c_to_gm",
        0x40,
        (Engine.FIX,),
        "Writes the m x n accumulators at src (layout of L0C, for this m and n) as a row-major matrix: element "
        "(i, j) to dst + i x dst_stride + j x (size of the destination's elements). Each accumulator a goes "
        "through, each step in f32 with one rounding to nearest even: x = a (an i32 is rounded to f32); scale "
        "`tensor`: x = x * scale_value, `channel`: x = x * s[j], s the f32 vector at scale_src; bias `channel`: x "
        "= x + b[j], b the f32 vector at bias_src; activation `relu`: x where x > 0, else +0; `leaky`: x where x "
        "> 0, else x * low; `clip`: low where x < low, high where x > high, else x; NaN stays NaN in all of them. "
        "Then x is converted: to f16 and bf16 rounded to nearest even, overflow gives infinity; to i8 and u8 "
        "rounded to nearest even, then bounded by the type's range, NaN gives 0. From i32 to i32 nothing but a "
        "copy is done: scale, bias and activation must be `none`. scale_src and bias_src are looked at only where "
        "their modes are `channel`; clip needs low <= high. No byte of global memory outside the rows is written.",
        (
            local("src", Local.L0C, "first accumulator"),
            gm("dst", "first byte of the first row written"),
            count("m", "rows"),
            count("n", "columns"),
            stride("dst_stride", "from row to row; at least a row's bytes", bits=_GM_STRIDE_BITS, align=""),
            choice("scale", "multiplication", "none", "tensor", "channel"),
            choice("bias", "addition", "none", "channel"),
            choice("activation", "what follows", "none", "relu", "leaky", "clip"),
            real("scale_value", "scale `tensor`: the factor", default=0x3F800000),
            local("scale_src", Local.L1, "scale `channel`: n factors, f32", default=0),
            local("bias_src", Local.L1, "bias `channel`: n summands, f32", default=0),
            real("low", "`leaky`: the slope; `clip`: the lower bound"),
            real("high", "`clip`: the upper bound"),
        ),
        types=(*_F32_TO, *_I32_TO),
        type_names=("accumulator", "destination"),
        accesses=(
            reads("src", "ceil_div(m, cube.m) * ceil_div(n, cube.n) * memory.accumulator_bytes"),
            reads("scale_src", "n * 4", when="scale == 'channel'"),
            reads("bias_src", "n * 4", when="bias == 'channel'"),
            writes("dst", "n * item1", "m", "dst_stride"),
        ),
        start_up="dma.store_startup_cycles",
        beats=(
            "gm_transfer(rates.l0c_to_gm_gb_per_s, m * n * item1, choose(m == 1, dst, dst | dst_stride))"
            " + (m - 1) * dma.row_cycles"
        ),
    ),
)

MOVE_COMMANDS = (*_from_global(Local.L1, 0x10), *_from_global(Local.UB, 0x14), *_TO_GLOBAL, *_FIX)
