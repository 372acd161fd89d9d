"""Engine commands in C++: every command, type and instruction set against the model written from the words."""

from __future__ import annotations

import random
import zlib
from typing import Any

import numpy as np
import pytest
from engine_execute_cases import (
    GM_BYTES,
    MINI,
    SILENT,
    SIZES,
    TABLE,
    WITH_A_BOUND,
    core_of,
    fields_of,
    legal_command,
    random_bytes,
)
from engine_execute_model import Model

from superkernel import _core
from superkernel.core.dtypes import DType
from superkernel.target.aicore import AicoreTarget
from superkernel.target.engines import Command, command, encode

# Other shapes of fractals and blocks than those of the presets.
ODD = MINI.replaced({"cube.m": 8, "cube.n": 8, "memory.block_bytes": 64, "memory.accumulator_bytes": 256})
ISAS = _core.EngineBench.isas()
EXACT = [
    pytest.param(name, types, id="-".join((name, *map(str, types))))
    for name, spec in TABLE.items()
    if name not in (*SILENT, *WITH_A_BOUND)
    for types in spec.types
]


class Pair:
    """The engines in C++ and the model, with equal memories: those that a command names, and global memory."""

    def __init__(self, target: AicoreTarget, name: str, seed: int, item: int) -> None:
        rng = np.random.default_rng(seed)
        self.target = target
        self.bench = _core.EngineBench(fields_of(target))
        named = sorted({o.memory.value for o in TABLE[name].operands if o.memory})
        self.memories = {memory: random_bytes(rng, SIZES[memory], item) for memory in named}
        self.gm = random_bytes(rng, GM_BYTES, item)

    def set(self, memory: str, start: int, data: bytes) -> None:
        old = self.memories[memory]
        self.memories[memory] = old[:start] + data + old[start + len(data) :]

    def expected(self, c: Command) -> Model:
        model = Model(self.target, self.memories, self.gm)
        model.run(c)
        return model

    def executed(self, c: Command, isa: str) -> dict[str, bytes]:
        """All memories after the command."""
        self.bench.forget()
        for name, data in self.memories.items():
            self.bench.write(name, 0, data)
        gm = bytearray(self.gm)
        assert self.bench.execute(c.engine.title, core_of(c), encode(c), gm, isa=isa) is None
        return {name: self.bench.read(name, 0, size) for name, size in SIZES.items() if name in self.memories} | {
            "gm": bytes(gm)
        }

    def compare(self, c: Command) -> None:
        model = self.expected(c)
        for isa in ISAS:
            for name, data in self.executed(c, isa).items():
                found, wanted = np.frombuffer(data, np.uint8), model.memory[name]
                wrong = np.flatnonzero(found != wanted)
                assert not wrong.size, (isa, str(c), name, wrong[:8], found[wrong[:8]], wanted[wrong[:8]])


def prepare(pair: Pair, c: Command, rng: random.Random) -> None:
    """Offsets of gathers and scatters that lie in the table."""
    if c.name in ("v_gather", "v_scatter"):
        item, numbers = c.types[0].itemsize, c.numbers
        places = [rng.randrange(numbers["table_bytes"] // item) * item for _ in range(numbers["cols"])]
        pair.set("ub", numbers["offsets"], np.array(places, "<u4").tobytes())


@pytest.mark.parametrize(("name", "types"), EXACT)
def test_commands_do_what_the_words_say(name: str, types: tuple[DType, ...]) -> None:
    seed = zlib.crc32(f"{name} {types}".encode())
    rng = random.Random(seed)
    for attempt in range(4):
        pair = Pair(MINI, name, seed + attempt, types[0].itemsize if types else 1)
        for _ in range(2 if name in ("mmad", "l1_im2col", "v_cast") else 4):
            c = legal_command(name, rng, MINI, types)
            prepare(pair, c, rng)
            pair.compare(c)


@pytest.mark.parametrize("scope", ["row", "column", "whole"])
def test_sums_keep_their_order(scope: str) -> None:
    """Numbers of all sizes, so that nearly every other order gives other bits; rows that are no whole turns."""
    pair = Pair(MINI, "v_sum", 1, 4)
    rng = np.random.default_rng(2)
    for rows, cols in ((3, 70), (150, 5), (5, 600), (1, 63)):
        stride = -(-cols // 8) * 32
        pair.set(
            "ub", 4096, (rng.normal(size=rows * stride // 4) * 10.0 ** rng.integers(-3, 4)).astype("<f4").tobytes()
        )
        shape: dict[str, Any] = {"rows": rows, "cols": cols, "src_stride": stride}
        pair.compare(command("v_sum", types=(DType.F32,), dst=0, src=4096, scope=scope, **shape))


@pytest.mark.parametrize("value", [-2.0, np.inf, 0.0])
def test_zero_has_the_slope_of_a_leaky_unit(value: float) -> None:
    bits = int(np.float32(value).view("<u4"))
    pair = Pair(MINI, "v_leaky", 1, 4)
    pair.set("ub", 32, np.array([0.0, -0.0, 1.0, -1.0], "<f4").tobytes())
    pair.compare(command("v_leaky", types=(DType.F32,), dst=0, src=32, cols=4, value=bits))


@pytest.mark.parametrize("to", [DType.F32, DType.F16, DType.I8], ids=str)
def test_each_step_behind_the_accumulators_rounds(to: DType) -> None:
    """Scale and bias that nearly cancel: a fused step would keep what the rounding of the product takes away."""
    pair = Pair(MINI, "l0c_to_gm", 1, 4)
    rng = np.random.default_rng(3)
    x, s = (rng.uniform(1, 2, 16).astype("<f4") for _ in range(2))
    pair.set("l0c", 0, np.tile(x, 16).tobytes())
    pair.set("l1", 0, s.tobytes())
    pair.set("l1", 64, (-(x * s)).tobytes())
    steps: Any = {
        "scale": "channel", "bias": "channel", "activation": "leaky", "low": 1e9, "scale_src": 0, "bias_src": 64,
    }  # fmt: skip
    pair.compare(
        command("l0c_to_gm", types=(DType.F32, to), src=0, dst=MINI.map.ram_address, m=16, n=16, dst_stride=64, **steps)
    )


@pytest.mark.parametrize("name", ["l1_to_l0a", "l1_to_l0b", "l1_im2col", "mmad", "l0c_to_gm"])
def test_layouts_follow_the_target(name: str) -> None:
    rng = random.Random(7)
    for types in TABLE[name].types:
        Pair(ODD, name, 3, types[0].itemsize).compare(legal_command(name, rng, ODD, types))


@pytest.mark.parametrize("types", TABLE["mmad"].types, ids=lambda t: str(t[0]))
def test_large_products_have_the_same_bits_everywhere(types: tuple[DType, ...]) -> None:
    """Tiles of all heights, many strips; against one another, and in part against the model's chain."""
    m, n, k = 75, 150, 64
    pair = Pair(MINI, "mmad", 11, types[0].itemsize)
    for mode in ("init", "accumulate"):
        c = command("mmad", types=types, c=0, a=0, b=0, m=m, n=n, k=k, mode=mode)
        found = {isa: pair.executed(c, isa)["l0c"] for isa in ISAS}
        assert len(set(found.values())) == 1
        corner = command("mmad", types=types, c=0, a=0, b=0, m=3, n=16, k=k, mode="init")
        if mode == "init":
            assert pair.expected(corner).memory["l0c"][: 3 * 64].tobytes() == found["portable"][: 3 * 64]


def ulp_distance(found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Between floats of one type, in places of their order."""
    width = np.int64(8 * found.dtype.itemsize)
    bits = [x.view(f"<i{x.dtype.itemsize}").astype(np.int64) for x in (found, wanted)]
    least = -(np.int64(1) << (width - 1))
    ordered = [np.where(b < 0, least - b, b) for b in bits]
    distance: np.ndarray = np.abs(ordered[0] - ordered[1])
    return distance


@pytest.mark.parametrize("name", WITH_A_BOUND)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16], ids=str)
def test_exp_and_ln_are_within_an_ulp_and_equal_everywhere(name: str, dtype: DType) -> None:
    """Every f16; f32 in all ranges, the ends of them densely."""
    kind = np.dtype("<f4" if dtype is DType.F32 else "<f2")
    rng = np.random.default_rng(5)
    if dtype is DType.F16:
        everything = np.arange(1 << 16, dtype="<u2").view(kind)
    else:
        near = [rng.normal(c, s, 4000) for c, s in ((0, 1), (88.7, 0.1), (-103.9, 0.3), (-87.3, 0.2), (1, 1e-3))]
        some = np.concatenate([*near, np.exp(rng.uniform(-103, 88, 20000))]).astype(kind)
        bits = rng.integers(0, 1 << 32, 20000, dtype=np.uint64).astype("<u4").view(kind)
        special = np.array([0, -0.0, 1, np.inf, -np.inf, np.nan, 1e-45, -1e-45, 3.4028235e38], kind)
        everything = np.concatenate([special, some, bits])
    bench = _core.EngineBench(fields_of(MINI))
    for first in range(0, everything.size, 20000):
        x = everything[first : first + 20000]
        c = command(name, types=(dtype,), dst=0, src=96 * 1024, cols=x.size)
        found = []
        for isa in ISAS:
            bench.write("ub", 96 * 1024, x.tobytes())
            assert bench.execute("v", "aiv", encode(c), bytearray(), isa=isa) is None
            found.append(bench.read("ub", 0, x.nbytes))
        assert len(set(found)) == 1
        with np.errstate(all="ignore"):
            wide = (np.exp if name == "v_exp" else np.log)(x.astype(np.float64))
            wanted = wide.astype(kind)
        got = np.frombuffer(found[0], kind)
        nan = np.isnan(wanted)
        canonical = 0x7FC00000 if dtype is DType.F32 else 0x7E00
        assert (np.isnan(got) == nan).all()
        assert (got.view(f"<u{kind.itemsize}")[nan] == canonical).all()
        assert ulp_distance(got[~nan], wanted[~nan]).max(initial=0) <= TABLE[name].ulp


@pytest.mark.parametrize(("name", "x", "wanted"), [("v_exp", 0.0, 1.0), ("v_exp", -np.inf, 0.0), ("v_ln", 1.0, 0.0)])
def test_exact_values_of_exp_and_ln(name: str, x: float, wanted: float) -> None:
    bench = _core.EngineBench(fields_of(MINI))
    bench.write("ub", 32, np.array([x], "<f4").tobytes())
    c = command(name, types=(DType.F32,), dst=0, src=32, cols=1)
    assert bench.execute("v", "aiv", encode(c), bytearray()) is None
    assert bench.read("ub", 0, 4) == np.array([wanted], "<f4").tobytes()


@pytest.mark.parametrize("to", [DType.F32, DType.I32, DType.I16, DType.I8, DType.U8, DType.F16], ids=str)
def test_every_half_is_cast_in_every_direction(to: DType) -> None:
    """All 65536 of them; whole numbers by NumPy's own rounding."""
    halves = np.arange(1 << 16, dtype="<u2").view("<f2")
    rounding = {
        "nearest_even": np.rint,
        "floor": np.floor,
        "ceil": np.ceil,
        "trunc": np.trunc,
        "nearest_away": lambda v: np.copysign(np.floor(np.abs(v) + 0.5), v),
    }
    bench = _core.EngineBench(fields_of(MINI))
    for direction, whole in rounding.items():
        for first in range(0, halves.size, 16384):
            x = halves[first : first + 16384]
            c = command("v_cast", types=(DType.F16, to), dst=0, src=65536, cols=x.size, rounding=direction)
            found = set()
            for isa in ISAS:
                bench.write("ub", 65536, x.tobytes())
                assert bench.execute("v", "aiv", encode(c), bytearray(), isa=isa) is None
                found.add(bench.read("ub", 0, x.size * to.itemsize))
            with np.errstate(all="ignore"):
                wide = x.astype(np.float64)
                if to is DType.F32:
                    wanted = np.where(np.isnan(x), np.uint32(0x7FC00000), x.astype("<f4").view("<u4"))
                elif to is DType.F16:
                    wanted = np.where(np.isnan(x), np.uint16(0x7E00), whole(wide).astype("<f2").view("<u2"))  # type: ignore[operator]
                else:
                    low, high = {4: (-(2**31), 2**31 - 1), 2: (-(2**15), 2**15 - 1), 1: (-128, 127)}[to.itemsize]
                    low, high = (0, 255) if to is DType.U8 else (low, high)
                    bounded = np.clip(np.nan_to_num(whole(wide), posinf=high, neginf=low), low, high)  # type: ignore[operator]
                    wanted = bounded.astype(np.int64).astype(f"<u{to.itemsize}")
            assert found == {wanted.tobytes()}, direction
