"""Work that is interrupted at each of its lines in turn, as a signal's handler that raises may do anywhere."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import CodeType, FrameType, TracebackType
from typing import Any


class Interrupt(BaseException):
    """What the handler raises."""


class _At:
    """Raises once, at the n-th line that is begun in the watched code. Lines that a call comes back to do not count:
    at the end of a `with` block the interpreter hears no signal before the block's manager does."""

    def __init__(self, watched: set[CodeType], line: int) -> None:
        self.watched, self.left = watched, line
        self.begun: set[tuple[FrameType, int]] = set()

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code not in self.watched:
            return None
        if event == "line" and (frame, frame.f_lineno) not in self.begun:
            self.begun.add((frame, frame.f_lineno))
            self.left -= 1
            if self.left == -1:
                raise Interrupt
        return self

    def __enter__(self) -> None:
        self.before = sys.gettrace()
        sys.settrace(self)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        sys.settrace(self.before)
        self.begun.clear()  # frames hold what was interrupted


def each_line(work: Callable[[], object], watched: set[CodeType], check: Callable[[int], object]) -> int:
    """Does `work` interrupted at its first line within `watched`, at its second, ... until it comes to its end, and
    `check` behind each; the number of lines."""
    line = 0
    while True:
        try:
            with _At(watched, line):
                work()
            return line
        except Interrupt:
            pass  # what it holds is free behind it
        check(line)
        line += 1
