"""Garbage collection while much is built that stays: it would only look through it again and again.

Model: a compilation makes some hundred thousand objects, few of them in cycles, and keeps most. Within `paused` the
cyclic collector rests, for all threads; reference counting goes on. Pauses may nest and overlap between threads: the
last one to end lets the collector work again, if it did before the first; it looks through all that is new then, in
whichever thread asks for memory next. A `Rest` is a pause that another thread may end, at a better time for that. A
forked child has only the thread that forked: all other pauses end there.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Hashable, Iterator
from contextlib import contextmanager

_lock = threading.RLock()  # a signal handler may compile too, in the middle of what is below
_pauses: dict[Hashable, int] = {}  # of threads, by their identity, and rests
_was_enabled = False  # before the pauses that there are; the last one to end has to let it work again


@contextmanager
def paused() -> Iterator[None]:
    """No cyclic garbage collection within. A fifth of the time of a compilation from the cache."""
    thread = threading.get_ident()
    try:  # from the start: an interrupt may come in the middle of the beginning
        _begin(thread)
        yield
    finally:
        _end(thread)


class Rest:
    """A pause that lasts from the beginning of this object until `end`, which any thread may call."""

    def __init__(self) -> None:
        _begin(self)

    def end(self) -> None:
        """Once is enough; more do nothing."""
        _end(self)


def _begin(whose: Hashable) -> None:
    global _was_enabled
    with _lock:
        if not _pauses:
            _was_enabled |= gc.isenabled()
        _pauses[whose] = _pauses.get(whose, 0) + 1
        gc.disable()


def _end(whose: Hashable) -> None:
    with _lock:
        if whose in _pauses:
            _pauses[whose] -= 1
            if _pauses[whose] == 0:
                del _pauses[whose]
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
