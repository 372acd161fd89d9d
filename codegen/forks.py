"""Forks while another thread compiles: LLVM is whole and free in the child.

Model: llvmlite holds one lock during every call into LLVM. A fork that happened meanwhile would leave the child with
the lock taken by a thread that it has not, and with LLVM's own data half written; the first compilation there would
wait for ever. So a fork waits for the call that is under way: it takes the lock, and both sides give it back.
"""

from __future__ import annotations

import os

from llvmlite.binding import ffi


def wait_for_llvm_before_forks() -> None:
    """From now on. Does nothing where llvmlite has no such lock."""
    lock = getattr(ffi.lib, "_lock", None)
    if lock is None:
        return

    def release() -> None:
        lock.__exit__(None, None, None)

    os.register_at_fork(before=lock.__enter__, after_in_parent=release, after_in_child=release)
