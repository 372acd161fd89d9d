"""Sweeps: models on many targets under many options, each simulated once, in processes of their own, and kept.

Model: a *point* is a graph, a target (one of those given, with some fields set anew) and options; its *row* says what
one simulated run of it took, or why there is none. A row is kept under a digest of everything that it depends on
(graph, target, options, the package's own sources), as a line of a file, as soon as it is there; a point whose line is
there is not run again. So a sweep that was interrupted goes on where it stopped, and one that has grown runs what is
new.

Invariants: rows stand in the order of the points, whatever the order in which they came; a file may hold rows of other
sweeps; a line that was cut off is no line.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cache
from itertools import product
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import IO, Any

import numpy as np

from superkernel import _core
from superkernel.api import compile
from superkernel.codegen import processes
from superkernel.core.counted import counted
from superkernel.core.errors import FileFormatError, InputError, MachineError, SuperKernelError
from superkernel.core.files import exists, text_of
from superkernel.core.json_text import parse_json
from superkernel.core.options import Options
from superkernel.core.version import __version__, sources_digest
from superkernel.ir.graph import Graph
from superkernel.registry.canonical import digest
from superkernel.target.aicore import AicoreTarget
from superkernel.target.schema import Value

FIGURES = ("cycles", "time_us", "instructions", "code_bytes")
"""What is kept of a run: fields of a `SimReport`."""

_SOURCES = (
    "transforms", "registry", "scheduler", "scheduler/aicore", "scheduler/families", "scheduler/families/aicore",
    "sync", "sync/aicore", "codegen", "codegen/aicore", "target", "sim", "compilation", "backends/aicore",
)  # fmt: skip


@dataclass(frozen=True)
class SweepRow:
    """A point and its figures; `error` instead, where it cannot be compiled or run."""

    model: str
    target: str
    fields: dict[str, Value]
    options: dict[str, Any]
    cycles: int | None = None
    time_us: float | None = None
    instructions: int | None = None
    code_bytes: int | None = None
    error: str | None = None

    def figure(self, name: str) -> float | None:
        """A figure, or the value of a field that was varied, by name; None where there is no number."""
        found = getattr(self, name) if name in FIGURES else self.fields.get(name)
        return float(found) if isinstance(found, int | float) else None


@dataclass(frozen=True)
class TargetSweep:
    """All rows of a sweep, in the order of its points; how many of them were kept already."""

    rows: tuple[SweepRow, ...]
    kept: int

    def pareto(self, first: str, second: str) -> tuple[SweepRow, ...]:
        """Rows of each model for which no other one of it is as small in both figures (or varied fields) and smaller in
        one. Raises InputError where nothing has such a figure."""
        found: list[SweepRow] = []
        for name in (first, second):
            if all(row.figure(name) is None for row in self.rows):
                varied = dict.fromkeys(path for row in self.rows for path in row.fields)
                raise InputError("no such figure", expected=", ".join([*FIGURES, *varied]), found=repr(name))
        for model in dict.fromkeys(row.model for row in self.rows):
            pairs = [
                ((x, y), row)
                for row in self.rows
                if row.model == model and (x := row.figure(first)) is not None and (y := row.figure(second)) is not None
            ]
            found += [row for at, row in pairs if not any(_beats(other, at) for other, _ in pairs)]
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {"schema": "superkernel.sweep/1", "kept": self.kept, "rows": [asdict(row) for row in self.rows]}

    def table(self) -> tuple[list[str], list[list[str]]]:
        """Names of columns, and a row of cells per point; where it has no figures, the last two are its error, and
        none."""
        fields = list(dict.fromkeys(path for row in self.rows for path in row.fields))
        options = list(dict.fromkeys(name for row in self.rows for name in row.options))
        lines = []
        for row in self.rows:
            values = [str(row.fields.get(path, "")) for path in fields]
            values += [str(row.options.get(name, "")) for name in options]
            figures = [row.error or "", ""] if row.time_us is None else [str(row.cycles), f"{row.time_us:.2f}"]
            lines.append([row.model, row.target, *values, *figures])
        return ["model", "target", *fields, *options, "cycles", "us"], lines

    def text(self, marked: Sequence[SweepRow] = ()) -> str:
        """The table; rows of `marked` with a star."""
        head, cells = self.table()
        stars = ["*" if any(row is one for one in marked) else "" for row in self.rows]
        lines = [["", *head], *([star, *row] for star, row in zip(stars, cells, strict=True))]
        short = [line for line in lines if line[-1]]  # an error may be as long as it is
        widths = [max(len(line[i]) for line in short) for i in range(len(lines[0]))]
        rows = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        return "\n".join([*rows, f"{counted(len(self.rows), 'point')}, {self.kept} of them known already"])


def sweep(
    models: Mapping[str, Graph],
    targets: Sequence[AicoreTarget],
    *,
    fields: Mapping[str, Sequence[Value]] | None = None,
    options: Mapping[str, Sequence[Any]] | None = None,
    file: str | os.PathLike[str] | None = None,
    executor: Executor | None = None,
    workers: int | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> TargetSweep:
    """Every model on every target, with every combination of values of `fields` (by path, as "l2.bytes") and of
    `options`. `file`: where rows are kept and looked for. `executor`: who runs points (default: `workers` processes of
    their own, as many as there are CPUs; a script that calls this is imported by them, so it needs the usual guard).
    `progress` is called with points that are there, and all of them.

    Raises InputError on fields and options that there are not, FileFormatError on a file of something else,
    MachineError where it cannot be read or written and where a process dies."""
    points = list(_points(models, targets, fields or {}, options or {}))
    digests = {name: graph_digest(graph) for name, graph in models.items()}
    keys = [_key(digests[row.model], row, target) for row, target in points]
    with ExitStack() as stack:
        kept, out = _opened(stack, file)
        found = {number: kept[key] for number, key in enumerate(keys) if key in kept}
        jobs: list[tuple[int, SweepRow, AicoreTarget]] = []
        for number, (row, target) in enumerate(points):
            if isinstance(target, str):
                found[number] = {"error": target}
            elif number not in found:
                jobs.append((number, row, target))
        known = len(found)
        progress(known, len(points))
        if jobs and executor is None:
            count = min(len(jobs), workers or len(_core.allowed_cpus()))
            executor = _workers(stack, count)
        running: dict[Future[dict[str, Any]], int] = {}
        done: SimpleQueue[Future[dict[str, Any]]] = SimpleQueue()

        def take() -> None:
            future = done.get()
            number = running[future]
            found[number] = future.result()
            _append(out, keys[number], found[number])
            progress(len(found), len(points))

        try:
            for number, row, made in jobs:
                assert executor is not None
                future = executor.submit(run_point, models[row.model], made, row.options)
                running[future] = number
                future.add_done_callback(done.put)
                while not done.empty():
                    take()
            while len(found) < len(points):
                take()
        except BrokenExecutor as error:
            hint = (
                'fewer workers need less memory; a script sweeps below `if __name__ == "__main__":`, as each process '
                "imports it; what was done is kept where there is a file"
            )
            raise MachineError("a process of the sweep died", found=str(error), hint=hint) from error
        finally:
            for future in running:
                future.cancel()
    rows = tuple(
        SweepRow(row.model, row.target, row.fields, row.options, **found[number])
        for number, (row, _) in enumerate(points)
    )
    return TargetSweep(rows, known)


def run_point(graph: Graph, target: AicoreTarget, options: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of one point, or {"error": why there are none}."""
    try:
        report = compile(graph, target=target, options=options).report(rounds=0)
    except SuperKernelError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {name: getattr(report, name) for name in FIGURES}


def _workers(stack: ExitStack, count: int) -> ProcessPoolExecutor:
    """Processes that end at once where the sweep ends by an error or an interrupt: a second interrupt, while they were
    waited for, would leave both sides waiting for one another."""
    context = get_context("spawn")
    told, telling = context.Pipe(duplex=False)
    stack.callback(told.close)
    stack.callback(telling.close)
    executor = stack.enter_context(ProcessPoolExecutor(count, context, _begin_worker, (told,)))

    def end(kind: type[BaseException] | None, error: object, trace: object) -> None:
        if kind is not None:
            telling.close()

    stack.push(end)
    return executor


def _begin_worker(told: Connection) -> None:
    """Compilers of all workers together would be more than there are CPUs. A worker ends with the sweep, however that
    ends (`told` is at its end then): its own queue would never tell it. Interrupts are the sweep's business."""
    processes.helpers_max = 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with, args=(told,), daemon=True).start()


def _end_with(told: Connection) -> None:
    parent = parent_process()
    wait([told] if parent is None else [told, parent.sentinel])
    os._exit(1)


def _points(
    models: Mapping[str, Graph],
    targets: Sequence[AicoreTarget],
    fields: Mapping[str, Sequence[Value]],
    options: Mapping[str, Sequence[Any]],
) -> Iterator[tuple[SweepRow, AicoreTarget | str]]:
    """Rows without figures, each with its target, or with what is wrong with that."""
    for name, values in (*fields.items(), *options.items()):
        if not values:
            raise InputError("no values to vary", location=name)
    for target in targets:
        for path in fields:
            try:
                target.value(path)
            except KeyError:
                raise InputError(
                    "no such field of a target", found=repr(path), hint="`superkernel target show`"
                ) from None
    for model, target in product(models, targets):
        for values in product(*fields.values()):
            chosen = dict(zip(fields, values, strict=True))
            made = _replaced(target, chosen)
            for choice in product(*options.values()):
                given = dict(zip(options, choice, strict=True))
                Options.of(given)  # raises on what is no option
                yield SweepRow(model, target.name, chosen, given), made


def _replaced(target: AicoreTarget, values: Mapping[str, Value]) -> AicoreTarget | str:
    if not values:
        return target
    try:
        return target.replaced(values)
    except FileFormatError as error:
        return str(error)


def _key(graph: str, row: SweepRow, target: AicoreTarget | str) -> str:
    described = target if isinstance(target, str) else target.text()
    return digest([_package(), graph, described, sorted((name, repr(value)) for name, value in row.options.items())])


@cache
def _package() -> str:
    """What figures depend on beside the point: this package."""
    binary = hashlib.sha256(Path(_core.__file__).read_bytes()).hexdigest()
    return f"{__version__} {sources_digest(*_SOURCES)} {binary}"


def graph_digest(graph: Graph) -> str:
    """SHA-256 of nodes, inputs, outputs, states and constants; two graphs that compile alike have the same one."""
    rows = [repr((graph.outputs, sorted(graph.updates.items())))]
    rows += [f"{name!r}: {kind}" for name, kind in graph.inputs.items()]
    rows += [repr((n.op, n.inputs, n.outputs, tuple(n.attrs.items()), n.kernel_type, n.scope)) for n in graph.nodes]
    found = hashlib.sha256("\n".join(rows).encode())
    for arrays in (graph.constants, graph.states):
        for name, array in arrays.items():
            found.update(f"{name!r}: {graph.types[name]}\n".encode())
            found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


_NO_ROWS = "not a file of a sweep's rows"
_ROW_START = '{"key": "'


def _opened(stack: ExitStack, file: str | os.PathLike[str] | None) -> tuple[dict[str, dict[str, Any]], IO[str] | None]:
    """The rows of a file by key, and the file, to append to."""
    if file is None:
        return {}, None
    path, kept = Path(file), dict[str, dict[str, Any]]()
    try:
        text = text_of(path) if exists(path) else ""
        out = stack.enter_context(path.open("a", encoding="utf-8"))
    except OSError as error:
        raise MachineError("cannot keep rows", location=f"file {str(path)!r}", found=str(error)) from error
    except UnicodeDecodeError as error:
        raise FileFormatError(_NO_ROWS, location=f"file {str(path)!r}", found=str(error)) from error
    *lines, last = text.split("\n")
    for line in (*lines, last) if last else lines:
        row = _row(line)
        if row is not None:
            kept[row["key"]] = row["figures"]
        elif line is not last or last[: len(_ROW_START)] != _ROW_START[: len(last)]:
            raise FileFormatError(_NO_ROWS, location=f"file {str(path)!r}", found=line[:60])
        else:  # a row that was cut off
            out.truncate(len(text.encode()) - len(last.encode()))
            last = ""
    out.write("\n" if last else "")
    return kept, out


def _row(line: str) -> dict[str, Any] | None:
    try:
        row = parse_json(line)
    except ValueError:
        return None
    fits = isinstance(row, dict) and isinstance(row.get("key"), str) and isinstance(row.get("figures"), dict)
    return row if fits and set(row["figures"]) in ({"error"}, set(FIGURES)) else None


def _append(out: IO[str] | None, key: str, figures: Mapping[str, Any]) -> None:
    if out is not None:
        out.write(json.dumps({"key": key, "figures": figures}) + "\n")
        out.flush()


def _beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one != other and one[0] <= other[0] and one[1] <= other[1]
