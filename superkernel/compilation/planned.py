"""What planning made of a graph, and its entry in the cache of compiled objects: a graph that was compiled before, with
the same options for the same target, is not planned again.

Model: the key is a digest of everything that planning reads: the whole graph with the bytes of its constants, options,
target, cores, and the files of this package. The entry is a pickle in which the arrays of the source graph stand as
references by name, so that weights are never stored twice; what planning made of them (folded normalisations, joined
factors) stands in it.

Invariants: a plan from the cache is proved by the verifier like any other. Entries are read from the user's own cache
alone, which holds machine code of the same standing, never from a saved kernel. An entry that cannot be read is one
that is not there.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import pickle
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from superkernel.compilation.compiled import Job, Planned
from superkernel.target.base import Target

if TYPE_CHECKING:
    from superkernel.codegen.cache import ObjectCache

PlannedT = TypeVar("PlannedT", bound="Planned[Any]")

HASHED_BYTES_MAX = 1 << 29  # above that planning anew is sooner done than reading all constants
ENTRY_BYTES_MAX = 64 << 20


class PlanStore(Generic[PlannedT]):
    """The entry of one compilation in a cache. There is none without a directory, or with more constants than are worth
    reading."""

    def __init__(self, objects: ObjectCache, job: Job[Target]) -> None:
        arrays = {**job.source.constants, **job.source.states}
        small = sum(a.nbytes for a in arrays.values()) <= HASHED_BYTES_MAX
        self._objects, self._arrays = objects, arrays
        self._key = _key(job, arrays) if small and objects.directory is not None else None

    def find(self) -> PlannedT | None:
        """What was kept for this graph, or None."""
        data = self._objects.get(self._key) if self._key is not None else None
        if data is None:
            return None
        try:
            found = _Unpickler(data, self._arrays).load()
        except Exception:  # a class that is no more, say: whatever it is, planning again puts it right
            return None
        return cast("PlannedT", found) if isinstance(found, Planned) else None

    def keep(self, planned: PlannedT) -> None:
        """Keep it, unless most of it is constants that planning has made."""
        if self._key is None:
            return
        made = {id(a): a.nbytes for a in (*planned.graph.constants.values(), *planned.grouping.constants.values())}
        own = {id(a) for a in self._arrays.values()}
        if sum(nbytes for at, nbytes in made.items() if at not in own) > ENTRY_BYTES_MAX:
            return
        buffer = io.BytesIO()
        _Pickler(buffer, self._arrays).dump(planned)
        self._objects.put(self._key, buffer.getvalue())


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, arrays: Mapping[str, NDArray[Any]]) -> None:
        super().__init__(file, protocol=5)
        self._names = {id(array): name for name, array in arrays.items()}

    def reducer_override(self, item: object) -> Any:
        """Frozen rows as calls of their class: a quarter of the time to read that their usual form takes."""
        kind = type(item)
        if "__slots__" not in kind.__dict__ or not dataclasses.is_dataclass(kind) or hasattr(kind, "__post_init__"):
            return NotImplemented
        return kind, tuple(getattr(item, field.name) for field in dataclasses.fields(kind))

    def persistent_id(self, item: object) -> str | None:
        return self._names.get(id(item)) if isinstance(item, np.ndarray) else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, arrays: Mapping[str, NDArray[Any]]) -> None:
        super().__init__(io.BytesIO(data))
        self._arrays = arrays

    def persistent_load(self, name: str) -> NDArray[Any]:
        return self._arrays[name]


def _key(job: Job[Target], arrays: Mapping[str, NDArray[Any]]) -> str:
    """The text that determines a plan."""
    source = job.source
    rows = [f"plan {_package_stamp()}", repr(job.target), repr(job.cores), repr(job.options), repr(source.name)]
    rows += [f"{name!r}: {kind}" for name, kind in source.inputs.items()]
    rows += [f"{new!r} <- {value!r}" for new, value in source.updates.items()]
    rows += [
        repr((n.name, n.op, n.inputs, n.outputs, tuple(n.attrs.items()), n.kernel_type, n.stream, n.scope))
        for n in source.nodes
    ]
    rows.append(repr(source.outputs))
    rows += [f"{name!r}: {source.types[name]}" for name in source.constants]
    rows.append("states")
    rows += [f"{name!r}: {source.types[name]}" for name in source.states]
    digest = hashlib.sha256("\n".join(rows).encode())
    for array in arrays.values():
        digest.update(np.ascontiguousarray(array).view(np.uint8).data if array.ndim else array.tobytes())
    return f"plan {digest.hexdigest()}"


@cache
def _package_stamp() -> str:
    """Changes with every file of the package, and with what a pickle's form depends on."""
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
