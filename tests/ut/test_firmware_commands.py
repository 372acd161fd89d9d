"""Every engine command and type on the emulator's firmware against the simulator's engines: two implementations of the
same words. One start of the emulator carries out all commands of a test, each on what the ones ahead of it left."""

from __future__ import annotations

import random
import zlib
from typing import Any

import numpy as np
import pytest
from engine_execute_cases import (
    GM_BYTES,
    SILENT,
    SIZES,
    TABLE,
    WITH_A_BOUND,
    core_of,
    fields_of,
    legal_command,
    random_bytes,
)
from firmware_bench import needs_qemu, run_commands

from superkernel import _core
from superkernel.core.dtypes import DType
from superkernel.target.aicore import AicoreTarget, load_target
from superkernel.target.engines import Command, command, encode, footprint
from superkernel.target.engines.model import Local

pytestmark = needs_qemu

MINI = load_target("mini")
ODD = MINI.replaced({"cube.m": 8, "cube.n": 8, "memory.block_bytes": 64, "memory.accumulator_bytes": 256})
NAMES = [name for name in TABLE if name not in (*SILENT, *WITH_A_BOUND)]
ROUNDS = 12
UB = "ub"


def item_of(types: tuple[DType, ...]) -> int:
    return types[0].itemsize if types else 4


def drawn(name: str, target: AicoreTarget, rng: random.Random, rounds: int) -> list[Command]:
    """Random commands of a name, every combination of types several times."""
    found = []
    for types in TABLE[name].types:
        for _ in range(rounds):
            found.append(legal_command(name, rng, target, types))
    return found


class Simulated:
    """The engines in C++ with memories of their own, command after command."""

    def __init__(self, target: AicoreTarget, memories: dict[str, bytes], gm: bytes) -> None:
        self.target, self.bench, self.gm = target, _core.EngineBench(fields_of(target)), bytearray(gm)
        for name, data in memories.items():
            self.bench.write(name, 0, data)

    def written(self, c: Command) -> bytes:
        """What the command writes."""
        fault = self.bench.execute(c.engine.title, core_of(c), encode(c), self.gm)
        assert fault is None, (fault, str(c))
        touched = next(t for t in footprint(c, self.target) if t.writes)
        rows = []
        for row in range(touched.rows):
            begin = touched.start + row * touched.stride
            if touched.memory is None:
                begin -= self.target.map.ram_address
                rows.append(bytes(self.gm[begin : begin + touched.row_bytes]))
            else:
                rows.append(self.bench.read(touched.memory.value, begin, touched.row_bytes))
        return b"".join(rows)


def offsets_of(c: Command, rng: random.Random) -> bytes:
    """Legal offsets for a gather or scatter."""
    item = c.types[0].itemsize
    last = c.numbers["table_bytes"] // item
    return np.array([rng.randrange(last) * item for _ in range(c.numbers["cols"])], "<u4").tobytes()


def compare(target: AicoreTarget, commands: list[Command], seed: int) -> None:
    """All commands on both; every byte that one writes is the same."""
    data = np.random.default_rng(seed)
    memories = {m.value: random_bytes(data, SIZES[m.value], 4) for m in Local}
    gm = random_bytes(data, GM_BYTES, 4)
    simulated = Simulated(target, memories, gm)
    expected = [simulated.written(c) for c in commands]
    for n, (c, got, want) in enumerate(
        zip(commands, run_commands(target, commands, memories, gm), expected, strict=True)
    ):
        if got != want:
            at = next(i for i, (x, y) in enumerate(zip(got, want, strict=True)) if x != y)
            raise AssertionError(
                f"command {n}, `{c}`: byte {at} is {got[at : at + 8].hex()}, not {want[at : at + 8].hex()}"
            )


@pytest.mark.parametrize("target", [MINI, ODD], ids=["mini", "odd"])
def test_every_command_has_the_simulators_bits(target: AicoreTarget) -> None:
    commands = []
    for name in NAMES:
        if name not in ("v_gather", "v_scatter"):
            rng = random.Random(zlib.crc32(name.encode()))
            commands += drawn(name, target, rng, ROUNDS if target is MINI else 3)
    random.Random(3).shuffle(commands)
    assert len(commands) > 500
    compare(target, commands, 1)


SIZED = [
    (name, item)
    for name in NAMES
    for item in (1, 2, 4)
    if name not in ("v_gather", "v_scatter") and any(item_of(types) == item for types in TABLE[name].types)
]


@pytest.mark.parametrize(("name", "item"), SIZED)
def test_command_on_elements_of_its_own_size(name: str, item: int) -> None:
    """Moderate numbers of the type, so that rounding matters and not only special values."""
    fitting = [types for types in TABLE[name].types if item_of(types) == item]
    rng = random.Random(f"{name} {item}")
    compare_fresh([legal_command(name, rng, MINI, types) for types in fitting for _ in range(4)], item)


def compare_fresh(commands: list[Command], item: int) -> None:
    data = np.random.default_rng(item)
    memories = {m.value: random_bytes(data, SIZES[m.value], item) for m in Local}
    gm = random_bytes(data, GM_BYTES, item)
    simulated = Simulated(MINI, memories, gm)
    for c, got in zip(commands, run_commands(MINI, commands, memories, gm), strict=True):
        assert got == simulated.written(c), str(c)


def test_gathers_and_scatters() -> None:
    rng = random.Random(8)
    data = np.random.default_rng(8)
    for name in ("v_gather", "v_scatter"):
        for types in TABLE[name].types:
            c = legal_command(name, rng, MINI, types)
            memory = bytearray(random_bytes(data, SIZES[UB], 4))
            packed = offsets_of(c, rng)
            memory[c.numbers["offsets"] : c.numbers["offsets"] + len(packed)] = packed
            memories = {UB: bytes(memory)}
            (got,) = run_commands(MINI, [c], memories, b"")
            assert got == Simulated(MINI, memories, b"\0" * 64).written(c), str(c)


def ulps_apart(got: np.ndarray, want: np.ndarray) -> int:
    """Largest distance of two arrays of the same float type, in units of the last place."""
    kind = {2: np.int16, 4: np.int32}[got.itemsize]

    def ordered(x: np.ndarray) -> np.ndarray:
        bits = x.view(kind).astype(np.int64)
        return np.where(bits < 0, np.iinfo(kind).min - bits, bits)  # type: ignore[type-var]

    numbers = ~np.isnan(want)
    assert (np.isnan(got) == ~numbers).all()
    return int(np.abs(ordered(got) - ordered(want))[numbers].max(initial=0))


@pytest.mark.parametrize("name", WITH_A_BOUND)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F16], ids=str)
def test_functions_stay_within_their_ulp(name: str, dtype: DType) -> None:
    """Against f64, rounded once: at most one unit, as the table says."""
    rng = np.random.default_rng(4)
    count = 16000
    special = [0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 88.7, 88.8, -87.4, -103.9, -104.1, 1e-45, 3e38]
    wide = np.concatenate([special, rng.normal(0, 20, count // 2), rng.uniform(0, 3, count // 2 - len(special))])
    with np.errstate(over="ignore"):
        x = wide.astype(dtype.numpy)
    c = command(name, types=(dtype,), dst=96 << 10, src=0, rows=1, cols=count)
    (raw,) = run_commands(MINI, [c], {UB: x.tobytes()}, b"")
    got = np.frombuffer(raw, dtype.numpy)
    with np.errstate(all="ignore"):
        exact = {"v_exp": np.exp, "v_ln": np.log}[name](x.astype(np.float64))
        want = exact.astype(np.float32).astype(dtype.numpy)
    assert ulps_apart(got, want) <= 1
    assert (np.signbit(got) == np.signbit(want))[~np.isnan(want)].all()


def test_a_step_in_another_order_is_noticed() -> None:
    """The comparison can fail: the same numbers summed from the other end have other bits."""
    numbers = np.random.default_rng(5).normal(0, 1, (16, 512)).astype("<f4")
    shape: dict[str, Any] = {"rows": 16, "cols": 512, "src_stride": 2048}
    sums = command("v_sum", types=(DType.F32,), dst=96 << 10, src=0, **shape)
    there, back = numbers.tobytes(), numbers[:, ::-1].tobytes()
    (got,) = run_commands(MINI, [sums], {UB: there}, b"")
    assert got == Simulated(MINI, {UB: there}, b"\0" * 64).written(sums)
    assert got != Simulated(MINI, {UB: back}, b"\0" * 64).written(sums)
