"""Named arrays in .npz files, for the command line: any names, any element type, nothing pickled.

Model: NumPy's archive of .npy members, so that `numpy.load` reads what is written here and the other way round. What
NumPy has no element type for (bf16) is stored as the unsigned integers of its bits, as in the JSON form's side files;
reading turns them back where the declared type asks for it.

Invariant: a file is written whole or not at all.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.core.dtypes import DType
from superkernel.core.errors import FileFormatError, InputError, MachineError
from superkernel.core.files import refuse_device, replacing
from superkernel.core.tensor import TensorType

Array = NDArray[Any]


def write_npz(path: Path, arrays: Mapping[str, Array]) -> None:
    """Writes the arrays, uncompressed. Raises MachineError where the file cannot be written."""
    with replacing(path, "the arrays") as file, zipfile.ZipFile(file, "w", allowZip64=True) as archive:
        for name, array in arrays.items():
            # numpy.savez would take an array called "file" for its own argument
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, _plain(array), allow_pickle=False)


def read_npz(path: Path, types: Mapping[str, TensorType]) -> dict[str, Array]:
    """All arrays of a file; `types` are those that some names are declared with. Raises InputError where there is no
    such file, FileFormatError where it is no archive of arrays."""
    where = f"file {str(path)!r}"
    try:
        refuse_device(path)
        with path.open("rb") as file:
            if not zipfile.is_zipfile(file):  # NumPy's own message would be about pickles
                raise ValueError("no archive")
            file.seek(0)
            with np.load(file, allow_pickle=False) as archive:
                return {name: _typed(archive[name], types.get(name)) for name in archive.files}
    except FileNotFoundError as error:
        raise InputError("no such file", location=where) from error
    except (IsADirectoryError, PermissionError) as error:
        raise InputError("the file cannot be read", location=where, found=str(error.strerror)) from error
    except MemoryError as error:
        raise MachineError("not enough memory for the arrays", location=where, found=str(error)) from error
    except Exception as error:  # what zipfile, zlib, struct, tokenize and NumPy's own parser raise
        hint = "write it with numpy.savez(FILE, name=array, ...)"
        raise FileFormatError("not an .npz file", location=where, found=str(error)[:200], hint=hint) from error


def _plain(array: Array) -> Array:
    """The array, or its bits where NumPy alone cannot say what it is."""
    return array.view(DType.of(array.dtype).stored)


def _typed(array: Array, kind: TensorType | None) -> Array:
    """Bits as the declared type where NumPy has no code for that type."""
    if kind is None or kind.dtype.stored is kind.dtype.numpy or array.dtype.itemsize != kind.dtype.itemsize:
        return array
    return array.view(kind.dtype.numpy) if array.dtype.kind in "uV" else array
