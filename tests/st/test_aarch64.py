"""The host's generated code on another processor: AArch64, executed by an emulator.

Model: kernels and a whole fused graph are compiled for AArch64 with its 16-byte vectors, linked with a generated C
program into one static executable, and run under qemu-aarch64. Operands go in through stdin and come out through
stdout; memory around them is guarded. Results are compared with the reference.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grouped_on import chooser_on, grouped_on
from kernel_cases import MAKERS, Case, blocks, bytes_of_all_kinds, pointwise, reduced_products
from kernel_check import compare, undefined_symbols
from models import decode_step, quantised_classifier, transformer
from numpy.typing import NDArray
from op_cases import op_body
from operator_cases import cases

import superkernel as sk
from superkernel.codegen.cache import ObjectCache
from superkernel.codegen.host import image as host_image
from superkernel.codegen.host.emitters import emit_ir
from superkernel.codegen.host.entry import emit_entries, emit_waits
from superkernel.codegen.host.entry_spec import BasePointer, RunTask, WaitFor
from superkernel.codegen.host.image import HostImage, ImageBuilder
from superkernel.codegen.host.lower import compile_ir
from superkernel.core.dtypes import DType
from superkernel.core.options import Options
from superkernel.ir.body import Body, Role
from superkernel.ir.graph import Graph
from superkernel.ops.opdef import Family
from superkernel.ops.table import op_table
from superkernel.reference import evaluate
from superkernel.scheduler.families import HOST_KERNELS, family_of
from superkernel.scheduler.hostcall import HOST_REFERENCE
from superkernel.scheduler.place import place
from superkernel.scheduler.tiling import pack_bytes
from superkernel.sync.planner import plan_sync
from superkernel.sync.verify import verify
from superkernel.target.cpu import CpuTarget, cpu_target, profiled
from superkernel.target.machine import load_profile
from superkernel.transforms import simplify

Array = NDArray[Any]
GCC, GXX, QEMU = "aarch64-linux-gnu-gcc", "aarch64-linux-gnu-g++", "qemu-aarch64"
CSRC = Path(__file__).parents[2] / "csrc"
ABI_HEADERS = CSRC / "include"
MICROCONTROLLER = Path(__file__).parents[1] / "machines" / "microcontroller.json"
TIMEOUT_S = 120
TOLERANCE = {DType.F32: 3e-5, DType.F64: 1e-6, DType.F16: 2e-3, DType.BF16: 1e-2}

COMMON = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
enum { GUARD = 256 };
/* Bytes between guards; `fill` of them come from stdin. */
static uint8_t *take(size_t size, int fill) {
  uint8_t *raw = aligned_alloc(64, (size + 2 * GUARD + 63) / 64 * 64);
  if (raw == NULL) exit(3);
  memset(raw, 0xA5, size + 2 * GUARD);
  if (fill && fread(raw + GUARD, 1, size, stdin) != size) exit(4);
  return raw + GUARD;
}
static void give(const uint8_t *at, size_t size, int tell) {
  for (int i = 0; i < GUARD; ++i)
    if (at[i - GUARD] != 0xA5 || at[size + i] != 0xA5) exit(5);
  if (tell) fwrite(at, 1, size, stdout);
}
"""


@cache
def missing() -> str:
    """Why the tests cannot run here, if they cannot."""
    for tool in (GCC, QEMU):
        if shutil.which(tool) is None:
            return f"{tool} is not installed"
    probe = [GCC, "-static", "-xc", "-", "-o", "/dev/null"]
    if subprocess.run(probe, input=b"#include <stdio.h>\nint main(void) { return 0; }", capture_output=True).returncode:
        return "the C library for AArch64 is not installed"
    return ""


@pytest.fixture(autouse=True)
def _needs_tools() -> None:
    if reason := missing():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def cpu() -> CpuTarget:
    return cpu_target("aarch64-unknown-linux-gnu", "plain", ())


@pytest.fixture(scope="module")
def dots() -> CpuTarget:
    """A processor that multiplies bytes itself."""
    return cpu_target("aarch64-unknown-linux-gnu", "plain", ("dotprod",))


def execute(folder: Path, source: str, objects: Sequence[bytes], data: bytes) -> bytes:
    """Link, run, and return what came out."""
    (folder / "main.c").write_text(source)
    names = []
    for k, code in enumerate(objects):
        names.append(f"part{k}.o")
        (folder / names[-1]).write_bytes(code)
    command = [GCC, "-O1", "-static", "-pthread", f"-I{ABI_HEADERS}", "main.c", *names, "-o", "program"]
    linked = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert linked.returncode == 0, linked.stderr
    done = subprocess.run(
        [QEMU, "program"], cwd=folder, input=data, capture_output=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, f"exit code {done.returncode}: {done.stderr.decode()}"
    return done.stdout


# Kernels --------------------------------------------------------------------------------------------------------------


@dataclass
class Kernel:
    """A compiled case: its code, and the bytes of its operands."""

    where: str
    body: Body
    code: bytes
    packed: list[NDArray[np.uint8]]
    scratch: int
    units: int
    expected: Mapping[int, Array]

    def call(self, number: int) -> str:
        """C: read the operands, run the first units, then the others, write the results."""
        lines = [f"static void run{number}(void) {{"]
        for k, (data, o) in enumerate(zip(self.packed, self.body.operands, strict=True)):
            lines.append(f"  uint8_t *o{k} = take({data.nbytes}, {int(o.role is not Role.OUTPUT)});")
        lines.append(f"  uint8_t *scratch = take({self.scratch}, 0);")
        arguments = "".join(f"o{k}, " for k in range(len(self.packed)))
        middle = self.units // 2
        lines += [f"  k{number}({arguments}scratch, {a}, {b});" for a, b in ((0, middle), (middle, self.units))]
        for k, (data, o) in enumerate(zip(self.packed, self.body.operands, strict=True)):
            lines.append(f"  give(o{k}, {data.nbytes}, {int(o.role in (Role.OUTPUT, Role.INOUT))});")
        lines.append(f"  give(scratch, {self.scratch}, 0);\n}}")
        pointers = "void *, " * (len(self.packed) + 1)
        return f"extern void k{number}({pointers}int64_t, int64_t);\n" + "\n".join(lines) + "\n"


def compiled(case: Case, number: int, cpu: CpuTarget) -> Kernel:
    kernel, body, arrays, expected = case
    tiling = family_of(kernel).tilings(kernel, body, cpu)[0]
    packs = tiling.packs(body)
    given = [
        np.zeros(o.type.shape, o.type.dtype.numpy) if a is None else a
        for a, o in zip(arrays, body.operands, strict=True)
    ]
    packed = [pack_bytes(packs.get(k), a) for k, a in enumerate(given)]
    code = compile_ir(emit_ir(kernel, body, tiling, cpu, f"k{number}"), cpu)
    where = f"{kernel} {body.op}"
    assert not undefined_symbols(code), where
    return Kernel(where, body, code, packed, max(64, tiling.scratch_bytes), tiling.units, expected)


def check(cases: Sequence[Case], cpu: CpuTarget, folder: Path) -> None:
    """All cases in one executable."""
    kernels = [compiled(case, number, cpu) for number, case in enumerate(cases)]
    calls = "\n".join(f"  run{n}();" for n in range(len(kernels)))
    source = COMMON + "\n".join(k.call(n) for n, k in enumerate(kernels))
    source += f"int main(void) {{\n{calls}\n  return 0;\n}}\n"
    data = b"".join(
        p.tobytes()
        for k in kernels
        for p, o in zip(k.packed, k.body.operands, strict=True)
        if o.role is not Role.OUTPUT
    )
    found = np.frombuffer(execute(folder, source, [k.code for k in kernels], data), np.uint8)
    at = 0
    for kernel in kernels:
        for k, (packed, o) in enumerate(zip(kernel.packed, kernel.body.operands, strict=True)):
            if o.role not in (Role.OUTPUT, Role.INOUT):
                continue
            got = found[at : at + packed.nbytes].view(o.type.dtype.numpy).reshape(o.type.shape)
            at += packed.nbytes
            want = np.asarray(kernel.expected[k]).reshape(o.type.shape)
            compare(got, want, TOLERANCE.get(o.type.dtype, 0.0), f"{kernel.where}, operand {k}")
    assert at == len(found)


@pytest.mark.parametrize("make", MAKERS)
def test_kernels(make: Callable[[], list[Case]], cpu: CpuTarget, tmp_path: Path) -> None:
    check(make(), cpu, tmp_path)


@pytest.mark.parametrize(
    "make", [blocks, partial(reduced_products, native=True), bytes_of_all_kinds], ids=["blocks", "reduced", "bytes"]
)
def test_products_of_bytes_by_dots(make: Callable[[], list[Case]], dots: CpuTarget, tmp_path: Path) -> None:
    check(make(), dots, tmp_path)


def one_of_each(cpu: CpuTarget) -> list[Case]:
    """Each operator of the table that has a kernel, in f32 where it takes that."""
    found: list[Case] = []
    chooser = chooser_on(cpu, HOST_KERNELS)
    for op in sorted(op_table()):
        some = next((c for c in cases(op) if all(x is None or x.size for x in c.inputs)), None)
        if op_table()[op].family in (Family.VIEW, Family.RESHAPE, Family.UPDATE) or some is None:
            continue
        if op_table()[op].family is Family.POINTWISE:
            given = [x for x in some.inputs if x is not None]
            if len(given) == len(some.inputs) and len({x.shape for x in given}) == 1:
                found.append(pointwise([op], given, attrs=some.attrs))
            continue
        body, arrays, expected = op_body(op, some.inputs, some.attrs)
        kernel = chooser.choose(body)
        if kernel != HOST_REFERENCE:
            found.append((kernel, body, arrays, expected))
    return found


def test_operators(cpu: CpuTarget, tmp_path: Path) -> None:
    check(one_of_each(cpu), cpu, tmp_path)


# Whole graphs ---------------------------------------------------------------------------------------------------------

GRAPH_MAIN = r"""
#include <pthread.h>
#include "superkernel_abi.h"
extern int32_t sk_entry(SkContext *, int32_t);
static SkContext context;
static int32_t wait_slow(SkContext *c, int32_t core, int32_t producer, uint64_t threshold, int32_t wait) {
  (void)c; (void)core; (void)producer; (void)threshold; (void)wait;
  sched_yield();
  return 0;
}
static void *work(void *core) {
  if (sk_entry(&context, (int32_t)(intptr_t)core) != 0) exit(6);
  return NULL;
}
int main(void) {
  static const size_t sizes[IO_COUNT] = {IO_SIZES};
  uint8_t *io[IO_COUNT];
  for (int i = 0; i < IO_COUNT; ++i) io[i] = take(sizes[i], i < INPUTS || i >= STATES);
  context.constants = take(CONSTANT_BYTES, 1);
  context.arena = take(ARENA_BYTES, 0);
  context.scratch_stride = (SCRATCH_BYTES + 63) / 64 * 64;
  context.scratch = take(context.scratch_stride * CORES, 0);
  context.flags = (uint64_t *)take(8 * SK_FLAG_STRIDE * CORES, 0);
  memset(context.flags, 0, 8 * SK_FLAG_STRIDE * CORES);
  context.io = io;
  context.spin_limit = 64;
  context.wait_slow = wait_slow;
  for (context.epoch = 0; context.epoch < LAUNCHES; ++context.epoch) {
    pthread_t threads[CORES];
    for (intptr_t c = 1; c < CORES; ++c)
      if (pthread_create(&threads[c], NULL, work, (void *)c) != 0) exit(7);
    work((void *)0);
    for (int c = 1; c < CORES; ++c) pthread_join(threads[c], NULL);
  }
  for (int i = 0; i < IO_COUNT; ++i) give(io[i], sizes[i], i >= INPUTS);
  return 0;
}
"""
LAUNCHES = 2


class _Objects:
    """Stands in for loading: foreign code cannot be loaded here."""

    def __init__(self, objects: Iterable[bytes]) -> None:
        self.objects = list(objects)


def image_of(graph: Graph, cores: int, cpu: CpuTarget, monkeypatch: pytest.MonkeyPatch) -> HostImage:
    """The image of a graph for the processor, not loaded."""
    monkeypatch.setattr(host_image, "LoadedCode", _Objects)
    options = Options(fallback="forbid", cache=False)
    grouping = grouped_on(graph, cpu, HOST_KERNELS, fallback="forbid", cache=False)
    schedule = place(grouping, graph, cpu, cores, options)
    plan = plan_sync(schedule, sync=options.sync, handover_ns=cpu.handover_ns)
    units = {s.index: t.units for s, t in zip(schedule.subops, schedule.tilings, strict=True)}
    verify(plan, units)
    inputs, outputs, states = len(graph.inputs), len(graph.outputs), len(graph.states)
    builder = ImageBuilder(schedule, plan, cpu, ObjectCache(None), inputs=inputs, outputs=outputs, states=states)
    return builder.build(grouping.constants)


@pytest.mark.parametrize("cores", [1, 2])
@pytest.mark.parametrize("name", ["transformer", "decode_step"])
def test_fused_graphs(name: str, cores: int, cpu: CpuTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = simplify(transformer(tokens=8, width=32, heads=2) if name == "transformer" else decode_step())
    agrees(graph, image_of(graph, cores, cpu, monkeypatch), tmp_path, 1e-4)


def test_a_quantised_network_in_the_memories_of_a_microcontroller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that its program writes and holds has no more bytes than there are, with guards around."""
    profile = load_profile(MICROCONTROLLER)
    small = profiled(cpu_target("aarch64-unknown-linux-gnu", "plain", ("dotprod",)), profile)
    graph = simplify(quantised_classifier(), small.computes_integers, small.signed_integers)
    with monkeypatch.context() as foreign:
        image = image_of(graph, 1, small, foreign)
    assert any("bytes" in key.split("\n")[1] for key in image.objects if key.startswith("kernel "))
    assert image.arena_bytes + image.scratch_bytes <= small.regions()["tcm"]
    constants = image.constants.own.nbytes + sum(block.nbytes for block in image.constants.shared)
    assert 100_000 < constants + image.code_bytes <= small.regions()["flash"]
    agrees(graph, image, tmp_path, 0.0, sk.compile(graph, threads=1))


def agrees(graph: Graph, image: HostImage, tmp_path: Path, tolerance: float, like: sk.Kernel | None = None) -> None:
    """An image's program computes what the reference does, or a kernel for the CPU at hand, launch after launch."""
    cores = image.cores
    rng = np.random.default_rng(0)
    below = {DType.I64: 9, DType.U8: 256}
    given = {
        n: (rng.integers(0, below[t.dtype], t.shape) if t.dtype in below else rng.standard_normal(t.shape)).astype(
            t.dtype.numpy
        )
        for n, t in graph.inputs.items()
    }
    outputs = [graph.types[v] for v in graph.outputs]
    states = {n: np.asarray(graph.states[n]) for n in graph.states}
    behind = [*states.values(), *image.constants.shared]  # large constants stand where states do, and stay as they are
    sizes = [t.nbytes for t in (*graph.inputs.values(), *outputs)] + [a.nbytes for a in behind]
    numbers_of = {
        "IO_COUNT": len(sizes), "IO_SIZES": ", ".join(map(str, sizes)), "INPUTS": len(given),
        "STATES": len(given) + len(outputs), "CONSTANT_BYTES": image.constants.own.nbytes,
        "ARENA_BYTES": image.arena_bytes, "SCRATCH_BYTES": image.scratch_bytes, "CORES": cores, "LAUNCHES": LAUNCHES,
    }  # fmt: skip
    defines = "".join(f"#define {key} {value}\n" for key, value in numbers_of.items())
    data = b"".join(np.ascontiguousarray(a).tobytes() for a in (*given.values(), *behind, image.constants.own))
    found = execute(tmp_path, defines + COMMON + GRAPH_MAIN, list(image.objects.values()), data)
    for _ in range(LAUNCHES):
        want = evaluate(graph, given, states)
        states = dict(want.states)
    results = [want[n] for n in graph.outputs] if like is None else list(like.run(given).outputs.values())
    wanted = results + list(want.states.values()) + list(image.constants.shared)
    at = 0
    for k, expected in enumerate(wanted):
        part = found[at : at + expected.nbytes]
        at += expected.nbytes
        compare(np.frombuffer(part, expected.dtype).reshape(expected.shape), expected, tolerance, f"result {k}")
    assert at == len(found)


# The recorder ---------------------------------------------------------------------------------------------------------

RECORDER_FLAGS = ("-std=c++20", "-O1", "-static", "-Wall", "-Wextra", "-Werror", f"-I{CSRC}", f"-I{ABI_HEADERS}")
RECORDER_SOURCES = ("tests/record_program.cpp", "runtime/recorder.cpp", "runtime/clock.cpp")
# Ahead of the kernels and behind them: their pages are written, and must hold nothing else that runs.
APART = '__asm__(".text\\n .p2align 16\\n .skip 65536\\n");\n'


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Objects of the recorder and its program."""
    if missing() or shutil.which(GXX) is None:
        pytest.skip(missing() or f"{GXX} is not installed")
    folder = tmp_path_factory.mktemp("recorder")
    for source in RECORDER_SOURCES:
        command = [GXX, *RECORDER_FLAGS, "-c", str(CSRC / source)]
        subprocess.run(command, cwd=folder, check=True, timeout=TIMEOUT_S)
    return sorted(map(str, folder.glob("*.o")))


@dataclass
class RecordedProgram:
    """A graph's objects, to be recorded with entries of one's choice."""

    image: HostImage
    cpu: CpuTarget
    recorder: list[str]
    folder: Path

    def __post_init__(self) -> None:
        spec = self.image.spec
        found = {t.symbol: len(t.operands) for t in spec.tasks if t.symbol is not None}
        self.kernels = sorted(found)
        io = [0] * self.image.io_count
        for at in (o for task in spec.tasks for o in task.operands if o.space is BasePointer.IO):
            io[at.slot] = 1 << 20  # as good as any
        self.stride = -(-self.image.scratch_bytes // 64) * 64
        self.regions = [self.image.arena_bytes, self.image.constants.own.nbytes, self.stride * self.image.cores, *io]
        rows = "".join(f"{{{name}, {found[name]}}}, " for name in self.kernels)
        declared = "".join(f"void {name}();\n" for name in self.kernels)
        table = f'extern "C" {{\n{declared}extern const struct {{ void (*code)(); unsigned long operands; }}'
        table += f" kernel_table[] = {{{rows}{{nullptr, 0}}}};\n}}\n"
        (self.folder / "table.cpp").write_text(table)
        (self.folder / "apart.cpp").write_text(APART)

    def run(self, change: Callable[[str], str] = lambda text: text) -> subprocess.CompletedProcess[str]:
        """The recording, of entries whose text may be changed."""
        names = []
        kernels = [data for key, data in self.image.objects.items() if key.startswith("kernel ")]
        waits = compile_ir(change(emit_waits(self.cpu)), self.cpu)
        entries = compile_ir(change(emit_entries(self.image.spec, self.cpu)), self.cpu, 0)
        for k, code in enumerate([*kernels, waits, entries]):
            names.append(f"part{k}.o")
            (self.folder / names[-1]).write_bytes(code)
        parts = ["apart.cpp", *names[:-1], "apart.cpp", names[-1], "table.cpp"]
        link = [GXX, *RECORDER_FLAGS, *self.recorder, *parts, "-o", "program"]
        subprocess.run(link, cwd=self.folder, check=True, timeout=TIMEOUT_S)
        spec = self.image.spec
        words = [len(spec.programs), spec.subops, self.stride, spec.events_words, *self.regions]
        command = [QEMU, "program", *map(str, words)]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)

    def told(self) -> list[list[int]]:
        """What should be recorded, by what the entries were made from; a worker's number ahead of each event."""
        spec, events = self.image.spec, []
        spaces = {BasePointer.ARENA: 0, BasePointer.CONSTANTS: 1, BasePointer.IO: 3}
        for core, steps in enumerate(spec.programs):
            for step in steps:
                if isinstance(step, WaitFor):
                    events.append([core, 2, step.producer, step.count, step.wait])
                elif not isinstance(step, RunTask):
                    events.append([core, 3, step.count])
                else:
                    task = spec.tasks[step.task]
                    assert task.symbol is not None
                    places = [word for o in task.operands for word in (spaces[o.space] + o.slot, o.offset)]
                    call = [core, 0, self.kernels.index(task.symbol), task.begin, task.end]
                    events.append([*call, *places, 2, core * self.stride])
        return events


@pytest.fixture
def program(cpu: CpuTarget, recorder: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RecordedProgram:
    image = image_of(simplify(transformer(tokens=8, width=32, heads=2)), 3, cpu, monkeypatch)
    return RecordedProgram(image, cpu, recorder, tmp_path)


def test_the_recorder_sees_what_was_emitted(program: RecordedProgram) -> None:
    done = program.run()
    assert done.returncode == 0, done.stdout + done.stderr
    told = program.told()
    assert sum(event[1] == 2 for event in told) >= 3, "nobody waits"
    assert [list(map(int, line.split())) for line in done.stdout.splitlines()] == told


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "%reached = icmp uge i64 %seen, %threshold",
            "%soon = add i64 %seen, 1\n  %reached = icmp uge i64 %soon, %threshold",
            "passes before",
        ),
        ("%tired = icmp uge i32 %spins.next, %limit", "%tired = icmp ugt i32 %limit, -1", "goes on for ever"),
    ],
    ids=["early", "endless"],
)
def test_the_recorder_refuses(program: RecordedProgram, old: str, new: str, says: str) -> None:
    done = program.run(lambda text: text.replace(old, new))
    assert done.returncode == 1, done.stdout + done.stderr
    assert says in done.stdout
