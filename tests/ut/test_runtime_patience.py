"""What the runtime learns of the machine while it runs: who takes its CPUs, what waking costs, which way is faster."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

CSRC = Path(__file__).resolve().parents[2] / "csrc"
CXX = os.environ.get("CXX", "g++")


@pytest.mark.skipif(shutil.which(CXX) is None, reason="no C++ compiler")
def test_what_is_learned(tmp_path: Path) -> None:
    probe = tmp_path / "probe"
    flags = ("-std=c++20", "-O1", "-Wall", "-Wextra", f"-I{CSRC}", f"-I{CSRC / 'include'}")
    subprocess.run([CXX, *flags, Path(__file__).with_name("patience_probe.cpp"), "-o", probe], check=True)
    done = subprocess.run([probe], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")
