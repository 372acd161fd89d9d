"""Number formats: what the host's matrix products, convolutions and attention are computed in.

Model: a factor of f32 values is stored in *words*: 32 bits of a row hold `step` neighbours along the depth (two bf16,
four bytes), and so many weights of one column stand side by side. Where a value takes several numbers (bf16x3: the
rounded value and what that left out; int8x2: high and low bytes) rows or weights have *parts*. A step of the depth loop
multiplies one word of a row by a vector of words of weights.

A format in *tiles* is multiplied by a matrix unit (AMX): rows and weights lie as words all the same, in tiles of up to
`TILE_ROWS` rows of `TILE_BYTES` bytes, and a step of the depth loop takes `TILE_ROWS` words of both.

Kernels take a format as a value of their tilings: block sizes, packing, copies of rows and costs follow from its
fields, the code from `codegen/host/arithmetic.py`. A new format is one value here and its arithmetic there.

Rates are multiply-adds per f32 multiply-add of the same CPU, measured on register tiles that hide all latencies; those
of native formats on a CPU that makes a dot product in the time of a multiply-add, and, in tiles, 16 of bf16 or 32 of
bytes as Intel documents it (`paced` tells of others).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

from superkernel.core.dtypes import DType

_WORD_BYTES = 4
TILE_ROWS, TILE_BYTES = 16, 64
"""Of a tile of the CPU's matrix unit: rows, and bytes of each. One of weights holds 16 words of 16 columns."""

REDUCED = ("bf16", "int8", "tf32-like")
"""Precisions that a policy may allow on the host."""


@dataclass(frozen=True, repr=False)
class NumberFormat:
    """What rows and weights of a product are stored as, what their products are summed in, how fast that is.

    `native`: the CPU multiplies words by instructions of its own; without, the same numbers are multiplied as f32 or
    integers of 16 bits."""

    name: str
    title: str  # for people
    rows: DType
    weights: DType
    sums: DType  # of products, inside the depth loop
    results: DType = DType.F32  # of that loop
    row_parts: int = 1
    weight_parts: int = 1
    feature: str = ""  # LLVM's feature that multiplies words, "" where no CPU does; once chosen, that of the CPU
    arm_features: tuple[str, ...] = ()  # of AArch64, and of the cores of microcontrollers
    rate: float = 1.0  # without the feature
    native_rate: float = 1.0
    native_word: float = 1.0  # time of a word's multiply-add by the CPU's own instruction, of one of f32 values
    copied_per_ns: float = 8.0  # elements of rows
    precision: str = "f32"  # the policy's word for it; "any" where factors come in the format
    error_ulps: float = 0.0  # of f32, relative to the largest sum of |x| |w|; docs/numerics.md has the bounds
    native: bool = False
    tiled: bool = False  # multiplied tile by tile

    def __hash__(self) -> int:
        """Tilings and packed constants are hashed with their formats."""
        return hash((self.name, self.feature))

    def __repr__(self) -> str:
        return f"{self.name}+{self.feature}" if self.native else self.name

    @property
    def is_reduced(self) -> bool:
        """Whether factors are words of numbers of less precision than the results."""
        return self.weights is not self.results

    @property
    def rounds_factors(self) -> bool:
        """Whether factors come in more precise than they are multiplied."""
        return self.is_reduced and self.precision != "any"

    @property
    def is_integral(self) -> bool:
        """Whether factors are integers that come in as such: their products and sums are exact."""
        return self.is_reduced and not self.results.is_float

    @property
    def scales_rows(self) -> bool:
        """Whether each row is turned into unsigned integers, with a scale and a zero point found at run time."""
        return self.is_reduced and not self.rows.is_float and not self.is_integral

    @property
    def scales_weights(self) -> bool:
        """Whether f32 weights become signed integers with a scale per column."""
        return self.is_reduced and not self.weights.is_float and not self.is_integral

    @property
    def sums_weights(self) -> bool:
        """Whether the sums of a column's integers are kept: what a row's zero point adds is known from them."""
        return self.scales_rows or self.is_integral

    @property
    def copies_rows(self) -> bool:
        """Whether rows cannot be read where they are."""
        return self.rows is not self.results

    @property
    def step(self) -> int:
        """Neighbours along the depth in a word."""
        return max(1, _WORD_BYTES // self.rows.itemsize)

    @property
    def grain(self) -> int:
        """Neighbours along the depth that rows and weights are filled up to, with zeros among the weights."""
        return self.step * (TILE_ROWS if self.tiled else 1)

    @property
    def item(self) -> DType:
        """As what copies of rows are stored: numbers that the CPU does not multiply itself wait as f32."""
        return self.rows if self.native or not self.rows.is_float else self.results

    @property
    def word_bytes(self) -> int:
        """Bytes of packed weights per column and step of the depth loop."""
        return self.step * self.weights.itemsize * self.weight_parts

    @property
    def column_bytes(self) -> int:
        """Bytes of packed weights per column behind its words: an f32 scale, the i32 sum of what a row's zero point
        meets."""
        return 4 * (self.scales_weights + self.sums_weights)

    @property
    def products(self) -> tuple[tuple[int, int], ...]:
        """Which part of a row meets which of the weights in one sum, smallest first (low times low is below what is
        left out anyway)."""
        return ((0, 0),) if self.weight_parts == 1 else ((1, 0), (0, 1), (0, 0))

    @property
    def speed(self) -> float:
        """The rate on the CPU at hand."""
        return self.native_rate if self.native else self.rate

    @property
    def word_time(self) -> float:
        """Time of a word's multiply-add, of one of f32 values."""
        return self.native_word if self.native else self.step / self.rate

    def words(self, depth: int) -> int:
        """Of a row or column of so many elements, those that it is filled up with included."""
        return -(-depth // self.grain) * (self.grain // self.step)

    def panel_bytes(self, depth: int, columns: int) -> int:
        """Size of so many packed columns."""
        return columns * (self.words(depth) * self.word_bytes + self.column_bytes)

    def paced(self, dots: float) -> NumberFormat:
        """The format on a CPU that makes so many of its dot products in the time of a multiply-add, both of whole
        vectors."""
        if not self.native or dots == 1.0:
            return self
        return replace(self, native_rate=self.native_rate * dots, native_word=self.native_word / dots)

    def on(self, has: Callable[[str], bool]) -> NumberFormat:
        """The format on a CPU that has some features: native where it can be."""
        own = next((name for name in (self.feature, *self.arm_features) if name and has(name)), "")
        if bool(own) == self.native and own in ("", self.feature):
            return self
        return replace(self, feature=own or self.feature, native=bool(own))


BYTES_ON_ARM = ("dotprod", "mve")
"""The dot products of AArch64, and the vectors of Armv8.1-M, which are multiplied by scalars."""


@cache
def elements(dtype: DType) -> NumberFormat:
    """Products of elements as they are, summed in `dtype`."""
    name = dtype.value
    rate = 1.0 if dtype is DType.F32 else 0.5 if dtype is DType.F64 else 0.4
    return NumberFormat(name, name, dtype, dtype, dtype, dtype, rate=rate)


F32 = elements(DType.F32)
BF16 = NumberFormat(
    "bf16", "bf16, sums in f32", DType.BF16, DType.BF16, DType.F32,
    feature="avx512bf16", rate=0.85, native_rate=2.0, precision="bf16", error_ulps=2.0**16,
)  # fmt: skip
PAIRS = replace(BF16, title="bf16 as they come, sums in f32", precision="any", error_ulps=0.0)
BF16X3 = NumberFormat(
    "bf16x3", "f32 in two bf16 parts, three products, sums in f32", DType.BF16, DType.BF16, DType.F32,
    row_parts=2, weight_parts=2, feature="avx512bf16", rate=0.3, native_rate=0.66, copied_per_ns=4.0,
    precision="tf32-like", error_ulps=2.0**9,
)  # fmt: skip
INT8 = NumberFormat(
    "int8", "8-bit rows and weights, sums in i32", DType.U8, DType.I8, DType.I32,
    feature="avx512vnni", arm_features=BYTES_ON_ARM, rate=0.8, native_rate=3.6, native_word=1.05, copied_per_ns=3.0,
    precision="int8", error_ulps=2.0**18,
)  # fmt: skip
INT8X2 = NumberFormat(
    "int8x2", "16-bit rows, 8-bit weights, sums in i32", DType.U8, DType.I8, DType.I32,
    row_parts=2, feature="avx512vnni", arm_features=BYTES_ON_ARM, rate=0.4, native_rate=2.0, copied_per_ns=2.0,
    precision="int8", error_ulps=2.0**17,
)  # fmt: skip
BYTES = NumberFormat(
    "bytes", "8-bit rows and weights as they come, sums in i32", DType.U8, DType.I8, DType.I32, DType.I32,
    feature="avx512vnni", arm_features=BYTES_ON_ARM, rate=0.8, native_rate=3.6, native_word=1.05, copied_per_ns=24.0,
    precision="any",
)  # fmt: skip
BF16_TILES = replace(
    BF16, title="bf16 in tiles, sums in f32", feature="amx-bf16", native_rate=16.0, native_word=0.125, tiled=True
)
PAIRS_TILES = replace(BF16_TILES, title="bf16 as they come in tiles, sums in f32", precision="any", error_ulps=0.0)
INT8_TILES = replace(
    INT8, title="8-bit rows and weights in tiles, sums in i32", feature="amx-int8", arm_features=(),
    native_rate=32.0, native_word=0.125, tiled=True,
)  # fmt: skip
BYTES_TILES = replace(
    BYTES, title="8-bit rows and weights as they come, in tiles, sums in i32", feature="amx-int8", arm_features=(),
    native_rate=32.0, native_word=0.125, tiled=True,
)  # fmt: skip
BLOCKS = NumberFormat(
    "int16_blocks", "16-bit rows by block, weights in blocks as they come, sums in i32", DType.U8, DType.I8, DType.I32,
    row_parts=2, feature="avx512vnni", arm_features=("dotprod",), copied_per_ns=2.0, precision="int8",
    error_ulps=2.0**9,
)  # fmt: skip
BLOCKS8 = replace(
    BLOCKS, name="int8_blocks", title="8-bit rows by block, weights in blocks as they come, sums in i32", row_parts=1,
    copied_per_ns=3.0, error_ulps=2.0**17,
)  # fmt: skip
WEIGHTS8 = NumberFormat("weights8", "f32 rows, 8-bit weights, sums in f32", DType.F32, DType.I8, DType.F32, rate=0.4)


def choose(formats: Sequence[NumberFormat], has: Callable[[str], bool]) -> NumberFormat:
    """The first of a kernel's formats that a CPU with some features multiplies itself, else the last."""
    found = [f.on(has) for f in formats]
    return next((f for f in found if f.native), found[-1])
