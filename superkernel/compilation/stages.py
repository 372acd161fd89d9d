"""What both pipelines share around their stages: times, dumps, progress, and the warning of what has no kernel."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from superkernel.codegen.cache import ObjectCache
from superkernel.compilation.progress import Progress
from superkernel.core import settings
from superkernel.core.errors import MachineError
from superkernel.core.options import Options
from superkernel.core.warn import warn
from superkernel.ops.grouped import TILINGS
from superkernel.scheduler.schedule import Schedule

CacheFactory = Callable[[Path | None], ObjectCache]
Later = Callable[[Callable[[], None]], None]
"""Takes what need not be done before a kernel runs: keeping its plan and its entries in the cache."""


class FallbackWarning(UserWarning):
    """A sub-operator has no kernel and runs on the NumPy reference."""


class Stages:
    """Times, dumps and progress of one compilation, and where what may wait goes: None, it is done at once."""

    def __init__(self, dumps: frozenset[str], later: Later | None = None) -> None:
        self.dumps, self.later = dumps, later
        self.times: dict[str, int] = {}
        self.progress = Progress()
        self._events: list[dict[str, Any]] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Times what runs inside as one stage, and shows it as under way."""
        start = time.perf_counter_ns()
        self.progress.update(name, 0, 1)
        try:
            yield
        except BaseException:
            self.progress.close()
            raise
        self.times[name] = time.perf_counter_ns() - start
        event = {"name": name, "ph": "X", "pid": 0, "tid": 0, "ts": start / 1000, "dur": self.times[name] / 1000}
        self._events.append(event)

    def dump(self, stage: str, data: object) -> None:
        """Prints a stage's data to stderr where SK_DUMP asks for it."""
        if stage in self.dumps:
            print(f"--- {stage} ---\n{data}", file=sys.stderr)

    def finish(self) -> None:
        """Ends the display of progress and writes the trace that SK_TRACE asks for. Raises MachineError."""
        self.progress.close()
        path = settings.trace_file()
        if path is not None:
            try:
                path.write_text(json.dumps({"traceEvents": self._events}), "utf-8")
            except OSError as error:
                raise MachineError(f"cannot write the trace: {error}", location="SK_TRACE") from error


def report_fallbacks(options: Options, schedule: Schedule, host_calls: Sequence[int], where: str) -> None:
    """Warn of sub-operators that have no kernel, where the options ask for it."""
    asked = TILINGS if options.tiling == "host" else ()
    names = [f"{s.name} ({s.body.op})" for s in (schedule.subops[i] for i in host_calls) if s.body.op not in asked]
    if options.fallback != "warn" or not names:
        return
    listed = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    warn(
        f"no kernel for {listed}: computed by NumPy {where} (hint: fallback='allow' silences this, "
        "--option fallback=allow on the command line)",
        FallbackWarning,
    )
