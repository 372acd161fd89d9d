"""Forks beside imports: a child has the thread that forked, and the locks of modules that other threads were importing.

Model: modules of this package are imported when they are needed, by whichever thread needs them. CPython's lock of such
a module is held for ever in a child that is forked meanwhile, and what is there of the module stays half of it: the
child would wait at its own import of it. So a fork waits for imports that other threads have begun.
"""

from __future__ import annotations

import os
import sys
import time
from types import FrameType

WAIT_S_MAX = 10.0
_OURS = (__name__.partition(".")[0] + ".", "llvmlite")


def wait_for_imports() -> None:
    """From now on, all forks of this process."""
    os.register_at_fork(before=_await_imports)


def _await_imports() -> None:
    """Before a fork: until no other thread is importing a module of ours, but not for ever."""
    end = time.monotonic() + WAIT_S_MAX
    while _begun() and not _importing(sys._getframe()) and time.monotonic() < end:
        time.sleep(0.001)


def _begun() -> bool:
    """Whether some thread has begun to import one and has not come to its end."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith(_OURS)]
    return any(getattr(getattr(module, "__spec__", None), "_initializing", False) for module in modules)


def _importing(frame: FrameType | None) -> bool:
    """Whether this thread is: it would wait for itself."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and str(frame.f_globals.get("__name__")).startswith(_OURS):
            return True
        frame = frame.f_back
    return False
