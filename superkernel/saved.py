"""Kernels on disk: one file that holds the graph, the options and the object code.

Model: a zip archive (stored, not compressed: weights do not compress and load faster) with

    superkernel.json   schema version, package version, cores, options, target features, sha256 of every other member
    graph.json         the graph in node-link form (docs/graph-format.md)
    graph.safetensors  its larger constants and initial states
    objects/<key>.o    the compiled objects by cache key digest

Loading verifies every checksum, builds the graph and runs the ordinary pipeline with the stored objects as its cache: on the same kind of CPU and with
the same version nothing is compiled; elsewhere the kernel is compiled anew from the graph. So a saved file can never run code for another machine.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import tempfile
import zipfile
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from superkernel.codegen.cache import ObjectCache, key_digest
from superkernel.errors import FileFormatError, InputError, MachineError
from superkernel.frontends.json_form import load_json, save_json
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
    with tempfile.TemporaryDirectory(prefix="superkernel-") as folder:
        save_json(compiled.source, Path(folder) / "graph.json")
        members = {file.name: file.read_bytes() for file in Path(folder).iterdir()}
    for key, data in compiled.objects.items():
        members[f"objects/{key_digest(key)}.o"] = data
    header = {
        "schema": SCHEMA,
        "version": compiled.version,
        "cores": compiled.cores,
        "options": dataclasses.asdict(compiled.options),
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
        with tempfile.TemporaryDirectory(prefix="superkernel-") as folder:
            for name in ("graph.json", "graph.safetensors"):
                if name in members:
                    (Path(folder) / name).write_bytes(members[name])
            graph = load_json(Path(folder) / "graph.json")
        options = Options.of({k: tuple(v) if isinstance(v, list) else v for k, v in header["options"].items()})
        stored_cores = int(header["cores"])
    except (KeyError, ValueError, TypeError) as error:
        raise FileFormatError(f"not a whole saved kernel: {error!r}", location=str(path)) from error
    stored = {Path(n).stem: data for n, data in members.items() if n.startswith("objects/")}

    def cache(directory: Path | None) -> ObjectCache:
        return _StoredObjects(stored, directory)

    return compile_graph(graph, cores=cores or stored_cores, options=options, cache_factory=cache)


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
