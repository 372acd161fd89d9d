"""A process that a kernel ends says which sub-operator it was: once, ahead of whoever had the signal before, and only
where the fault is in generated code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

HEAD = """
import ctypes, os, signal, sys
import numpy as np
import superkernel as sk
b = sk.GraphBuilder("crash")
x, y = b.input("x", (4096, 64)), b.input("y", (4096, 64))
h = b.softmax(x + x)
b.output(b.softmax(h * y), "z")
kernel = sk.compile(b.graph(), threads=2, options={"fuse": False})
ones = np.ones((4096, 64), np.float32)
kernel.run({"x": ones, "y": ones})
ones.tofile("values")
mapped = np.memmap("values", np.float32, "r", shape=(4096, 64))
"""
CUT_OFF = """
os.truncate("values", 0)
kernel.run({"x": ones, "y": mapped})
"""
OVERFLOW = """
import threading
from superkernel import _core
from superkernel.codegen.host.features import detect_cpu
from superkernel.codegen.host.loader import LoadedCode
from superkernel.codegen.host.lower import compile_ir
text = '''
define i32 @entry(ptr %ctx, i32 %core) {
  %mine = icmp eq i32 %core, CORE
  br i1 %mine, label %deep, label %done
deep:
  %r = call i64 @task(i64 0)
  br label %done
done:
  ret i32 0
}
define i64 @task(i64 %n) noinline {
  %r = call i64 @recurse(i64 %n)
  %s = add i64 %r, 1
  ret i64 %s
}
define i64 @recurse(i64 %n) noinline {
  %frame = alloca [64 x i64]
  store volatile i64 %n, ptr %frame
  %seen = load volatile i64, ptr %frame
  %ends = icmp eq i64 %seen, -1
  br i1 %ends, label %done, label %deeper
deeper:
  %next = add i64 %seen, 1
  %r = call i64 @recurse(i64 %next)
  %again = load volatile i64, ptr %frame
  %s = add i64 %r, %again
  ret i64 %s
done:
  ret i64 0
}'''
code = LoadedCode([compile_ir(text, detect_cpu())])
names = {"task": "sub-operator 7 ('deep') on core CORE"}
known = _core.KnownCode([(b, b + n, names.get(f, f), f in names) for f, b, n in code.functions()])
kernel = _core.Kernel(entry=code.address("entry"), single=0, profiled=0, cores=2, arena_bytes=64, scratch_bytes=64,
                      constants=None, io_count=0, sets=[], subops=0, events_words=0, keepalive=code)
threading.stack_size(1 << 20)
caller = threading.Thread(target=lambda: kernel.run([]))
caller.start()
caller.join()
"""


def ended(tail: str, directory: Path, *words: str, head: str = HEAD, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, *words, "-c", head + tail], cwd=directory, capture_output=True, text=True, timeout=120,
        check=False, env={**os.environ, "PYTHONFAULTHANDLER": "", **environment},
    )  # fmt: skip
    return done.returncode, done.stderr


def test_a_kernel_that_ends_the_process_is_named(tmp_path: Path) -> None:
    """Its input is a file that was cut off: whichever core reads it first, the sub-operator is the product."""
    status, said = ended(CUT_OFF, tmp_path)
    assert status == -signal.SIGBUS, said
    assert said.count("a kernel ends the process: SIGBUS at address 0x") == 1
    assert "sub-operator 2 ('mul_0') on core " in said
    assert "Fatal Python error" not in said


def test_who_had_the_signal_before_has_it_afterwards(tmp_path: Path) -> None:
    status, said = ended(CUT_OFF, tmp_path, "-X", "faulthandler")
    assert status == -signal.SIGBUS
    assert said.index("sub-operator 2 ('mul_0')") < said.index("Fatal Python error: Bus error")


@pytest.mark.parametrize(
    ("tail", "environment"),
    [
        (CUT_OFF, {"SK_CRASH_REPORTS": "off"}),
        ('os.truncate("values", 0)\nprint(mapped[0])', {}),
        ("os.kill(os.getpid(), signal.SIGBUS)", {}),
    ],
    ids=("switched off", "other code", "sent"),
)
def test_what_is_no_kernels_fault_is_not_told(tail: str, environment: dict[str, str], tmp_path: Path) -> None:
    assert ended(tail, tmp_path, **environment) == (-signal.SIGBUS, "")


@pytest.mark.parametrize("words", [(), ("-X", "faulthandler")], ids=("alone", "chained"))
@pytest.mark.parametrize("core", [0, 1], ids=("caller", "worker"))
def test_a_stack_that_is_used_up_is_told_on_another_one(core: int, words: tuple[str, ...], tmp_path: Path) -> None:
    """The task is as far away as the stack is large."""
    status, said = ended(OVERFLOW.replace("CORE", str(core)), tmp_path, *words, head="")
    assert status == -signal.SIGSEGV, said
    assert said.count("a kernel ends the process: SIGSEGV at address 0x") == 1
    assert f" (its stack is used up), in sub-operator 7 ('deep') on core {core}, recurse+0x" in said
    assert ("Fatal Python error: Segmentation fault" in said) is bool(words)
