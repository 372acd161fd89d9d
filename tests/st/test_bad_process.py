"""What could end a process or hang it: traps, memory that is not there, signals, forks, threads, exits. Each case that
might do so runs in a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import superkernel as sk
from superkernel.core.dtypes import DType

PRELUDE = """
import os, signal, sys, threading, time, warnings
import numpy as np
import superkernel as sk
import superkernel._core
warnings.simplefilter("error")
warnings.simplefilter("ignore", sk._core.OversubscriptionWarning)  # of a machine with one CPU
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that runs the tests behind it has it ignored

def chain(size=4096, depth=3):
    b = sk.GraphBuilder("chain")
    h = b.input("x", (64, size), "f32")
    for i in range(depth):
        h = b.softmax(b.relu(h) + np.float32(i), axis=-1)
    b.output(h, name="y")
    return b.graph()

x = np.ones((64, 4096), np.float32)
"""


def python(body: str, timeout_s: float = 120, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs `body` behind the prelude in a fresh interpreter."""
    command = [sys.executable, "-X", "faulthandler", "-c", PRELUDE + textwrap.dedent(body)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, **options)


def said(body: str, **options: Any) -> str:
    """stdout of a `body` that ends well."""
    done = python(body, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


# Arithmetic -----------------------------------------------------------------------------------------------------------


def test_integer_division_never_traps() -> None:
    """By zero gives 0, the least integer by -1 wraps; with divisors that come as data and as constants."""
    integers = [d for d in DType if d.is_integer and not d.is_small]
    b = sk.GraphBuilder("division")
    inputs: dict[str, Any] = {}
    constant: dict[str, Any] = {}
    for dtype in integers:
        info = np.iinfo(dtype.numpy)
        top = np.array([info.min, info.max, 5, 0, info.min, 7] * 6, dtype.numpy)
        bottom = np.array([-1 if info.min else 1, 0, 0, 0, 0, 2] * 6, dtype.numpy)
        inputs[f"{dtype}_a"], inputs[f"{dtype}_c"] = top, bottom
        a = b.input(f"{dtype}_a", top.shape, dtype)
        c = b.input(f"{dtype}_c", bottom.shape, dtype)
        for name, divisor in (("data", c), ("constant", b.constant(bottom))):
            b.output(b.div(a, divisor), name=f"{dtype}_div_{name}")
            b.output(b.mod(a, divisor), name=f"{dtype}_mod_{name}")
        constant[str(dtype)] = [info.min if info.min else 0, 0, 0, 0, 0, 3]
    outputs = sk.compile(b.graph(), threads=2).run(inputs).outputs
    for dtype in integers:
        for name in ("data", "constant"):
            np.testing.assert_array_equal(outputs[f"{dtype}_div_{name}"][:6], constant[str(dtype)])
            np.testing.assert_array_equal(outputs[f"{dtype}_div_{name}"], outputs[f"{dtype}_div_data"])
            np.testing.assert_array_equal(outputs[f"{dtype}_mod_{name}"], outputs[f"{dtype}_mod_data"])


# Memory ---------------------------------------------------------------------------------------------------------------


def test_memory_that_is_not_there_is_an_error() -> None:
    """An arena of 35 TB is refused when compiling, an output of 16 TB when running; the process goes on."""
    body = """
        b = sk.GraphBuilder("huge")
        a, c = b.input("a", (1 << 21, 1), "f32"), b.input("c", (1, 1 << 21), "f32")
        b.output(b.reduce_max(b.softmax(b.matmul(a, c)), axes=(0, 1)), name="y")
        try:
            sk.compile(b.graph())
        except sk.MachineError as error:
            print(error)
        b = sk.GraphBuilder("wide")
        b.output(b.neg(b.expand(b.input("x", (1,), "f32"), shape=(1 << 42,))), name="y")
        kernel = sk.compile(b.graph())
        for run in (lambda: kernel(np.ones(1, np.float32)), lambda: kernel.report(rounds=1)):
            try:
                run()
            except sk.MachineError as error:
                print(error)
        print(sk.compile(chain(), threads=2)(x).shape)
    """
    lines = said(body).splitlines()
    assert "not enough memory" in lines[0]
    assert all("not enough memory for the outputs" in line for line in lines[1:3])
    assert lines[3] == "(64, 4096)"


def test_a_process_whose_memory_is_used_up_survives_compiling() -> None:
    """One more MB than it has: LLVM needs more, but not here."""
    body = """
        import resource
        sk.compile(chain(depth=1), threads=2, options={"cache": False})
        pages = int(open("/proc/self/statm").read().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (1 << 20),) * 2)
        try:
            sk.compile(chain(), threads=2, options={"cache": False})
        except (sk.MachineError, MemoryError):
            pass
        print("alive")
    """
    assert said(body) == "alive"


def test_a_process_without_room_for_llvm_says_so() -> None:
    body = """
        import resource
        pages = int(open("/proc/self/statm").read().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (60 << 20), resource.RLIM_INFINITY))
        try:
            sk.compile(chain(depth=1), threads=2)
        except sk.MachineError as error:
            print(error)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY,) * 2)
        print(sk.compile(chain(depth=1), threads=2)(x).shape)
    """
    lines = said(body, env={**os.environ, "SK_CACHE_DIR": "off"}).splitlines()
    assert "LLVM cannot be loaded" in lines[0]
    assert "ulimit -v" in lines[0]
    assert lines[1:] == ["(64, 4096)"]


def test_compiling_does_not_make_the_process_grow() -> None:
    """LLVM as it is bound keeps some 200 KB of each module."""
    body = """
        def resident():
            return int(open("/proc/self/statm").read().split()[1]) * 4096
        for n in range(40):
            sk.compile(chain(8 + n, depth=1), threads=1, options={"cache": False})
            if n == 9:
                before = resident()
        print((resident() - before) // 30)
    """
    assert int(said(body)) < 60_000


# Signals --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "work",
    ["while True: kernel(x)", "kernel.time({'x': x}, rounds=10_000_000)"],
    ids=["loop", "time"],
)
def test_ctrl_c_ends_work_and_the_kernel_runs_again(work: str) -> None:
    body = f"""
        kernel = sk.compile(chain(), threads=2)
        expected = kernel(x)
        try:
            print("ready", flush=True)
            {work}
        except KeyboardInterrupt:
            print("interrupted", np.array_equal(kernel(x), expected), flush=True)
    """
    script = PRELUDE + textwrap.dedent(body)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready"
        time.sleep(0.2)
        sent = time.monotonic()
        process.send_signal(signal.SIGINT)
        try:
            out, _ = process.communicate(timeout=120)
        finally:
            process.kill()
    assert (out.strip(), process.returncode) == ("interrupted True", 0)
    assert time.monotonic() - sent < 5


def test_ctrl_c_of_the_command_line(tmp_path: Path) -> None:
    """`superkernel run` that is interrupted says so and ends with 130."""
    body = """
        import superkernel.cli
        from superkernel.runtime.kernel import Kernel
        def run(self, *args, **named):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(10)
        Kernel.run = run
        from superkernel.frontends.json_form import save_json
        save_json(chain(), os.environ["MODEL"])
        sys.exit(superkernel.cli.main(["run", os.environ["MODEL"], "--random-inputs", "0"]))
    """
    done = python(body, env={**os.environ, "MODEL": str(tmp_path / "m.json")})
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.strip() == "superkernel: interrupted"


def test_ctrl_c_while_the_command_line_is_loaded() -> None:
    body = """
        class Interrupting:
            def find_spec(self, name, path=None, target=None):
                if name == "superkernel.cli":
                    os.kill(os.getpid(), signal.SIGINT)
                    time.sleep(10)
        sys.meta_path.insert(0, Interrupting())
        from superkernel.__main__ import main
        sys.exit(main())
    """
    done = python(body)
    assert (done.returncode, done.stdout) == (130, "")
    assert done.stderr.strip() == "superkernel: interrupted"


def test_ctrl_c_in_code_that_is_text_is_no_other_end(tmp_path: Path) -> None:
    """CPython remembers an interrupt that came out of `exec` of a string, and would end `python -m` by the signal."""
    (tmp_path / "sitecustomize.py").write_text(
        textwrap.dedent("""
            import signal, sys
            signal.signal(signal.SIGINT, signal.default_int_handler)
            class Interrupting:
                def find_spec(self, name, path=None, target=None):
                    if name == "superkernel.cli":
                        exec("import os, signal, time; os.kill(os.getpid(), signal.SIGINT); time.sleep(10)")
            sys.meta_path.insert(0, Interrupting())
        """)
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "superkernel", "--help"]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "superkernel: interrupted\n")


# Processes and threads ------------------------------------------------------------------------------------------------


def test_a_forked_child_compiles_and_runs() -> None:
    body = """
        warnings.simplefilter("ignore", DeprecationWarning)  # fork of a process with threads
        kernel = sk.compile(chain(), threads=2)
        expected = kernel(x)
        child = os.fork()
        if child == 0:
            good = np.array_equal(kernel(x), expected)
            good &= np.array_equal(sk.compile(chain(), threads=2, options={"cache": False})(x), expected)
            os._exit(0 if good else 7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), np.array_equal(kernel(x), expected))
    """
    assert said(body) == "0 True"


def test_a_child_of_multiprocessing_runs_kernels_with_fallbacks() -> None:
    """A host call (an operator on NumPy) needs Python inside the launch, in the child too."""
    body = """
        import multiprocessing
        warnings.simplefilter("ignore", DeprecationWarning)
        kernel = sk.compile(chain(), threads=2, options={"deny": ["host.softmax*"], "fallback": "allow"})
        assert kernel.summary()["fallbacks"]
        expected = kernel(x)
        def work(queue):
            queue.put(kernel(x).sum())
        context = multiprocessing.get_context("fork")
        queue = context.SimpleQueue()
        child = context.Process(target=work, args=(queue,))
        child.start()
        print(queue.get() == expected.sum(), child.join(), child.exitcode)
    """
    assert said(body) == "True None 0"


def test_a_child_runs_kernels_with_fallbacks_that_another_thread_was_running() -> None:
    """The lock of such a kernel was held by a thread that the child does not have."""
    body = """
        warnings.simplefilter("ignore", DeprecationWarning)
        kernel = sk.compile(chain(), threads=2, options={"deny": ["host.softmax*"], "fallback": "allow"})
        expected = kernel(x)
        threading.Thread(target=lambda: [kernel(x) for _ in range(10**6)], daemon=True).start()
        for _ in range(3):
            time.sleep(0.02)
            child = os.fork()
            if child == 0:
                os._exit(0 if np.array_equal(kernel(x), expected) else 7)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    assert said(body).split() == ["0"] * 3


def test_a_kernel_with_fallbacks_that_is_run_from_inside_itself() -> None:
    """As a signal handler may do: refused, and the outer run ends well."""
    body = """
        import superkernel.backends.fallback as host
        kernel = sk.compile(chain(), threads=2, options={"deny": ["host.softmax*"], "fallback": "allow"})
        expected = kernel(x)
        before, said = host.run_reference, []
        def inside(*arguments, **named):
            try:
                kernel(x)
            except sk.InputError as error:
                said.append(error)
            return before(*arguments, **named)
        host.run_reference = inside
        print(np.array_equal(kernel(x), expected), len(said))
    """
    assert said(body) == "True 3"


@pytest.mark.parametrize(
    "end",
    [
        "sys.exit(0)",
        "threading.Thread(target=lambda: [kernel(x) for _ in range(10**6)], daemon=True).start(); time.sleep(0.1)",
        "import atexit; atexit.register(lambda: kernel(x))",
        "threading.Thread(target=lambda: [sk.compile(chain(8 + n), threads=2, options={'cache': False}) "
        "for n in range(10**6)], daemon=True).start(); time.sleep(1)",
    ],
    ids=["exit", "daemon", "atexit", "compiling"],
)
def test_exit_with_live_kernels(end: str) -> None:
    done = python(f"kernel = sk.compile(chain(), threads=2)\nkernel(x)\n{end}\n")
    assert (done.returncode, done.stderr) == (0, "")


def graph_of_rows() -> sk.Graph:
    b = sk.GraphBuilder("rows")
    b.output(b.softmax(b.relu(b.input("x", (32, 64), "f32")), axis=-1), name="y")
    return b.graph()


def test_many_threads_compile_and_call_at_once(rng: np.random.Generator) -> None:
    """Python's threads compile the same graph and call a shared kernel; every result is the same bits."""
    x = rng.standard_normal((32, 64), dtype=np.float32)
    shared = sk.compile(graph_of_rows(), threads=2)
    expected = shared(x)
    wrong: list[BaseException | str] = []

    def work() -> None:
        try:
            own = sk.compile(graph_of_rows(), threads=2)
            for kernel in (own, shared) * 20:
                if not np.array_equal(kernel(x), expected):
                    wrong.append("another result")
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong


def test_inside_an_event_loop(rng: np.random.Generator) -> None:
    """As in a notebook: directly in a coroutine and in the loop's worker threads."""
    x = rng.standard_normal((32, 64), dtype=np.float32)

    async def cell() -> list[Any]:
        kernel = sk.compile(graph_of_rows(), threads=2)
        return [kernel(x), *await asyncio.gather(*(asyncio.to_thread(kernel, x) for _ in range(4)))]

    results = asyncio.run(cell())
    for result in results[1:]:
        np.testing.assert_array_equal(result, results[0])


def test_an_exception_of_a_host_call_comes_out_of_the_call(
    monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """An operator on NumPy that fails: its own exception is raised, and the kernel runs again afterwards."""
    options = {"deny": ("host.softmax*",), "fallback": "allow"}
    kernel = sk.compile(graph_of_rows(), threads=2, options=options)
    x = rng.standard_normal((32, 64), dtype=np.float32)
    expected = kernel(x)

    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("inside")

    with monkeypatch.context() as patch:
        patch.setattr("superkernel.backends.fallback.run_reference", broken)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError, match="inside"):
                kernel(x)
    np.testing.assert_array_equal(kernel(x), expected)
