"""Garbage collection while much is built that stays: it would only look through it again and again.

Model: a compilation makes some hundred thousand objects, few of them in cycles, and keeps most. Within `paused` the
cyclic collector rests, for all threads; reference counting goes on. Pauses may nest and overlap between threads: the
last one to end lets the collector work again, if it did before the first. A forked child has only the thread that
forked: the pauses of the others end there.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.RLock()  # a signal handler may compile too, in the middle of what is below
_pauses: dict[int, int] = {}  # of threads, by their identity
_was_enabled = False  # before the pauses that there are; the last one to end has to let it work again


@contextmanager
def paused() -> Iterator[None]:
    """No cyclic garbage collection within. A fifth of the time of a compilation from the cache."""
    global _was_enabled
    thread = threading.get_ident()
    with _lock:
        if not _pauses:
            _was_enabled |= gc.isenabled()
        _pauses[thread] = _pauses.get(thread, 0) + 1
        gc.disable()
    try:
        yield
    finally:
        with _lock:
            _pauses[thread] -= 1
            if _pauses[thread] == 0:
                del _pauses[thread]
            _enable_again()


def _enable_again() -> None:
    """Behind the last pause."""
    global _was_enabled
    if not _pauses and _was_enabled:
        gc.enable()
        _was_enabled = False


def _leave_others_behind() -> None:
    """In a forked child: the lock and the pauses of threads that are not there any more."""
    global _lock
    _lock = threading.RLock()
    for thread in _pauses.keys() - {threading.get_ident()}:
        del _pauses[thread]
    _enable_again()


os.register_at_fork(after_in_child=_leave_others_behind)
