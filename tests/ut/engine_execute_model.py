"""Engine commands in NumPy and exact fractions, written from the words of docs/hardware.md and from nothing else.

Memories are arrays of bytes. Nothing here is quick or clever: one rounding is one call of `to_format`, layouts are
index formulas, an accumulator takes its steps one by one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from superkernel.core.dtypes import DType
from superkernel.target.aicore import AicoreTarget
from superkernel.target.engines import Command

Array = npt.NDArray[Any]
F32, F16, BF16, I32, I16, I8, U8 = DType.F32, DType.F16, DType.BF16, DType.I32, DType.I16, DType.I8, DType.U8
FLOATS = (F32, F16, BF16)
BOUNDS = {I32: (-(2**31), 2**31 - 1), I16: (-(2**15), 2**15 - 1), I8: (-128, 127), U8: (0, 255)}
FORMATS = {F32: (23, -126, 127), F16: (10, -14, 15), BF16: (7, -126, 127)}  # fraction bits, least and largest exponent
NAN_BITS = {F32: 0x7FC00000, F16: 0x7E00, BF16: 0x7FC0}
_BITS = {1: "<u1", 2: "<u2", 4: "<u4"}
_INTEGERS = {I32: "<i4", I16: "<i2", I8: "<i1", U8: "<u1"}


def to_format(exact: Fraction, dtype: DType, direction: str = "nearest_even") -> float:
    """The number of a format next to a fraction that is not 0."""
    fraction, least, largest = FORMATS[dtype]
    size = abs(exact)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    if size < Fraction(2) ** exponent:
        exponent -= 1
    unit = Fraction(2) ** (max(exponent, least) - fraction)
    result = whole(exact / unit, direction) * unit
    top = (Fraction(2) - Fraction(2) ** -fraction) * Fraction(2) ** largest
    if abs(result) > top:
        inward = direction == "trunc" or direction == ("floor" if exact > 0 else "ceil")
        return math.copysign(float(top) if inward else math.inf, exact)
    return math.copysign(float(result), exact)


def whole(exact: Fraction, direction: str) -> int:
    if direction == "nearest_even":
        return round(exact)
    if direction == "nearest_away":
        return int(math.copysign(math.floor(abs(exact) + Fraction(1, 2)), exact))
    directed: dict[str, Callable[[Fraction], int]] = {"floor": math.floor, "ceil": math.ceil, "trunc": math.trunc}
    return directed[direction](exact)


def fma(a: float, b: float, c: float) -> float:
    """a x b + c, rounded once to f32."""
    if not (math.isfinite(a) and math.isfinite(b) and math.isfinite(c)):
        return float(np.float64(a) * np.float64(b) + np.float64(c))
    exact = Fraction(a) * Fraction(b) + Fraction(c)
    return to_format(exact, F32) if exact else a * b + c  # a zero has the sign that any sum of the two has


def from_bits(bits: Array, dtype: DType) -> Array:
    """Floats as f64, integers as i64."""
    if dtype is BF16:
        return (bits.astype("<u4") << 16).view("<f4").astype(np.float64)
    if dtype in FLOATS:
        return bits.view("<f4" if dtype is F32 else "<f2").astype(np.float64)
    return bits.view(_INTEGERS[dtype]).astype(np.int64)


def to_bits(values: Array, dtype: DType) -> Array:
    """Floats that were rounded to f32 already, to nearest even; integers modulo their width."""
    values = np.asarray(values)
    if dtype not in FLOATS:
        return values.astype(np.int64).astype(_BITS[dtype.itemsize])
    if dtype is BF16:
        numbers = [
            x if not x or not math.isfinite(x) else to_format(Fraction(x), BF16) for x in values.ravel().tolist()
        ]
        found = (np.array(numbers, "<f4").view("<u4") >> 16).astype("<u2").reshape(values.shape)
    else:
        found = values.astype("<f4" if dtype is F32 else "<f2").view(_BITS[dtype.itemsize])
    return np.where(np.isnan(values), found.dtype.type(NAN_BITS[dtype]), found)


def _f32(x: Any) -> Array:
    return np.asarray(x, np.float64).astype(np.float32)


def _extreme(a: Array, b: Array, largest: bool) -> Array:
    if a.dtype == np.int64:
        return np.maximum(a, b) if largest else np.minimum(a, b)
    equal = np.where(np.signbit(a) == largest, b, a)  # matters for zeros only
    chosen = np.where(a == b, equal, np.where((a > b) == largest, a, b))
    return np.where(np.isnan(a) | np.isnan(b), np.nan, chosen)


def _fused(a: Array, b: Array, c: Array) -> Array:
    a, b, c = np.broadcast_arrays(a, b, c)
    return np.array([fma(*x) for x in zip(a.ravel(), b.ravel(), c.ravel(), strict=True)]).reshape(a.shape)


def _in_f32(operation: Callable[..., Any]) -> Callable[..., Array]:
    """An operation on floats, done in f32; on integers as it is."""

    def done(*operands: Array) -> Array:
        if operands[0].dtype == np.int64:
            return np.asarray(operation(*operands))
        return np.asarray(operation(*(_f32(o) for o in operands))).astype(np.float64)

    return done


_add, _sub, _mul = (_in_f32(f) for f in (np.add, np.subtract, np.multiply))
_div = _in_f32(np.divide)
_ones = np.ones_like

ELEMENTWISE: dict[str, Callable[[Array, Array, Array], Array]] = {
    "v_add": lambda x, y, d: _add(x, y),
    "v_sub": lambda x, y, d: _sub(x, y),
    "v_mul": lambda x, y, d: _mul(x, y),
    "v_div": lambda x, y, d: _div(x, y),
    "v_max": lambda x, y, d: _extreme(x, y, True),
    "v_min": lambda x, y, d: _extreme(x, y, False),
    "v_fma": lambda x, y, d: _fused(x, y, d),
    "v_and": lambda x, y, d: x & y,
    "v_or": lambda x, y, d: x | y,
    "v_xor": lambda x, y, d: x ^ y,
    "v_adds": lambda x, y, d: _add(x, y),
    "v_muls": lambda x, y, d: _mul(x, y),
    "v_maxs": lambda x, y, d: _extreme(x, y, True),
    "v_mins": lambda x, y, d: _extreme(x, y, False),
    "v_rsubs": lambda x, y, d: _sub(y, x),
    "v_axpy": lambda x, y, d: _fused(x, y, d),
    "v_leaky": lambda x, y, d: np.where(x > 0, x, _mul(x, y)),
    "v_shl": lambda x, y, d: x << y,
    "v_shr": lambda x, y, d: x >> y,
    "v_abs": lambda x, y, d: np.abs(x),
    "v_neg": lambda x, y, d: -x,
    "v_relu": lambda x, y, d: np.where((x > 0) | (x != x), x, 0 * _ones(x)),
    "v_not": lambda x, y, d: ~x,
    "v_sqrt": lambda x, y, d: _in_f32(np.sqrt)(x),
    "v_rsqrt": lambda x, y, d: _div(_ones(x), _in_f32(np.sqrt)(x)),
    "v_reciprocal": lambda x, y, d: _div(_ones(x), x),
}
RELATIONS = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
}


class Model:
    """All local memories of both core types, and global memory."""

    def __init__(self, target: AicoreTarget, memories: dict[str, bytes], gm: bytes) -> None:
        self.target = target
        self.memory = {name: np.frombuffer(data, np.uint8).copy() for name, data in memories.items()}
        self.memory["gm"] = np.frombuffer(gm, np.uint8).copy()

    def run(self, c: Command) -> None:
        """Carries a command out."""
        self.c, self.o = c, c.numbers
        with np.errstate(all="ignore"):
            name = c.name
            if name in ELEMENTWISE:
                self._elementwise()
            elif "_to_l0" in name or name == "l1_im2col":
                self._to_l0()
            elif name.startswith(("gm_to", "ub_to")) or name == "sdma_copy":
                self._copy()
            else:
                getattr(self, f"_{name}")()

    # Matrices of bits in a memory.

    def read(self, memory: str, start: int, rows: int, cols: int, stride: int, item: int) -> Array:
        data = self.memory[memory]
        if memory == "gm":
            start -= self.target.map.ram_address
        return np.array(
            [np.frombuffer(data[start + r * stride :][: cols * item].tobytes(), _BITS[item]) for r in range(rows)]
        )

    def write(self, memory: str, start: int, stride: int, bits: Array) -> None:
        if memory == "gm":
            start -= self.target.map.ram_address
        for r, row in enumerate(np.atleast_2d(bits)):
            data = np.frombuffer(np.ascontiguousarray(row).tobytes(), np.uint8)
            self.memory[memory][start + r * stride :][: data.size] = data

    def matrix(self, name: str, dtype: DType, cols: int | None = None) -> Array:
        """The bits of a vector command's operand."""
        o = self.o
        return self.read("ub", o[name], o["rows"], cols or o["cols"], o[f"{name}_stride"], dtype.itemsize)

    def put(self, values: Array, dtype: DType) -> None:
        self.write("ub", self.o["dst"], self.o["dst_stride"], to_bits(values, dtype))

    # The vector engine.

    def _element(self, name: str, dtype: DType) -> Array:
        return from_bits(np.array([self.o[name]], _BITS[dtype.itemsize]), dtype)

    def _elementwise(self) -> None:
        c, o, dtype = self.c, self.o, self.c.types[0]
        if c.name in ("v_abs", "v_neg") and dtype in FLOATS:
            bits, sign = self.matrix("src", dtype), 1 << 8 * dtype.itemsize - 1
            changed = bits & bits.dtype.type(sign - 1) if c.name == "v_abs" else bits ^ bits.dtype.type(sign)
            self.write("ub", o["dst"], o["dst_stride"], changed)
            return
        x = from_bits(self.matrix("a" if "a" in o else "src", dtype), dtype)
        y = self._element("value", dtype) if "value" in o else np.array([o.get("shift", 0)])
        if "b" in o:
            y = from_bits(self.matrix("b", dtype, 1 if c.operand("b_form") == "column" else None), dtype)
        d = from_bits(self.matrix("dst", dtype), dtype) if c.name in ("v_fma", "v_axpy") else x
        self.put(ELEMENTWISE[c.name](x, y, d), dtype)

    def _v_copy(self) -> None:
        self.write("ub", self.o["dst"], self.o["dst_stride"], self.matrix("src", self.c.types[0]))

    def _v_cmp(self) -> None:
        a, b = (from_bits(self.matrix(n, self.c.types[0]), self.c.types[0]) for n in "ab")
        self.put(RELATIONS[str(self.c.operand("predicate"))](a, b), U8)

    def _v_cmps(self) -> None:
        a, b = from_bits(self.matrix("src", self.c.types[0]), self.c.types[0]), self._element("value", self.c.types[0])
        self.put(RELATIONS[str(self.c.operand("predicate"))](a, b), U8)

    def _v_select(self) -> None:
        a, b = (self.matrix(n, self.c.types[0]) for n in "ab")
        self.write("ub", self.o["dst"], self.o["dst_stride"], np.where(self.matrix("mask", U8) != 0, a, b))

    def _v_selects(self) -> None:
        a = self.matrix("src", self.c.types[0])
        chosen = np.where(self.matrix("mask", U8) != 0, a, a.dtype.type(self.o["value"]))
        self.write("ub", self.o["dst"], self.o["dst_stride"], chosen)

    def _reduced(self, reduce: Callable[[Array], Any]) -> None:
        """One element per row, per column or of all."""
        dtype, scope = self.c.types[0], self.c.operand("scope")
        x = from_bits(self.matrix("src", dtype), dtype)
        lists = {"row": list(x), "column": list(x.T), "whole": [x.ravel()]}[str(scope)]
        self.write("ub", self.o["dst"], 0, to_bits(np.array([reduce(values) for values in lists]), dtype))

    def _v_sum(self) -> None:
        def total(values: Array) -> Any:
            partial = [values.dtype.type(0)] * 64
            for e, x in enumerate(values):
                partial[e % 64] = _add(partial[e % 64], x)
            for h in (32, 16, 8, 4, 2, 1):
                for p in range(h):
                    partial[p] = _add(partial[p], partial[p + h])
            return partial[0]

        self._reduced(total)

    def _v_reduce_max(self) -> None:
        self._reduced(lambda values: _fold(values, True))

    def _v_reduce_min(self) -> None:
        self._reduced(lambda values: _fold(values, False))

    def _v_argmax(self, sign: int = 1) -> None:
        dtype = self.c.types[0]
        x = from_bits(self.matrix("src", dtype), dtype)
        columns = [int(np.argmax(np.isnan(r))) if np.isnan(r).any() else int(np.argmax(sign * r)) for r in x]
        self.write("ub", self.o["dst"], 0, to_bits(np.array(columns), I32))

    def _v_argmin(self) -> None:
        self._v_argmax(-1)

    def _v_cast(self) -> None:
        source, to = self.c.types
        x = from_bits(self.matrix("src", source), source)
        direction = str(self.c.operand("rounding"))
        found = [cast(v, source, to, direction) for v in x.ravel().tolist()]
        self.put(np.array(found, np.float64 if to in FLOATS else np.int64).reshape(x.shape), to)

    def _v_broadcast(self) -> None:
        o, item = self.o, self.c.types[0].itemsize
        by_row = self.c.operand("form") == "row"
        vector = self.read("ub", o["src"], 1, o["cols"] if by_row else o["rows"], 0, item)[0]
        bits = vector[None, :] if by_row else vector[:, None]
        self.write("ub", o["dst"], o["dst_stride"], np.broadcast_to(bits, (o["rows"], o["cols"])))

    def _v_duplicate(self) -> None:
        o = self.o
        bits = np.full((o["rows"], o["cols"]), o["value"], _BITS[self.c.types[0].itemsize])
        self.write("ub", o["dst"], o["dst_stride"], bits)

    def _v_iota(self) -> None:
        dtype, count = self.c.types[0], np.arange(self.o["cols"])
        start, step = (self._element(n, dtype) for n in ("start", "step"))
        i = count.astype(np.float64) if dtype is F32 else count
        self.write("ub", self.o["dst"], 0, to_bits(_add(start + 0 * count, _mul(i, step + 0 * count)), dtype))

    def _v_transpose(self) -> None:
        self.write("ub", self.o["dst"], self.o["dst_stride"], self.matrix("src", self.c.types[0]).T)

    def _offsets(self) -> list[int]:
        return [int(x) for x in self.read("ub", self.o["offsets"], 1, self.o["cols"], 0, 4)[0]]

    def _v_gather(self) -> None:
        item, src = self.c.types[0].itemsize, self.o["src"]
        bits = np.array([self.read("ub", src + offset, 1, 1, 0, item)[0, 0] for offset in self._offsets()])
        self.write("ub", self.o["dst"], 0, bits)

    def _v_scatter(self) -> None:
        bits = self.read("ub", self.o["src"], 1, self.o["cols"], 0, self.c.types[0].itemsize)[0]
        for offset, element in zip(self._offsets(), bits, strict=True):
            self.write("ub", self.o["dst"] + offset, 0, np.array([element]))

    # Moves.

    def _copy(self) -> None:
        o, (source, to) = self.o, self.c.name.removesuffix("_2d").replace("sdma_copy", "gm_to_gm").split("_to_")
        rows, row_bytes = o.get("rows", 1), o.get("bytes", o.get("row_bytes", 0))
        if "cols" not in o:
            bits = self.read(source, o["src"], rows, row_bytes, o.get("src_stride", 0), 1)
        else:
            item = self.c.types[0].itemsize
            bits = self.read(source, o["src"], rows, o["cols"], o["src_stride"], item)
            bits = np.pad(bits, ((0, 0), (o["left"], o["right"])), constant_values=o["pad"])
        self.write(to, o["dst"], o.get("dst_stride", 0), bits)

    def _ub_fill(self, memory: str = "ub") -> None:
        bits = np.full(self.o["count"], self.o["value"], _BITS[self.c.types[0].itemsize])
        self.write(memory, self.o["dst"], 0, bits)

    def _l1_fill(self) -> None:
        self._ub_fill("l1")

    # The cube core's inside.

    def _to_l0(self) -> None:
        o, name = self.o, self.c.name
        memory = "l0b" if "l0b" in name else "l0a"
        if name.endswith("_raw"):
            self.write(memory, o["dst"], 0, self.read("l1", o["src"], 1, o["bytes"], 0, 1))
            return
        item = self.c.types[0].itemsize
        if name == "l1_im2col":
            matrix = self._image_matrix(item)
        else:
            rows, depth = o.get("m", o.get("n", 0)), o["k"]
            lies_straight = (o["transpose"] == 1) == (memory == "l0b")
            shape = (rows, depth) if lies_straight else (depth, rows)
            lying = self.read("l1", o["src"], *shape, o["src_stride"], item)
            matrix = lying if lies_straight else lying.T
        self.write(memory, o["dst"], 0, self._fractals(matrix, item))

    def _fractal_shape(self, rows: int, depth: int, item: int) -> tuple[int, int, int, int]:
        high, deep = self.target.cube.m, self.target.memory.block_bytes // item
        return -(-rows // high), high, -(-depth // deep), deep

    def _fractals(self, matrix: Array, item: int) -> Array:
        rows, depth = matrix.shape
        down, high, across, deep = self._fractal_shape(rows, depth, item)
        padded = np.zeros((down * high, across * deep), matrix.dtype)
        padded[: matrix.shape[0], : matrix.shape[1]] = matrix
        return padded.reshape(down, high, across, deep).transpose(0, 2, 1, 3).ravel()

    def _unfractal(self, memory: str, start: int, rows: int, depth: int, item: int) -> Array:
        down, high, across, deep = self._fractal_shape(rows, depth, item)
        flat = self.read(memory, start, 1, down * high * across * deep, 0, item)
        return flat.reshape(down, across, high, deep).transpose(0, 2, 1, 3).reshape(down * high, -1)[:rows, :depth]

    def _image_matrix(self, item: int) -> Array:
        o = self.o
        image = self.read("l1", o["src"], 1, o["height"] * o["width"] * o["channels"], 0, item)[0]
        out = np.full((o["m"], o["k"]), o["pad"], image.dtype)
        for i in range(o["m"]):
            for j in range(o["k"]):
                p, q = o["m_first"] + i, o["k_first"] + j
                filter_row = q // (o["kernel_w"] * o["channels"])
                filter_column = q // o["channels"] % o["kernel_w"]
                y = p // o["out_width"] * o["stride_h"] - o["pad_top"] + filter_row * o["dilation_h"]
                x = p % o["out_width"] * o["stride_w"] - o["pad_left"] + filter_column * o["dilation_w"]
                if filter_row < o["kernel_h"] and 0 <= y < o["height"] and 0 <= x < o["width"]:
                    out[i, j] = image[(y * o["width"] + x) * o["channels"] + q % o["channels"]]
        return out

    def _accumulator(self, i: int, j: int) -> int:
        cube = self.target.cube
        block = i // cube.m * -(-self.o["n"] // cube.n) + j // cube.n
        return 4 * ((block * cube.m + i % cube.m) * cube.n + j % cube.n)

    def _mmad(self) -> None:
        o, (source, to) = self.o, self.c.types
        m, n, depth, cube = o["m"], o["n"], o["k"], self.target.cube
        a = from_bits(self._unfractal("l0a", o["a"], m, depth, source.itemsize), source)
        b = from_bits(self._unfractal("l0b", o["b"], n, depth, source.itemsize), source)
        accumulate = self.c.operand("mode") == "accumulate"
        if not accumulate:
            blocks = -(-m // cube.m) * -(-n // cube.n)
            self.write("l0c", o["c"], 0, np.zeros(blocks * cube.m * cube.n, "<u4"))
        for i in range(m):
            for j in range(n):
                place = o["c"] + self._accumulator(i, j)
                total = from_bits(self.read("l0c", place, 1, 1, 0, 4)[0], to)[0]
                for k in range(depth):
                    total = fma(a[i, k], b[j, k], total) if to is F32 else total + a[i, k] * b[j, k]
                self.write("l0c", place, 0, to_bits(np.array([total]), to))

    def _l0c_to_gm(self) -> None:
        o, c, (source, to) = self.o, self.c, self.c.types
        n = o["n"]
        rows = [
            [self.read("l0c", o["src"] + self._accumulator(i, j), 1, 1, 0, 4)[0, 0] for j in range(n)]
            for i in range(o["m"])
        ]
        bits = np.array(rows, "<u4")
        if to is I32:
            self.write("gm", o["dst"], o["dst_stride"], bits)
            return
        x = _f32(from_bits(bits, source))
        if o["scale"]:
            s = np.float32(c.operand("scale_value")) if c.operand("scale") == "tensor" else self._channel("scale_src")
            x = x * s
        if o["bias"]:
            x = x + self._channel("bias_src")
        low, high = np.float32(c.operand("low")), np.float32(c.operand("high"))
        kind = c.operand("activation")
        if kind == "relu":
            x = np.where((x > 0) | np.isnan(x), x, np.float32(0))
        elif kind == "leaky":
            x = np.where(x > 0, x, x * low)
        elif kind == "clip":
            x = np.where(x < low, low, np.where(x > high, high, x))
        if to in BOUNDS:
            x = np.nan_to_num(np.clip(np.rint(x.astype(np.float64)), *BOUNDS[to]))
        self.write("gm", o["dst"], o["dst_stride"], to_bits(x.astype(np.float64), to))

    def _channel(self, name: str) -> Array:
        return self.read("l1", self.o[name], 1, self.o["n"], 0, 4)[0].view("<f4")


def _fold(values: Array, largest: bool) -> Any:
    found = values[:1]
    for i in range(1, values.size):
        found = _extreme(found, values[i : i + 1], largest)
    return found[0]


def cast(x: float | int, source: DType, to: DType, direction: str) -> float | int:
    """One element of v_cast; `x` is its exact value."""
    if to in FLOATS:
        if not x or not math.isfinite(x):
            return float(x)
        if source is to:
            return math.copysign(float(whole(Fraction(x), direction)), x)
        return to_format(Fraction(x), to, direction)
    low, high = BOUNDS[to]
    if isinstance(x, float) and not math.isfinite(x):
        return 0 if math.isnan(x) else (high if x > 0 else low)
    return min(max(whole(Fraction(x), direction), low), high)
