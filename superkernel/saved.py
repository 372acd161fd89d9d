"""Kernels on disk: one file that holds the graph, the options and the object code.

Model: a zip archive (stored, not compressed: weights do not compress and load faster) with

    superkernel.json   schema version, package version, cores, options, target features, sha256 of every other member
    graph.json         the graph in node-link form (docs/graph-format.md), arrays named by member
    arrays/<n>.npy     constants and initial states
    objects/<key>.o    the compiled objects by cache key digest

Loading verifies every checksum, builds the graph and runs the ordinary pipeline with the stored objects as its cache: on the same kind of CPU and with
the same version nothing is compiled; elsewhere the kernel is compiled anew from the graph. So a saved file can never run code for another machine.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import tempfile
import zipfile
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from superkernel.codegen.cache import ObjectCache, key_digest
from superkernel.errors import FileFormatError, InputError, MachineError
from superkernel.frontends.json_graph import graph_from_json, graph_to_json
from superkernel.options import Options
from superkernel.pipeline import Compiled, compile_graph

SCHEMA = 1
_HEADER = "superkernel.json"


class _StoredObjects(ObjectCache):
    """A cache whose entries come from a saved file first, then from the ordinary cache."""

    def __init__(self, stored: Mapping[str, bytes], directory: Path | None) -> None:
        super().__init__(directory)
        self._stored = stored

    def get(self, key: str) -> bytes | None:
        found = self._stored.get(key_digest(key))
        return found if found is not None else super().get(key)


def is_saved_kernel(path: str | PathLike[str]) -> bool:
    """True where the file looks like one that `save` wrote (a zip archive with the header member)."""
    try:
        with zipfile.ZipFile(path) as archive:
            return _HEADER in archive.namelist()
    except (OSError, zipfile.BadZipFile):
        return False


def save(compiled: Compiled, path: Path) -> None:
    """Write `compiled` to `path`, atomically. Raises MachineError where the file cannot be written."""
    members: dict[str, bytes] = {}
    arrays: dict[str, Any] = {}
    members["graph.json"] = json.dumps(graph_to_json(compiled.source, arrays)).encode()
    for key, array in arrays.items():
        buffer = io.BytesIO()
        np.save(buffer, array.view(np.uint16) if array.dtype.name == "bfloat16" else array, allow_pickle=False)
        members[f"arrays/{key}.npy"] = buffer.getvalue()
    for key, data in compiled.objects.items():
        members[f"objects/{key_digest(key)}.o"] = data
    header = {
        "schema": SCHEMA,
        "version": compiled.version,
        "cores": compiled.cores,
        "options": dataclasses.asdict(compiled.options),
        "bf16": [key for key, array in arrays.items() if array.dtype.name == "bfloat16"],
        "sha256": {name: hashlib.sha256(data).hexdigest() for name, data in sorted(members.items())},
    }
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        try:
            with os.fdopen(handle, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                archive.writestr(_HEADER, json.dumps(header))
                for name, data in members.items():
                    archive.writestr(name, data)
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise MachineError(f"cannot write the kernel: {error}", location=str(path)) from error


def load_saved(path: str | PathLike[str], cores: int | None = None) -> Compiled:
    """Read a saved kernel. Raises InputError where there is no such file, FileFormatError where it is damaged."""
    header, members = _read(Path(path))
    try:
        bf16 = set(header["bf16"])
        arrays = {}
        for name, data in members.items():
            if name.startswith("arrays/"):
                key = name.removeprefix("arrays/").removesuffix(".npy")
                array = np.load(io.BytesIO(data), allow_pickle=False)
                arrays[key] = array.view(_bfloat16()) if key in bf16 else array
        graph = graph_from_json(json.loads(members["graph.json"]), arrays)
        options = Options.of({k: tuple(v) if isinstance(v, list) else v for k, v in header["options"].items()})
        stored_cores = int(header["cores"])
    except (KeyError, ValueError, TypeError) as error:
        raise FileFormatError(f"not a whole saved kernel: {error!r}", location=str(path)) from error
    stored = {Path(n).stem: data for n, data in members.items() if n.startswith("objects/")}

    def cache(directory: Path | None) -> ObjectCache:
        return _StoredObjects(stored, directory)

    return compile_graph(graph, cores=cores or stored_cores, options=options, cache_factory=cache)


def _bfloat16() -> np.dtype[Any]:
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16)


def _read(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Header and verified members."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        header = json.loads(members.pop(_HEADER))
        sums = header["sha256"]
        schema = header["schema"]
    except FileNotFoundError as error:
        raise InputError("no such file", location=str(path)) from error
    except (OSError, zipfile.BadZipFile, KeyError, ValueError, TypeError, EOFError) as error:
        raise FileFormatError(f"not a saved kernel: {error!r}", location=str(path)) from error
    if schema != SCHEMA:
        raise FileFormatError("saved by another version", location=str(path), expected=f"schema {SCHEMA}", found=schema)
    damaged = [n for n, d in members.items() if sums.get(n) != hashlib.sha256(d).hexdigest()] + sorted(sums.keys() - members.keys())
    if damaged:
        raise FileFormatError("damaged: checksums differ", location=str(path), found=", ".join(damaged[:5]))
    return header, members
