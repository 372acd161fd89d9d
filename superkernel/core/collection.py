"""Garbage collection while much is built that stays: it would only look through it again and again.

Model: a compilation makes some hundred thousand objects, few of them in cycles, and keeps most. Within `paused` the
cyclic collector rests, for all threads; reference counting goes on. Pauses may nest and overlap between threads: the
last one to end lets the collector work again, if it did before the first; it looks through all that is new then, in
whichever thread asks for memory next. A `Rest` is a pause that another thread may end, at a better time for that. A
pause ends with its object at the latest, wherever an interrupt comes. A forked child has only the thread that forked:
all other pauses end there.
"""

from __future__ import annotations

import gc
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count

_lock = threading.RLock()  # a signal handler may compile too, in the middle of what is below
_numbers = count()
_pauses: dict[int, int | None] = {}  # the thread of each; of one that any may end, None
_was_enabled = False  # before the pauses that there are; the last one to end has to let it work again


@contextmanager
def paused() -> Iterator[None]:
    """No cyclic garbage collection within. A fifth of the time of a compilation from the cache."""
    pause = Rest(threading.get_ident())
    try:
        yield
    finally:
        pause.end()


class Rest:
    """A pause that lasts from the beginning of this object until `end`, which any thread may call. `thread`: without
    which it has no end of its own."""

    def __init__(self, thread: int | None = None) -> None:
        self._number = next(_numbers)
        weakref.finalize(self, _end, self._number).atexit = False
        _begin(self._number, thread)

    def end(self) -> None:
        """Once is enough; more do nothing."""
        _end(self._number)


def _begin(number: int, thread: int | None) -> None:
    global _was_enabled
    with _lock:
        if not _pauses:
            _was_enabled |= gc.isenabled()
        _pauses[number] = thread
        gc.disable()


def _end(number: int) -> None:
    with _lock:
        _pauses.pop(number, None)
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
    for number, thread in list(_pauses.items()):
        if thread != threading.get_ident():
            del _pauses[number]
    _enable_again()


os.register_at_fork(after_in_child=_leave_others_behind)
