"""The machine's profile: its file, what is made of measurements, and what the host's cost models make of it."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from fcntl import LOCK_EX, flock
from pathlib import Path
from typing import Any

import pytest
from anchor_bodies import anchor_case

import superkernel as sk
from superkernel import _core, machine
from superkernel.api import resolved
from superkernel.backends.host.kernel import HostKernel
from superkernel.codegen.host.features import detect_cpu
from superkernel.core.dtypes import DType
from superkernel.core.errors import FileFormatError, MachineError
from superkernel.ir.body import SubOperator
from superkernel.scheduler.cost import CostBook
from superkernel.scheduler.families import family_of
from superkernel.scheduler.families.costing import MEMORY, constants_ns
from superkernel.scheduler.families.matmul_tiling import COLUMNS, ROWS, TILES, MatmulTiling
from superkernel.target.cpu import AVX2, AVX512, CpuTarget, cpu_target, profiled
from superkernel.target.machine import DEFAULT, MachineProfile, between, from_json, load_profile, raised_by, rounded

FOLDER = Path(__file__).parents[1] / "machines"
FILES = sorted(FOLDER.glob("*.json"))
BF16 = "host.matmul.bf16"


def on(name: str) -> CpuTarget:
    """A CPU with AVX-512 in a machine of the folder."""
    return cpu_target("x86_64-unknown-linux-gnu", "avx512", (*AVX2, *AVX512, "avx512bf16"), load_profile(FOLDER / name))


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_files_are_read_and_written(file: Path) -> None:
    assert load_profile(file).text() == file.read_text()


def test_the_default_is_a_profile() -> None:
    assert from_json(json.loads(DEFAULT.text())) == DEFAULT


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda d: d.pop("line_ns"), "missing"),
        (lambda d: d.update(speed=3), "no such field"),
        (lambda d: d.update(line_ns=True), "not a value"),
        (lambda d: d.update(line_ns=-1), "finite number"),
        (lambda d: d.update(line_ns=math.inf), "finite number"),
        (lambda d: d.update(l2_bytes=1.5), "whole number"),
        (lambda d: d.update(cpu=None), "a text"),
        (lambda d: d.update(readers=[2, 1]), "ascending"),
        (lambda d: d.update(readers=[]), "ascending"),
        (lambda d: d["l3_own"].pop(), "one value per number of readers"),
        (lambda d: d["memory_own"].__setitem__(0, 0), "memory_own: not above 0"),
        (lambda d: d["handover_ns"].pop(), "one row and one column"),
        (lambda d: d["node_of"].append(0), "one number per CPU"),
        (lambda d: d.update(bf16_dot=0), "null says"),
        (lambda d: d.update(l3_bytes=0), "l3_bytes: not above 0"),
        (lambda d: d.update(schema=2), "schema 1"),
        (lambda d: d.update(kind="timings"), "not a machine's profile"),
    ],
)
def test_what_is_wrong_is_refused(change: Callable[[dict[str, Any]], object], said: str) -> None:
    data = json.loads((FOLDER / "two-cores.json").read_text())
    change(data)
    with pytest.raises(FileFormatError, match=said):
        from_json(data)


def test_all_violations_come_at_once(tmp_path: Path) -> None:
    data = {**json.loads(DEFAULT.text()), "line_ns": "x", "speed": 1}
    with pytest.raises(FileFormatError) as caught:
        from_json(data)
    assert len(caught.value.violations) == 2
    (tmp_path / "p.json").write_text("{")
    with pytest.raises(FileFormatError, match="cannot be read"):
        load_profile(tmp_path / "p.json")


def test_values_are_steps_of_ten_per_cent() -> None:
    values = [1.03**i for i in range(-200, 400)]
    assert {rounded(rounded(v)) for v in values} == {rounded(v) for v in values}
    assert all(0.95 < rounded(v) / v < 1.055 for v in values)
    assert rounded(96.0) == rounded(98.0) != rounded(108.0)
    assert rounded(-1.0) == rounded(math.nan) == rounded(math.inf) == 0.0


def test_between_measured_numbers() -> None:
    assert [between((1, 2, 4), (10.0, 20.0, 30.0), n) for n in (1, 2, 3, 4, 64)] == [10, 20, 25, 30, 30]
    assert between((2, 4), (10.0, 20.0), 1) == 10


def test_where_a_cache_ends_is_where_reads_get_slow() -> None:
    sizes = [1, 2, 4, 8, 16, 32]
    assert machine.knee(sizes, [100, 98, 101, 97, 30, 25], 5) == 8
    assert machine.knee(sizes, [100, 98, 90, 60, 30, 25], 5) == 8
    assert machine.knee(sizes, [100, 98, 101, 97, 90, 95], 5) == 5, "no fall shows"


def test_more_readers_do_not_read_less_nor_from_a_nearer_level() -> None:
    assert machine.no_less([31, 60, 97, 208, 117], [21, 41, 66, 107, 208]) == [31, 60, 97, 208, 208]
    assert machine.no_less([21, 41, 37, 80, 208]) == [21, 41, 41, 80, 208]
    assert machine.no_less([20.0], [30.0]) == [30.0]


def test_a_rate_that_does_not_grow_with_readers_is_measured_again() -> None:
    def best(*readings: float) -> tuple[float, int]:
        left = list(readings)
        found = machine.grown(lambda: left.pop(0), [30.0, 50.0])
        return found, len(readings) - len(left)

    assert best(100.0, 200.0) == (100.0, 1)
    assert best(40.0, 45.0, 66.0, 200.0) == (66.0, 3)
    assert best(40.0, 61.0, 44.0, 45.0, 200.0) == (61.0, 4), "a level in full use is what it is"
    assert machine.grown(lambda: 7.0, []) == 7.0


def test_a_pair_that_shares_a_core_unsaid_is_found_by_time_and_one_of_it_placed_on() -> None:
    cpu = on("xeon-16-pair.json")  # as measured on such a machine
    near = machine.near_pairs(cpu.profile.handover_ns, machine.NEAR_SHARE)
    assert machine.paired(range(16), near) == cpu.profile.core_of
    assert CostBook(cpu, 16, family_of).apart == tuple(c for c in range(16) if c != 7)
    assert CostBook(cpu, 7, family_of).apart == tuple(range(7))


def test_hyperthreads_are_found_by_time() -> None:
    times = load_profile(FOLDER / "xeon-16.json").handover_ns
    near = machine.near_pairs(times, machine.NEAR_SHARE)
    found = machine.paired(range(16), near)
    assert found == (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 12, 13)
    assert machine.paired((0,), machine.near_pairs([[0.0]], machine.NEAR_SHARE)) == (0,)


def test_three_cpus_are_not_of_one_core_unless_the_system_says_so() -> None:
    def near(*pairs: tuple[int, int]) -> list[list[bool]]:
        return [[(i, j) in pairs or (j, i) in pairs for j in range(4)] for i in range(4)]

    assert machine.paired(range(4), near((0, 3))) == (0, 1, 2, 0)
    assert machine.paired(range(4), near((0, 3), (1, 2))) == (0, 1, 1, 0)
    assert machine.paired(range(4), near((0, 3), (3, 1))) == (0, 1, 2, 3)
    assert machine.paired((7, 7, 7, 8), near((2, 3))) == (0, 0, 0, 1)
    assert machine.paired((7, 7, 7, 7), near()) == (0, 0, 0, 0)
    assert machine.joined(range(4), near((0, 3), (3, 1))) == (0, 0, 1, 0), "clusters are of any size"


def test_caches_need_no_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    for found, l1, l2 in (
        ({1: (48 << 10, "0"), 2: (2 << 20, "0"), 3: (1 << 30, "0-1")}, 48 << 10, 2 << 20),
        ({}, DEFAULT.l1_bytes, DEFAULT.l2_bytes),
    ):
        monkeypatch.setattr(machine, "_caches", lambda cpu, found=found: found)
        monkeypatch.setattr(machine, "_dot_shares", dict)
        assert machine._unmeasured() == replace(DEFAULT, l1_bytes=l1, l2_bytes=l2)


class FakeProbe:
    """A core with some rates; the others are 0."""

    made = 0
    trials = 100

    def __init__(self, rates: dict[str, float], disturbed: int) -> None:
        self.rates, self.disturbed = rates, disturbed

    def rate(self, kind: str) -> float:
        return self.rates.get(kind, 0.0)

    def __call__(self, cpus: list[int]) -> FakeProbe:
        FakeProbe.made += 1
        assert len(cpus) == 1
        return self


@pytest.mark.parametrize(
    ("rates", "disturbed", "expected", "kept"),
    [
        ({"avx512": 170.0, "bf16": 88.0, "int8": 650.0}, 5, {"bf16_dot": 0.25, "int8_dot": 1.0}, True),
        ({"avx512": 170.0, "bf16": 0.0, "int8": 700.0}, 0, {"int8_dot": 1.0}, True),
        (
            {"avx512": 220.0, "bf16": 230.0, "int8": 830.0, "amx_bf16": 3150.0, "amx_int8": 3300.0},
            0,
            {"bf16_dot": 0.5, "int8_dot": 1.0, "bf16_tiles": 1.0, "int8_tiles": 0.5},
            True,
        ),
        ({"avx512": 170.0, "bf16": 88.0, "int8": 650.0}, 6, {}, False),
        ({"avx512": 0.0, "bf16": 0.0, "int8": 0.0}, 0, {}, False),
    ],
    ids=["slow bf16", "no bf16", "AMX", "disturbed", "no AVX-512"],
)
def test_dot_products_are_timed_once(
    rates: dict[str, float],
    disturbed: int,
    expected: dict[str, float],
    kept: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(_core, "Probe", FakeProbe(rates, disturbed))
    FakeProbe.made = 0
    assert machine._dot_shares() == expected
    assert machine._dot_shares() == expected
    assert FakeProbe.made == (1 if kept else 2)
    profile = machine._unmeasured()
    cpu, fields = cpu_target("x86_64", "avx512", (), profile), ("bf16_dot", "int8_dot", "bf16_tiles", "int8_tiles")
    dots = [cpu.bf16_dots, cpu.int8_dots, cpu.bf16_tiles, cpu.int8_tiles]
    assert dots == [expected.get(field, 1.0) for field in fields]
    for broken in (b"no JSON", b"[]", b'{"bf16_dot": 3, "int8_dot": 1}'):
        for path in tmp_path.rglob("*.dots"):
            path.write_bytes(broken)
        assert machine._dot_shares() == expected


def test_a_profile_is_measured_once_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SK_MACHINE")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(machine, "_dot_shares", dict)
    measured: list[MachineProfile] = []

    def measure() -> MachineProfile:
        measured.append(replace(DEFAULT, line_ns=float(len(measured))))
        return measured[-1]

    monkeypatch.setattr(machine, "measure", measure)
    machine.machine_profile.cache_clear()
    try:
        assert not machine.has_profile()
        first = machine.machine_profile()
        assert measured == [first], "the first to ask measures"
        assert machine.has_profile()
        machine.machine_profile.cache_clear()
        assert machine.machine_profile() == first
        assert len(measured) == 1
        assert machine.measured_again() != first
        path = machine.profile_path()
        assert path is not None
        assert load_profile(path) == machine.machine_profile() == measured[1]
        older = replace(DEFAULT, readers=(1, 2), l3_own=(97.0, 60.0), memory_own=(34.0, 73.0))
        older = replace(older, l3_same=(97.0, 54.0), memory_same=(34.0, 30.0))
        path.write_text(older.text())
        machine.machine_profile.cache_clear()
        raised = machine.machine_profile()
        assert (raised.l3_own, raised.memory_own) == ((97.0, 97.0), (34.0, 73.0)), "as a version of now would keep it"
        assert (raised.l3_same, raised.memory_same) == ((97.0, 97.0), (34.0, 34.0))
        path.write_text("no JSON")
        machine.machine_profile.cache_clear()
        with pytest.warns(machine.MachineWarning, match="is not used"):
            assert machine.machine_profile() == machine._unmeasured()
        monkeypatch.setenv("SK_MACHINE", "default")
        machine.machine_profile.cache_clear()
        assert machine.machine_profile() == DEFAULT
    finally:
        machine.machine_profile.cache_clear()


def _bare() -> MachineProfile:
    """Of this machine's caches, no better than the defaults."""
    return machine._unmeasured()


@pytest.fixture
def first_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """A user without a profile, on a machine where each measurement takes the next of these as its `disturbed`."""
    monkeypatch.delenv("SK_MACHINE")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr(machine, "_dot_shares", dict)
    disturbed: list[float] = []
    monkeypatch.setattr(machine, "measure", lambda: replace(_bare(), line_ns=500.0, disturbed=disturbed.pop(0)))
    machine.machine_profile.cache_clear()
    yield disturbed
    machine.machine_profile.cache_clear()


def asked_anew() -> MachineProfile:
    """As another process would."""
    machine.machine_profile.cache_clear()
    return machine.machine_profile()


def test_of_a_busy_machine_what_it_can_do_at_least_is_kept(first_use: list[float]) -> None:
    first_use += [0.1, 0.0, 0.1]
    with pytest.warns(machine.MachineWarning, match="10% of the trials .* what it can do at least is kept; run"):
        at_least = machine.measured_again()
    assert at_least == replace(machine._unmeasured(), disturbed=0.1), "500 ns are no more than the default's"
    assert asked_anew() == at_least
    assert machine.measured_again().line_ns == asked_anew().line_ns == 500.0
    with pytest.warns(machine.MachineWarning, match="the profile from before is kept"):
        assert machine.measured_again() == asked_anew()
    assert (asked_anew().disturbed, asked_anew().line_ns) == (0.0, 500.0)


def test_a_disturbed_measurement_is_tried_again_an_hour_later(
    first_use: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    first_use += [0.1, 0.2, 0.0]
    now = time.time()
    assert asked_anew() == asked_anew() == replace(machine._unmeasured(), disturbed=0.1)
    assert first_use == [0.2, 0.0], "the second one did not measure"
    for hours, disturbed, line_ns in ((1, 0.2, DEFAULT.line_ns), (2, 0.0, 500.0), (3, 0.0, 500.0)):
        monkeypatch.setattr(time, "time", lambda hours=hours: now + hours * (machine.RETRY_S + 60))
        found = asked_anew()
        assert (found.disturbed, found.line_ns) == (disturbed, line_ns)
    assert not first_use


def test_who_disturbs_makes_a_machine_slower_never_faster() -> None:
    seen = replace(
        load_profile(FOLDER / "xeon-16-pair.json"), f32_avx512=97.0, bf16_tiles=None, disturbed=0.17, line_ns=20.0
    )
    found = raised_by(DEFAULT, seen)
    assert from_json(json.loads(found.text())) == found
    assert (found.f32_avx512, found.l1_bytes_per_ns, found.bf16_dot) == (100.0, 189.0, 88.2)
    assert found.bf16_tiles is None, "what a CPU has is no matter of time"
    assert raised_by(found, replace(seen, f32_avx2=None)).f32_avx2 is None
    assert found.readers == (1, 2, 4, 8, 16)
    assert found.l3_own == (30.9, 60.2, 100.0, 208.0, 208.0)
    assert found.memory_own == (21.1, 41.1, 66.3, 107.0, 208.0)
    assert found.line_ns == DEFAULT.line_ns
    assert found.woken == (1, 2, 4, 8, 15, 16)
    assert all(found.waking_ns(n) == min(DEFAULT.waking_ns(n), seen.waking_ns(n)) for n in found.woken)
    assert found.handover_ns == seen.handover_ns
    assert {
        ns for row in raised_by(DEFAULT, replace(seen, handover_ns=((900.0,) * 16,) * 16)).handover_ns for ns in row
    } == {100.0}
    assert (found.l3_bytes, found.core_of, found.disturbed) == (seen.l3_bytes, seen.core_of, 0.17)
    slower = replace(seen, memory_own=DEFAULT.memory_own[:1] * 5, handover_ns=((900.0,) * 16,) * 16)
    assert raised_by(found, slower) == found, "of two such measurements the better one"


def test_one_process_measures_and_others_wait(first_use: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not longer than measuring takes, though."""
    first_use += [0.0]
    path = machine.profile_path()
    assert path is not None
    path.parent.mkdir(parents=True)
    with open(path.with_suffix(".tried"), "w", encoding="utf-8") as other:
        flock(other, LOCK_EX)
        monkeypatch.setattr(machine, "LOCKED_S_MAX", 0.05)
        assert asked_anew() == machine._unmeasured()
        monkeypatch.setattr(machine, "LOCKED_S_MAX", 60.0)
        waiting = threading.Thread(target=asked_anew)
        waiting.start()
        machine._keep(replace(DEFAULT, line_ns=7.0), path)
    waiting.join()
    assert asked_anew().line_ns == 7.0
    assert first_use == [0.0], "nobody measured"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), TimeoutError("of the handler of an alarm")])
def test_an_interrupted_first_measurement_is_none(
    error: BaseException, first_use: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    first_use += [0.0]
    measure = machine.measure

    def interrupted() -> MachineProfile:
        raise error

    monkeypatch.setattr(machine, "measure", interrupted)
    with pytest.raises(type(error)):
        asked_anew()
    monkeypatch.setattr(machine, "measure", measure)
    assert asked_anew().line_ns == 500.0


def test_where_nothing_can_be_kept_or_measured_the_defaults_hold(
    first_use: list[float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> MachineProfile:
        raise MachineError("no threads")

    monkeypatch.setattr(machine, "measure", refused)
    assert asked_anew() == machine._unmeasured()
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "file"))
    assert asked_anew() == machine._unmeasured()
    assert not first_use


@pytest.mark.serial
def test_the_machine_at_hand_has_a_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.identity()
    monkeypatch.setattr(machine, "_shares", lambda cpu: ("0", "0", f"node{3 + cpu % 2}"))
    found = machine.measure()
    assert found.node_of == tuple(3 + cpu % 2 for cpu in _core.allowed_cpus()), "the system's numbers"
    assert from_json(json.loads(found.text())) == found
    assert found.readers[0] == 1
    assert found.readers[-1] == len(found.core_of)
    assert found.identity == machine.identity()


def test_what_cores_share_is_shared() -> None:
    cpu = on("xeon-16.json")
    assert cpu.reading(1) == cpu
    assert cpu.reading(16).l3_bytes_per_ns == 210 / 16
    assert cpu.reading(16).dram_bytes_per_ns == 83 / 16
    assert cpu.reading(64).l3_bytes_per_ns == 210 / 64, "more than were measured share what those had"
    far = cpu.profile
    assert far.waking_ns(15) > far.waking_ns(1)


def test_a_product_on_many_cores_does_not_read_its_weights_on_each() -> None:
    """By rows, each core would read all of them from what all share; with a cache of one's own it may."""
    body = anchor_case("matmul", {}, [((256, 1024), DType.F32), ((1024, 4096), DType.F32)], constants=[1]).body

    def longest_ns(cpu: CpuTarget, axis: str) -> float:
        kernel = "host.matmul.packed"
        book = CostBook(cpu, 16, family_of)
        sub = SubOperator(0, "product", body, ("x", "w", "y"), (), kernel)
        tilings = [t for t in family_of(kernel).tilings(kernel, body, cpu) if isinstance(t, MatmulTiling)]
        return min(book.partition(sub, t, 16).longest_ns for t in tilings if t.axis == axis)

    def gain(cpu: CpuTarget) -> float:
        return longest_ns(cpu, ROWS) / longest_ns(cpu, COLUMNS)

    shared = on("xeon-16.json")
    shared = profiled(shared, replace(shared.profile, core_of=tuple(range(16))))
    own = profiled(shared, replace(shared.profile, l2_bytes=64 << 20))
    assert gain(shared) > 1.5 * gain(own)


def test_constants_come_from_where_all_of_the_program_are_kept() -> None:
    cpu = replace(on("xeon-16-pair.json"), constants_bytes=0)  # L2 2 MB, L3 96 MB
    size, far = 512 << 10, replace(cpu, constants_bytes=50 << 20)
    gone = replace(cpu, constants_bytes=200 << 20)
    assert constants_ns(size, 0, size, 1, cpu) == size / cpu.l2_bytes_per_ns
    assert constants_ns(size, 0, size, 1, far) == size / cpu.l3_bytes_per_ns
    assert constants_ns(size, 0, size, 1, gone) == size / cpu.dram_bytes_per_ns
    again = constants_ns(size, size, size, 1, gone) - constants_ns(size, 0, size, 1, gone)
    assert again == pytest.approx(size / cpu.l2_bytes_per_ns), "what was just read is near"
    assert constants_ns(size, 0, size, 1, gone, {MEMORY: 2.0}) == size / (2.0 * cpu.dram_bytes_per_ns)


def test_constants_shared_out_are_kept_by_all_cores_together() -> None:
    """16 MB on 16 cores are 1 MB of the 2 of each; where all cores read them they are not."""
    size, cpu = 1 << 20, replace(on("xeon-16-pair.json"), constants_bytes=16 << 20).reading(16)
    assert constants_ns(size / 16, 0, size, 1, cpu) == size / 16 / cpu.l2_bytes_per_ns
    assert constants_ns(size, 0, size, 16, cpu) == size / cpu.l3_same_bytes_per_ns
    own, same = cpu.l3_bytes_per_ns, cpu.l3_same_bytes_per_ns
    assert own < same < 4 * own
    assert constants_ns(size, 0, size, 4, cpu) == size / same, "four read alike"
    slow = replace(cpu, l3_bytes_per_ns=same / 8)
    assert constants_ns(size, 0, size, 4, slow) == size / (same / 2), "a byte comes once for all four"


def test_an_image_on_many_cores_does_not_take_all_weights_to_each() -> None:
    """A late 1 x 1 convolution with 1 MB of weights: in a program of few constants each core keeps its own, in one of
    many they come by from memory, and cores share channels as well."""
    kernel, cpu = "host.conv.nhwc", on("xeon-16-pair.json")
    images = [((1, 256, 14, 14), DType.F32), ((1024, 256, 1, 1), DType.F32)]
    body = anchor_case("conv", {}, images, constants=[1]).body
    sub = SubOperator(0, "pixels", body, ("x", "w", "y"), (), kernel)

    def times(constants_bytes: int) -> float:
        """How often the fastest partition reads the weights."""
        book = CostBook(replace(cpu, constants_bytes=constants_bytes), 16, family_of)
        best = min(book.partitions(sub), key=lambda p: p.longest_ns)
        read = [a for r in best.ranges for a in book.accesses(body, best.tiling, r) if a.operand == 1]
        return sum(region.nbytes for a in read for region in a.regions) / body.operands[1].type.nbytes

    assert times(0) > 8
    assert times(150 << 20) < 5


def test_more_cores_than_panels_share_a_product_in_two_dimensions() -> None:
    kernel, cpu = "host.matmul.packed", on("sixty-four.json")
    body = anchor_case("matmul", {}, [((64, 768), DType.F32), ((768, 768), DType.F32)], constants=[1]).body
    sub = SubOperator(0, "product", body, ("x", "w", "y"), (), kernel)
    longest: dict[bool, float] = {}
    for partition in CostBook(replace(cpu, cores=64), 64, family_of).partitions(sub):
        tiling = partition.tiling
        assert isinstance(tiling, MatmulTiling)
        both = tiling.bands > 1 or tiling.axis == TILES
        longest[both] = min(longest.get(both, partition.longest_ns), partition.longest_ns)
    assert longest[True] < longest[False] / 1.5
    two = [p.tiling for p in CostBook(cpu, 2, family_of).partitions(sub)]
    assert all(isinstance(t, MatmulTiling) and t.bands == 1 and t.axis != TILES for t in two)


def test_reduced_precision_is_as_fast_as_the_cpu_makes_it() -> None:
    body = anchor_case("matmul", {}, [((128, 512), DType.F32), ((512, 512), DType.F32)], constants=[1]).body

    def ns(kernel: str, cpu: CpuTarget) -> float:
        return min(t.cost_ns(body, 0, t.units, cpu) for t in family_of(kernel).tilings(kernel, body, cpu))

    fast, slow = on("sixty-four.json"), on("xeon-16.json")  # two dot products per ns, one
    assert fast.bf16_dots == 1.0
    assert slow.bf16_dots == 0.5
    assert ns(BF16, fast) < ns("host.matmul.packed", fast)
    assert ns(BF16, slow) > ns("host.matmul.packed", slow)


def test_a_profile_can_be_compiled_against(tmp_path: Path) -> None:
    file = str(FOLDER / "sixty-four.json")
    target = resolved(file)
    assert isinstance(target, CpuTarget)
    assert target.profile == load_profile(file)
    assert target.identity() == detect_cpu().identity()
    b = sk.GraphBuilder("g")
    b.output(b.relu(b.input("x", (64, 64), "f32")), name="y")
    kernel = sk.compile(b.graph(), target=file, threads=2)
    assert isinstance(kernel, HostKernel)
    assert kernel._compiled.target == target
    kernel.save(tmp_path / "k.skm")
    loaded = sk.load(tmp_path / "k.skm")
    assert isinstance(loaded, HostKernel)
    assert loaded.plan == kernel.plan
