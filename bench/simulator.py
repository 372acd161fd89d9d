"""How fast the simulator is, and what it says of the kernels at their limits.

    python bench/simulator.py [--json] [--quick]

Speed: the control unit on a tight loop with instruction-cache timing; one decode step of eight layers on all groups of
a3, timing only, and a program of integer kernels, which control units compute alone. Of these two, the wall-clock time
of a whole run (device made, memory filled, regions declared, launches, counters), and how fast control code is executed
inside it: instructions by the time in the interpreter, net of the clock's own. That includes leaving and entering it
for each global access, miss and prefetch, every few instructions or dozens, which a tight loop never does.

Kernels, in simulated cycles: the cube in a large f16 product and in attention, a row times a matrix,
vector cores that stream through memory.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import workloads
from llvmlite import ir

import superkernel as sk
from superkernel.backends.aicore.compiled import AicoreCompiled
from superkernel.backends.aicore.measure import report_of
from superkernel.backends.aicore.report import SimReport
from superkernel.codegen.aicore.boot import SHARED, BootSpec, encode_boot
from superkernel.codegen.aicore.linking import LinkLayout, link
from superkernel.codegen.aicore.lower import compile_rv64
from superkernel.core.dtypes import DType
from superkernel.scheduler.families.aicore.cube import cube_cycles
from superkernel.sim import CacheGeometry, run_program
from superkernel.sim.counters import LaunchResult
from superkernel.target.aicore import load_target

CODE, PRIVATE, TOHOST = 0x8000_0000, 0x8020_0000, 0x8040_0000
ROUNDS = 5
DECODE = {
    "layers": 8, "width": 512, "heads": 8, "kv_heads": 8, "inner": 1408, "vocabulary": 1024, "positions": 128,
}  # fmt: skip
DECODE_GOAL_S = 5.0
TIGHT_GOAL, CONTROL_GOAL = 300, 150
INTEGERS, INTEGER_KERNELS = (24, 128), 6
CUBE_GOAL = 0.7
PRODUCT, PRODUCT_QUICK = 3072, 1024
VECTOR_PRODUCT = 4096
STREAM = (4096, 4096)


@dataclass(frozen=True)
class Figure:
    """One line: what, how much, of what unit, and what more there is to say."""

    name: str
    value: float
    unit: str
    note: str = ""
    goal: str = ""

    def __str__(self) -> str:
        return f"{self.name:<50} {self.value:>10.2f} {self.unit:<16} {self.goal:<14} {self.note}".rstrip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="plain data instead of lines")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, one round")
    options = parser.parse_args()
    figures: list[Figure] = []
    for measure in (tight_loop, decode_step, integer_kernels, product, vector_product, attention, streaming):
        for figure in measure(options.quick):
            figures.append(figure)
            if not options.json:
                print(figure, flush=True)
    if options.json:
        print(json.dumps({"schema": "superkernel.bench.simulator/1", "figures": [asdict(f) for f in figures]}))
    return 0


# Speed ----------------------------------------------------------------------------------------------------------------


def loop_program(rounds: int) -> bytes:
    """An image that runs a loop of a dozen instructions: shifts, exclusive ors, a sum."""
    module = ir.Module(name="loop")
    word = ir.IntType(64)
    function = ir.Function(module, ir.FunctionType(ir.VoidType(), [word]), "sk_main")
    entry, body, after = (function.append_basic_block(n) for n in ("entry", "body", "after"))
    ir.IRBuilder(entry).branch(body)
    b = ir.IRBuilder(body)
    count, state, total = (b.phi(word) for _ in range(3))
    mixed = state
    for left, places in ((True, 13), (False, 7), (True, 17)):
        shifted = (b.shl if left else b.lshr)(mixed, ir.Constant(word, places))
        mixed = b.xor(mixed, shifted)
    following, summed = b.add(count, ir.Constant(word, 1)), b.add(total, mixed)
    for phi, first, further in ((count, 0, following), (state, 88172645463325252, mixed), (total, 0, summed)):
        phi.add_incoming(ir.Constant(word, first), entry)
        phi.add_incoming(further, body)
    b.cbranch(b.icmp_unsigned("<", following, ir.Constant(word, rounds)), body, after)
    b = ir.IRBuilder(after)
    place = ir.GlobalVariable(module, word, "out")
    place.initializer = ir.Constant(word, 0)
    b.store(summed, place)
    b.ret_void()
    start = encode_boot(BootSpec(copy_of=[0], private_bytes=4096, exit_address=TOHOST))
    absolute = {"sk_private": PRIVATE, "tohost": TOHOST}
    layout = LinkLayout(code_address=CODE, shared=SHARED, absolute=absolute)
    return link([start, compile_rv64(str(module))], layout).elf()


def tight_loop(quick: bool) -> list[Figure]:
    """The path of `superkernel sim run`, instruction cache on."""
    program = loop_program(2_000_000 if quick else 40_000_000)
    best, instructions = float("inf"), 0
    for _ in range(1 if quick else ROUNDS):
        begin = time.perf_counter()
        result = run_program(program, memory_bytes=8 << 20, icache=CacheGeometry(16384, 128, 4, 150))
        best = min(best, time.perf_counter() - begin)
        instructions = result.harts[0].instructions
    note = f"{instructions / 1e6:.0f} million instructions, instruction cache timed"
    return [
        Figure("control unit, tight loop", instructions / best / 1e6, "M instructions/s", note, f"goal {TIGHT_GOAL}")
    ]


def decode_step(quick: bool) -> list[Figure]:
    """A fused decode step on all of a3."""
    sizes: dict[str, Any] = {**DECODE, "layers": 2 if quick else DECODE["layers"]}
    name = f"decode step, {sizes['layers']} layers on a3"
    return _whole_run(name, workloads.decode_step(**sizes), quick, f"goal < {DECODE_GOAL_S} s")


def integer_kernels(quick: bool) -> list[Figure]:
    """Sums along rows and products of 64-bit integers, which no engine computes: each element is a global access."""
    b = sk.GraphBuilder("integers")
    x = y = b.input("x", INTEGERS, "i64")
    for _ in range(2 if quick else INTEGER_KERNELS):
        y = b.cumsum(y, axis=1)
        y = y * y + x
    b.output(y, name="y")
    return _whole_run("integer kernels on a3", b.graph(), quick, "")


def _whole_run(name: str, graph: sk.Graph, quick: bool, goal: str) -> list[Figure]:
    """Wall time of a run, timing only, and the speed of control code within others that measure it: with races checked,
    whose clocks take the host's caches from the control units, and without."""
    kernel, compiled = _compiled(graph, "a3")
    io = kernel._io(list(kernel._random().values()))
    best, control_ns, slices = float("inf"), {True: float("inf"), False: float("inf")}, 0
    launches: tuple[LaunchResult, ...] = ()
    for _ in range(1 if quick else ROUNDS):
        begin = time.perf_counter()
        launches = compiled.executable.simulate(io, mode="timing").launches
        best = min(best, time.perf_counter() - begin)
        for races in control_ns:
            device = compiled.executable.simulate(io, mode="timing", races=races, time_control=True).device
            control_ns[races], slices = min(control_ns[races], device.control_ns), device.control_slices
    assert len(launches) == 1  # what the device tells is of its last one
    count = launches[0].instructions
    commands = sum(e.commands + e.flags for c in launches[0].cores for e in c.engines.values())
    run = f"{count} instructions, {commands} commands, {launches[0].cycles} cycles, races checked"
    inside = f"{count / slices:.1f} instructions at a time, {control_ns[True] / best / 1e9:.0%} of the wall time"
    rate, goal_rate = "M instructions/s", f"goal {CONTROL_GOAL}"
    return [
        Figure(f"{name}: wall time", best, "s", run, goal),
        Figure(f"{name}: per wall time", count / best / 1e6, rate),
        Figure(f"{name}: control code", count * 1e3 / control_ns[True], rate, inside, goal_rate),
        Figure(f"{name}: without races", count * 1e3 / control_ns[False], rate, "control code too", goal_rate),
    ]


# Kernels --------------------------------------------------------------------------------------------------------------


def product(quick: bool) -> list[Figure]:
    """How busy the cube is in a large product, and with what its cores' engines spend their time. The right factor is
    computed (an input) or constant (packed when compiling). Cold, all of it comes from HBM; warm, L2 holds what a run
    before left.

    What would be in the way is MTE2: with a tile of 128 x 256 sums in L0C it has more to do than the cube. So such
    products go over the depth in passes, see "Large products" in docs/accelerator.md.
    """
    size = PRODUCT_QUICK if quick else PRODUCT
    found = []
    for constant in (False, True):
        b = sk.GraphBuilder("product")
        ones = np.ones((size, size), np.float16)
        b.output(b.input("a", ones.shape, "f16") @ (b.constant(ones) if constant else b.input("b", ones.shape, "f16")))
        for warm in (False, True):
            report = _timed(b.graph(), warm=warm)
            shares = ", ".join(f"{e} {report.engine_share('cube', e):.0%}" for e in ("mte2", "mte1", "m", "fix"))
            waits = _mean_share(report, "mte2", "memory_wait")
            note = f"busy: {shares}; mte2 waits for memory {waits:.0%}; {report.memory['read_bytes'] / 1e6:.0f} MB read"
            name = f"cube busy, {size}^3 f16 a3, {'constant' if constant else 'computed'}, {'warm' if warm else 'cold'}"
            found.append(Figure(name, 100 * report.engine_share("cube", "m"), "%", note, f"goal {CUBE_GOAL:.0%}"))
    return found


def vector_product(quick: bool) -> list[Figure]:
    """What one row times a constant matrix reaches of what all cube cores together can take from HBM."""
    size = VECTOR_PRODUCT if not quick else VECTOR_PRODUCT // 4
    b = sk.GraphBuilder("vector")
    b.output(b.input("a", (1, size), "f16") @ b.constant(np.ones((size, size), np.float16)))
    report = _timed(b.graph())
    target = load_target("a3")
    rate = min(
        target.hbm_gb_per_s,
        target.hbm.core_bytes_per_cycle * target.device.cube_cores * target.device.clock_mhz / 1000,
    )
    reached = 2 * size * size / report.time_us / 1e3
    note = f"{reached:.0f} GB/s of {rate:.0f}"
    return [Figure(f"HBM, row times {size}x{size} f16 on a3", 100 * reached / rate, "%", note)]


def attention(quick: bool) -> list[Figure]:
    """The busiest engines of attention. With many queries FIX has most to do: it stores the scores in f32 for vector
    cores. With one query keys and values come from HBM, and only as many groups work as there are heads."""
    found = []
    small, large = (
        ((512, 512, 8, 64), (1, 512, 8, 64)),
        ((2048, 2048, 16, 64), (2048, 2048, 16, 128), (1, 4096, 24, 64)),
    )
    for queries, keys, heads, depth in small if quick else large:
        b = sk.GraphBuilder("attention")
        k, v = (b.input(name, (1, heads, keys, depth), "f16") for name in "kv")
        b.output(b.attention(b.input("q", (1, heads, queries, depth), "f16"), k, v))
        report = _timed(b.graph())
        parts = (("cube", "mte2"), ("cube", "fix"), ("vector", "v"))
        shares = ", ".join(f"{core} {engine} {report.engine_share(core, engine):.0%}" for core, engine in parts)
        name = f"cube busy, attention {heads}x{queries}x{keys}x{depth} on a3"
        note = f"{shares}; {report.cycles} cycles" + (f"; {_attention_limits(depth)}" if queries > 1 else "")
        found.append(Figure(name, 100 * report.engine_share("cube", "m"), "%", note))
    return found


def _attention_limits(depth: int) -> str:
    """How busy the cube can be at most, if what a score needs besides were all that there is to do: its way out of L0C,
    and the way of scores and weights through L2, with scores in f32 and, for comparison, in f16."""
    target = load_target("a3")
    rate = target.rates.l0c_to_gm_gb_per_s * 1000 / target.device.clock_mhz  # bytes per cycle
    shared = target.l2.aggregate_gb_per_s * 1000 / target.device.clock_mhz / target.device.groups
    tile, parts = 128, []
    scores = tile * tile
    cube = 2 * cube_cycles(tile, tile, depth, DType.F16, target) / scores
    for kind, item in (("f32", 4), ("f16", 2)):
        out, through = item / rate, 2 * (item + 2) / shared
        parts.append(f"{kind} scores: FIX {cube / out:.0%}, L2 {cube / through:.0%}")
    return "cube at most, with " + ", with ".join(parts)


def streaming(quick: bool) -> list[Figure]:
    """What vector cores reach of the rate of the engine that has most to do; everything comes from memory once."""
    rows, columns = STREAM if not quick else (1024, 1024)
    b = sk.GraphBuilder("add")
    b.output(b.input("x", (rows, columns), "f16") + b.input("y", (rows, columns), "f16"), name="z")
    report = _timed(b.graph())
    busy = report.engine_share("vector", "mte2")
    waits = _mean_share(report, "mte2", "memory_wait")
    rate = 3 * 2 * rows * columns / report.time_us / 1e3
    note = f"{rate:.0f} GB/s over all cores; mte2 waits for HBM {waits:.0%} of the time"
    return [Figure(f"loads busy, add of {rows}x{columns} f16 on a3", 100 * busy, "%", note)]


def _timed(graph: sk.Graph, *, warm: bool = False) -> SimReport:
    """The report of one run on a3, timing only; with `warm` of the second of two."""
    kernel, compiled = _compiled(graph, "a3")
    io = kernel._io(list(kernel._random().values()))
    return report_of(compiled, compiled.executable.simulate(io, mode="timing", races=False, warm=warm).launches)


def _mean_share(report: SimReport, engine: str, field: str) -> float:
    rows = [r for r in report.cores if r.busy.get(engine)]
    return float(np.mean([getattr(r, field)[engine] / report.cycles for r in rows]))


def _compiled(graph: sk.Graph, target: str) -> tuple[sk.Kernel, AicoreCompiled]:
    kernel = sk.compile(graph, target=target)
    compiled = kernel._compiled
    assert isinstance(compiled, AicoreCompiled)
    return kernel, compiled


if __name__ == "__main__":
    raise SystemExit(main())
