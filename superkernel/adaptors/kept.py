"""Kernels by what calls of them have in common, made when they are first asked for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock, RLock
from typing import Generic, TypeVar

KERNELS_MAX = 16
"""How many are kept; of more, the one that was not asked for longest goes."""

Made = TypeVar("Made")


class Kept(Generic[Made]):
    """What was made, by key. Several threads may ask: one of them makes, the others wait for what it makes or find what
    is there. Who makes may ask for another one meanwhile."""

    def __init__(self) -> None:
        self._items: OrderedDict[Hashable, Made] = OrderedDict()
        self._lock = Lock()  # of the items that there are
        self._making = RLock()

    def get(self, key: Hashable, make: Callable[[], Made]) -> Made:
        """The one of a key; nothing is kept where making it raises."""
        found = self._found(key)
        if found is not None:
            return found
        with self._making:
            found = self._found(key)
            return self._added(key, make()) if found is None else found

    def _found(self, key: Hashable) -> Made | None:
        with self._lock:
            found = self._items.get(key)
            if found is not None:
                self._items.move_to_end(key)
        return found

    def _added(self, key: Hashable, made: Made) -> Made:
        with self._lock:
            self._items[key] = made
            while len(self._items) > KERNELS_MAX:
                self._items.popitem(last=False)
        return made
