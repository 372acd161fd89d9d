"""Memory to run code from, also where a process may not turn written pages into executable ones.

Model: pages are mapped readable and executable from the start and filled through the file behind them, which has no
name: of memory (memfd), else in the directory for temporary files. So nothing is ever writable and executable, which
hardened processes refuse (PR_SET_MDWE, systemd's MemoryDenyWriteExecute, SELinux's execmem). Where no file may be
mapped for execution, anonymous pages are written first and made executable afterwards.

Invariant: pages are given back when their object goes, but not while the process ends, since threads of the runtime
may be inside.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import tempfile
import weakref
from collections.abc import Callable

from superkernel.core.errors import MachineError

_HINT = (
    "kernels need memory that may be executed: allow memfd_create and mmap with PROT_EXEC, or let TMPDIR name a "
    "directory that is not mounted noexec (SELinux: execmem; systemd: no SystemCallFilter or NoExecPaths against it)"
)
_MAP_FAILED = ctypes.c_void_p(-1).value
_CODE = mmap.PROT_READ | mmap.PROT_EXEC

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def _map(nbytes: int, protection: int, flags: int, file: int) -> int:
    address: int = _libc.mmap(None, nbytes, protection, flags, file, 0)
    if address == _MAP_FAILED:
        raise OSError(ctypes.get_errno(), "mmap")
    return address


def _unmap(address: int, nbytes: int) -> None:
    _libc.munmap(address, nbytes)


def _protect(address: int, nbytes: int, protection: int) -> None:
    if _libc.mprotect(address, nbytes, protection) != 0:
        raise OSError(ctypes.get_errno(), "mprotect")


def _memory_file() -> int:
    return os.memfd_create("superkernel", os.MFD_CLOEXEC)


def _disk_file() -> int:
    file, name = tempfile.mkstemp(prefix="superkernel-")
    os.unlink(name)
    return file


def _from_file(nbytes: int, made: Callable[[int], bytes], opened: Callable[[], int]) -> int:
    file = opened()
    try:
        os.posix_fallocate(file, 0, nbytes)  # a full disk is an error here, and not the end of the process later
        address = _map(nbytes, _CODE, mmap.MAP_SHARED, file)
        try:
            data = memoryview(made(address))
            at = 0
            while at < len(data):
                at += os.pwrite(file, data[at:], at)
        except BaseException:
            _unmap(address, nbytes)
            raise
    finally:
        os.close(file)
    return address


def _from_anonymous(nbytes: int, made: Callable[[int], bytes]) -> int:
    address = _map(nbytes, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1)
    try:
        data = made(address)
        ctypes.memmove(address, data, len(data))
        _protect(address, nbytes, _CODE)
    except BaseException:
        _unmap(address, nbytes)
        raise
    return address


class ExecutableMemory:
    """What `made` gives for its address, `nbytes` in whole pages; the first `code_bytes`, whole pages too, can be
    executed, what is behind them only read. Raises MachineError where the process gets no such memory."""

    def __init__(self, nbytes: int, code_bytes: int, made: Callable[[int], bytes]) -> None:
        refused: list[str] = []
        ways: tuple[tuple[str, Callable[[], int]], ...] = (
            ("memory file", lambda: _from_file(nbytes, made, _memory_file)),
            ("file", lambda: _from_file(nbytes, made, _disk_file)),
            ("anonymous memory", lambda: _from_anonymous(nbytes, made)),
        )
        for name, way in ways:
            try:
                self.address = way()
                weakref.finalize(self, _unmap, self.address, nbytes).atexit = False
                if code_bytes < nbytes:
                    _protect(self.address + code_bytes, nbytes - code_bytes, mmap.PROT_READ)
                break
            except OSError as error:
                if error.errno is None:  # not of the system: a signal handler's TimeoutError
                    raise
                text = errno.errorcode.get(error.errno or 0, str(error))
                refused.append(f"{name}: {text}")
        else:
            raise MachineError(
                "the process gets no executable memory",
                expected=f"{nbytes} bytes, readable and executable",
                found=", ".join(refused),
                hint=_HINT,
            )
