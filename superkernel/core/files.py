"""Names and kinds of files, and files that are written whole or not at all."""

from __future__ import annotations

import errno
import mmap
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedReader
from os import PathLike
from pathlib import Path
from typing import BinaryIO, TextIO

from superkernel.core.errors import InputError, MachineError


def file_name(path: str | PathLike[str]) -> Path:
    """The path, checked: pathlib and the system would raise TypeError or ValueError."""
    if not isinstance(path, (str, PathLike)) or not str(path) or "\0" in str(path):
        raise InputError("not the name of a file", found=repr(path))
    return Path(path)


def exists(path: str | PathLike[str]) -> bool:
    """Whether there is something of this name, as far as this process may know. `Path.exists`, `is_file` and `is_dir`
    raise OSError where a folder on the way may not be searched, and where a name is too long."""
    return os.path.exists(path)


def is_file(path: str | PathLike[str]) -> bool:
    """As `exists`, of a regular file, or a link to one."""
    return os.path.isfile(path)


def is_folder(path: str | PathLike[str]) -> bool:
    """As `exists`, of a folder, or a link to one."""
    return os.path.isdir(path)


def is_terminal(stream: TextIO | None) -> bool:
    """Whether what is written there is seen at once. False where there is no such stream, as in a process that was
    started without, where it is closed, and where a replacement of it does not say."""
    try:
        return stream is not None and stream.isatty()
    except (AttributeError, ValueError, OSError):
        return False


def refuse_device(path: str | PathLike[str]) -> None:
    """Raises OSError of a device that is read byte by byte: it may have no end. It is not opened, which a pipe would
    take for its reader."""
    if stat.S_ISCHR(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "it is a device, which may have no end", str(path))


def contents(path: str | PathLike[str]) -> bytes:
    """What is in a file, or comes out of a pipe. Raises OSError, as `refuse_device` too."""
    refuse_device(path)
    with open(path, "rb") as file:
        return file.read()


def text_of(path: str | PathLike[str]) -> str:
    """The same, decoded. Raises OSError, UnicodeDecodeError."""
    return contents(path).decode()


ELF_MAGIC = b"\x7fELF"


def is_elf(path: str | PathLike[str]) -> bool:
    """True of a program that an accelerator's kernel saved, or of any other ELF file; False of what cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(len(ELF_MAGIC)) == ELF_MAGIC
    except (OSError, ValueError):
        return False


def mapped(file: BufferedReader) -> memoryview:
    """A file's bytes, shared with it where nobody but its owner, this user or root, may write to it; copied otherwise.
    The mapping keeps what another file has replaced. But as with a running program's own file, whoever cuts it short in
    place stops who reads it (SIGBUS), and what is written into it is what is read."""
    status = os.fstat(file.fileno())
    if not status.st_size:
        return memoryview(b"")
    private = stat.S_ISREG(status.st_mode) and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if private and status.st_uid in (0, os.getuid()):
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    copy = memoryview(mmap.mmap(-1, status.st_size))  # aligned like a mapping
    file.seek(0)
    return copy[: file.readinto(copy)].toreadonly()


@contextmanager
def whole(path: Path) -> Iterator[BinaryIO]:
    """A file beside `path` that takes its place when the block ends without an exception. A link stays one: what it
    points at is replaced. What is there and no file (a terminal, a pipe, a device) is written as it is."""
    if exists(path) and not is_file(path):
        with open(path, "wb") as file:
            yield file
        return
    path = Path(os.path.realpath(path))
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


@contextmanager
def replacing(path: Path, what: str) -> Iterator[BinaryIO]:
    """`whole`, with a MachineError that says that `what` cannot be written."""
    try:
        with whole(path) as file:
            yield file
    except OSError as error:
        reason = error.strerror or str(error)
        raise MachineError(f"cannot write {what}: {reason}", location=str(path)) from error


@contextmanager
def temporary_folder(what: str) -> Iterator[Path]:
    """A folder that goes with the block. Raises MachineError where it, or what is written there, finds no place: then
    `what` cannot be made."""
    try:
        with tempfile.TemporaryDirectory(prefix="superkernel-") as name:
            yield Path(name)
    except OSError as error:
        said = f"no place for what {what} is made from: {error.strerror or error}"
        raise MachineError(said, location="temporary files", hint="TMPDIR may name another folder") from error
