"""What the tests of helper processes have them do; a module of its own, because they import it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from superkernel.codegen import processes


def who(job: int) -> bytes:
    time.sleep(0.01)
    return f"{job} {os.getpid()}".encode()


def dies(job: int, how: int) -> bytes:
    if job == 3:
        os.write(2, b"LLVM ERROR: nothing selects this\n")
        os.kill(os.getpid(), how)
    return bytes([job])


def dies_talking(job: int) -> bytes:
    """Behind that many bytes of warnings."""
    os.write(2, b"a warning\n" * (job // 10) + b"LLVM ERROR: the last words\n")
    os._exit(3)


def dies_once(job: int, mark: Path) -> bytes:
    if job == 3 and not mark.exists():
        mark.write_text("")
        os._exit(3)
    return bytes([job])


def refuses(job: int) -> bytes:
    if job == 3:
        raise ValueError("three")
    return bytes([job])


def eats(job: int) -> bytes:
    raise MemoryError(f"{job}")


def grows(job: int) -> bytes:
    """By so many MiB, in a process that may grow by 8."""
    processes.GROWTH_BYTES_MAX = 8 << 20
    kept.append(b"x" * (job << 20))
    return b"%d" % os.getpid()


kept: list[bytes] = []
