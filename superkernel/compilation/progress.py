"""Progress of long compilations on a terminal; silent everywhere else, and on short ones."""

from __future__ import annotations

import sys
import time
from typing import Any

from superkernel.core.files import is_terminal

SILENT_SECONDS = 0.7


class Progress:
    """A line on stderr that appears once a compilation has taken SILENT_SECONDS, and disappears with it."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._enabled = is_terminal(sys.stderr)
        self._bar: Any = None
        self._task: Any = None

    def update(self, text: str, done: int, total: int) -> None:
        """Say what is being done, `done` of `total`."""
        if not self._enabled or (self._bar is None and time.monotonic() - self._start < SILENT_SECONDS):
            return
        if self._bar is None:
            from rich.console import Console
            from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
            from rich.progress import Progress as RichProgress

            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self._bar = RichProgress(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._task = self._bar.add_task(text, total=total)
        self._bar.update(self._task, description=text, completed=done, total=max(1, total))

    def close(self) -> None:
        """Take the line away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        self._enabled = False
