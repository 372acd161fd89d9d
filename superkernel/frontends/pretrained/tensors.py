"""Named tensors of published models, looked up where they lie: files of safetensors, mapped, or a module's own.

A safetensors file is a length (u64, little-endian), as many bytes of JSON (name -> dtype, shape, first and last byte of
the data behind it), and the data.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from superkernel.core.errors import FileFormatError, UnsupportedError, Violation, raise_all
from superkernel.core.files import is_file, text_of
from superkernel.core.json_text import parse_json

Array = NDArray[Any]

_DTYPES: Mapping[str, np.dtype[Any]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
_HEAD_BYTES_MAX = 100 << 20
INDEX = "model.safetensors.index.json"


class Tensors(Mapping[str, Array]):
    """Tensors by name, which remembers those that were asked for: what is left over belongs to a variant that its
    reader does not know. A name may stand for a type that cannot be read instead: an error where it is asked for."""

    def __init__(self, arrays: Mapping[str, Array | str], where: str) -> None:
        self._arrays, self.where = arrays, where
        self._used: set[str] = set()

    def __getitem__(self, name: str) -> Array:
        if name not in self._arrays:
            raise FileFormatError("the model lacks a tensor", location=self.where, expected=name)
        self._used.add(name)
        found = self._arrays[name]
        if isinstance(found, str) or found.dtype not in _DTYPES.values():
            kind = found if isinstance(found, str) else str(found.dtype)
            place, known = f"{self.where}, tensor {name!r}", ", ".join(_DTYPES)
            raise UnsupportedError("type of tensor", location=place, expected=known, found=kind)
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._arrays

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def shaped(self, name: str, *shape: int) -> Array:
        """The tensor of that name. Raises FileFormatError where there is none, or it has another shape."""
        array = self[name]
        if array.shape != shape:
            where = f"{self.where}, tensor {name!r}"
            raise FileFormatError("wrong shape", location=where, expected=list(shape), found=list(array.shape))
        return array

    def refuse_rest(self, ignored: tuple[str, ...] = ()) -> None:
        """Raises FileFormatError where tensors are left that nobody asked for, but for those whose names end so."""
        rest = [name for name in self._arrays if name not in self._used and not name.endswith(ignored)]
        hint = "a variant of the architecture that is not supported"
        raise_all(
            FileFormatError, [Violation("a tensor that has no place", self.where, found=n, hint=hint) for n in rest]
        )


def mapped_safetensors(folder: Path) -> Tensors:
    """The tensors of `model.safetensors`, or of the files that `model.safetensors.index.json` names, mapped into
    memory. Raises FileFormatError."""
    index, single = folder / INDEX, folder / "model.safetensors"
    if is_file(index):
        names = sorted(set(_index(index).values()))
        outside = [n for n in names if Path(n).name != n]
        raise_all(FileFormatError, [Violation("a file outside the folder", str(index), found=repr(n)) for n in outside])
        files = [folder / name for name in names]
        missing = [Violation("a file that the index names is missing", str(f)) for f in files if not is_file(f)]
        raise_all(FileFormatError, missing)
    elif is_file(single):
        files = [single]
    else:
        raise FileFormatError("no weights", location=str(folder), expected=f"{single.name} or {index.name}")
    arrays: dict[str, Array | str] = {}
    for file in files:
        arrays |= _mapped(file)
    return Tensors(arrays, str(folder))


def _index(path: Path) -> Mapping[str, str]:
    try:
        found = parse_json(text_of(path))["weight_map"]
        return {str(name): str(file) for name, file in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileFormatError("not an index of weights", location=str(path), found=str(error)) from error


def _mapped(path: Path) -> dict[str, Array | str]:
    try:
        with path.open("rb") as file:
            nbytes = int.from_bytes(file.read(8), "little")
            if nbytes > _HEAD_BYTES_MAX:
                raise ValueError(f"a header of {nbytes} bytes")
            head = parse_json(file.read(nbytes))
        data = np.memmap(path, np.uint8, "r", offset=0)[8 + nbytes :]
        entries = {name: entry for name, entry in head.items() if name != "__metadata__"}
        _check_places(entries, len(data))
        return {name: _tensor(data, entry) for name, entry in entries.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FileFormatError("not a safetensors file", location=str(path), found=str(error)) from error


def _check_places(entries: Mapping[str, Any], nbytes: int) -> None:
    """Raises ValueError where tensors do not lie one behind the other over all the data, as the format demands."""
    end = 0
    for first, last in sorted(entry["data_offsets"] for entry in entries.values()):
        if first != end or last < first:
            raise ValueError(f"a tensor in bytes {first} to {last}, behind one that ends at {end}")
        end = last
    if end != nbytes:
        raise ValueError(f"tensors of {end} bytes in {nbytes}")


def _tensor(data: Array, entry: Mapping[str, Any]) -> Array | str:
    """The tensor of an entry; the name of its type where that is none of ours."""
    dtype, (begin, end), shape = _DTYPES.get(entry["dtype"]), entry["data_offsets"], tuple(entry["shape"])
    if dtype is None:
        return str(entry["dtype"])
    whole = all(type(size) is int and size >= 0 for size in shape)
    if not whole or end - begin != prod(shape) * dtype.itemsize:
        raise ValueError(f"{list(shape)} of {entry['dtype']} in bytes {begin} to {end}")
    part = data[begin:end]
    if begin % dtype.itemsize:
        part = part.copy()
    array: Array = np.asarray(part).view(dtype).reshape(shape)
    return array
