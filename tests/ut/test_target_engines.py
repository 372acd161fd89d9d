"""The engine command table: its rows hold together, words go there and back, illegal commands are refused."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from aicore_timing import busy_cycles
from engine_command_cases import TABLE, random_command
from hypothesis import given, settings
from hypothesis import strategies as st

from superkernel.core.dtypes import DType
from superkernel.core.errors import InputError
from superkernel.target.aicore import AicoreTarget, load_target
from superkernel.target.engines import check, command, decode, encode, footprint, stores
from superkernel.target.engines.checking import TouchedBytes
from superkernel.target.engines.commands_cube import CUBE_COMMANDS
from superkernel.target.engines.commands_move import MOVE_COMMANDS
from superkernel.target.engines.commands_sync import SYNC_COMMANDS
from superkernel.target.engines.commands_vector import VECTOR_COMMANDS
from superkernel.target.engines.commands_vector_move import VECTOR_MOVE_COMMANDS
from superkernel.target.engines.formula import evaluate, to_cpp
from superkernel.target.engines.layout import DOORBELL, HEADER_BITS, WINDOWS_BYTES, layout, operand_words
from superkernel.target.engines.model import ENGINES_OF, TYPE_CODES, CoreType, Engine, Kind, Local
from superkernel.target.engines.table import CONVENTIONS

F32, F16, BF16, I8, I32, U8 = DType.F32, DType.F16, DType.BF16, DType.I8, DType.I32, DType.U8
RAM = 0x8000_0000


@pytest.fixture(scope="module")
def mini() -> AicoreTarget:
    return load_target("mini")


# The table.


def test_opcodes_and_names_are_unique() -> None:
    parts = (SYNC_COMMANDS, MOVE_COMMANDS, CUBE_COMMANDS, VECTOR_COMMANDS, VECTOR_MOVE_COMMANDS)
    assert len({spec.opcode for spec in TABLE.values()}) == len(TABLE) == sum(map(len, parts))
    assert all(0 < spec.opcode < 256 for spec in TABLE.values())


def test_rows_are_complete() -> None:
    for spec in TABLE.values():
        assert spec.semantics.endswith("."), spec.name
        assert spec.cores, spec.name
        names = [o.name for o in spec.operands]
        assert len(set(names)) == len(names), spec.name
        assert all(len(types) == len(spec.type_names) for types in spec.types), spec.name
        assert len(set(spec.types)) == len(spec.types), spec.name
        assert {t for types in spec.types for t in types} <= set(TYPE_CODES), spec.name
        addresses = {o.name for o in spec.operands if o.kind in (Kind.GLOBAL, Kind.LOCAL)}
        assert {a.operand for a in spec.accesses} == addresses, spec.name
        for operand in spec.operands:
            assert operand.doc, (spec.name, operand.name)
            assert 0 <= operand.low <= operand.high < 1 << operand.bits, (spec.name, operand.name)
            assert operand.default is None or operand.low <= operand.default <= operand.high, (spec.name, operand.name)
            assert (operand.kind is Kind.LOCAL) == (operand.memory is not None)
            assert (operand.kind is Kind.CHOICE) == bool(operand.choices)
    assert all(text.endswith(".") or ")" in text for text in CONVENTIONS)


def test_each_engine_reaches_its_memories_only() -> None:
    reach = {
        Engine.MTE2: {None, Local.L1, Local.UB},
        Engine.MTE1: {Local.L1, Local.L0A, Local.L0B},
        Engine.M: {Local.L0A, Local.L0B, Local.L0C},
        Engine.FIX: {Local.L0C, Local.L1, None},
        Engine.V: {Local.UB},
        Engine.MTE3: {Local.UB, None},
        Engine.SDMA: {None},
    }
    for spec in TABLE.values():
        touched = {o.memory for o in spec.operands if o.kind in (Kind.GLOBAL, Kind.LOCAL)}
        if len(spec.engines) == 1 and spec.engines[0] in reach:
            assert touched <= reach[spec.engines[0]], spec.name  # type: ignore[operator]
    assert [c.value for c in TABLE["gm_to_l1"].cores] == ["aic"]
    assert [c.value for c in TABLE["gm_to_ub_2d"].cores] == ["aiv"]
    assert CoreType.AICPU in TABLE["notify"].cores
    assert CoreType.AICPU not in TABLE["cross_set"].cores


def test_what_there_must_be() -> None:
    """Every kind of command that kernels are made of, by element type."""
    assert TABLE["mmad"].types == ((F16, F32), (BF16, F32), (F32, F32), (I8, I32))
    assert {F16, BF16, F32, I8} <= {types[1] for types in TABLE["l0c_to_gm"].types}
    assert len(TABLE["v_cast"].operand("rounding").choices) == 5
    assert TABLE["cross_set"].operand("mode").choices == ("type", "group", "all", "across", "pair", "mask")
    assert set(TABLE["v_sum"].operand("scope").choices) == {"row", "column", "whole"}
    for engine in (Engine.MTE2, Engine.MTE1, Engine.M, Engine.FIX, Engine.V, Engine.MTE3):
        assert all(
            engine in TABLE[name].engines for name in ("set_flag", "wait_flag", "barrier", "cross_set", "notify")
        )
    inexact = {spec.name for spec in TABLE.values() if spec.ulp}
    assert inexact == {"v_exp", "v_ln"}


def test_layout_has_no_overlaps_and_fits() -> None:
    for spec in TABLE.values():
        used = {DOORBELL: (1 << HEADER_BITS) - 1}
        for slot, operand in zip(layout(spec), spec.operands, strict=True):
            mask = ((1 << slot.bits) - 1) << slot.shift
            assert slot.bits == operand.bits
            assert mask < 1 << 64, (spec.name, slot)
            assert not used.get(slot.word, 0) & mask, (spec.name, slot)
            used[slot.word] = used.get(slot.word, 0) | mask
        assert set(used) == {DOORBELL, *range(operand_words(spec))}
        assert operand_words(spec) <= 4, spec.name  # a command is at most five stores


def test_windows_fit_every_page() -> None:
    assert WINDOWS_BYTES == 1024
    assert load_target("a3").map.page_bytes >= WINDOWS_BYTES
    assert {e for engines in ENGINES_OF.values() for e in engines} == set(Engine)


def test_every_formula_has_a_number_and_a_cpp_form(mini: AicoreTarget) -> None:
    rng = random.Random(1)
    for spec in TABLE.values():
        one = random_command(spec.name, rng)
        texts = [spec.start_up, spec.beats, spec.visible, *(o.align for o in spec.operands if o.align)]
        texts += [text for a in spec.accesses for text in (a.rows, a.row_bytes, a.stride, a.when)]
        for text in texts:
            assert to_cpp(text, spec)
            assert evaluate(text, spec, one.numbers, one.types, mini) >= 0, (spec.name, text)


@pytest.mark.parametrize("text", ["nothing", "cube.q", "item1", "ceil_div(1)", "[1]", "cycles(cols)", "lanes(1, 2)"])
def test_formulas_that_mean_nothing_are_refused(text: str) -> None:
    with pytest.raises((ValueError, KeyError)):
        to_cpp(text, TABLE["v_exp"])


# Words.


@pytest.mark.parametrize("name", TABLE)
@settings(max_examples=25)
@given(seed=st.integers(0, 1 << 32))
def test_words_decode_to_the_command(name: str, seed: int) -> None:
    one = random_command(name, random.Random(seed))
    words = encode(one)
    assert len(words) == operand_words(one.spec) + 1
    assert all(0 <= word < 1 << 64 for word in words)
    assert decode(words, one.engine) == one
    made = command(name, engine=one.engine, types=one.types, **{o.name: one.operand(o.name) for o in one.spec.operands})
    assert made == one


def test_golden_words(mini: AicoreTarget) -> None:
    """Worked out by hand from the layout rule: programs that stand in files depend on them."""
    one = command("gm_to_ub", dst=0x20, src=0x8000_0040, bytes=0x100)
    # Doorbell: opcode 14, then dst (20 bits) from bit 16; src (48) in word 0; bytes (21) in the doorbell from bit 36.
    assert encode(one) == (0x8000_0040, 0x14 | 0x20 << 16 | 0x100 << 36)
    assert stores(one, mini) == ((0x0800_0080, 0x8000_0040), (0x0800_00F8, 0x14 | 0x20 << 16 | 0x100 << 36))
    add = command(
        "v_add", types=(F16,), dst=0x40, a=0x80, b=0xC0, rows=2, cols=32, dst_stride=64, a_stride=96, b_form="matrix"
    )
    # Doorbell: type f16 = 2, dst at 16, a at 36, b_form at 56; word 0: b, rows at 20, cols at 36; word 1: strides.
    # b_stride (20 bits) no longer fits word 0 (52 used): word 1 holds dst_stride, a_stride, b_stride.
    assert encode(add) == (0xC0 | 2 << 20 | 32 << 36, 64 | 96 << 20, 0x80 | 2 << 8 | 0x40 << 16 | 0x80 << 36)
    flag = command("set_flag", engine=Engine.MTE2, peer="v", flag=3)
    assert encode(flag) == (0x01 | 5 << 16 | 3 << 19,)
    assert stores(flag, mini) == ((0x0800_00F8, 0x01 | 5 << 16 | 3 << 19),)
    wait = command("wait_memory", address=RAM, value=(1 << 64) - 1)
    assert encode(wait) == ((1 << 64) - 1, 0x08 | RAM << 16)
    clip = command("l0c_to_gm", types=(F32, F16), src=0, dst=RAM, m=1, n=1, activation="clip", low=-1, high=1)
    assert clip.operand("low") == -1.0
    assert decode(encode(clip), Engine.FIX).operand("high") == 1.0


@pytest.mark.parametrize("name", TABLE)
def test_spare_bits_are_refused(name: str) -> None:
    """Flipping any bit gives another legal command or is refused: no bit is without meaning."""
    one = random_command(name, random.Random(3))
    words = encode(one)
    for number, bit in itertools.product(range(len(words)), range(64)):
        flipped = list(words)
        flipped[number] ^= 1 << bit
        try:
            other = decode(tuple(flipped), one.engine)
        except InputError:
            continue
        assert other != one
        assert encode(other) == tuple(flipped)


def test_wrong_words_are_refused() -> None:
    good = encode(command("v_exp", types=(F32,), dst=0, src=256, cols=8))
    for words, engine, message in (
        ((0xFE,), Engine.V, "undefined command; found opcode 0xfe"),
        ((0,), Engine.V, "undefined command"),
        (good, Engine.M, "v_exp is not a command of this engine; expected v"),
        (good[1:], Engine.V, "wrong number of words"),
        ((*good[:-1], good[-1] & ~0xF00), Engine.V, "element types"),
        ((*good[:-1], good[-1] | 0x1000), Engine.V, "element types"),
        ((*good[:-1], good[-1] | 0x400), Engine.V, "element types"),
        ((1 << 64,), Engine.V, "not words of 8 bytes"),
        ((), Engine.V, "not words"),
        ((0x01 | 5 << 16 | 1 << 60,), Engine.MTE2, "bits set"),
    ):
        with pytest.raises(InputError, match=message):
            decode(words, engine)


def test_nan_is_no_operand() -> None:
    words = list(
        encode(command("l0c_to_gm", types=(F32, F32), src=0, dst=RAM, m=1, n=1, scale="tensor", scale_value=2))
    )
    slot = next(s for s in layout(TABLE["l0c_to_gm"]) if s.operand == "scale_value")
    words[slot.word] |= 0x7FC0_0000 << slot.shift
    with pytest.raises(InputError, match="scale_value"):
        decode(tuple(words), Engine.FIX)


# Making commands.


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("v_expp", {}, "did you mean 'v_exp'"),
        ("v_exp", {"types": (F32,), "dst": 0, "src": 0}, "operand 'cols': missing; expected 1 to 65535"),
        ("v_exp", {"types": (F32,), "dst": 0, "src": 0, "cols": 0}, "out of range; expected 1 to 65535"),
        ("v_exp", {"types": (F32,), "dst": 0, "src": 0, "cols": True}, "not an integer"),
        ("v_exp", {"types": (F32,), "dst": 0, "src": 0, "cols": 1, "rowz": 1}, "did you mean 'rows'"),
        ("v_exp", {"types": (I32,), "dst": 0, "src": 0, "cols": 1}, "wrong element types; expected f32; f16"),
        ("v_exp", {"dst": 0, "src": 0, "cols": 1}, "wrong element types.*found none"),
        ("set_flag", {"peer": "v", "flag": 0}, "wrong engine.*found none"),
        ("set_flag", {"engine": Engine.SDMA, "peer": "v", "flag": 0}, "wrong engine"),
        (
            "cross_set",
            {"engine": Engine.V, "flag": 0, "mode": "each"},
            "unknown choice; expected type, group, all, across, pair, mask",
        ),
        ("v_adds", {"types": (F16,), "dst": 0, "src": 0, "cols": 1, "value": 1 << 16}, "expected 0 to 65535"),
        ("gm_to_ub", {"dst": 0, "src": 1 << 48, "bytes": 1}, "out of range"),
    ],
)
def test_wrong_values_are_refused(name: str, values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        command(name, **values)


@pytest.mark.parametrize("value", ["x", float("nan"), 1e39, 10**400, True])
def test_wrong_floats_are_refused(value: Any) -> None:
    with pytest.raises(InputError, match="f32"):
        command("l0c_to_gm", types=(F32, F32), src=0, dst=RAM, m=1, n=1, low=value)


def test_all_violations_at_once() -> None:
    with pytest.raises(InputError) as caught:
        command("v_add", types=(BF16,), dst=-1, a="x", bb=0)
    assert len(caught.value.violations) == 6  # types, bb, dst, a; b and cols missing


def test_commands_print() -> None:
    shown = str(command("cross_set", engine=Engine.MTE3, flag=2, mode="mask", first_core=2, mask=3))
    assert shown == "mte3: cross_set flag=2, mode=mask, first_core=2, mask=3"
    assert str(command("v_not", types=(I32,), dst=0, src=32, cols=8)).startswith("v: v_not.i32 dst=0x0, src=0x20")


# Legality on a target.

UNARY = {"types": (F32,), "cols": 8}
LEGAL: list[tuple[str, dict[str, Any]]] = [
    ("gm_to_ub", {"dst": 0, "src": RAM + 3, "bytes": 196_608}),
    (
        "gm_to_ub_2d",
        {"types": (F16,), "dst": 0, "src": RAM, "rows": 4, "cols": 5, "dst_stride": 32, "left": 1, "right": 10},
    ),
    ("ub_to_gm_2d", {"dst": RAM + 1, "src": 0, "rows": 3, "row_bytes": 7, "dst_stride": 7, "src_stride": 0}),
    ("v_exp", {**UNARY, "dst": 0, "src": 0}),
    ("v_add", {**UNARY, "dst": 64, "a": 64, "b": 4, "b_form": "column", "cols": 8}),
    ("v_add", {"types": (F32,), "dst": 0, "a": 0, "b": 256, "rows": 4, "cols": 8, "dst_stride": 64, "a_stride": 64}),
    ("v_add", {"types": (F32,), "dst": 0, "a": 32, "b": 512, "rows": 4, "cols": 8, "dst_stride": 64, "a_stride": 64}),
    ("mmad", {"types": (F16, F32), "a": 0, "b": 512, "c": 1024, "m": 16, "k": 16, "n": 17}),
    ("l1_to_l0a", {"types": (F16,), "dst": 0, "src": 2, "m": 3, "k": 5, "src_stride": 10, "transpose": "yes"}),
    ("l1_to_l0a_raw", {"dst": 512, "src": 32, "bytes": 1024}),
    ("l0c_to_gm", {"types": (F32, F16), "src": 0, "dst": RAM, "m": 2, "n": 3, "dst_stride": 6, "scale_src": 1}),
    ("l0c_to_gm", {"types": (I32, I32), "src": 0, "dst": RAM, "m": 1, "n": 3}),
    ("set_flag", {"engine": Engine.V, "peer": "mte3", "flag": 7}),
    ("set_flag", {"engine": Engine.M, "peer": "control", "flag": 0}),
    ("cross_set", {"engine": Engine.CONTROL, "flag": 15, "mode": "mask", "first_core": 2, "mask": 0b1111}),
    (
        "v_transpose",
        {"types": (F16,), "dst": 0, "src": 1024, "rows": 16, "cols": 32, "dst_stride": 32, "src_stride": 64},
    ),
    ("v_sum", {**UNARY, "dst": 4, "src": 32, "scope": "whole"}),
    ("notify", {"engine": Engine.MTE3, "address": RAM + 8, "value": 1}),
]
ILLEGAL: list[tuple[str, dict[str, Any], str]] = [
    ("gm_to_ub", {"dst": 16, "src": RAM, "bytes": 1}, "'dst': not aligned; expected a multiple of 32; found 16"),
    (
        "gm_to_ub",
        {"dst": 32, "src": RAM, "bytes": 196_608},
        "outside ub; expected 0x0 to 0x30000; found 0x20 to 0x30020",
    ),
    ("gm_to_ub", {"dst": 0, "src": RAM - 1, "bytes": 1}, "outside global memory"),
    ("gm_to_ub", {"dst": 0, "src": RAM + (128 << 20) - 1, "bytes": 2}, "outside global memory"),
    (
        "gm_to_ub_2d",
        {"types": (F16,), "dst": 0, "src": RAM, "rows": 2, "cols": 17, "dst_stride": 32},
        "written rows share",
    ),
    ("ub_to_gm_2d", {"dst": RAM, "src": 0, "rows": 3, "row_bytes": 7, "dst_stride": 6}, "written rows share bytes"),
    ("v_exp", {**UNARY, "dst": 0, "src": 8 * 4 + 4}, "'src': not aligned"),
    ("v_exp", {"types": (F32,), "dst": 32, "src": 0, "cols": 9}, "illegal overlap.*meets 'src'"),
    ("v_exp", {"types": (F32,), "dst": 0, "src": 0, "rows": 2, "cols": 8, "dst_stride": 32}, "illegal overlap"),
    (
        "v_exp",
        {"types": (F32,), "dst": 0, "src": 32, "rows": 2, "cols": 8, "dst_stride": 48},
        "'dst_stride': not aligned",
    ),
    ("v_cmp", {**UNARY, "dst": 0, "a": 0, "b": 32, "predicate": "lt"}, "illegal overlap"),
    ("v_add", {**UNARY, "dst": 64, "a": 64, "b": 2, "b_form": "column"}, "'b': not aligned; expected a multiple of 4"),
    ("v_add", {**UNARY, "dst": 64, "a": 64, "b": 4}, "'b': not aligned; expected a multiple of 32"),
    ("mmad", {"types": (F16, F32), "a": 256, "b": 0, "c": 512, "m": 1, "k": 1, "n": 1}, "2 problems"),
    ("mmad", {"types": (F16, F32), "a": 0, "b": 0, "c": 0, "m": 257, "k": 1, "n": 128}, "outside l0c"),
    ("mmad", {"types": (F16, F32), "a": 0, "b": 0, "c": 0, "m": 256, "k": 129, "n": 16}, "outside l0a"),
    ("l1_to_l0a_raw", {"dst": 0, "src": 0, "bytes": 100}, "'bytes': not aligned; expected a multiple of 512"),
    (
        "l0c_to_gm",
        {"types": (F32, F16), "src": 0, "dst": RAM, "m": 1, "n": 3, "bias": "channel", "bias_src": 1},
        "bias_src",
    ),
    (
        "l0c_to_gm",
        {"types": (I32, I32), "src": 0, "dst": RAM, "m": 1, "n": 3, "activation": "relu"},
        "i32 to i32 is a copy",
    ),
    (
        "l0c_to_gm",
        {"types": (F32, F32), "src": 0, "dst": RAM, "m": 1, "n": 1, "activation": "clip", "low": 1},
        "empty range",
    ),
    ("set_flag", {"engine": Engine.V, "peer": "mte3", "flag": 8}, "no such flag; expected below 8"),
    ("set_flag", {"engine": Engine.V, "peer": "v", "flag": 0}, "not another engine"),
    ("set_flag", {"engine": Engine.V, "peer": "mte1", "flag": 0}, "not another engine of the same core"),
    ("wait_flag", {"engine": Engine.V, "peer": "sdma", "flag": 0}, "not another engine"),
    ("cross_wait", {"flag": 16}, "no such flag; expected below 16"),
    ("cross_set", {"engine": Engine.V, "flag": 0, "mode": "mask", "first_core": 3, "mask": 8}, "not existing cores"),
    ("cross_set", {"engine": Engine.V, "flag": 0, "mode": "mask"}, "not existing cores"),
    ("v_shr", {"types": (DType.I16,), "dst": 0, "src": 0, "cols": 1, "shift": 16}, "below the element's width"),
    (
        "v_transpose",
        {"types": (F16,), "dst": 0, "src": 1024, "rows": 17, "cols": 2, "dst_stride": 32},
        "written rows share",
    ),
    ("notify", {"engine": Engine.MTE3, "address": RAM + 4, "value": 1}, "not aligned; expected a multiple of 8"),
    ("v_gather", {"types": (F32,), "dst": 0, "src": 0, "offsets": 64, "cols": 1, "table_bytes": 64}, "illegal overlap"),
    ("sdma_copy", {"dst": RAM, "src": RAM + 8, "bytes": 9}, "illegal overlap"),
]


@pytest.mark.parametrize(("name", "values"), LEGAL)
def test_legal_commands(name: str, values: dict[str, Any], mini: AicoreTarget) -> None:
    check(command(name, **values), mini)


@pytest.mark.parametrize(("name", "values", "message"), ILLEGAL)
def test_illegal_commands(name: str, values: dict[str, Any], message: str, mini: AicoreTarget) -> None:
    with pytest.raises(InputError, match=message):
        check(command(name, **values), mini)


def test_single_targets_need_the_network(mini: AicoreTarget) -> None:
    one = command("cross_set", engine=Engine.V, flag=0, mode="mask", first_core=2, mask=1)
    check(one, mini)
    with pytest.raises(InputError, match="no single targets"):
        check(one, load_target("a3"))


def test_footprints(mini: AicoreTarget) -> None:
    load = command(
        "gm_to_ub_2d", types=(F16,), dst=64, src=RAM, rows=3, cols=10, dst_stride=32, src_stride=100, right=6
    )
    assert footprint(load, mini) == (
        TouchedBytes("src", False, None, RAM, 3, 20, 100),
        TouchedBytes("dst", True, Local.UB, 64, 3, 32, 32),
    )
    product = command("mmad", types=(I8, I32), a=0, b=512, c=1024, m=17, k=33, n=16, mode="accumulate")
    assert [(t.operand, t.writes, t.row_bytes) for t in footprint(product, mini)] == [
        ("a", False, 2 * 2 * 512),
        ("b", False, 2 * 512),
        ("c", False, 2 * 1024),
        ("c", True, 2 * 1024),
    ]
    across = command("l1_to_l0b", types=(F16,), dst=0, src=0, n=20, k=40, src_stride=80, transpose="yes")
    assert footprint(across, mini)[0] == TouchedBytes("src", False, Local.L1, 0, 20, 80, 80)
    straight = command("l1_to_l0b", types=(F16,), dst=0, src=0, n=20, k=40, src_stride=64)
    assert footprint(straight, mini)[0] == TouchedBytes("src", False, Local.L1, 0, 40, 40, 64)
    assert footprint(straight, mini)[1].row_bytes == 2 * 3 * 512
    plain = command("l0c_to_gm", types=(F32, F16), src=0, dst=RAM, m=2, n=3, dst_stride=6)
    assert [t.operand for t in footprint(plain, mini)] == ["src", "dst"]


def test_overlapping_rows_equal_brute_force() -> None:
    rng = random.Random(5)

    def touched() -> TouchedBytes:
        rows, size, step = rng.randint(1, 5), rng.randint(1, 12), rng.choice([0, rng.randint(1, 20)])
        return TouchedBytes("x", False, Local.UB, rng.randint(0, 60), rows, size, step if rows > 1 else 0)

    def bytes_of(t: TouchedBytes) -> set[int]:
        return {t.start + r * t.stride + b for r in range(t.rows) for b in range(t.row_bytes)}

    met = 0
    for _ in range(3000):
        a, b = touched(), touched()
        expected = bool(bytes_of(a) & bytes_of(b))
        assert a.meets(b) == b.meets(a) == expected, (a, b)
        assert a.end == max(bytes_of(a)) + 1
        met += expected
    assert 500 < met < 2500


def test_busy_cycles(mini: AicoreTarget) -> None:
    """Closed forms, with mini's numbers: 1.85 GHz."""
    product = command("mmad", types=(F16, F32), a=0, b=0, c=0, m=128, k=64, n=64)
    assert busy_cycles(product, mini) == 20 + 8 * 4 * 4
    assert busy_cycles(command("mmad", types=(I8, I32), a=0, b=0, c=0, m=128, k=64, n=64), mini) == 20 + 8 * 4 * 2
    assert busy_cycles(command("mmad", types=(F32, F32), a=0, b=0, c=0, m=16, k=64, n=16), mini) == 20 + 16
    # 16,384 bytes at 100.9 GB/s and 1.85 GHz: 300.4 cycles.
    assert busy_cycles(command("gm_to_ub", dst=0, src=RAM, bytes=16_384), mini) == 340 + 301
    assert busy_cycles(command("gm_to_ub", dst=0, src=RAM + 32, bytes=16_384), mini) == 340 + 430  # 301 / 0.7
    rows = command("gm_to_ub_2d", types=(F32,), dst=0, src=RAM, rows=16, cols=256, dst_stride=1024, src_stride=4096)
    assert busy_cycles(rows, mini) == 340 + 301 + 15 * 2
    assert busy_cycles(command("v_add", types=(F16,), dst=0, a=0, b=0, cols=1024), mini) == 18 + 8
    assert busy_cycles(command("v_add", types=(F32,), dst=0, a=0, b=0, cols=1000), mini) == 18 + 16
    assert busy_cycles(command("v_exp", types=(F16,), dst=0, src=0, cols=1024), mini) == 18 + 32
    assert busy_cycles(command("v_sum", types=(F32,), dst=0, src=0, rows=4, cols=128), mini) == 18 + 4 * 2 + 4 * 7
    whole = command("v_sum", types=(F32,), dst=0, src=0, rows=4, cols=128, scope="whole")
    assert busy_cycles(whole, mini) == 18 + 4 * 2 + 7
    assert busy_cycles(command("drain"), mini) == 23  # 12 ns
    assert busy_cycles(command("v_cast", types=(F16, U8), dst=0, src=0, cols=256), mini) == 18 + 2
