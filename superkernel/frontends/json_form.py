"""The file form: node-link JSON with a schema version; arrays inline where small, else in a side file.

Model: `load_json` reads the text into the networkx form and hands it to `from_networkx`. An array is one of
`{"dtype", "shape", "data": [...]}`, `{"dtype", "shape", "base64": "..."}` (little-endian, row-major) and
`{"dtype", "shape", "file": "name.npz" | "name.safetensors", "key": "...", }`; `files` in the head gives each side
file's sha256.

Invariants: nothing is unpickled; a side file lies in the folder of the JSON file or below it (links that lead out are
refused); what is read is checked against its declared type; a file is written whole or not at all.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.core.dtypes import DType
from superkernel.core.errors import FileFormatError, InputError, MachineError, SuperKernelError
from superkernel.core.files import contents, is_file, whole
from superkernel.core.json_text import parse_json
from superkernel.frontends.networkx_form import from_networkx, to_networkx
from superkernel.ir.graph import Graph

FORMAT = "superkernel-graph"
SCHEMA_VERSION = 1
INLINE_BYTES = 1024  # arrays up to this size stand in the text


def save_json(
    graph: Graph, path: str | Path, *, weights: str = "safetensors", inline_bytes: int = INLINE_BYTES
) -> None:
    """Writes the graph. Arrays above `inline_bytes` go to a side file `<stem>.safetensors` or `<stem>.npz` beside it.

    Raises InputError on an unknown `weights`, MachineError where the folder cannot be written.
    """
    target = Path(path)
    if weights not in ("safetensors", "npz"):
        raise InputError("unknown form of weights", expected="safetensors or npz", found=weights)
    try:
        for name, data in members_of(graph, target.name, weights, inline_bytes).items():
            with whole(target.with_name(name)) as file:
                file.write(data)
    except OSError as error:
        raise MachineError("the graph cannot be written", location=f"file {str(target)!r}", found=str(error)) from error


def members_of(
    graph: Graph, head_name: str, weights: str = "safetensors", inline_bytes: int = INLINE_BYTES
) -> dict[str, bytes]:
    """The files of a graph by name: the side file where there is one, behind it the head that names it."""
    side = Path(head_name).with_suffix("." + weights).name
    large: dict[str, NDArray[Any]] = {}

    def describe(name: str, array: NDArray[Any]) -> dict[str, Any]:
        head: dict[str, Any] = {"dtype": DType.of(array.dtype).value, "shape": list(array.shape)}
        if array.nbytes > inline_bytes:
            large[name] = array
            return {**head, "file": side, "key": name}
        return {**head, "base64": base64.b64encode(_bytes(array)).decode("ascii")}

    source = to_networkx(graph)
    nodes = []
    for key, data in source.nodes(data=True):
        entry = {"id": key, **data}
        if data["op"] in ("constant", "state"):
            entry["value"] = describe(key, np.asarray(data["value"]))
        nodes.append(entry)
    links = [{"source": s, "target": t, "key": k, **data} for s, t, k, data in source.edges(keys=True, data=True)]
    text: dict[str, Any] = {"format": FORMAT, "schema_version": SCHEMA_VERSION, "files": {}}
    members: dict[str, bytes] = {}
    if large:
        members[side] = _side_data(weights, large)
        text["files"][side] = {"sha256": hashlib.sha256(members[side]).hexdigest()}
    text |= {"directed": True, "multigraph": True, "graph": {"name": graph.name}, "nodes": nodes, "links": links}
    return {**members, head_name: json.dumps(text, indent=1).encode()}


def _bytes(array: NDArray[Any]) -> bytes:
    return np.ascontiguousarray(array).tobytes()


def _side_data(form: str, arrays: dict[str, NDArray[Any]]) -> bytes:
    if form == "npz":
        # npz has NumPy's own types only: arrays of others are stored as bits, the JSON says what they are.
        plain = {k: a.view(DType.of(a.dtype).stored) for k, a in arrays.items()}
        stored: dict[str, Any] = {f"a{i}": a for i, a in enumerate(plain.values())}
        stored["names"] = np.array(json.dumps(list(plain)).encode(), dtype=np.bytes_)
        buffer = io.BytesIO()
        np.savez(buffer, **stored)
        return buffer.getvalue()
    from safetensors.numpy import save

    kept = {k: a.view(np.uint8) if DType.of(a.dtype).is_small else a for k, a in arrays.items()}
    return bytes(save({k: np.asarray(a, order="C") for k, a in kept.items()}))


def _digest(content: Path | bytes) -> str:
    if isinstance(content, bytes):
        return hashlib.sha256(content).hexdigest()
    with content.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_json(path: str | Path) -> Graph:
    """Reads what `save_json` wrote, or a hand-written file of the form. Raises InputError (no such file),
    FileFormatError, GraphError."""
    target = Path(path)
    where = f"file {str(target)!r}"
    try:
        data = contents(target)
    except FileNotFoundError as error:
        raise InputError("no such file", location=where) from error
    except OSError as error:
        raise MachineError("the file cannot be read", location=where, found=str(error)) from error
    return graph_of(data, target.parent, where)


def graph_of(head: bytes, sides: Path | Mapping[str, bytes], where: str) -> Graph:
    """The graph of a head and its side files (a folder, or contents by name). Raises FileFormatError, GraphError."""
    try:
        document = parse_json(head.decode("utf-8"))
    except ValueError as error:
        raise FileFormatError("not JSON", location=where, found=str(error)) from error
    _check_head(document, where)
    reader = _Arrays(sides, document.get("files") or {}, where)
    return from_networkx(_to_source(document, reader, where), copy=False)


def _check_head(document: Any, where: str) -> None:
    if not isinstance(document, dict) or document.get("format", FORMAT) != FORMAT:
        raise FileFormatError("not a graph file", location=where, expected=f'"format": "{FORMAT}"')
    version = document.get("schema_version")
    if version != SCHEMA_VERSION:
        hint = "write the file with this version of superkernel" if version is not None else 'add "schema_version"'
        raise FileFormatError(
            "another schema version", location=where, expected=SCHEMA_VERSION, found=repr(version), hint=hint
        )
    for field in ("nodes", "links"):
        if not isinstance(document.get(field), list) or not all(isinstance(e, dict) for e in document[field]):
            raise FileFormatError(f"{field!r} is not a list of objects", location=where)
    if not isinstance(document.get("graph", {}), dict) or not isinstance(document.get("files") or {}, dict):
        raise FileFormatError("'graph' and 'files' are objects", location=where)


def _to_source(document: dict[str, Any], reader: _Arrays, where: str) -> Any:
    import networkx as nx

    source: nx.MultiDiGraph[Any] = nx.MultiDiGraph(name=(document.get("graph") or {}).get("name", "graph"))
    for entry in document["nodes"]:
        if not isinstance(entry.get("id"), (str, int)):
            raise FileFormatError("a node without 'id'", location=where, found=repr(entry)[:80])
        key = str(entry["id"])
        if key in source:
            raise FileFormatError("two nodes with one id", location=where, found=repr(key))
        data = {str(k): v for k, v in entry.items() if k != "id"}
        if data.get("op") in ("constant", "state"):
            data["value"] = reader.array(key, data.get("value"))
        source.add_node(key, **data)
    for entry in document["links"]:
        ends = [str(entry.get(end)) for end in ("source", "target")]
        unknown = [e for e in ends if e not in source]
        if unknown:
            raise FileFormatError("an edge names an unknown node", location=where, found=", ".join(map(repr, unknown)))
        source.add_edge(*ends, **{k: v for k, v in entry.items() if k not in ("source", "target", "key")})
    return source


class _Arrays:
    """The arrays of one file; side files are opened once."""

    def __init__(self, sides: Path | Mapping[str, bytes], files: dict[str, Any], where: str) -> None:
        self.sides, self.files, self.where = sides, files, where
        self.opened: dict[str, dict[str, NDArray[Any]]] = {}

    def array(self, name: str, entry: Any) -> NDArray[Any]:
        """The array that `entry` describes. Raises FileFormatError."""
        place = f"{self.where}, node {name!r}"
        if not isinstance(entry, dict) or "dtype" not in entry or not isinstance(entry.get("shape"), list):
            raise FileFormatError(
                "an array has dtype, shape and one of data, base64, file", location=place, found=repr(entry)[:80]
            )
        try:
            dtype = DType.of(entry["dtype"])
            shape = tuple(int(d) for d in entry["shape"])
            if any(d < 0 for d in shape):
                raise ValueError(f"shape {shape}")
            if "data" in entry:
                return np.array(entry["data"], dtype=dtype.numpy).reshape(shape)
            if "base64" in entry:
                raw = base64.b64decode(entry["base64"], validate=True)
                return np.frombuffer(raw, dtype=dtype.numpy).reshape(shape)
            found = self.side(str(entry.get("file")), place)[str(entry.get("key", name))]
        except KeyError as error:
            raise FileFormatError("the side file lacks the array", location=place, found=str(error)) from error
        except FileFormatError:
            raise
        except (SuperKernelError, ValueError, TypeError, OverflowError, binascii.Error) as error:
            raise FileFormatError("the array does not read", location=place, found=str(error)) from error
        if found.dtype == dtype.stored:
            found = found.view(dtype.numpy)
        if found.shape != shape or found.dtype != dtype.numpy:
            raise FileFormatError(
                "the array is not of the declared type",
                location=place,
                expected=f"{dtype} {shape}",
                found=f"{found.dtype} {found.shape}",
            )
        return found

    def side(self, name: str, place: str) -> dict[str, NDArray[Any]]:
        if name not in self.opened:
            content = self.content(name, place)
            declared = self.files.get(name)
            wanted = declared.get("sha256") if isinstance(declared, dict) else None
            if wanted is not None and _digest(content) != wanted:
                raise FileFormatError(
                    "the side file has another content hash", location=place, expected=wanted, found=name
                )
            self.opened[name] = _read_side(name, content, place)
        return self.opened[name]

    def content(self, name: str, place: str) -> Path | bytes:
        """What holds the arrays of a side file: a path in the folder, or bytes that are at hand."""
        if not isinstance(self.sides, Path):
            if name not in self.sides:
                raise FileFormatError("the side file is missing", location=place, found=repr(name))
            return self.sides[name]
        folder = self.sides.resolve()
        path = (folder / name).resolve()
        if not path.is_relative_to(folder):
            raise FileFormatError("a side file lies outside the folder", location=place, found=repr(name))
        if not is_file(path):
            raise FileFormatError("the side file is missing", location=place, found=repr(name))
        return path


def _read_side(name: str, content: Path | bytes, place: str) -> dict[str, NDArray[Any]]:
    form = (content if isinstance(content, Path) else Path(name)).suffix
    try:
        if form == ".safetensors":
            from safetensors.numpy import load, load_file

            return dict(load_file(str(content)) if isinstance(content, Path) else load(content))
        if form == ".npz":
            with np.load(content if isinstance(content, Path) else io.BytesIO(content), allow_pickle=False) as archive:
                if "names" not in archive:
                    return {key: archive[key] for key in archive.files}
                names = parse_json(bytes(archive["names"][()]))
                return {key: archive[f"a{i}"] for i, key in enumerate(names)}
    except Exception as error:  # SafetensorError is a subclass of none of these, and not exported as a type everywhere
        known = (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile)
        if not isinstance(error, known) and type(error).__name__ != "SafetensorError":
            raise
        raise FileFormatError("the side file does not read", location=place, found=f"{name}: {error}") from error
    raise FileFormatError("a side file is .npz or .safetensors", location=place, found=name)
