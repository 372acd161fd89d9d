"""The emulator as a process: which one there is, and one start of it, watched."""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from superkernel.core.errors import MachineError

PROGRAM: Final = "qemu-system-riscv64"
VERSION_MIN: Final = (7, 0)
POLL_S: Final = 0.02


@cache
def find_qemu() -> str:
    """The emulator's path. Raises MachineError where there is none, or one that is too old."""
    hint = "install it: on Debian and Ubuntu the package qemu-system-misc"
    path = shutil.which(PROGRAM)
    if path is None:
        raise MachineError("the emulator is not installed", location="PATH", expected=PROGRAM, hint=hint)
    try:
        said = subprocess.run([path, "--version"], capture_output=True, encoding="utf-8", timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise MachineError(f"the emulator does not start: {error}", location=path, hint=hint) from error
    found = re.search(r"version (\d+)\.(\d+)", said.stdout)
    if said.returncode or found is None:
        raise MachineError(
            "the emulator does not tell its version", location=path, found=said.stderr.strip(), hint=hint
        )
    if (int(found[1]), int(found[2])) < VERSION_MIN:
        wanted = ".".join(map(str, VERSION_MIN))
        raise MachineError("the emulator is too old", location=path, expected=f"{wanted} or newer", found=found[0])
    return path


def shared_memory(name: str, size: int) -> tuple[int, mmap.mmap]:
    """Memory, and its file for the emulator to map. Its number is none of those of a process's own streams, which this
    process may have been started without: the emulator has its own in their places. Raises OSError."""
    first = os.memfd_create(name, os.MFD_CLOEXEC)
    try:
        file = fcntl.fcntl(first, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(first)
    try:
        os.ftruncate(file, size)
        return file, mmap.mmap(file, size)
    except BaseException:
        os.close(file)
        raise


@dataclass(frozen=True)
class Ended:
    """How a start of the emulator ended: its exit status, or None where it was ended, because nothing could happen any
    more (`stuck`) or because it had taken too long."""

    status: int | None
    said: str = ""
    stuck: bool = False


def start(
    words: Sequence[str], files: Sequence[int], watchdog_s: float, is_stuck: Callable[[], bool] = lambda: False
) -> Ended:
    """Run the emulator with arguments and open files to its end; `is_stuck` is asked every few milliseconds."""
    path = find_qemu()
    try:
        process = subprocess.Popen(
            [path, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            encoding="utf-8", errors="replace",
            pass_fds=files,
        )  # fmt: skip
    except OSError as error:
        raise MachineError(f"the emulator does not start: {error}", location=path) from error
    end = time.monotonic() + watchdog_s
    try:
        while (left := end - time.monotonic()) > 0:
            try:
                _, said = process.communicate(timeout=min(left, POLL_S))
                return Ended(process.returncode, said)
            except subprocess.TimeoutExpired:
                if is_stuck():
                    return Ended(None, stuck=True)
        return Ended(None)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
