"""Published facts about a device held against its simulation: `superkernel target validate`, docs/validation.md.

Model: a `Fact` is a figure that somebody published, its source and conditions, and a probe that measures the same on
the simulated engines. Nothing here computes a simulated figure by a formula of its own. `fitted` facts are those that
constants of a preset were chosen by; the others are held back: their errors say how far the model can be believed.

Facts belong to the largest device of the class (24 cube and 48 vector cores); `validate` measures them on any target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from superkernel.analysis.device_probes import Probe, ProbeLoop, moved_bytes, span_cycles
from superkernel.core.dtypes import DType
from superkernel.core.errors import InputError
from superkernel.target.engines import Engine

if TYPE_CHECKING:
    from superkernel.target.aicore import AicoreTarget

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
STREAM_BYTES = 32 * KIB
"""Size of the copies that read a working set: above `dma.near_peak_bytes`, two of them in UB."""
ROUNDS = 64
FITTED = {
    1 * KIB: "dma.startup_cycles", 2 * KIB: "dma.startup_cycles", 6 * KIB: "dma.startup_cycles",
    80 * MIB: "l2.vector_gb_per_s", 132 * MIB: "l2.usable_percent", 368 * MIB: "hbm.loss_percent",
}  # fmt: skip
"""Sizes of copies and working sets whose rates constants were chosen by."""
_DRAIN = ProbeLoop(name="drain", count=1)


@dataclass(frozen=True)
class FactSource:
    """Where figures are from, when they were published, and how they were obtained as far as it is told."""

    title: str
    date: str
    method: str


SOURCES = {
    "blocks": FactSource(
        "Vendor's operator development guide, best practices, 'Transferring a Large Data Block at a Time' (CANN 8.5)",
        "no date; the same text in a technical article of 2024-09-06",
        "measured by the vendor, figures drawn without numbers",
    ),
    "align": FactSource(
        "Vendor's operator development guide, 'Using 512-Byte Alignment for the GM Address' (CANN 8.5)",
        "no date; the same text in a technical article of 2024-09-06",
        "measured by the vendor on one core of an A2 device; 70 % is the largest difference",
    ),
    "constraints": FactSource(
        "Vendor's operator development guide, 'Hardware Constraints' (CANN 8.5)",
        "no date",
        "stated by the vendor for A2 and A3 devices",
    ),
    "preset": FactSource(
        "Recorded with the presets; the publication was not recorded and could not be found again",
        "not known",
        "not known",
    ),
}


@dataclass(frozen=True)
class Fact:
    """One figure: `published` and what `measure` finds have the same unit. `low`, `high`: where a range is told."""

    name: str
    unit: str
    published: float
    source: str
    conditions: str
    measure: Callable[[AicoreTarget], float]
    fitted: str = ""  # which constant was chosen by it
    low: float = 0.0
    high: float = 0.0


@dataclass(frozen=True)
class Comparison:
    """A fact and what the simulation says; `simulated` is None where the target's memory is too small."""

    fact: Fact
    simulated: float | None

    @property
    def error_percent(self) -> float | None:
        """Signed; of percentages the difference in points. 0 inside a published range."""
        fact, found = self.fact, self.simulated
        if found is None:
            return None
        if fact.high and fact.low <= found <= fact.high:
            return 0.0
        if fact.unit == "%":
            return found - fact.published
        return 100 * (found / fact.published - 1)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        fact = asdict(self.fact) | {"measure": self.fact.measure.__name__}
        return fact | {"simulated": self.simulated, "error_percent": self.error_percent}


def validate(target: AicoreTarget) -> list[Comparison]:
    """Every fact, measured on the target's engines."""
    rows = []
    for fact in facts(target):
        try:
            rows.append(Comparison(fact, fact.measure(target)))
        except InputError:
            rows.append(Comparison(fact, None))
    return rows


def facts(target: AicoreTarget) -> Iterator[Fact]:
    """The published facts of a target's description."""
    dma, sync = target.dma, target.sync
    every = "all vector cores copy, one copy after the other, data in L2"
    for size, rate in zip(dma.size_curve_bytes, dma.size_curve_gb_per_s, strict=True):
        yield Fact(f"copies of {size // KIB} KiB", "GB/s", rate, "preset", every, _copies(size), FITTED.get(size, ""))
    near = f"copies of {dma.near_peak_bytes // KIB} KiB, of the rate of 64 KiB"
    yield Fact(near, "%", 100, "blocks", every, _near_peak, low=90, high=100)
    for size, rate in zip(dma.working_set_bytes, dma.working_set_gb_per_s, strict=True):
        text = f"{size / GIB:g} GiB" if size >= GIB else f"{size // MIB} MiB"
        told = "all vector cores read a working set again and again, in copies of 32 KiB (the size is our choice)"
        yield Fact(f"working set of {text}", "GB/s", rate, "preset", told, _working_set(size), FITTED.get(size, ""))
    yield Fact(
        "loss where all vector cores read the same lines", "%", target.l2.same_line_loss_percent, "constraints",
        "all cores the same addresses in the same order, against addresses of their own", _sharing,
        "l2.same_line_loss_percent", low=10, high=20,
    )  # fmt: skip
    yield Fact(
        "loss at 32-byte alignment", "%", dma.unaligned_loss_percent, "align",
        "one core, long copies; the published figure is the worst case", _unaligned, "dma.unaligned_loss_percent",
    )  # fmt: skip
    one = "one core, longest copies that fit, data in L2"
    paths: tuple[tuple[str, str, Callable[[AicoreTarget], float]], ...] = (
        ("global memory to UB", "rates.gm_to_ub_gb_per_s", _to_ub),
        ("global memory to L1", "rates.gm_to_l1_gb_per_s", _to_l1),
        ("UB to global memory", "rates.ub_to_gm_gb_per_s", _from_ub),
        ("L0C to global memory", "rates.l0c_to_gm_gb_per_s", _from_l0c),
        ("L1 to L0A", "rates.l1_to_l0a_gb_per_s", _to_l0("l1_to_l0a_raw")),
        ("L1 to L0B", "rates.l1_to_l0b_gb_per_s", _to_l0("l1_to_l0b_raw")),
    )
    for name, path, measure in paths:
        yield Fact(f"{name}, one core", "GB/s", _number(target, path), "preset", one, measure, path)
    yield Fact(
        "HBM to L1, one core", "bytes/cycle", target.hbm.core_bytes_per_cycle, "preset",
        "one core, long copies, nothing in L2", _miss_rate, "hbm.core_bytes_per_cycle",
    )  # fmt: skip
    yield Fact(
        "all cores read from L2", "GB/s", target.l2.aggregate_gb_per_s, "preset",
        "cube and vector cores, long copies of their own data; the published figure is a peak", _aggregate,
        "l2.aggregate_gb_per_s",
    )  # fmt: skip
    peak = target.cube_flops_per_ns(target.cube.k_f16) / 1000
    yield Fact(
        "f16 products, all cube cores", "TFLOPS", peak, "preset",
        "products of 128 x 128 x 128 from L0; published is the peak, not a measurement", _products,
    )  # fmt: skip
    yield Fact(
        "barrier of all cores of a type", "ns", sync.core_full_ns, "preset",
        "one after the other, from the control unit", _barriers("type"), "sync.core_full_ns",
    )  # fmt: skip
    yield Fact(
        "barrier of all cores of both types", "ns", 1500, "preset",
        "one after the other, from the control unit; published is a range", _barriers("all"), low=1000, high=2000,
    )  # fmt: skip


def _number(target: AicoreTarget, path: str) -> float:
    value = target.value(path)
    assert isinstance(value, float), path
    return value


# Measurements ---------------------------------------------------------------------------------------------------------


def _rate(probe: Probe, target: AicoreTarget, *engines: str) -> float:
    """GB/s of engines of all cores together."""
    result = probe.run(target)
    cycles = max(span_cycles(result, engine) for engine in engines)
    return sum(moved_bytes(result, engine) for engine in engines) / target.nanoseconds(cycles)


def _reads(
    target: AicoreTarget, size: int, count: int, *, cores: int = 0, shared: bool = False, warm: bool = True, at: int = 0
) -> Probe:
    """Vector cores copy to UB, each its own stretch of what is read in turn, or all the same."""
    taking = 1 if shared else cores or target.device.vector_cores
    total = taking * size * count
    loop = ProbeLoop(
        name="gm_to_ub", count=count, operands={"src": at, "dst": 0, "bytes": size}, place="src",
        turn_bytes=taking * size, core_bytes=0 if shared else size, cores=cores,
    )  # fmt: skip
    return Probe(vector=(loop,), warm_bytes=total if warm else 0, touched_bytes=total + at)


def _copies(size: int) -> Callable[[AicoreTarget], float]:
    def copies(target: AicoreTarget) -> float:
        rounds = min(ROUNDS, target.l2_room_bytes // 2 // size // target.device.vector_cores)
        return _rate(_reads(target, size, rounds), target, "mte2")

    return copies


def _near_peak(target: AicoreTarget) -> float:
    return 100 * _copies(target.dma.near_peak_bytes)(target) / _copies(64 * KIB)(target)


def _working_set(size: int) -> Callable[[AicoreTarget], float]:
    def working_set(target: AicoreTarget) -> float:
        """The second pass over the set: what the first left in L2 is there."""
        return _rate(_reads(target, STREAM_BYTES, size // STREAM_BYTES // target.device.vector_cores), target, "mte2")

    return working_set


def _sharing(target: AicoreTarget) -> float:
    own, same = (_rate(_reads(target, STREAM_BYTES, ROUNDS, shared=s), target, "mte2") for s in (False, True))
    return 100 * (1 - same / own)


def _unaligned(target: AicoreTarget) -> float:
    size = target.memory.ub_bytes // 2
    full, off = (_rate(_reads(target, size, 8, cores=1, at=at), target, "mte2") for at in (0, 32))
    return 100 * (1 - off / full)


def _to_ub(target: AicoreTarget) -> float:
    return _rate(_reads(target, target.memory.ub_bytes, 8, cores=1), target, "mte2")


def _cube_reads(target: AicoreTarget, *, cores: int = 0, count: int = 8, warm: bool = True) -> Probe:
    size, taking = target.memory.l1_bytes, cores or target.device.cube_cores
    total = taking * size * count
    loop = ProbeLoop(
        name="gm_to_l1", count=count, operands={"src": 0, "dst": 0, "bytes": size}, place="src",
        turn_bytes=taking * size, core_bytes=size, cores=cores,
    )  # fmt: skip
    return Probe(cube=(loop,), warm_bytes=total if warm else 0, touched_bytes=total)


def _to_l1(target: AicoreTarget) -> float:
    return _rate(_cube_reads(target, cores=1), target, "mte2")


def _miss_rate(target: AicoreTarget) -> float:
    result = _cube_reads(target, cores=1, warm=False).run(target)
    return moved_bytes(result, "mte2") / span_cycles(result, "mte2")


def _aggregate(target: AicoreTarget) -> float:
    """Cube and vector cores read the same stretch of L2, each type in its own order; vector cores 5/8 of it, so that
    both are at it for about as long."""
    cube = _cube_reads(target, count=4)
    size = 64 * KIB
    vector = _reads(target, size, 5 * cube.touched_bytes // 8 // size // target.device.vector_cores)
    both = Probe(cube.cube, vector.vector, cube.touched_bytes, max(cube.touched_bytes, vector.touched_bytes))
    return _rate(both, target, "mte2")


def _from_ub(target: AicoreTarget) -> float:
    size = target.memory.ub_bytes
    fill = ProbeLoop(name="ub_fill", count=1, types=(DType.F32,), operands={"dst": 0, "count": size // 4, "value": 0})
    loop = ProbeLoop(
        name="ub_to_gm", count=8, operands={"src": 0, "dst": 0, "bytes": size}, place="dst", turn_bytes=size, cores=1
    )
    return _rate(Probe(vector=(fill, loop), warm_bytes=8 * size, touched_bytes=8 * size), target, "mte3")


def _l0_filled(target: AicoreTarget) -> tuple[ProbeLoop, ...]:
    """What puts something into all of L1, L0A and L0B."""
    memory = target.memory
    fill = ProbeLoop(
        name="l1_fill", count=1, types=(DType.F32,), operands={"dst": 0, "count": memory.l1_bytes // 4, "value": 0}
    )
    loads = [
        ProbeLoop(name=f"l1_to_{to}_raw", count=1, operands={"src": 0, "dst": 0, "bytes": size})
        for to, size in (("l0a", memory.l0a_bytes), ("l0b", memory.l0b_bytes))
    ]
    return (fill, _DRAIN, *loads, _DRAIN)


def _from_l0c(target: AicoreTarget) -> float:
    """Accumulators of 64 x 512 in f32, rows one behind the other."""
    rows, cols = 64, 512
    size = rows * cols * 4
    product = ProbeLoop(
        name="mmad", count=1, types=(DType.F16, DType.F32),
        operands={"c": 0, "a": 0, "b": 0, "m": rows, "k": 16, "n": cols, "mode": "init"},
    )  # fmt: skip
    loop = ProbeLoop(
        name="l0c_to_gm", count=8, types=(DType.F32, DType.F32), place="dst", turn_bytes=size, cores=1,
        operands={"src": 0, "dst": 0, "m": rows, "n": cols, "dst_stride": cols * 4},
    )  # fmt: skip
    loops = (*_l0_filled(target), product, _DRAIN, loop)
    return _rate(Probe(cube=loops, warm_bytes=8 * size, touched_bytes=8 * size), target, "fix")


def _to_l0(name: str) -> Callable[[AicoreTarget], float]:
    def to_l0(target: AicoreTarget) -> float:
        size = target.memory.l0a_bytes
        loop = ProbeLoop(name=name, count=8, operands={"src": 0, "dst": 0, "bytes": size}, cores=1)
        filled = _l0_filled(target)
        before, after = (span_cycles(Probe(cube=loops).run(target), "mte1") for loops in (filled, (*filled, loop)))
        return 8 * size / target.nanoseconds(after - before)

    return to_l0


def _products(target: AicoreTarget) -> float:
    size = 128
    loop = ProbeLoop(
        name="mmad", count=ROUNDS, types=(DType.F16, DType.F32),
        operands={"c": 0, "a": 0, "b": 0, "m": size, "k": size, "n": size, "mode": "init"},
    )  # fmt: skip
    result = Probe(cube=(*_l0_filled(target), loop)).run(target)
    return 2 * size**3 * ROUNDS * target.device.cube_cores / target.nanoseconds(span_cycles(result, "m")) / 1000


def _barriers(mode: str) -> Callable[[AicoreTarget], float]:
    """From barrier to barrier; the first one gathers the cores."""

    def measure(target: AicoreTarget) -> float:
        def cycles(count: int) -> int:
            one = ProbeLoop(name="cross_set", engine=Engine.CONTROL, count=1, operands={"flag": 1, "mode": mode})
            loops = (one, ProbeLoop(name="cross_wait", count=1, operands={"flag": 1})) * count
            return Probe(vector=loops, cube=loops if mode == "all" else ()).run(target).cycles

        return target.nanoseconds(cycles(9) - cycles(1)) / 8

    return measure
