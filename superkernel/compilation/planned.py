"""What planning made of a graph, and its entry in the cache of compiled objects: a graph that was compiled before, with
the same options for the same target, is not planned again.

Model: the key is a digest of everything that planning reads: the whole graph with the bytes of its constants, options,
target, cores, and the files of this package. The entry is a value of declared type (`core/typed_form.py`) in which the
arrays of the source graph stand by name, so that weights are never stored twice; what planning made of them (folded
normalisations, joined factors) stands in it.

Invariants: what an entry says is believed no more than what a planner says: its memory plan is checked again here, and
the verifier proves its order like any other's. An entry that cannot be read is one that is not there.
"""

from __future__ import annotations

import hashlib
import os
import sys
import types
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from superkernel.codegen.cache import CacheWarning, ObjectCache
from superkernel.compilation.compiled import Job, Planned
from superkernel.core.arrays import contents_digest
from superkernel.core.files import contents
from superkernel.core.typed_form import decode, encode
from superkernel.core.warn import warn
from superkernel.ir.graph import Graph
from superkernel.scheduler.grouping import Grouping
from superkernel.scheduler.memory_check import check_memory
from superkernel.scheduler.schedule import Schedule
from superkernel.target.base import Target

if TYPE_CHECKING:
    from superkernel.compilation.backend import Backend

PlannedT = TypeVar("PlannedT", bound="Planned[Any]")

Arrays = Mapping[str, NDArray[Any]]

HASHED_BYTES_MAX = 1 << 29  # above that planning anew is sooner done than reading all constants
ENTRY_BYTES_MAX = 64 << 20


class PlanForm(Generic[PlannedT]):
    """Plans of a backend as bytes."""

    def __init__(self, backend: Backend[Any, PlannedT, Any, Any, Any]) -> None:
        assert backend.plan_type is not None
        self._kind = types.GenericAlias(tuple, (Graph, Grouping, Schedule, Mapping[str, int], backend.plan_type))
        self._variants = backend.kernels.declared_class
        self.sources = backend.kernels.sources

    def written(self, planned: PlannedT, arrays: Arrays) -> bytes:
        """`arrays`: what the reader has at hand."""
        parts = (planned.graph, planned.grouping, planned.schedule, planned.dumps, planned.plan)
        return encode(self._kind, parts, arrays)

    def read(self, data: bytes | memoryview, arrays: Arrays) -> PlannedT:
        """A plan whose memory is checked, its order not yet. Raises ValueError, VerificationError."""
        planned: Planned[Any] = Planned(*decode(self._kind, data, arrays, self._variants))
        schedule = planned.schedule
        try:
            check_memory(schedule.subops, schedule.addresses, planned.grouping.buffers)
        except (LookupError, ValueError, TypeError, AttributeError, OverflowError, MemoryError) as error:
            raise ValueError(f"parts of a plan that do not fit together: {error}") from error
        return cast("PlannedT", planned)


class PlanStore(Generic[PlannedT]):
    """The entry of one compilation in a cache. There is none without a directory, or with more constants than are worth
    reading."""

    def __init__(self, objects: ObjectCache, job: Job[Target], form: PlanForm[PlannedT]) -> None:
        self._objects, self._form = objects, form
        self._arrays = {**job.source.constants, **job.source.states}
        self._key = job_key(job, form.sources) if objects.directory is not None else None

    def find(self) -> PlannedT | None:
        """What was kept for this graph, or None."""
        data = self._objects.get(self._key) if self._key is not None else None
        try:
            return None if data is None else self._form.read(data, self._arrays)
        except ValueError:  # planning again puts it right
            return None

    def keep(self, planned: PlannedT) -> None:
        """Keep it, unless most of it is constants that planning has made."""
        if self._key is None:
            return
        made = {id(a): a.nbytes for a in (*planned.graph.constants.values(), *planned.grouping.constants.values())}
        own = {id(a) for a in self._arrays.values()}
        if sum(nbytes for at, nbytes in made.items() if at not in own) > ENTRY_BYTES_MAX:
            return
        try:
            data = self._form.written(planned, self._arrays)
        except (TypeError, OverflowError) as error:  # of a family whose tilings are not of their declared types
            warn(f"the plan is not kept in the cache: {error}", CacheWarning)
            return
        self._objects.put(self._key, data)


def job_key(job: Job[Target], sources: str) -> str | None:
    """The text that determines a plan; None where there is more to read than is worth it, and where this package's
    files cannot be looked at. `sources`: digest of kernels from outside."""
    source = job.source
    arrays = [*source.constants.values(), *source.states.values()]
    if sum(array.nbytes for array in arrays) > HASHED_BYTES_MAX:
        return None
    try:
        stamp = _package_stamp()
    except OSError as error:
        if error.errno is None:  # not of the system: a signal handler's TimeoutError
            raise
        warn(f"plans are not cached: {error}", CacheWarning)
        return None
    rows = [f"plan {stamp}", repr(job.target), repr(job.cores), repr(job.options), repr(source.name)]
    rows += [f"{name!r}: {kind}" for name, kind in source.inputs.items()]
    rows += [f"{new!r} <- {value!r}" for new, value in source.updates.items()]
    rows.append(
        repr([(n.name, n.op, n.inputs, n.outputs, n.attrs, n.kernel_type, n.stream, n.scope) for n in source.nodes])
    )
    rows.append(repr(source.outputs))
    rows += [f"{name!r}: {source.types[name]}" for name in source.constants]
    rows += [f"manifest {_file_digest(Path(name))}" for name in job.options.manifest]
    rows.append("states")
    rows += [f"{name!r}: {source.types[name]}" for name in source.states]
    digest = hashlib.sha256("\n".join(rows).encode())
    for array in arrays:
        digest.update(contents_digest(array))
    return f"plan {digest.hexdigest()} {sources}".rstrip()


def _file_digest(path: Path) -> str:
    """Of a manifest's bytes; of none where planning will say that it cannot be read."""
    try:
        return hashlib.sha256(contents(path)).hexdigest()
    except (OSError, ValueError):
        return "none"


@cache
def _package_stamp() -> str:
    """Changes with every file of the package, and with what folds constants."""
    digest = hashlib.sha256(f"{sys.version} {np.__version__}".encode())
    folders = [Path(__file__).parents[1]]
    for folder in folders:
        with os.scandir(folder) as entries:
            for entry in sorted(entries, key=lambda e: e.name):
                if entry.is_dir():
                    folders.append(Path(entry.path))
                elif entry.name.endswith((".py", ".so")):
                    stat = entry.stat()
                    digest.update(f"{entry.path} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    from superkernel import _core

    binary = os.stat(_core.__file__)
    digest.update(f"{binary.st_size} {binary.st_mtime_ns}".encode())
    return digest.hexdigest()
