"""Compiled objects, and plans (`planned.py`), on disk: one file each, named by the hash of what it was made from.

Model: key (a text that determines the object) -> object bytes. A file holds magic, sha256 over key and object, object
length, object. It is verified before anyone uses its bytes, because LLVM kills the process on a corrupt object.
Writers use a unique temporary file and `os.replace`, so that readers see a whole file or none, and several processes
may write the same entry.

Failure policy: a cache that cannot be written or read never stops a compilation: the entry is recompiled, and one
warning per process and directory says why. A corrupt entry is deleted. The directory is 0700; it and each entry must
belong to the user and be writable by nobody else: object code from somebody else is not run. What the user's own
processes write there is trusted as the package itself is: a digest tells damage, not forgery.

Size: the first entry that a process adds makes it look at the whole; above CACHE_BYTES_MAX the entries that were used
longest ago go, down to three quarters of it. Temporary files of writers that were killed go then, too.
"""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from superkernel.core.warn import warn

CACHE_BYTES_MAX = 2 << 30
WRITING_S_MAX = 3600.0  # whoever has been writing an entry for longer is dead

_WRITING = ".new-"
_MAGIC = b"SKOBJ\x001\n"
_HEADER = struct.Struct(f"<{len(_MAGIC)}s32sQ")


_trimmed: set[Path] = set()
_warned: set[Path] = set()


class CacheWarning(UserWarning):
    """The object cache could not be used; compilation goes on without it."""


def not_ours(status: os.stat_result) -> str:
    """Why a file or folder is not to be trusted, "" where nobody but this user may write to it."""
    if status.st_uid != os.getuid():
        return f"belongs to another user (uid {status.st_uid})"
    return "is writable by others (hint: chmod go-w)" if status.st_mode & 0o022 else ""


def key_digest(key: str) -> str:
    """The name of an entry."""
    return hashlib.sha256(key.encode()).hexdigest()


class ObjectCache:
    """See the module docstring. `directory` None: nothing is kept."""

    def __init__(self, directory: Path | None) -> None:
        self._named = directory
        self.directory = directory if directory is None else self._prepare(directory)
        self.hits = 0
        self.misses = 0

    def _prepare(self, directory: Path) -> Path | None:
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            strange = not_ours(directory.stat())
            if strange:
                self._warn(f"{directory} {strange}")
                return None
        except OSError as error:
            self._warn(f"{directory}: {error}")
            return None
        return directory

    def _warn(self, text: str) -> None:
        if self._named is not None and self._named not in _warned:
            _warned.add(self._named)
            warn(f"compiled code is not cached: {text}", CacheWarning)

    def _path(self, key: str) -> Path | None:
        if self.directory is None:
            return None
        digest = key_digest(key)
        return self.directory / digest[:2] / f"{digest[2:]}.o"

    def get(self, key: str) -> bytes | None:
        """The verified object, or None."""
        path = self._path(key)
        found = None
        if path is not None:
            try:
                with open(path, "rb", opener=_at_once) as file:
                    status = os.fstat(file.fileno())
                    strange = not_ours(status)
                    if not strange and stat.S_ISREG(status.st_mode):
                        found = _verified(file.read(), key)
                if strange:
                    self._warn(f"{path} {strange}")
                elif found is None:
                    path.unlink(missing_ok=True)
                else:
                    with suppress(OSError):  # a directory that may only be read serves as well
                        os.utime(path)
            except FileNotFoundError:
                pass
            except OSError as error:
                self._refused(path, error)
        self.hits += found is not None
        self.misses += found is None
        return found

    def put(self, key: str, data: bytes) -> None:
        """Keep an object; silent where the directory does not allow it, after one warning."""
        path = self._path(key)
        if path is None:
            return
        try:
            self._trim()
            path.parent.mkdir(mode=0o700, exist_ok=True)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=_WRITING)
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(pack_entry(key, data))
                os.replace(temporary, path)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
        except OSError as error:
            self._refused(path, error)

    def _refused(self, path: Path, error: OSError) -> None:
        if error.errno is None:  # not of the system: a signal handler's TimeoutError
            raise error
        self._warn(f"{path}: {error}")

    def _trim(self) -> None:
        """See "Size" in the module docstring."""
        if self.directory is None or self.directory in _trimmed:
            return
        _trimmed.add(self.directory)
        for path in self.directory.glob(f"??/{_WRITING}*"):
            with suppress(OSError):  # another process may be trimming, too
                if path.stat().st_mtime < time.time() - WRITING_S_MAX:
                    path.unlink()
        entries: list[tuple[int, int, Path]] = []
        for path in self.directory.glob("??/*.o"):
            with suppress(OSError):
                status = path.stat()
                entries.append((status.st_mtime_ns, status.st_size, path))
        left = sum(size for _, size, _ in entries)
        if left <= CACHE_BYTES_MAX:
            return
        for _, size, path in sorted(entries):
            if left <= CACHE_BYTES_MAX * 3 // 4:
                break
            left -= size
            with suppress(OSError):
                path.unlink()


def _at_once(path: str, flags: int) -> int:
    """An opener that does not wait for the other end of a pipe."""
    return os.open(path, flags | os.O_NONBLOCK)


def pack_entry(key: str, data: bytes) -> bytes:
    """The file form of an entry."""
    return _HEADER.pack(_MAGIC, _checksum(key, data), len(data)) + data


def _verified(entry: bytes, key: str) -> bytes | None:
    """The object of a file's bytes, or None where they are not what was written for `key`."""
    if len(entry) < _HEADER.size:
        return None
    magic, checksum, length = _HEADER.unpack_from(entry)
    data = entry[_HEADER.size :]
    if magic != _MAGIC or length != len(data) or checksum != _checksum(key, data):
        return None
    return data


def _checksum(key: str, data: bytes) -> bytes:
    return hashlib.sha256(hashlib.sha256(key.encode()).digest() + data).digest()
