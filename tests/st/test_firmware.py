"""Libraries for microcontrollers, linked into firmwares and run in an emulator: what `superkernel.export` makes for a
core computes there what the host computes, integers to the last bit, f32 within rounding.

Model: a firmware of our own start code, no C library and no heap; it reads inputs and writes outputs through the
emulator's files (semihosting). Cores are those of QEMU's boards; it has none with a Cortex-M85, whose code the
Cortex-M55 runs. Skipped where the emulator or the cross compiler is not installed.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
import soak
from models_small import decoder, encoder
from numpy.typing import NDArray
from quantised_nets import NETWORKS, save_network
from quantised_nets import images as images_of_networks

import superkernel as sk
from superkernel.analysis.quantising import quantise
from superkernel.reference import evaluate
from superkernel.reference.random_inputs import random_inputs

GCC, QEMU = "arm-none-eabi-gcc", "qemu-system-arm"
TIMEOUT_S = 300
pytestmark = pytest.mark.skipif(
    shutil.which(GCC) is None or shutil.which(QEMU) is None, reason=f"{GCC} or {QEMU} is not installed"
)
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror")
RUNS = 2
STACK_BYTES_MAX = 1024  # docs/libraries.md says so of these models
QUANTISED = [*((name, "u8") for name in NETWORKS), ("resnet", "i16")]

START = r"""
#include <stdint.h>
#include "host.h"
extern void firmware(void);
static int call(int number, const void *argument) {
  register int r0 __asm__("r0") = number;
  register const void *r1 __asm__("r1") = argument;
  __asm__ volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
  return r0;
}
void leave(int code) {
  const uint32_t block[2] = {0x20026, (uint32_t)code};
  call(0x20, block);
  for (;;) {}
}
static int file(const char *name, uint32_t length, uint32_t mode) {
  const uint32_t block[3] = {(uint32_t)name, mode, length};
  const int found = call(0x01, block);
  if (found < 0) leave(90);
  return found;
}
int input_file(void) { return file("in.bin", 6, 1); }
int output_file(void) { return file("out.bin", 7, 5); }
void take(int from, void *data, uint32_t bytes) {
  const uint32_t block[3] = {(uint32_t)from, (uint32_t)data, bytes};
  if (call(0x06, block) != 0) leave(91);
}
void give(int to, const void *data, uint32_t bytes) {
  const uint32_t block[3] = {(uint32_t)to, (uint32_t)data, bytes};
  if (call(0x05, block) != 0) leave(92);
}
void *memcpy(void *to, const void *from, __SIZE_TYPE__ bytes) {
  for (__SIZE_TYPE__ i = 0; i < bytes; ++i) ((volatile char *)to)[i] = ((const char *)from)[i];
  return to;
}
extern char stack_top[];
enum { STACK_BYTES = 16384 };
static volatile uint32_t *stack_low(void) { return (volatile uint32_t *)(uintptr_t)(stack_top - STACK_BYTES); }
void paint(void) {
  uint32_t here;
  for (volatile uint32_t *p = stack_low(); p < &here - 16; ++p) *p = 0xA5A5A5A5u;
}
uint32_t stack_bytes(void) {
  uint32_t untouched = 0;
  while (stack_low()[untouched] == 0xA5A5A5A5u) ++untouched;
  return STACK_BYTES - 4 * untouched;
}
static void fault(void) { leave(99); }
static void reset(void) {
  *(volatile uint32_t *)0xE000ED88 |= 0xFu << 20; /* CPACR: the FPU and MVE */
  __asm__ volatile("dsb\n isb");
  firmware();
  leave(0);
}
__attribute__((section(".vectors"), used)) static const uintptr_t vectors[16] = {
  (uintptr_t)stack_top, (uintptr_t)reset, (uintptr_t)fault, (uintptr_t)fault, (uintptr_t)fault, (uintptr_t)fault,
  (uintptr_t)fault};
"""

HOST_H = r"""
#include <stdint.h>
void leave(int code);
int input_file(void);
int output_file(void);
void take(int from, void *data, uint32_t bytes);
void give(int to, const void *data, uint32_t bytes);
void paint(void);
uint32_t stack_bytes(void);
"""

LAYOUT = """
MEMORY { FLASH (rx) : ORIGIN = %#x, LENGTH = %#x  RAM (rw) : ORIGIN = %#x, LENGTH = %#x }
SECTIONS {
  .text : { KEEP(*(.vectors)) *(.text*) *(.rodata*) } > FLASH
  .ARM.exidx : { *(.ARM.exidx*) } > FLASH
  .data : { *(.data*) } > RAM
  .bss (NOLOAD) : { *(.bss*) *(COMMON) } > RAM
  stack_top = ORIGIN(RAM) + LENGTH(RAM);
}
ASSERT(SIZEOF(.data) == 0, "the library has data that is written")
"""


@dataclass(frozen=True)
class Emulated:
    """A machine of the emulator: its name, code memory and RAM."""

    name: str
    flash: tuple[int, int]
    ram: tuple[int, int]


AN547 = Emulated("mps3-an547", (0, 0x80000), (0x21000000, 0x200000))
MACHINES = {
    "cortex-m55": AN547,
    "cortex-m85": AN547,
    "cortex-m33": Emulated("mps2-an505", (0x10000000, 0x400000), (0x38000000, 0x200000)),
    "cortex-m7": Emulated("mps2-an500", (0, 0x400000), (0x20000000, 0x400000)),
    "cortex-m4": Emulated("mps2-an386", (0, 0x400000), (0x20000000, 0x400000)),
}
COMPILED_FOR = {"cortex-m85": "cortex-m55"}  # as old compilers and emulators know it


def built(folder: Path, core: str, main: str, libraries: tuple[str, ...] = ("net",)) -> Path:
    """A firmware of that main program."""
    machine = MACHINES[core]
    (folder / "start.c").write_text(START)
    (folder / "host.h").write_text(HOST_H)
    (folder / "main.c").write_text(main)
    (folder / "layout.ld").write_text(LAYOUT % (*machine.flash, *machine.ram))
    flags = [f"-mcpu={COMPILED_FOR.get(core, core)}", "-mfloat-abi=hard", "-O1", "-ffreestanding", "-nostdlib"]
    names = [f"-l{name}" for name in libraries]
    command = [GCC, *flags, *WARNINGS, "-T", "layout.ld", "start.c", "main.c", "-L.", *names, "-lgcc", "-o", "fw.elf"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder / "fw.elf"


def run(folder: Path, core: str, inputs: bytes = b"") -> bytes:
    """What the firmware writes; its exit status is that of the emulator."""
    (folder / "in.bin").write_bytes(inputs)
    (folder / "out.bin").unlink(missing_ok=True)
    command = [QEMU, "-M", MACHINES[core].name, "-kernel", "fw.elf", "-display", "none", "-serial", "none"]
    command += ["-monitor", "none", "-semihosting-config", "enable=on,target=native"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, f"status {done.returncode} {done.stderr}"
    return (folder / "out.bin").read_bytes()


def any_model(kernel: sk.Kernel) -> str:
    """A program for one model of library `net`, called `m`: inputs once, outputs and states after the last run."""

    def buffers(name: str, kinds: Mapping[str, Any]) -> str:
        rows = [f"static _Alignas(8) uint8_t {name}{k}[{max(1, t.nbytes)}];" for k, t in enumerate(kinds.values())]
        return "\n".join(rows)

    def each(verb: str, name: str, kinds: Mapping[str, Any]) -> str:
        return " ".join(f"{verb}({name}{k}, {t.nbytes});" for k, t in enumerate(kinds.values()))

    def table(name: str, kinds: Mapping[str, Any]) -> str:
        return ", ".join(f"{name}{k}" for k in range(len(kinds))) or "0"

    states = {name: kernel._compiled.graph.types[name] for name in kernel.states}
    return f"""
#include "host.h"
#include "net.h"
static _Alignas(NET_M_ARENA_ALIGNMENT) uint8_t arena[NET_M_ARENA_BYTES];
{buffers("in", kernel.inputs)}
{buffers("out", kernel.outputs)}
{buffers("kept", states)}
void firmware(void) {{
  const void *const inputs[] = {{{table("in", kernel.inputs)}}};
  void *const outputs[] = {{{table("out", kernel.outputs)}}};
  void *const states[] = {{{table("kept", states)}}};
  const int from = input_file(), to = output_file();
  for (uint32_t i = 0; i < sizeof arena; ++i) arena[i] = 0xA5;
  {each("take", "from, in", kernel.inputs)}
  net_m_reset_at(states);
  paint();
  for (int i = 0; i < {RUNS}; ++i)
    if (net_m_run_at(arena, inputs, outputs, states) != SK_FIRMWARE_OK) leave(1);
  if (stack_bytes() > {STACK_BYTES_MAX}) leave(2);
  {each("give", "to, out", kernel.outputs)}
  {each("give", "to, kept", states)}
}}
"""


def computed(graph: sk.Graph | Path, core: str, folder: Path, given: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
    """Outputs and states of a firmware's last run."""
    kernel = sk.compile(graph, target=core)
    sk.export({"m": kernel}, folder / "libnet.a")
    built(folder, core, any_model(kernel))
    found = run(folder, core, b"".join(np.ascontiguousarray(a).tobytes() for a in given.values()))
    kinds = [*kernel.outputs.values(), *(kernel._compiled.graph.types[name] for name in kernel.states)]
    arrays, at = [], 0
    for kind in kinds:
        arrays.append(np.frombuffer(found[at : at + kind.nbytes], kind.dtype.numpy).reshape(kind.shape))
        at += kind.nbytes
    assert at == len(found)
    return arrays


@pytest.mark.parametrize("core", MACHINES)
def test_a_quantised_network_gives_the_hosts_integers(core: str, tmp_path: Path) -> None:
    graph = models.quantised_classifier()
    host = sk.compile(graph, threads=1)
    given = random_inputs(host.inputs, 3)
    (found,) = computed(graph, core, tmp_path, given)
    (wanted,) = host.run(given).outputs.values()
    assert found.tobytes() == wanted.tobytes()
    assert len({*found.reshape(-1).tolist()}) > 5


@pytest.mark.parametrize("core", ["cortex-m55", "cortex-m33"])
@pytest.mark.parametrize(
    ("name", "activations"), soak.drawn([*((name, "u8") for name in NETWORKS), ("resnet", "i16")], 2)
)
def test_quantised_models_of_onnx(name: str, activations: str, core: str, tmp_path: Path) -> None:
    """Depthwise and 1 x 1 convolutions, residual sums, pooling, attention, activations of 16 bits."""
    save_network(name, tmp_path / "f32.onnx")
    quantise(tmp_path / "f32.onnx", tmp_path / "bytes.onnx", images_of_networks(3), activations=activations, threads=1)
    host = sk.compile(tmp_path / "bytes.onnx", threads=1)
    for given in images_of_networks(2, seed=5)[: 1 if core == "cortex-m33" else 2]:
        (found,) = computed(tmp_path / "bytes.onnx", core, tmp_path, given)
        wanted = host.run(given).outputs["y"]
        assert found.tobytes() == wanted.tobytes()
        assert len(np.unique(found)) > 4


def counter() -> sk.Graph:
    """A state that adds up what comes in."""
    b = sk.GraphBuilder("counter")
    x = b.input("x", (5, 7))
    total = b.state("total", np.arange(35, dtype=np.float32).reshape(5, 7))
    y = b.add(x, total)
    b.update(total, y)
    b.output(y, "y")
    return b.graph()


def images() -> sk.Graph:
    b = sk.GraphBuilder("images")
    rng = np.random.default_rng(0)
    x = b.input("x", (1, 16, 12, 12))
    for i in range(2):
        filters = b.constant(rng.standard_normal((16, 16, 3, 3), dtype=np.float32) / 12)
        x = b.relu(b.conv(x, filters, pads=(1, 1, 1, 1), name=f"conv{i}"))
    b.output(b.softmax(b.reshape(b.global_avg_pool(x), shape=(1, 16)), axis=-1), "y")
    return b.graph()


@pytest.mark.parametrize(("core", "make"), [
    ("cortex-m55", encoder), ("cortex-m55", decoder), ("cortex-m55", counter), ("cortex-m55", images),
    ("cortex-m55", lambda: models.mlp((16, 40, 10), batch=3)), ("cortex-m4", images), ("cortex-m33", counter),
])  # fmt: skip
def test_f32_within_rounding(core: str, make: Callable[[], sk.Graph], tmp_path: Path) -> None:
    graph = make()
    given = random_inputs(graph.inputs, 1)
    found = computed(graph, core, tmp_path, given)
    states = {name: np.asarray(array) for name, array in graph.states.items()}
    for _ in range(RUNS):
        results = evaluate(graph, given, states=states)
        states = dict(results.states)
    for array, wanted in zip(found, [*(results[v] for v in graph.outputs), *states.values()], strict=True):
        assert np.any(wanted)
        np.testing.assert_allclose(array, wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("core", ["cortex-m55", "cortex-m33"])
def test_extremes_of_doubles(core: str, tmp_path: Path) -> None:
    b = sk.GraphBuilder("extremes")
    x = b.input("x", (3, 17), "f64")
    b.output(b.reduce_max(x, axes=(1,)), "most")
    b.output(b.reduce_min(x, axes=(1,)), "least")
    given = np.random.default_rng(0).standard_normal((3, 17))
    given[1, 3] = np.nan
    found = computed(b.graph(), core, tmp_path, {"x": given})
    for array, wanted in zip(found, (given.max(1, keepdims=True), given.min(1, keepdims=True)), strict=True):
        np.testing.assert_array_equal(array, wanted)


def test_the_program_of_the_guide(tmp_path: Path) -> None:
    """It is compiled with all warnings, gives the host's integers, and what may not be is refused with a status."""
    guide = (Path(__file__).parents[2] / "docs" / "libraries.md").read_text()
    _, program = re.findall(r"```c\n(.*?)```", guide, re.DOTALL)
    host = sk.compile(models.quantised_classifier(), threads=1)
    kernel = sk.compile(models.quantised_classifier(), target="cortex-m55")
    sk.export({"classifier": kernel}, tmp_path / "libnet.a")
    own = """
void firmware(void) {
  take(input_file(), x, sizeof x);
  if (!classify()) leave(1);
  give(output_file(), y, sizeof y);
  const net_classifier_inputs inputs = {x}, none = {0};
  const net_classifier_outputs outputs = {y};
  const net_classifier_outputs same = {(float *)(void *)arena}, crooked = {(float *)(uintptr_t)((uintptr_t)y + 1)};
  if (net_classifier_run(arena, &none, &outputs) != SK_FIRMWARE_ERROR_ARGUMENT) leave(2);
  if (net_classifier_run(arena + 4, &inputs, &outputs) != SK_FIRMWARE_ERROR_ARGUMENT) leave(3);
  if (net_classifier_run(arena, &inputs, &same) != SK_FIRMWARE_ERROR_ARGUMENT) leave(4);
  if (net_classifier_run(arena, &inputs, &crooked) != SK_FIRMWARE_ERROR_ARGUMENT) leave(5);
}
"""
    built(tmp_path, "cortex-m55", f'#include "host.h"\n{program.replace("int classify", "static int classify")}{own}')
    given = random_inputs(host.inputs, 4)
    assert run(tmp_path, "cortex-m55", given["x"].tobytes()) == host.run(given).outputs["y"].tobytes()
