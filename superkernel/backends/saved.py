"""Kernels on disk: one file that holds the graph, the options and the object code, for every kind of target whose
kernels can be saved.

Model: a zip archive (stored, not compressed: weights do not compress and load faster) with

    superkernel.json   schema version, package version, kind of target, cores, options, certificate, sha256 of every
                       other member
    graph.json         the graph in node-link form (docs/graph-format.md)
    graph.safetensors  its larger constants and initial states
    objects/<key>.o    the compiled objects by cache key digest

Loading verifies every checksum, builds the graph and runs the ordinary pipeline with the stored objects as its cache,
for the target of its kind where it is read (`Backend.local_target`): on the same kind of CPU and with the same version
nothing is compiled; elsewhere the kernel is compiled anew from the graph. So a saved file can never run code for
another machine.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import zipfile
import zlib
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from superkernel.backends import backend_of, kinds
from superkernel.codegen.cache import ObjectCache, key_digest
from superkernel.compilation.compiled import AnyCompilation
from superkernel.compilation.pipeline import compile_graph
from superkernel.core.errors import FileFormatError, InputError
from superkernel.core.files import file_name, is_elf, replacing
from superkernel.core.options import Options
from superkernel.frontends.json_form import graph_of, members_of
from superkernel.ir.graph import Graph
from superkernel.target.cpu import THREADS_MAX, CpuTarget

SCHEMA = 1
_HEADER = "superkernel.json"
_GRAPH = "graph.json"
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
    MemoryError,
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
    """True where the file looks like one that `save` wrote (a zip archive with the header member)."""
    try:
        with zipfile.ZipFile(path) as archive:
            return _HEADER in archive.namelist()
    except (OSError, ValueError, zipfile.BadZipFile):
        return False


def save(compiled: AnyCompilation, objects: Mapping[str, bytes], path: str | PathLike[str]) -> None:
    """Write what was compiled, with its object code by cache key, to `path`, atomically. Raises InputError on what is
    no file name, MachineError where the file cannot be written."""
    path = file_name(path)
    members = members_of(_with_free_names(compiled.source), _GRAPH)
    members |= {f"objects/{digest}.o": data for digest, data in by_digest(objects).items()}
    header = {
        "schema": SCHEMA,
        "version": compiled.version,
        "kind": compiled.target.kind,
        "cores": compiled.cores,
        "options": dataclasses.asdict(compiled.options),
        "certificate": str(compiled.certificate),
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in sorted(members.items())},
    }
    with replacing(path, "the kernel") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(_HEADER, json.dumps(header))
        for name, data in members.items():
            archive.writestr(name, data)


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
    if is_elf(path):
        raise FileFormatError(
            "an accelerator's program, not a saved kernel", location=f"file {str(path)!r}", hint=ELF_HINT
        )
    header, members = _read(path)
    try:
        graph = graph_of(members[_GRAPH], members, f"file {str(path)!r}, member {_GRAPH!r}")
        options = Options.of(header["options"])
        stored_cores = int(header["cores"])
        if not 1 <= stored_cores <= THREADS_MAX:
            raise ValueError(f"{stored_cores} cores")
        kind = header.get("kind", CpuTarget.kind)  # files had none when nobody else saved
        if kind not in kinds():
            raise ValueError(f"a target of kind {kind!r}, known are {', '.join(kinds())}")
    except (KeyError, ValueError, TypeError, AttributeError, InputError) as error:
        raise FileFormatError("not a whole saved kernel", location=f"file {str(path)!r}", found=str(error)) from error
    stored = {Path(n).stem: data for n, data in members.items() if n.startswith("objects/")}
    made = compile_stored(kind, graph, cores or stored_cores, options, stored)
    _check_certificate(made, header, stored, path)
    return made


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


def _read(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Header and verified members."""
    where = f"file {str(path)!r}"
    try:
        with zipfile.ZipFile(path) as archive:
            if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
                raise ValueError("a compressed member")  # `save` writes none, and their size could be anything
            members = {name: archive.read(name) for name in archive.namelist()}
        header = json.loads(members.pop(_HEADER))
        sums, schema = dict(header["sha256"]), header["schema"]
    except FileNotFoundError as error:
        raise InputError("no such file", location=where) from error
    except (IsADirectoryError, PermissionError) as error:
        raise InputError("the file cannot be read", location=where, found=str(error.strerror)) from error
    except _DAMAGE as error:
        found = f"{type(error).__name__}: {error}"
        raise FileFormatError("not a saved kernel", location=where, found=found) from error
    if schema != SCHEMA:
        hint = "compile the model again with this version"
        expected = f"schema {SCHEMA}"
        raise FileFormatError("saved by another version", location=where, expected=expected, found=schema, hint=hint)
    damaged = [n for n, d in members.items() if sums.get(n) != hashlib.sha256(d).hexdigest()]
    damaged += sorted(({_GRAPH} | sums.keys()) - members.keys())
    if damaged:
        raise FileFormatError("damaged: checksums differ", location=where, found=", ".join(damaged[:5]))
    return header, members
