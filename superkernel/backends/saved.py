"""Kernels on disk: one file that holds the graph, the options, the plan and the object code, for every kind of target
whose kernels can be saved.

Model: a zip archive (stored, not compressed: weights do not compress and load faster) with

    superkernel.json   schema version, package version, kind of target, cores, options, certificate, what its plan fits,
                       sha256 of every other member, crc32 of those that hold large arrays
    graph.json         the graph in node-link form (docs/graph-format.md)
    graph.safetensors  its larger constants and initial states
    source, plan       the graph once more and its plan (`core/typed_form.py`), without arrays that stand elsewhere
    constants          the constants as the plan packs them
    objects/<key>.o    the compiled objects by cache key digest

Loading verifies every checksum. Where it fits (the same target, sources of what emits code, and cores) the plan
is checked and proved as it is and bound to the constants where they lie in the file: nothing is planned, packed or
copied. Elsewhere the graph goes through the ordinary pipeline with the stored objects as its cache, for the target of
its kind (`Backend.local_target`). So a saved file can never run code for another machine.

Trust: a saved kernel holds machine code and is to be vouched for like a program; checksums find damage, not forgery.
Its bytes are mapped where nobody but its owner may write to it (`core.files.mapped`), so it must not be cut short or
written into while a kernel of it lives; `save` and whoever else replaces it whole does no harm.
"""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache, reduce
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.backends import backend_of, kinds
from superkernel.codegen.cache import ObjectCache, key_digest
from superkernel.compilation.backend import AnyBackend
from superkernel.compilation.compiled import AnyCompilation, Job, Planned
from superkernel.compilation.pipeline import compile_graph, complete
from superkernel.compilation.planned import PlanForm
from superkernel.compilation.stages import Stages
from superkernel.core import settings
from superkernel.core.dtypes import DType
from superkernel.core.errors import FileFormatError, InputError, MachineError
from superkernel.core.files import exists, file_name, is_elf, is_file, mapped, replacing
from superkernel.core.json_text import parse_json
from superkernel.core.options import Options
from superkernel.core.typed_form import ALIGNMENT, decode, encode
from superkernel.core.version import sources_digest
from superkernel.ir.graph import Graph
from superkernel.scheduler.schedule import MADE, PackedConstants
from superkernel.target.base import Target, identity_of
from superkernel.target.cpu import THREADS_MAX, CpuTarget

Array = NDArray[Any]

SCHEMA = 2
_HEADER = "superkernel.json"
_GRAPH = "graph.json"
_ARRAYS = "graph.safetensors"
_SOURCE, _PLAN, _CONSTANTS = "source", "plan", "constants"
_LARGE = (_ARRAYS, _CONSTANTS)  # sha256 takes as long as all else
_PADDING = 0xD935  # an extra field of archives that is there to align
# What zipfile, zlib and json raise on bytes that are no archive of ours (NotImplementedError on an unknown compression,
# RuntimeError on encryption).
_DAMAGE = (
    OSError,
    zipfile.BadZipFile,
    zlib.error,
    KeyError,
    ValueError,
    TypeError,
    EOFError,
    NotImplementedError,
    RuntimeError,
    struct.error,
)


class _StoredObjects(ObjectCache):
    """A cache whose entries come from a saved file first, then from the ordinary cache."""

    def __init__(self, stored: Mapping[str, bytes], directory: Path | None) -> None:
        super().__init__(directory)
        self._stored = stored

    def get(self, key: str) -> bytes | None:
        found = self._stored.get(key_digest(key))
        return found if found is not None else super().get(key)


ELF_HINT = "superkernel sim run PROGRAM runs it; results come from the kernel that saved it"


def is_saved_kernel(path: str | PathLike[str]) -> bool:
    """True where the file looks like one that `save` wrote (a zip archive with the header member), or the beginning of
    one: `load` says what it lacks."""
    if not is_file(path):
        return False
    try:
        with zipfile.ZipFile(path) as archive:
            return _HEADER in archive.namelist()
    except (OSError, ValueError, zipfile.BadZipFile):
        with suppress(OSError, ValueError):
            return _is_cut_short(path)
        return False


def _is_cut_short(path: str | PathLike[str]) -> bool:
    """Whether a file begins as those of `save` do and ends without the archive's directory."""
    name = _HEADER.encode()
    with open(path, "rb") as file:
        start = file.read(30 + len(name))  # a local header has 30 bytes before the member's name
    return start.startswith(b"PK\3\4") and start.endswith(name) and not zipfile.is_zipfile(path)


def save(
    compiled: AnyCompilation,
    objects: Mapping[str, bytes],
    path: str | PathLike[str],
    constants: Sequence[memoryview] | None = None,
) -> None:
    """Write what was compiled, with its object code by cache key, to `path`, atomically; its plan too, where its
    packed `constants` are given, piece by piece. Raises InputError on what is no file name, MachineError where the file
    cannot be written."""
    from superkernel.frontends.json_form import members_of

    path = file_name(path)
    members: dict[str, Any] = {**members_of(_with_free_names(compiled.source), _GRAPH)}
    backend = backend_of(compiled.target)
    if constants is not None:
        members |= {**_plan_members(compiled, backend), _CONSTANTS: constants}
    members |= {f"objects/{digest}.o": data for digest, data in by_digest(objects).items()}
    header = {
        "schema": SCHEMA,
        "version": compiled.version,
        "kind": compiled.target.kind,
        "cores": compiled.cores,
        "options": dataclasses.asdict(compiled.options),
        "certificate": str(compiled.certificate),
        "target": backend.local_record(compiled.target),
        "plan_key": _plan_key(backend, compiled.target),
        "sha256": {n: hashlib.sha256(data).hexdigest() for n, data in sorted(members.items()) if n not in _LARGE},
        "crc32": {n: reduce(_crc32, _pieces(members[n]), 0) for n in _LARGE if n in members},
    }
    with replacing(path, "the kernel") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo(_HEADER), json.dumps(header))  # without the time: one kernel, one file
        for name, data in members.items():
            _add(archive, name, data)


def _add(archive: zipfile.ZipFile, name: str, data: Any) -> None:
    """A member whose bytes begin at a multiple of ALIGNMENT."""
    assert archive.fp is not None
    info = zipfile.ZipInfo(name)
    head = archive.fp.tell() + 30 + len(name) + 6 + 20  # the padding's own head, and the sizes that zip64 adds
    padding = bytes(-head % ALIGNMENT)
    info.extra = struct.pack("<HHH", _PADDING, 2 + len(padding), ALIGNMENT) + padding
    with archive.open(info, "w", force_zip64=True) as member:
        for piece in _pieces(data):
            member.write(piece)


def _pieces(data: Any) -> Sequence[Any]:
    """A member's bytes, which may come in pieces."""
    return data if isinstance(data, list) else [data]


def _crc32(before: int, piece: Any) -> int:
    return zlib.crc32(piece, before)


def _plan_members(compiled: AnyCompilation, backend: AnyBackend) -> dict[str, bytes]:
    """The source and the plan. Arrays that planning made stand nowhere but in the packed constants."""
    from superkernel.frontends.json_form import INLINE_BYTES

    source = compiled.source
    arrays = {**source.constants, **source.states}
    own = {id(array) for array in arrays.values()}

    def stripped(part: Any) -> Any:
        kept = {name: array if id(array) in own else MADE for name, array in part.constants.items()}
        return dataclasses.replace(part, constants=kept)

    planned = Planned(
        stripped(compiled.graph), stripped(compiled.grouping), compiled.schedule, compiled.dumps, compiled.plan
    )
    large = {name: array for name, array in arrays.items() if array.nbytes > INLINE_BYTES}
    return {
        _SOURCE: encode(Graph, source, large),
        _PLAN: PlanForm(backend).written(planned, {**arrays, "": MADE}),
    }


def _plan_key(backend: AnyBackend, target: Target) -> str:
    """What must be the same where a plan and its packed constants are used as they are."""
    return f"{sources_digest(*backend.generator)} {identity_of(target)!r} {backend.kernels.sources}".rstrip()


def by_digest(objects: Mapping[str, bytes]) -> dict[str, bytes]:
    """Object code by cache key under the names that saved files and pickles give it."""
    return {key_digest(key): data for key, data in objects.items()}


def _with_free_names(graph: Graph) -> Graph:
    """The graph with other names for nodes that are called like an input, a constant or a state: the file form has one
    name space for both."""
    values = {*graph.inputs, *graph.constants, *graph.states}
    taken = values | {node.name for node in graph.nodes}
    nodes = []
    for node in graph.nodes:
        name, number = node.name, 0
        while name in values or (number and name in taken):
            number += 1
            name = f"{node.name}~{number}"
        taken.add(name)
        nodes.append(node if name == node.name else dataclasses.replace(node, name=name))
    return dataclasses.replace(graph, nodes=tuple(nodes))


def load_saved(path: str | PathLike[str], cores: int | None = None) -> AnyCompilation:
    """Read a saved kernel of any kind of target; `cores`: other than it was compiled for. Raises InputError where there
    is no such file, FileFormatError where it is damaged."""
    path = file_name(path)
    with _read(path) as (header, members, check_arrays):
        return _compilation(path, cores, header, members, check_arrays)


def _compilation(
    path: Path,
    cores: int | None,
    header: Mapping[str, Any],
    members: Mapping[str, memoryview],
    check_arrays: Callable[[], None],
) -> AnyCompilation:
    """What a file's header and members say. Raises FileFormatError."""
    try:
        options = Options.of(header["options"])
        stored_cores = int(header["cores"])
        if not 1 <= stored_cores <= THREADS_MAX:
            raise ValueError(f"{stored_cores} cores")
        kind = header.get("kind", CpuTarget.kind)  # files had none when nobody else saved
        if kind not in kinds():
            raise ValueError(f"a target of kind {kind!r}, known are {', '.join(kinds())}")
        backend = backend_of(kind)
        target = backend.local_target(header.get("target"))
    except (KeyError, ValueError, TypeError, AttributeError, InputError) as error:
        raise FileFormatError("not a whole saved kernel", location=f"file {str(path)!r}", found=str(error)) from error
    stored = {Path(n).stem: bytes(data) for n, data in members.items() if n.startswith("objects/")}
    as_it_is = {_SOURCE, _PLAN, _CONSTANTS} <= members.keys() and cores in (None, stored_cores)
    if target is None or not as_it_is or header.get("plan_key") != _plan_key(backend, target):
        check_arrays()
        made = compile_stored(kind, _graph_of(members, path), cores or stored_cores, options, stored)
        _check_certificate(made, header, stored, path)
        return made
    try:
        source = decode(Graph, members[_SOURCE], _arrays(members.get(_ARRAYS, memoryview(b""))), _no_variants)
        job = Job(source, target, stored_cores, options)
        planned = _planned(backend, job, members)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileFormatError("not a whole saved kernel", location=f"file {str(path)!r}", found=str(error)) from error
    cache = _StoredObjects(stored, settings.cache_directory() if options.cache else None)
    made = complete(Stages(settings.dump_stages()), job, backend, planned, cache, lambda: backend.planner(job).chooser)
    check_arrays()
    _check_certificate(made, header, stored, path)
    return made


def load_source(path: str | PathLike[str]) -> Graph:
    """The graph that a saved kernel was compiled from, ahead of all passes: what compiling it anew starts from. Raises
    as `load_saved`."""
    path = file_name(path)
    with _read(path) as (_, members, check_arrays):
        check_arrays()
        return _graph_of(members, path)


def _graph_of(members: Mapping[str, memoryview], path: Path) -> Graph:
    """The graph in the file, with arrays of its own."""
    from superkernel.frontends.json_form import graph_of

    whole = {name: bytes(members[name]) for name in (_GRAPH, _ARRAYS) if name in members}
    return graph_of(whole[_GRAPH], whole, f"file {str(path)!r}, member {_GRAPH!r}")


def _check_certificate(
    made: AnyCompilation, header: Mapping[str, Any], stored: Mapping[str, bytes], path: Path
) -> None:
    """A kernel that is loaded from the objects it was saved with, and no others, has the certificate it was saved with.
    Raises FileFormatError."""
    found = str(made.certificate)
    if by_digest(made.objects).keys() == stored.keys() and header.get("certificate", found) != found:
        raise FileFormatError(
            "not the program of its certificate",
            location=f"file {str(path)!r}",
            expected=header["certificate"],
            found=found,
            hint="compile the model again",
        )


def _planned(backend: AnyBackend, job: Job[Any], members: Mapping[str, memoryview]) -> Any:
    """The stored plan, its constants where they lie in the file."""
    planned = PlanForm(backend).read(members[_PLAN], {**job.source.constants, **job.source.states, "": MADE})
    blob = np.frombuffer(members[_CONSTANTS], np.uint8)

    @cache
    def again() -> Any:
        from superkernel.compilation.planning import plan_graph

        return plan_graph(Stages(frozenset()), job, backend.planner(job))

    graph = PackedConstants(planned.graph.constants, blob, lambda: again().graph.constants)
    grouping = PackedConstants(planned.grouping.constants, blob, lambda: again().grouping.constants)
    return dataclasses.replace(
        planned,
        graph=dataclasses.replace(planned.graph, constants=graph),
        grouping=dataclasses.replace(planned.grouping, constants=grouping),
    )


def _no_variants(name: str) -> type:
    raise KeyError(name)


def _arrays(data: memoryview) -> dict[str, Array]:
    """The arrays of a safetensors file, where they lie."""
    if not data:
        return {}
    start = 8 + int.from_bytes(data[:8], "little")
    found = {}
    for name, entry in parse_json(bytes(data[8:start])).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            raw = data[start + begin : start + end]
            found[name] = np.frombuffer(raw, DType(entry["dtype"].lower()).numpy).reshape(entry["shape"])
    return found


def compile_stored(
    kind: str, graph: Graph, cores: int, options: Options, objects: Mapping[str, bytes]
) -> AnyCompilation:
    """The kernel of a graph whose objects, by digests of their keys, are at hand: what of them fits is not compiled.
    Raises FileFormatError where nothing of the kind can be compiled here."""

    def cache(directory: Path | None) -> ObjectCache:
        return _StoredObjects(objects, directory)

    backend = backend_of(kind)
    target = backend.local_target()
    if target is None:
        raise FileFormatError("a kernel of a kind of target whose kernels are not saved", found=kind)
    made: AnyCompilation = compile_graph(graph, target, options, backend, threads=cores, cache_factory=cache)
    return made


@contextmanager
def _read(path: Path) -> Iterator[tuple[dict[str, Any], dict[str, memoryview], Callable[[], None]]]:
    """Header, verified members, and what waits until the large ones are verified, too, while others work. All raise
    FileFormatError where something is damaged. When the block ends, however it does, nobody verifies any more: whoever
    reads on in a file that is cut short then ends the process."""
    where = f"file {str(path)!r}"
    if exists(path) and not is_file(path):  # of a device or a pipe there may be no end
        raise InputError("the file cannot be read", location=where, expected="a regular file")
    if is_elf(path):
        raise FileFormatError("an accelerator's program, not a saved kernel", location=where, hint=ELF_HINT)

    def raise_damaged(names: Sequence[str]) -> None:
        if names:
            raise FileFormatError("damaged: checksums differ", location=where, found=", ".join(names[:5]))

    try:
        opened = open(path, "rb")  # noqa: SIM115
    except FileNotFoundError as error:
        raise InputError("no such file", location=where) from error
    except OSError as error:
        raise InputError("the file cannot be read", location=where, found=str(error.strerror)) from error
    try:
        with opened as file, zipfile.ZipFile(file) as archive:
            if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
                raise ValueError("a compressed member")  # `save` writes none, and their size could be anything
            if archive.getinfo(_HEADER).file_size > os.fstat(file.fileno()).st_size:
                raise ValueError("a member that is longer than the file")
            header = parse_json(archive.read(_HEADER))
            data = mapped(file)
            members = {info.filename: _member(data, info) for info in archive.infolist()}
        del members[_HEADER]
        digests, sums, schema = dict(header["sha256"]), dict(header.get("crc32", {})), header["schema"]
    except MemoryError as error:
        raise MachineError("not enough memory to read the file", location=where) from error
    except _DAMAGE as error:
        if isinstance(error, OSError) and error.errno is None:  # not of the system: a signal handler's TimeoutError
            raise
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # as a place before the file's beginning is
            raise MachineError("the file cannot be read", location=where, found=str(error)) from error
        if _is_cut_short(path):
            hint = "copy the file again, or save the kernel again"
            raise FileFormatError("the saved kernel is cut short", location=where, hint=hint) from error
        found = f"{type(error).__name__}: {error}" if path.stat().st_size else "an empty file"
        raise FileFormatError("not a saved kernel", location=where, found=found) from error
    if schema != SCHEMA:
        hint = "compile the model again with this version"
        expected = f"schema {SCHEMA}"
        raise FileFormatError("saved by another version", location=where, expected=expected, found=schema, hint=hint)
    damaged = [n for n, d in members.items() if n not in _LARGE and digests.get(n) != hashlib.sha256(d).hexdigest()]
    damaged += sorted(({_GRAPH} | digests.keys() | sums.keys()) - members.keys())
    raise_damaged(damaged)
    with ThreadPoolExecutor(len(_LARGE)) as pool:
        found_sums = pool.map(zlib.crc32, [members.get(name, b"") for name in _LARGE])
        yield (
            header,
            members,
            lambda: raise_damaged([n for n, s in zip(_LARGE, found_sums, strict=True) if s != sums.get(n, 0)]),
        )


def _member(data: memoryview, info: zipfile.ZipInfo) -> memoryview:
    """A member's bytes. Its local head, whose length only it tells, stands before them."""
    name_bytes, extra_bytes = struct.unpack_from("<HH", data, info.header_offset + 26)
    start = info.header_offset + 30 + name_bytes + extra_bytes
    if info.compress_size != info.file_size or start + info.file_size > len(data):
        raise ValueError("a member that is cut short")
    return data[start : start + info.file_size]
