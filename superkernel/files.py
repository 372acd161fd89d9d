"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import BinaryIO

from superkernel.errors import InputError, MachineError


def file_name(path: str | PathLike[str]) -> Path:
    """The path, checked: pathlib and the system would raise TypeError or ValueError."""
    if not isinstance(path, (str, PathLike)) or not str(path) or "\0" in str(path):
        raise InputError("not the name of a file", found=repr(path))
    return Path(path)


@contextmanager
def replacing(path: Path, what: str) -> Iterator[BinaryIO]:
    """A file beside `path` that takes its place when the block ends without an exception. Raises MachineError, which
    says that `what` cannot be written."""
    try:
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        reason = error.strerror or str(error)
        raise MachineError(f"cannot write {what}: {reason}", location=str(path)) from error
