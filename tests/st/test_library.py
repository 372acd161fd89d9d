"""Libraries for programs that are not Python: C programs link them and get the bits of `Kernel.run`.

Model: one library of three models (f32 on one and two threads, bytes with int8 kernels, one with a state) is made once,
shared and static, and linked with a program that takes a model by its name: inputs come in through stdin, outputs of
each calling thread go out through stdout. What a program written for one model sees (typed structs, constants) is
compiled as C and as C++ with all warnings.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
from numpy.typing import NDArray

import superkernel as sk
from superkernel.backends.host.library import tables
from superkernel.backends.host.library.contents import contents
from superkernel.backends.host.library.toolchain import SOURCES
from superkernel.cli import main
from superkernel.frontends.json_form import save_json
from superkernel.registry.manifest import Manifest, merge
from superkernel.target import cpu

WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror")
INLINE = {
    f"zoo_{m}_{f}" for m in ("mlp", "bytes", "counter") for f in ("create", "run", "destroy", "state_total", "reset")
}
PLAIN_PATH = {**os.environ, "LD_LIBRARY_PATH": "", "PYTHONPATH": "", "PYTHONHOME": "/nowhere"}

ANY_MODEL = r"""
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "zoo.h"
enum { MOST = 8 };
static SkModel *model;
static const SkModelInfo *info;
static void *inputs[MOST];
static int runs;
static void *take(size_t bytes) {
  void *found = aligned_alloc(64, (bytes + 63) / 64 * 64);
  if (found == NULL) exit(3);
  memset(found, 0xA5, bytes);
  return found;
}
static void *call(void *argument) {
  void **outputs = (void **)argument;
  for (int i = 0; i < runs; ++i) {
    const SkStatus status = zoo_run(model, (const void *const *)inputs, outputs);
    if (status != SK_OK) {
      fprintf(stderr, "run: %d %s\n", (int)status, zoo_message());
      exit(10 + status);
    }
  }
  return NULL;
}
int main(int argc, char **argv) {
  if (argc != 5) return 2;
  const int callers = atoi(argv[3]);
  size_t count = 0;
  runs = atoi(argv[4]);
  const SkStatus status = zoo_open(argv[1], atoi(argv[2]), 0, &model);
  if (status != SK_OK) {
    fprintf(stderr, "open: %d %s\n", (int)status, zoo_message());
    return 10 + status;
  }
  info = zoo_models(&count);
  for (; strcmp(info->name, argv[1]) != 0; ++info) {}
  for (size_t i = 0; i < info->input_count; ++i) {
    inputs[i] = take(info->inputs[i].bytes);
    if (fread(inputs[i], 1, info->inputs[i].bytes, stdin) != info->inputs[i].bytes) return 4;
  }
  void *outputs[MOST][MOST];
  pthread_t threads[MOST];
  for (int c = 0; c < callers; ++c) {
    for (size_t i = 0; i < info->output_count; ++i) outputs[c][i] = take(info->outputs[i].bytes);
    if (pthread_create(&threads[c], NULL, call, outputs[c]) != 0) return 5;
  }
  for (int c = 0; c < callers; ++c) pthread_join(threads[c], NULL);
  for (int c = 0; c < callers; ++c)
    for (size_t i = 0; i < info->output_count; ++i) fwrite(outputs[c][i], 1, info->outputs[i].bytes, stdout);
  fprintf(stderr, "%d threads", (int)zoo_threads(model));
  zoo_close(model);
  return 0;
}
"""

ONE_MODEL = r"""
#include <stdio.h>
#include <string.h>
#include "zoo.h"
static void fail(const char *what) { printf("%s: %s\n", what, zoo_message()); }
int main(void) {
  static const int64_t shape[ZOO_MLP_X_RANK] = ZOO_MLP_X_SHAPE;
  static float x[ZOO_MLP_X_ELEMENTS], y[ZOO_MLP_Y_ELEMENTS];
  static float step[ZOO_COUNTER_X_ELEMENTS], total[ZOO_COUNTER_Y_ELEMENTS];
  zoo_mlp_inputs in;
  zoo_mlp_outputs out;
  zoo_mlp_model *model;
  zoo_counter_model *counter;
  zoo_counter_inputs one;
  zoo_counter_outputs sum;
  SkModel *other;
  in.x = x;
  out.y = y;
  for (int i = 0; i < ZOO_MLP_X_ELEMENTS; ++i) x[i] = (float)(i % 7) - 3.0f;
  if (zoo_mlp_create(1, &model) != SK_OK) return 1;
  if (zoo_mlp_run(model, &in, &out) != SK_OK) return 2;
  printf("%d %d %d %s\n", (int)shape[0], (int)shape[1], (int)zoo_abi(), zoo_version());
  for (int i = 0; i < ZOO_MLP_Y_ELEMENTS; ++i) printf("%a ", (double)y[i]);
  printf("\n");
  in.x = NULL;
  if (zoo_mlp_run(model, &in, &out) != SK_ERROR_ARGUMENT) return 3;
  fail("null");
  in.x = (const float *)(const void *)((const char *)x + 1);
  if (zoo_mlp_run(model, &in, &out) != SK_ERROR_ARGUMENT) return 4;
  fail("crooked");
  in.x = x;
  out.y = x;
  if (zoo_mlp_run(model, &in, &out) != SK_ERROR_ARGUMENT) return 5;
  fail("same");
  zoo_mlp_destroy(model);
  if (zoo_open("mlp", 1, ZOO_COUNTER_INTERFACE, &other) != SK_ERROR_INTERFACE) return 6;
  fail("header");
  if (zoo_open("elsewhere", 1, 0, &other) != SK_ERROR_MODEL || other != NULL) return 7;
  fail("fourth");
  if (zoo_mlp_create(-1, &model) != SK_ERROR_ARGUMENT) return 12;
  fail("none");
  if (zoo_counter_create(1, &counter) != SK_ERROR_THREADS) return 8;
  fail("few");
  if (zoo_counter_create(4, &counter) != SK_OK) return 9;
  step[0] = -3.0f;
  one.x = step;
  sum.y = total;
  for (int i = 0; i < 3; ++i)
    if (zoo_counter_run(counter, &one, &sum) != SK_OK) return 10;
  if (memcmp(total, zoo_counter_state_total(counter), sizeof total) != 0) return 11;
  printf("%g %g\n", (double)total[0], (double)total[3]);
  zoo_counter_reset(counter);
  printf("%g\n", (double)zoo_counter_state_total(counter)[1]);
  zoo_counter_destroy(counter);
  printf("%s\n", zoo_manifest());
  return 0;
}
"""

TWO_LIBRARIES = r"""
#include <stdio.h>
#include "one.h"
#include "two.h"
int main(void) {
  static float x[ONE_SUMS_X_ELEMENTS], a[ONE_SUMS_Y_ELEMENTS], b[TWO_SUMS_Y_ELEMENTS];
  for (int i = 0; i < ONE_SUMS_X_ELEMENTS; ++i) x[i] = (float)i;
  const one_sums_inputs in_one = {x};
  const two_sums_inputs in_two = {x};
  const one_sums_outputs out_one = {a};
  const two_sums_outputs out_two = {b};
  one_sums_model *one;
  two_sums_model *two;
  if (one_sums_create(2, &one) != SK_OK || two_sums_create(2, &two) != SK_OK) return 1;
  for (int i = 0; i < 3; ++i)
    if (one_sums_run(one, &in_one, &out_one) != SK_OK || two_sums_run(two, &in_two, &out_two) != SK_OK) return 2;
  for (int i = 0; i < ONE_SUMS_Y_ELEMENTS; ++i)
    if (a[i] != 2.0f * x[i] || b[i] != 2.0f * x[i]) return 3;
  return 0;
}
"""


def _sums() -> sk.Graph:
    b = sk.GraphBuilder("sums")
    x = b.input("x", (64, 1024))
    b.output(b.add(x, x), "y")
    return b.graph()


def _counter() -> sk.Graph:
    """A state that adds up what comes in; large enough for two threads."""
    b = sk.GraphBuilder("counter")
    x = b.input("x", (64, 512))
    total = b.state("total", np.full((64, 512), 0.5, np.float32))
    y = b.add(x, total)
    b.update(total, y)
    b.output(y, "y")
    return b.graph()


@dataclass
class Zoo:
    """Kernels, and what was exported of them."""

    folder: Path
    kernels: Mapping[str, list[sk.HostKernel]]
    shared: sk.Library
    static: sk.Library

    def linked(self, source: str, name: str, *flags: str, static: bool = False, compiler: str = "gcc") -> Path:
        """A program of that source."""
        program = self.folder / name
        file = program.with_suffix(".c" if compiler == "gcc" else ".cpp")
        file.write_text(source)
        library = ["libzoo.a", "-lstdc++", "-lm"] if static else ["-L.", "-lzoo", "-Wl,-rpath,$ORIGIN"]
        command = [compiler, "-O1", *WARNINGS, *flags, file.name, *library, "-pthread", "-o", name]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return program


@pytest.fixture(scope="module")
def zoo(tmp_path_factory: pytest.TempPathFactory) -> Zoo:
    folder = tmp_path_factory.mktemp("zoo")
    mlp = models.mlp((64, 256, 32), batch=8)
    kernels = {
        "mlp": [sk.compile(mlp, threads=2), sk.compile(mlp, threads=1)],
        "bytes": [sk.compile(models.quantised_classifier(), threads=n) for n in (1, 2)],
        "counter": [sk.compile(_counter(), threads=2)],
    }
    shared, static = (sk.export(kernels, folder / f"libzoo.{kind}") for kind in ("so", "a"))
    return Zoo(folder, kernels, shared, static)


@pytest.fixture(scope="module")
def programs(zoo: Zoo) -> Mapping[str, Path]:
    return {kind: zoo.linked(ANY_MODEL, f"any-{kind}", static=kind == "static") for kind in ("shared", "static")}


def run(program: Path, model: str, threads: int, inputs: bytes, callers: int = 1, runs: int = 1) -> tuple[bytes, str]:
    command = [str(program), model, str(threads), str(callers), str(runs)]
    done = subprocess.run(command, input=inputs, capture_output=True, env=PLAIN_PATH, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout, done.stderr.decode()


def inputs_of(kernel: sk.Kernel, seed: int) -> dict[str, NDArray[Any]]:
    from superkernel.reference.random_inputs import random_inputs

    return random_inputs(kernel.inputs, seed)


@pytest.mark.parametrize("kind", ["shared", "static"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("model", ["mlp", "bytes"])
def test_results_are_those_of_the_kernel(
    zoo: Zoo, programs: Mapping[str, Path], model: str, threads: int, kind: str
) -> None:
    (kernel,) = (k for k in zoo.kernels[model] if k.threads == threads)
    given = inputs_of(kernel, seed=threads)
    want = b"".join(array.tobytes() for array in kernel.run(given).outputs.values())
    data = b"".join(array.tobytes() for array in given.values())
    found, said = run(programs[kind], model, threads, data, callers=3, runs=5)
    assert found == 3 * want
    assert said == f"{threads} threads"
    assert any(want)


def test_states_go_on(zoo: Zoo, programs: Mapping[str, Path]) -> None:
    (kernel,) = zoo.kernels["counter"]
    given = inputs_of(kernel, 0)
    kernel.reset_states()
    for _ in range(4):
        want = kernel.run(given).outputs["y"]
    found, _ = run(programs["shared"], "counter", 2, given["x"].tobytes(), runs=4)
    assert found == want.tobytes()


@pytest.mark.parametrize(
    ("compiler", "standard", "static"),
    [("gcc", "-std=c99", False), ("g++", "-std=c++17", False), ("gcc", "-std=c17", True)],
)
def test_a_program_for_one_model(zoo: Zoo, compiler: str, standard: str, static: bool) -> None:
    program = zoo.linked(ONE_MODEL, f"one-{compiler}{static}", standard, static=static, compiler=compiler)
    done = subprocess.run([program], capture_output=True, text=True, env=PLAIN_PATH, timeout=120, check=False)
    assert done.returncode == 0, done.stdout
    lines = done.stdout.splitlines()
    x = (np.arange(8 * 64, dtype=np.float32) % 7 - 3).reshape(8, 64)
    y = zoo.kernels["mlp"][1].run(x=x).outputs["y"]
    assert lines[0] == f"8 64 1 {sk.__version__}"
    assert [float.fromhex(word) for word in lines[1].split()] == y.reshape(-1).tolist()
    assert lines[2:9] == [
        "null: input 'x' is null",
        "crooked: input 'x' is not aligned to 4 bytes",
        "same: output 'y' overlaps input 'x'",
        "header: model 'mlp': the program's header is of another export of library zoo",
        "fourth: library zoo has no model 'elsewhere'; it has: mlp, bytes, counter",
        "none: -1 is no number of threads",
        "few: model 'counter' has no plan for 1 threads; the smallest is for 2",
    ]
    assert lines[9:11] == ["-8.5 0.5", "0.5"]
    manifest = Manifest.from_json(json.loads(lines[11]))
    assert manifest == zoo.shared.manifest
    assert manifest.models == {"mlp", "bytes", "counter"}


@pytest.mark.skipif(platform.machine() != "x86_64", reason="constants beyond 1 GB are of x86-64")
@pytest.mark.parametrize("kind", ["so", "a"])
def test_many_constants_lie_behind_all_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(tables, "NEAR_BYTES_MAX", 0)
    kernel = sk.compile(models.mlp((64, 512, 32), batch=4), threads=2)
    library = sk.export(kernel, tmp_path / f"libfar.{kind}")
    (tmp_path / "main.c").write_text(ANY_MODEL.replace("zoo", "far"))
    command = ["gcc", "main.c", "-L.", "-lfar", "-Wl,-rpath,$ORIGIN", "-lstdc++", "-lm", "-pthread", "-o", "program"]
    subprocess.run(command, cwd=tmp_path, check=True)
    given = inputs_of(kernel, 0)
    assert run(tmp_path / "program", "mlp", 2, given["x"].tobytes())[0] == kernel.run(given).outputs["y"].tobytes()
    place = ["readelf", "-SW", library.path if kind == "so" else tmp_path / "program"]
    names = re.findall(r"\] (\.\w+)", subprocess.run(place, capture_output=True, text=True, check=True).stdout)
    assert names.index(".lrodata") > max(names.index(near) for near in (".text", ".rodata", ".got", ".data", ".bss"))


def test_code_keeps_its_names_and_shows_none_to_others(zoo: Zoo) -> None:
    functions = {f for entry in zoo.shared.manifest.kernels.values() for f in entry.functions}
    assert functions
    for library in (zoo.shared.path, zoo.static.path):
        table = subprocess.run(["readelf", "-sW", library], capture_output=True, text=True, check=True).stdout
        rows = [line.split() for line in table.splitlines() if " FUNC " in line]
        assert functions <= {row[7] for row in rows if row[4] == "LOCAL"}
        seen = {row[7] for row in rows if row[4] == "GLOBAL" and row[6] != "UND"}
        assert seen == set(re.findall(r"^\w.*?\b(zoo_\w+)\(", Path(zoo.shared.header).read_text(), re.M)) - INLINE
    stack = subprocess.run(["readelf", "-lW", zoo.shared.path], capture_output=True, text=True, check=True).stdout
    assert [line.split()[-2] for line in stack.splitlines() if "GNU_STACK" in line] == ["RW"]
    needed = subprocess.run(["readelf", "-dW", zoo.shared.path], capture_output=True, text=True, check=True).stdout
    assert not re.findall(r"NEEDED.*(python|LLVM|stdc)", needed)


def test_static_libraries_stand_side_by_side(tmp_path: Path) -> None:
    for name in ("one", "two"):
        sk.export(sk.compile(_sums(), threads=2), tmp_path / f"lib{name}.a")
    (tmp_path / "main.c").write_text(TWO_LIBRARIES)
    command = ["gcc", *WARNINGS, "main.c", "libone.a", "libtwo.a", "-lstdc++", "-lm", "-pthread", "-o", "program"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    subprocess.run([tmp_path / "program"], check=True, timeout=120)


DLOPEN = r"""
import ctypes, os, sys
library, bytes_in, bytes_out, pinned = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
zoo = ctypes.CDLL(library)
zoo.zoo_workers.argtypes = ctypes.c_int64, ctypes.c_int32
zoo.zoo_open.argtypes = ctypes.c_char_p, ctypes.c_int32, ctypes.c_uint64, ctypes.POINTER(ctypes.c_void_p)
zoo.zoo_workers(0, pinned)
model, y = ctypes.c_void_p(), ctypes.create_string_buffer(bytes_out)
x = ctypes.create_string_buffer(sys.stdin.buffer.read(bytes_in), bytes_in)
assert zoo.zoo_open(b"mlp", 2, 0, ctypes.byref(model)) == 0
table = lambda at: (ctypes.c_void_p * 1)(ctypes.addressof(at))
assert zoo.zoo_run(model, table(x), table(y)) == 0
worker = ""
while "sk-worker-1" not in worker:  # a thread takes its name when it begins, which may be after the run
    others = {*os.listdir("/proc/self/task")} - {str(os.getpid())}
    worker = "".join(open(f"/proc/self/task/{task}/status").read() for task in others)
allowed = [line.split()[1] for line in worker.splitlines() if line.startswith("Cpus_allowed_list:")]
zoo.zoo_close.argtypes = (ctypes.c_void_p,)
zoo.zoo_close(model)
ctypes.CDLL(None).dlclose(ctypes.c_void_p(zoo._handle))
sys.stderr.write(allowed[0])
sys.stdout.buffer.write(y.raw)
"""


@pytest.mark.parametrize("pinned", [0, 1])
def test_a_library_that_is_opened_at_run_time(zoo: Zoo, pinned: int) -> None:
    """Without its header, closed again; with threads that keep to a CPU of their own, or do not."""
    kernel = zoo.kernels["mlp"][0]
    (x,), (kind,) = inputs_of(kernel, 0).values(), kernel.outputs.values()
    command = [sys.executable, "-S", "-c", DLOPEN, zoo.shared.path, str(x.nbytes), str(kind.nbytes), str(pinned)]
    done = subprocess.run(command, input=x.tobytes(), capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == kernel.run(x=x).outputs["y"].tobytes()
    cpus = len(os.sched_getaffinity(0))
    assert done.stderr.decode().isdecimal() is (bool(pinned) or cpus == 1)


@pytest.mark.parametrize("compiler", ["g++", "aarch64-linux-gnu-g++"])
def test_sources_compile_without_a_warning(zoo: Zoo, tmp_path: Path, compiler: str) -> None:
    """Those that the extension is not built from, and the tables that are written."""
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    plans = {name: [kernel._compiled for kernel in kernels] for name, kernels in zoo.kernels.items()}
    with open(tmp_path / tables.CONSTANTS_FILE, "wb") as file:
        (tmp_path / "tables.cpp").write_text(tables.Tables(contents("zoo", plans), file).source())
    sources = [*map(str, (SOURCES / "library").glob("*.cpp")), "tables.cpp"]
    command = [compiler, "-std=c++20", *WARNINGS, "-c", f"-I{SOURCES}", f"-I{SOURCES}/include", *sources]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert len(sources) == 3
    assert done.returncode == 0, done.stderr


def _odd() -> sk.Graph:
    """Names that C does not take, results of several types and of no dimensions, one of them twice."""
    b = sk.GraphBuilder("3 odd/names")
    x, y = b.input("int", (2, 3)), b.input("input.1", (2, 3))
    total = b.reduce_sum(b.add(x, y, name="é"), axes=(0, 1), keepdims=False)
    b.output(total, "Input_1")
    b.output(b.greater(x, y), 'line\nbreak "*/')
    b.output(b.cast(b.mul(x, y), dtype="f16"), "3x")
    b.output(total, "again")
    b.output(b.constant(np.arange(4), name="whole"), "whole")
    return b.graph()


ODD = r"""
#include "odd.h"
int main(void) {
  static const float x[ODD_N3_ODD_NAMES_INT__ELEMENTS] = {1, 2, 3, 4, 5, 6};
  static const float y[] = {3, 2, 1, 0, -1, -2};
  float total = 0.0f, again = 0.0f;
  uint8_t greater[ODD_N3_ODD_NAMES_LINE_BREAK_ELEMENTS];
  uint16_t products[ODD_N3_ODD_NAMES_N3X_ELEMENTS];
  int64_t whole[ODD_N3_ODD_NAMES_WHOLE_ELEMENTS];
  odd_n3_odd_names_inputs in;
  odd_n3_odd_names_outputs out;
  odd_n3_odd_names_model *model;
  in.int_ = x;
  in.input_1 = y;
  out.Input_1_2 = &total;
  out.line_break = greater;
  out.n3x = products;
  out.again = &again;
  out.whole = whole;
  if (odd_n3_odd_names_create(1, &model) != SK_OK || odd_n3_odd_names_run(model, &in, &out) != SK_OK) return 1;
  odd_n3_odd_names_destroy(model);
  if (ODD_N3_ODD_NAMES_INPUT_1_2_RANK != 0 || total != 24.0f || again != total) return 2;
  return greater[0] == 0 && greater[3] == 1 && products[0] == 0x4200 && whole[3] == 3 ? 0 : 3;
}
"""


@pytest.mark.parametrize(("compiler", "standard"), [("gcc", "-std=c99"), ("g++", "-std=c++17")])
def test_names_that_c_does_not_take(tmp_path: Path, compiler: str, standard: str) -> None:
    sk.export(sk.compile(_odd(), threads=1), tmp_path / "libodd.so")
    file = "main.c" if compiler == "gcc" else "main.cpp"
    (tmp_path / file).write_text(ODD)
    command = [compiler, standard, *WARNINGS, file, "-L.", "-lodd", "-Wl,-rpath,$ORIGIN", "-o", "program"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert subprocess.run([tmp_path / "program"], check=False, timeout=120).returncode == 0


def test_data_out_of_range_end_a_run(tmp_path: Path) -> None:
    """With a message, on whichever thread; the next run is fine."""
    b = sk.GraphBuilder("grouped")
    x, n = b.input("x", (32, 16)), b.input("n", (3,), "i64")
    b.output(b.grouped_matmul(x, b.constant(np.ones((3, 16, 24), np.float32)), n), name="y")
    kernel = sk.compile(b.graph(), threads=2)
    library = sk.export(kernel, tmp_path / "libgrouped.so")
    rows = np.ones((32, 16), np.float32)
    (where,) = (kernel._compiled.schedule.subops[i].name for i in kernel._compiled.image.checked)
    loaded = ctypes.CDLL(library.path)
    loaded.grouped_message.restype = ctypes.c_char_p
    model, y = ctypes.c_void_p(), np.zeros((32, 24), np.float32)
    assert loaded.grouped_open(b"grouped", 2, ctypes.c_uint64(0), ctypes.byref(model)) == 0
    for counts, status in (([1, 2, 3], 0), ([20, 20, 0], 7), ([3, -1, 2], 7), ([30, 0, 2], 0)):
        given = np.array(counts, np.int64)
        tables = [(ctypes.c_void_p * len(t))(*(a.ctypes.data for a in t)) for t in ((rows, given), (y,))]
        assert loaded.grouped_run(model, *tables) == status
        if status:
            text = f"model 'grouped': the data of '{where}' is out of range"
            assert loaded.grouped_message().decode() == text
        else:
            assert y.tobytes() == kernel.run(x=rows, n=given).outputs["y"].tobytes()
    loaded.grouped_close(model)


def test_another_cpu_is_refused(zoo: Zoo, programs: Mapping[str, Path]) -> None:
    """By an emulated CPU that has no vectors of 32 bytes."""
    emulator, target = shutil.which("qemu-x86_64"), zoo.kernels["mlp"][0]._compiled.target
    if emulator is None or not target.has("avx2"):
        pytest.skip("no emulator of an x86-64 CPU, or no x86-64 CPU with AVX2")
    command = [emulator, "-cpu", "Nehalem", str(programs["shared"]), "mlp", "1", "1", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 10 + 3
    assert done.stderr == "open: 3 library zoo was compiled for a CPU with avx, which this one lacks\n"


def test_all_features_that_code_may_use_are_asked_for() -> None:
    source = (SOURCES / "library/cpu_features.cpp").read_text()
    x86 = {*re.findall(r'^    {"([\w.-]+)", ', source, re.M)}
    assert x86 == {*cpu.AVX2, *cpu.AVX512, *cpu.TILES, *cpu._OPTIONAL}
    assert {*re.findall(r'strcmp\(name, "(\w+)"\)', source)} == {*cpu._ARM_OPTIONAL}


def test_a_fourth_model_is_refused_by_its_key(zoo: Zoo, tmp_path: Path) -> None:
    listed, more = tmp_path / "three.json", tmp_path / "more.json"
    merge(kernels[0].manifest() for kernels in zoo.kernels.values()).save(listed)
    made = sk.export(zoo.kernels, tmp_path / "libthree.so", manifest=listed)
    assert made.manifest == zoo.shared.manifest
    assert not made.idle
    fewer = sk.export({"mlp": zoo.kernels["mlp"]}, tmp_path / "libfewer.so", manifest=listed)
    assert {*fewer.idle} == made.manifest.kernels.keys() - zoo.kernels["mlp"][0].manifest().kernels.keys() != set()
    assert f"needed by none of these models: {fewer.idle[0]}" in str(fewer)
    fourth = sk.compile(models.transformer(layers=1), threads=1)
    with pytest.raises(sk.ManifestError) as caught:
        sk.export({**zoo.kernels, "fourth": fourth}, tmp_path / "libfour.so", manifest=listed)
    text = str(caught.value)
    missing = [e for name, e in fourth.manifest().kernels.items() if name not in made.manifest.kernels]
    assert missing
    assert all(f"key {key}" in text for entry in missing for key in entry.keys)
    assert f"superkernel kernels merge {listed} NEW" in text
    assert not (tmp_path / "libfour.so").exists()
    merge([Manifest.load(listed), fourth.manifest()]).save(more)
    assert "fourth" in sk.export({**zoo.kernels, "fourth": fourth}, tmp_path / "libfour.so", manifest=[more]).models


def test_the_command_line_exports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, graph in (("net", models.mlp(batch=4)), ("sums", _sums())):
        save_json(graph, tmp_path / f"{name}.json")
    net, sums, listed = (str(tmp_path / name) for name in ("net.json", "sums.json", "listed.json"))
    out = str(tmp_path / "libpair.so")
    words = ["export", net, sums, "--threads", "2", "--also-threads", "1", "-o", out, "--json"]
    assert main(words) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["models"] == {"net": [1, 2], "sums": [1, 2]}
    assert Path(said["header"]) == tmp_path / "pair.h"
    assert said["file_bytes"] == Path(out).stat().st_size > said["code_bytes"] + said["constant_bytes"]
    assert main(["kernels", "dump", net, "--threads", "1", "-o", listed]) == 0
    capsys.readouterr()
    assert main(["export", sums, "--threads", "1", "--manifest", listed, "-o", out]) == 3
    assert "the manifest does not list the kernel that it needs" in capsys.readouterr().err
    assert main(["compile", net, "--threads", "2", "-o", str(tmp_path / "saved.skm")]) == 0
    capsys.readouterr()
    assert main(["export", str(tmp_path / "saved.skm"), "-o", out, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["models"] == {"saved": [2]}
    assert set(again["kernels"]) < set(said["kernels"])
    assert main(["export", net, net, "-o", out]) == 2
    assert "two models of one name" in capsys.readouterr().err


def test_what_cannot_be_exported_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, out = sk.compile(_sums(), threads=1), tmp_path / "libx.so"
    for name in ("x.so", "libx.dll", "lib.so", "lib2.so", "libint.so", "lib a.so"):
        with pytest.raises(sk.InputError, match=r"not (a|the) name (of|for) a library"):
            sk.export(kernel, tmp_path / name)
    with pytest.raises(sk.InputError, match="a library of no models"):
        sk.export([], out)
    with pytest.raises(sk.InputError, match="not a kernel"):
        sk.export({"x": out}, out)  # type: ignore[dict-item]
    with pytest.raises(sk.InputError, match="not a name for a model"):
        sk.export({3: kernel}, out)  # type: ignore[dict-item]
    with pytest.raises(sk.InputError, match=r"two kernels for one number of threads; .*found \[1, 1\]"):
        sk.export([kernel, kernel], out)
    with pytest.raises(sk.InputError, match="kernels of two models under one name"):
        sk.export({"x": [kernel, sk.compile(models.mlp(), threads=2)]}, out)
    with pytest.raises(sk.InputError, match="names of two models are one in C"):
        sk.export({"a": kernel, "a x": kernel}, out)
    with pytest.raises(sk.UnsupportedError, match="a kernel with dumps"):
        sk.export(sk.compile(_sums(), threads=1, options={"dump": ("y",)}), out)
    with pytest.raises(sk.UnsupportedError, match="libraries are of kernels for the host"):
        sk.export(sk.compile(_sums(), target="mini"), out)
    b = sk.GraphBuilder("elsewhere")
    b.output(b.gemm(b.input("x", (4, 8)), b.input("w", (8, 4))), "y")
    with pytest.raises(sk.UnsupportedError, match="sub-operators that NumPy computes"):
        sk.export(sk.compile(b.graph(), threads=1, options={"fallback": "allow", "simplify": False}), out)
    with pytest.raises(sk.MachineError, match="no 'absent-compiler'"):
        sk.export(kernel, out, compiler="absent-compiler")
    with pytest.raises(sk.MachineError, match="not a C\\+\\+ compiler"):
        sk.export(kernel, out, compiler="false")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(sk.MachineError, match=r"expected c\+\+ or g\+\+ or clang\+\+; .*apt install"):
        sk.export(kernel, out)
    assert not out.exists()
