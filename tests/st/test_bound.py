"""Kernels on fixed buffers: run from Python, from several threads, and as a C function from a C program's loop."""

from __future__ import annotations

import ctypes
import gc
import re
import subprocess
import sys
import textwrap
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import superkernel as sk
from superkernel import _core

ROOT = Path(__file__).parents[2]


def add_graph(size: int = 64) -> sk.Graph:
    b = sk.GraphBuilder("add")
    x, y = b.input("x", (2, size), "f32"), b.input("y", (size,), "f32")
    b.output(b.softmax(x + y, axis=-1), name="p")
    b.output(b.neg(x), name="minus")
    return b.graph()


def state_graph() -> sk.Graph:
    b = sk.GraphBuilder("count")
    step = b.input("step", (8,), "f32")
    total = b.state("total", np.zeros(8, np.float32))
    after = total + step
    b.update(total, after)
    b.output(b.neg(after), name="minus")
    return b.graph()


FALLBACK = {"deny": ("host.softmax*",), "fallback": "allow"}


@pytest.fixture(params=["kernels", "fallback"])
def kernel(request: pytest.FixtureRequest) -> sk.Kernel:
    options = FALLBACK if request.param == "fallback" else {}
    made = sk.compile(add_graph(), threads=2, options=options)
    assert bool(made.summary()["fallbacks"]) == (request.param == "fallback")
    return made


@pytest.fixture
def inputs(rng: np.random.Generator) -> dict[str, Any]:
    return {"x": rng.standard_normal((2, 64), np.float32), "y": rng.standard_normal(64, np.float32)}


def call(bound: Any) -> int:
    """The C function, called through ctypes."""
    code: int = bound.function(bound.self_address)
    return code


@pytest.mark.parametrize("how", ["run", "run_bound", "function"])
def test_a_run_reads_and_writes_the_live_arrays(kernel: sk.Kernel, inputs: dict[str, Any], how: str) -> None:
    mine = np.full((2, 64), np.nan, np.float32)
    bound = kernel.bind(inputs["x"], y=inputs["y"], outputs={"minus": mine})
    assert bound.inputs["x"] is inputs["x"]
    assert bound.outputs["minus"] is mine
    assert list(bound.outputs) == ["p", "minus"]
    for factor in (1, 3):
        inputs["x"][...] *= factor
        assert {"run": bound.run, "run_bound": kernel.run_bound, "function": lambda: call(bound)}[how]() in (None, 0)
        p, minus = kernel(**inputs)
        np.testing.assert_array_equal(bound.outputs["p"], p)
        np.testing.assert_array_equal(mine, minus)


def test_states_are_the_kernels_own() -> None:
    kernel = sk.compile(state_graph(), threads=2)
    step = np.ones(8, np.float32)
    first, second = kernel.bind(step), kernel.bind(step=step)
    first.run()
    second.run()
    assert call(first) == 0
    kernel(step)
    np.testing.assert_array_equal(kernel.states["total"], np.full(8, 4, np.float32))
    assert first.states["total"] is kernel.states["total"]
    kernel.reset_states()
    second.run()
    np.testing.assert_array_equal(second.outputs["minus"], -step)


def test_every_bad_buffer_is_named(inputs: dict[str, Any]) -> None:
    kernel = sk.compile(add_graph(), threads=1)
    x, y = inputs["x"], inputs["y"]
    for bad, says in [
        (x.astype(np.float64), "wrong type"),
        (x[:1], "wrong type"),
        (np.asfortranarray(x), "not dense"),
        (x.tolist(), "no memory"),
        (np.ma.masked_array(x), "no memory"),
        (x.view(x.dtype.newbyteorder()), "wrong type"),
        (np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(2, 64), "aligned"),
    ]:
        with pytest.raises(sk.InputError, match=says):
            kernel.bind(bad, y)
    with pytest.raises(sk.InputError) as caught:
        kernel.bind(x[:1], y.astype(np.int32))
    assert [v.location for v in caught.value.violations] == ["input 'x'", "input 'y'"]
    with pytest.raises(sk.InputError, match="input 'y': missing"):
        kernel.bind(x)
    read_only = np.zeros((2, 64), np.float32)
    read_only.flags.writeable = False
    for outputs, says in [
        ({"p": read_only}, "read-only"),
        ({"p": np.zeros(3, np.float32)}, "output 'p'"),
        ({"q": read_only}, "unknown output 'q'"),
        ([read_only], "not a mapping"),
    ]:
        with pytest.raises(sk.InputError, match=says):
            kernel.bind(x, y, outputs=outputs)  # type: ignore[arg-type]
    kernel.bind(read_only, y).run()


def test_what_is_written_shares_memory_with_nothing() -> None:
    kernel, counting = sk.compile(add_graph(), threads=1), sk.compile(state_graph(), threads=1)
    memory = np.zeros(1024, np.float32)
    x, y = memory[:128].reshape(2, 64), memory[64:128]
    kernel.bind(x, y).run()  # inputs may overlap
    for start in (0, 100, 127):
        with pytest.raises(sk.InputError, match=r"output 'p'.*: shares memory"):
            kernel.bind(x, y, outputs={"p": memory[start : start + 128].reshape(2, 64)})
    both = {"p": memory[200:328].reshape(2, 64), "minus": memory[320:448].reshape(2, 64)}
    with pytest.raises(sk.InputError, match="output 'p' and output 'minus'"):
        kernel.bind(x, y, outputs=both)
    kernel.bind(x, y, outputs={**both, "minus": memory[328:456].reshape(2, 64)}).run()
    with pytest.raises(sk.InputError, match="state 'total'"):
        counting.bind(counting.states["total"])


def test_buffers_stay_where_they_are(inputs: dict[str, Any]) -> None:
    """The binding keeps kernel and arrays alive, and an array cannot be resized in place under its feet."""
    kernel = sk.compile(add_graph(), threads=2)
    mine = np.empty((2, 64), np.float32)
    kept = weakref.ref(mine)
    bound = kernel.bind(**inputs, outputs={"minus": mine})
    for array in (*inputs.values(), mine):
        with pytest.raises(ValueError, match="resize"):
            array.resize((4096,), refcheck=False)
    expected = kernel(**inputs)[1]
    del mine, kernel, array
    gc.collect()
    bound.run()
    np.testing.assert_array_equal(bound.outputs["minus"], expected)
    bound.close()
    gc.collect()
    assert kept() is None


def test_closed(kernel: sk.Kernel, inputs: dict[str, Any]) -> None:
    with kernel.bind(**inputs) as bound:
        bound.run()
        function, pointer = bound.function, bound.self_address
    assert bound.closed
    bound.close()
    for run in (bound.run, kernel.run_bound):
        with pytest.raises(sk.InputError, match="closed"):
            run()
    assert function(pointer) == _core.CALL_CODES["closed"]
    assert "closed" in repr(bound)
    kernel(**inputs)
    kernel.bind(**inputs)
    kernel.run_bound()


def test_run_bound_before_bind() -> None:
    with pytest.raises(sk.InputError, match="no buffers are bound"):
        sk.compile(add_graph(), threads=1).run_bound()


def test_a_binding_is_not_made_by_hand() -> None:
    with pytest.raises(TypeError, match=r"Kernel\.bind"):
        _core.BoundCall().run()
    assert _core.BoundCall().closed


def test_an_accelerator_has_no_buffers_to_bind() -> None:
    b = sk.GraphBuilder("g")
    b.output(b.relu(b.input("x", (16,), "f16")), name="y")
    with pytest.raises(sk.UnsupportedError, match="host only"):
        sk.compile(b.graph(), target="mini").bind(np.zeros(16, np.float16))


def test_threads_take_turns_and_one_of_them_closes(kernel: sk.Kernel, inputs: dict[str, Any]) -> None:
    """Python calls, bound runs and C calls of one kernel at once; a close in between ends only its own binding."""
    expected = kernel(**inputs)[0]
    bounds = [kernel.bind(**inputs) for _ in range(3)]
    wrong: list[Any] = []
    codes: list[int] = []

    def work(number: int) -> None:
        try:
            for i in range(300):
                if number == 0:
                    bounds[0].run()
                elif number == 1:
                    codes.append(call(bounds[1]))
                elif number == 2 and not np.array_equal(kernel(**inputs)[0], expected):
                    wrong.append("another result")
                elif number == 3 and i < 100:
                    bounds[2].run()
                elif number == 3:
                    bounds[2].close()
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong
    assert set(codes) == {0}
    for bound in bounds[:2]:
        np.testing.assert_array_equal(bound.outputs["p"], expected)


def test_an_exception_of_numpys_part(monkeypatch: pytest.MonkeyPatch, inputs: dict[str, Any]) -> None:
    """`run` raises it, the C function says so and keeps it; the kernel runs again."""
    kernel = sk.compile(add_graph(), threads=2, options=FALLBACK)
    bound = kernel.bind(**inputs)
    bound.run()
    expected = bound.outputs["p"].copy()

    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("inside")

    with monkeypatch.context() as patch:
        patch.setattr("superkernel.backends.fallback.run_reference", broken)
        with pytest.raises(ZeroDivisionError, match="inside"):
            bound.run()
        assert bound.error is None
        assert call(bound) == _core.CALL_CODES["python_error"]
        assert isinstance(bound.error, ZeroDivisionError)
    bound.outputs["p"][...] = 0
    assert call(bound) == 0
    np.testing.assert_array_equal(bound.outputs["p"], expected)


def test_codes_are_those_of_the_header() -> None:
    text = (Path(sk.get_include()) / "superkernel_call.h").read_text()
    found = {name.lower(): int(value) for name, value in re.findall(r"SK_CALL_(\w+) = (\d+)", text)}
    assert found == _core.CALL_CODES


C_PROGRAM = """
#include <superkernel_call.h>

/* Counts up in the input buffer and launches; the number of launches that failed or summed up wrong. */
int run_many(SkCallFunction function, void* self, float* step, const float* minus, int times) {
  int wrong = 0;
  float total = 0.0f;
  for (int i = 0; i < times; ++i) {
    step[0] = (float)(i % 4);
    total += step[0];
    if (function(self) != SK_CALL_OK) ++wrong;
    if (minus[0] != -total) ++wrong;
  }
  return wrong;
}
"""


def test_a_c_program_runs_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "program.c").write_text(C_PROGRAM)
    flags = ["-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic", "-shared", "-fPIC", f"-I{sk.get_include()}"]
    subprocess.run(["gcc", *flags, "-o", "program.so", "program.c"], check=True, cwd=tmp_path, timeout=120)
    program = ctypes.CDLL(str(tmp_path / "program.so"))
    kernel = sk.compile(state_graph(), threads=2)
    bound = kernel.bind(np.zeros(8, np.float32))
    step, minus = bound.inputs["step"], bound.outputs["minus"]
    arguments = (bound.function_address, bound.self_address, step.ctypes.data, minus.ctypes.data)
    assert program.run_many(*map(ctypes.c_void_p, arguments), 1000) == 0
    assert kernel.states["total"][0] == 1500


def test_ctrl_c_forks_and_the_end_of_the_process() -> None:
    """A loop of bound runs is interrupted; a child runs the binding; live bindings do not disturb the exit."""
    body = """
        import os, signal, threading, warnings, numpy as np, superkernel as sk
        warnings.simplefilter("ignore")
        signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored where the tests were started
        b = sk.GraphBuilder("g")
        b.output(b.softmax(b.relu(b.input("x", (16, 64), "f32"))), name="y")
        kernel = sk.compile(b.graph(), threads=2)
        bound = kernel.bind(np.ones((16, 64), np.float32))
        try:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()  # here: it may come early
            while True: bound.run()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        child = os.fork()
        if child == 0:
            bound.run()
            kernel(bound.inputs["x"])
            os._exit(bound.function(bound.self_address))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        work = lambda: [bound.function(bound.self_address) for _ in range(10**7)]
        threading.Thread(target=work, daemon=True).start()
    """
    command = [sys.executable, "-X", "faulthandler", "-c", textwrap.dedent(body)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["interrupted", "0"], "")
