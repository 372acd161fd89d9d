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


def ended(tail: str, directory: Path, *words: str, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, *words, "-c", HEAD + tail], cwd=directory, capture_output=True, text=True, timeout=120,
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
