"""Thousands of compilations and launches in one process (tests/endurance.py): a slice here, all of it in a soak run."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading
from pathlib import Path

import endurance
import pytest
import soak

PROGRAM = Path(__file__).parents[1] / "endurance.py"


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("kind", "part", "whole"), [("compilations", 56, 10_000), ("launches", 6_000, 1_000_000)])
def test_nothing_grows_and_nothing_is_wrong(kind: str, part: int, whole: int) -> None:
    command = [sys.executable, str(PROGRAM), kind, str(whole if soak.enabled else part)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("nothing grew, nothing was wrong\n")


class Leak:
    """Something that is kept."""

    def __init__(self) -> None:
        self.kept: list[object] = []
        self.handles: list[int] = []
        self.over = threading.Event()

    def handle(self, _: int) -> None:
        self.handles.append(os.open(os.devnull, os.O_RDONLY))

    def thread(self, _: int) -> None:
        threading.Thread(target=self.over.wait).start()

    def memory(self, _: int) -> None:
        pages = mmap.mmap(-1, 8 << 20)  # of the system: the heap may have as much to spare
        pages.write(b"1" * len(pages))
        self.kept.append(pages)


@pytest.mark.parametrize(("kind", "told"), [("handle", "handles"), ("thread", "threads"), ("memory", "resident_bytes")])
def test_what_grows_is_told(kind: str, told: str) -> None:
    leak = Leak()
    try:
        assert told in [line.split(":")[0] for line in endurance.watched(8, getattr(leak, kind))]
    finally:
        leak.over.set()
        for handle in leak.handles:
            os.close(handle)


def test_a_wrong_result_is_told() -> None:
    shared = endurance.Shared.of(endurance.chain(16, 16), 2)
    for results in shared.results:
        results[0] = bytes(len(results[0]))
    caller = endurance.Caller([shared], 0)
    for _ in range(40):
        caller.launch()
    assert caller.wrong == 40
