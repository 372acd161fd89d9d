"""Floating-point instructions of the simulator against exact arithmetic: results, flags, boxing, rounding modes."""

from __future__ import annotations

import itertools
import random
import struct
from collections.abc import Callable, Sequence

import exact_float as exact
import numpy as np
import pytest
from exact_float import DOUBLE, SINGLE, Format
from rv64_asm import DATA, MASK64, TABLE, csr, f, fused, i, s, simple_elf, table_elf, table_results

from superkernel.sim import Machine

FORMATS = {"s": SINGLE, "d": DOUBLE}
BOX = 0xFFFFFFFF_00000000
FCSR, FFLAGS, FRM = 3, 1, 2

Oracle = Callable[..., tuple[int, int]]


def box(fmt: str, bits: int) -> int:
    return BOX | bits if fmt == "s" else bits


def corners(fmt: Format) -> list[int]:
    """Zeros, smallest, around the smallest normal and 1, ties, largest, infinities, NaNs; both signs."""
    one = fmt.bias << fmt.fraction_bits
    smallest_normal = 1 << fmt.fraction_bits
    positive = [
        0, 1, 3, smallest_normal - 1, smallest_normal, smallest_normal + 1,
        one - 1, one, one + 1, one + (1 << fmt.fraction_bits) // 2, one + (fmt.fraction_bits << fmt.fraction_bits) + 1,
        fmt.infinity - 1, fmt.infinity, fmt.infinity + 1, fmt.nan, fmt.nan + 5,
    ]  # fmt: skip
    return [sign | a for a in positive for sign in (0, fmt.sign)]


def randoms(fmt: Format, count: int, seed: int) -> list[int]:
    """Random bits, exponents near 1 half of the time so that operands meet."""
    generator = random.Random(seed)
    width = fmt.exponent_bits + fmt.fraction_bits + 1
    values = []
    for n in range(count):
        a = generator.getrandbits(width)
        if n % 2:
            field = fmt.bias + generator.randint(-fmt.fraction_bits - 3, fmt.fraction_bits + 3)
            a = a & (fmt.sign | (1 << fmt.fraction_bits) - 1) | field << fmt.fraction_bits
        if n % 5 == 0:
            a &= ~((1 << generator.randint(1, fmt.fraction_bits)) - 1)  # many low zeros: ties and exact results
        values.append(a)
    return values


def evaluate(words: Sequence[int], rows: Sequence[tuple[int, ...]], mode: int) -> list[tuple[int, int]]:
    """Runs instructions on f12, f13, f14 = the row, results in f15; returns f15 and the flags."""
    body = [
        *(i("fld", 12 + n, 10, 8 * n) for n in range(len(rows[0]))),
        csr("csrrwi", 0, FFLAGS, 0), csr("csrrwi", 0, FRM, mode), *words,
        csr("csrrs", 16, FFLAGS, 0), s("fsd", 15, 10, 8 * len(rows[0])), s("sd", 16, 10, 8 * len(rows[0]) + 8),
    ]  # fmt: skip
    return run(body, rows)


def evaluate_integer(words: Sequence[int], rows: Sequence[tuple[int, ...]], mode: int = 0) -> list[tuple[int, int]]:
    """The same with the result in x15."""
    body = [
        *(i("fld", 12 + n, 10, 8 * n) for n in range(len(rows[0]))), i("ld", 12, 10, 0),
        csr("csrrwi", 0, FFLAGS, 0), csr("csrrwi", 0, FRM, mode), *words,
        csr("csrrs", 16, FFLAGS, 0), s("sd", 15, 10, 8 * len(rows[0])), s("sd", 16, 10, 8 * len(rows[0]) + 8),
    ]  # fmt: skip
    return run(body, rows)


def run(body: list[int], rows: Sequence[tuple[int, ...]]) -> list[tuple[int, int]]:
    machine = Machine(table_elf(body, rows, 2))
    assert (machine.run(50_000_000), machine.exit_code) == ("exited", 0), machine.hart(0)
    data = machine.read(DATA + TABLE, 8 * len(rows) * (len(rows[0]) + 2))
    return [(result, flags) for result, flags in table_results(data, rows, 2)]


def check(fmt: str, rows: Sequence[tuple[int, ...]], got: list[tuple[int, int]], oracle: Oracle, mode: int) -> None:
    for row, (result, flags) in zip(rows, got, strict=True):
        bits, raised = oracle(*row, FORMATS[fmt], mode)
        expected = (box(fmt, bits), raised)
        assert (result, flags) == expected, (list(map(hex, row)), mode, hex(result), flags, hex(bits), raised)


def binary_rows(fmt: str, seed: int) -> list[tuple[int, ...]]:
    values = corners(FORMATS[fmt])
    more = zip(randoms(FORMATS[fmt], 250, seed), randoms(FORMATS[fmt], 250, seed + 1), strict=True)
    return [*itertools.product(values, values), *more]


BINARY: dict[str, Oracle] = {
    "fadd": exact.add,
    "fsub": lambda a, b, fmt, mode: exact.add(a, b ^ fmt.sign, fmt, mode),
    "fmul": exact.mul,
    "fdiv": exact.div,
}


@pytest.mark.parametrize("mode", range(5))
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("name", BINARY)
def test_arithmetic(name: str, fmt: str, mode: int) -> None:
    rows = binary_rows(fmt, 10 + mode)
    boxed = [tuple(box(fmt, a) for a in row) for row in rows]
    check(fmt, rows, evaluate([f(name, fmt, 15, 12, 13)], boxed, mode), BINARY[name], mode)


@pytest.mark.parametrize("fmt", FORMATS)
def test_square_root(fmt: str) -> None:
    rows = [(a,) for a in corners(FORMATS[fmt]) + randoms(FORMATS[fmt], 200, 3)]
    boxed = [(box(fmt, a),) for (a,) in rows]
    for mode in range(5):
        check(fmt, rows, evaluate([f("fsqrt", fmt, 15, 12)], boxed, mode), exact.sqrt, mode)


SIGNS = {"fmadd": (0, 0), "fmsub": (0, 1), "fnmsub": (1, 0), "fnmadd": (1, 1)}  # of the product, of the addend


def near_cancellations(fmt: Format, seed: int) -> list[tuple[int, ...]]:
    """Addends next to the negated product: the cases where a second rounding would show."""
    rows: list[tuple[int, ...]] = []
    for a, b in zip(randoms(fmt, 60, seed), randoms(fmt, 60, seed + 1), strict=True):
        product, _ = exact.mul(a, b, fmt, exact.RNE)
        if not fmt.is_nan(product) and not fmt.is_infinite(product):
            rows += [(a, b, product ^ fmt.sign), (a, b, max(product - 1, 0) ^ fmt.sign), (a, b, product)]
    return rows


@pytest.mark.parametrize("mode", range(5))
@pytest.mark.parametrize("fmt", FORMATS)
def test_fused_multiply_add(fmt: str, mode: int) -> None:
    form = FORMATS[fmt]
    values = corners(form)
    some = random.Random(mode).sample(list(itertools.product(values, values, values)), 250)
    rows = [*some, *near_cancellations(form, mode), *zip(*(randoms(form, 100, 7 + n) for n in range(3)), strict=True)]
    boxed = [tuple(box(fmt, a) for a in row) for row in rows]
    for name, (product, addend) in SIGNS.items():

        def oracle(a: int, b: int, c: int, _: Format, mode: int, p: int = product, q: int = addend) -> tuple[int, int]:
            return exact.fma(a ^ p * form.sign, b, c ^ q * form.sign, form, mode)

        check(fmt, rows, evaluate([fused(name, fmt, 15, 12, 13, 14)], boxed, mode), oracle, mode)


def minmax(largest: bool) -> Oracle:
    def oracle(a: int, b: int, fmt: Format, mode: int) -> tuple[int, int]:
        flags = exact.NV if fmt.is_signaling(a) or fmt.is_signaling(b) else 0
        if fmt.is_nan(a) or fmt.is_nan(b):
            return (fmt.nan if fmt.is_nan(a) and fmt.is_nan(b) else b if fmt.is_nan(a) else a), flags

        def order(x: int) -> tuple[float | int, ...]:  # -inf, negative, -0, +0, positive, inf
            magnitude = x & ~fmt.sign
            return (-magnitude, 0) if fmt.negative(x) else (magnitude, 1)

        return (max if largest else min)(a, b, key=order), flags

    return oracle


def signs(action: Callable[[int, int], int]) -> Oracle:
    return lambda a, b, fmt, mode: (a & ~fmt.sign | action(a, b) & fmt.sign, 0)


SELECT: dict[str, Oracle] = {
    "fmin": minmax(False),
    "fmax": minmax(True),
    "fsgnj": signs(lambda a, b: b),
    "fsgnjn": signs(lambda a, b: ~b),
    "fsgnjx": signs(lambda a, b: a ^ b),
}


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("name", SELECT)
def test_selection_and_signs(name: str, fmt: str) -> None:
    rows = binary_rows(fmt, 20)
    boxed = [tuple(box(fmt, a) for a in row) for row in rows]
    check(fmt, rows, evaluate([f(name, fmt, 15, 12, 13)], boxed, 0), SELECT[name], 0)


def compare(name: str, a: int, b: int, fmt: Format) -> tuple[int, int]:
    if fmt.is_nan(a) or fmt.is_nan(b):
        quiet = name == "feq" and not fmt.is_signaling(a) and not fmt.is_signaling(b)
        return 0, 0 if quiet else exact.NV

    def number(x: int) -> int:
        return -(x & ~fmt.sign) if fmt.negative(x) else x

    return int({"feq": number(a) == number(b), "flt": number(a) < number(b), "fle": number(a) <= number(b)}[name]), 0


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("name", ["feq", "flt", "fle"])
def test_comparisons(name: str, fmt: str) -> None:
    rows = binary_rows(fmt, 30)
    got = evaluate_integer([f(name, fmt, 15, 12, 13)], [tuple(box(fmt, a) for a in row) for row in rows])
    assert got == [compare(name, a, b, FORMATS[fmt]) for a, b in rows]


@pytest.mark.parametrize("fmt", FORMATS)
def test_classes(fmt: str) -> None:
    form = FORMATS[fmt]
    smallest_normal = 1 << form.fraction_bits
    cases = {
        form.sign | form.infinity: 0, form.sign | smallest_normal: 1, form.sign | smallest_normal - 1: 2,
        form.sign: 3, 0: 4, 1: 5, form.infinity - 1: 6, form.infinity: 7,
        form.infinity + 1: 8, form.sign | form.infinity + 1: 8, form.nan: 9, form.sign | form.nan: 9,
    }  # fmt: skip
    got = evaluate_integer([f("fclass", fmt, 15, 12)], [(box(fmt, a),) for a in cases])
    assert got == [(1 << bit, 0) for bit in cases.values()]


INTEGERS = {"w": (32, True), "wu": (32, False), "l": (64, True), "lu": (64, False)}


def around_limits(fmt: Format) -> list[int]:
    """Numbers around 0, halves, and the ends of the integer types."""
    values = []
    for power in (-2, -1, 0, 1, 2, 30, 31, 32, 52, 53, 62, 63, 64):
        bits = (power + fmt.bias) << fmt.fraction_bits
        values += [bits - 1, bits, bits + 1, bits | 1 << (fmt.fraction_bits - 1), bits | 3 << (fmt.fraction_bits - 2)]
        if power >= 2:
            values += [
                bits | 1 << max(fmt.fraction_bits - power - 1, 0),
                bits | 3 << max(fmt.fraction_bits - power - 1, 0),
            ]
    return [sign | a for a in values for sign in (0, fmt.sign)]


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("kind", INTEGERS)
def test_conversion_to_integers(kind: str, fmt: str) -> None:
    width, signed = INTEGERS[kind]
    values = corners(FORMATS[fmt]) + around_limits(FORMATS[fmt]) + randoms(FORMATS[fmt], 50, 4)
    for mode in range(5):
        got = evaluate_integer([f(f"fcvt.{kind}", fmt, 15, 12)], [(box(fmt, a),) for a in values], mode)
        for a, pair in zip(values, got, strict=True):
            assert pair == exact.to_integer(a, width, signed, FORMATS[fmt], mode), (hex(a), mode)


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("kind", INTEGERS)
def test_conversion_from_integers(kind: str, fmt: str) -> None:
    width, signed = INTEGERS[kind]
    generator = random.Random(5)
    values = [0, 1, MASK64, 1 << 63, (1 << 63) - 1, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 32]
    values += [(1 << k) + d for k in (24, 25, 53, 54, 55) for d in (-1, 0, 1, 2, 3)]
    values += [generator.getrandbits(64) >> generator.randint(0, 63) for _ in range(60)]
    for mode in range(5):
        body = [i("ld", 12, 10, 0), f(f"from.{kind}", fmt, 15, 12)]
        got = evaluate(body, [(a,) for a in values], mode)
        for a, (result, flags) in zip(values, got, strict=True):
            number = a % (1 << width)
            if signed and number >> (width - 1):
                number -= 1 << width
            bits, raised = exact.from_integer(number, FORMATS[fmt], mode)
            assert (result, flags) == (box(fmt, bits), raised), (hex(a), mode)


@pytest.mark.parametrize(("source", "target"), [("s", "d"), ("d", "s")])
def test_conversion_between_formats(source: str, target: str) -> None:
    form = FORMATS[source]
    values = corners(form) + randoms(form, 200, 6)
    if source == "d":  # around the limits of single precision
        for power in (-150, -149, -148, -127, -126, 127, 128):
            bits = (power + DOUBLE.bias) << 52
            values += [
                bits - 1,
                bits,
                bits + 1,
                bits | 1 << 28,
                bits | 3 << 28,
                bits | (1 << 52) - 1,
                bits | 0xFFFFFFFE << 20,
            ]
    for mode in range(5):
        got = evaluate([f(f"fcvt.{source}", target, 15, 12)], [(box(source, a),) for a in values], mode)
        for a, (result, flags) in zip(values, got, strict=True):
            bits, raised = exact.convert(a, form, FORMATS[target], mode)
            assert (result, flags) == (box(target, bits), raised), (hex(a), mode)


def test_static_rounding_mode_wins_over_the_dynamic_one() -> None:
    third = [(box("s", 0x3F800000), box("s", 0x40400000))]
    for static in range(5):
        for dynamic in range(5):
            ((result, flags),) = evaluate([f("fdiv", "s", 15, 12, 13, rm=static)], third, dynamic)
            assert (result & 0xFFFFFFFF, flags) == exact.div(0x3F800000, 0x40400000, SINGLE, static)


def test_single_operands_must_be_boxed() -> None:
    """A value without all ones above reads as the canonical NaN; moves and stores take it as it is."""
    raw = 0x3FF00000_3F800000
    ((result, flags),) = evaluate([f("fadd", "s", 15, 12, 12)], [(raw,)], 0)
    assert (result, flags) == (BOX | SINGLE.nan, 0)
    ((result, _),) = evaluate([f("fsgnj", "s", 15, 12, 12)], [(raw,)], 0)
    assert result == BOX | SINGLE.nan
    ((result, _),) = evaluate_integer([f("fmv.x", "s", 15, 12)], [(0x3FF00000_BF800000,)])
    assert result == 0xFFFFFFFF_BF800000
    ((result, _),) = evaluate([f("fcvt.s", "d", 15, 12)], [(raw,)], 0)
    assert result == DOUBLE.nan
    assert evaluate_integer([f("fclass", "s", 15, 12)], [(raw,)]) == [(1 << 9, 0)]


def test_moves_and_loads_keep_bits() -> None:
    data = struct.pack("<QQ", 0x12345678_FF800001, 0x7FF00000_00000001) + bytes(64)
    words = [
        i("flw", 12, 8, TABLE), s("fsd", 12, 8, TABLE + 16), s("fsw", 12, 8, TABLE + 24),
        i("fld", 13, 8, TABLE + 8), f("fmv.x", "d", 14, 13), s("sd", 14, 8, TABLE + 32),
        f("fmv.from", "d", 15, 14), s("fsd", 15, 8, TABLE + 40),
        i("ld", 16, 8, TABLE), f("fmv.from", "s", 16, 16), s("fsd", 16, 8, TABLE + 48),
    ]  # fmt: skip
    machine = Machine(simple_elf(words, data))
    assert machine.run(1000) == "exited"
    got = struct.unpack("<5Q", machine.read(DATA + TABLE + 16, 40))
    signaling = BOX | 0xFF800001
    assert got == (signaling, 0xFF800001, 0x7FF00000_00000001, 0x7FF00000_00000001, signaling)


def test_flags_accumulate() -> None:
    one, zero = box("s", 0x3F800000), box("s", 0)
    words = [f("fdiv", "s", 15, 12, 13), f("fdiv", "s", 15, 13, 13), f("fsqrt", "s", 15, 12)]
    ((_, flags),) = evaluate(words, [(one, zero)], 0)
    assert flags == exact.DZ | exact.NV


@pytest.mark.parametrize("fmt", FORMATS)
def test_many_random_operands_against_numpy(fmt: str) -> None:
    """Round to nearest even, thousands of operands: NumPy on the host agrees bit for bit (NaNs apart)."""
    kind, integer = (np.float32, np.uint32) if fmt == "s" else (np.float64, np.uint64)
    a, b = (np.asarray(np.array(randoms(FORMATS[fmt], 3000, 40 + n), integer).view(kind)) for n in range(2))
    rows = [(box(fmt, int(x)), box(fmt, int(y))) for x, y in zip(a.view(integer), b.view(integer), strict=True)]
    with np.errstate(all="ignore"):
        references = {"fadd": a + b, "fsub": a - b, "fmul": a * b, "fdiv": a / b}
    for name, expected in references.items():
        got = np.array(
            [x & (1 << 8 * a.itemsize) - 1 for x, _ in evaluate([f(name, fmt, 15, 12, 13)], rows, 0)], dtype=integer
        )
        numbers = ~np.isnan(expected)
        np.testing.assert_array_equal(got[numbers], expected.view(integer)[numbers])
        assert (got[~numbers] == FORMATS[fmt].nan).all()


def test_the_comparison_can_fail() -> None:
    """Results of one rounding mode are not those of another, and the check sees it."""
    rows = binary_rows("d", 50)
    got = evaluate([f("fadd", "d", 15, 12, 13)], rows, exact.RUP)
    with pytest.raises(AssertionError):
        check("d", rows, got, exact.add, exact.RDN)
