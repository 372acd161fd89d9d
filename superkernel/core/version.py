"""The version of the package, and what its sources say."""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Iterator
from functools import cache
from pathlib import Path

__version__ = "0.1.0"


@cache
def sources_digest(*parts: str) -> str:
    """Of files and folders of the package (what lies in them, not below): another one where a source says something
    else, the same one wherever and whenever they were installed. What is generated from sources is kept under it."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for part in parts:
        path = root / part
        for file in sorted(path.glob("*.py")) if path.is_dir() else (path,):
            data = file.read_bytes()
            digest.update(f"{part} {file.name} {len(data)}\n".encode() + data)
    return digest.hexdigest()


class StaleCoreWarning(RuntimeWarning):
    """The C++ core was built from other sources than those beside the package."""


def check_core(core: str, built_from: str, root: str | None = None) -> None:
    """Warns where the sources in `root` (default: where the package lies, if that is a checkout) are not those that the
    file `core` was built from, by their digest. The core calls this when it is loaded. Contents are read only where
    something is younger than the core, so that it takes a few tenths of a millisecond."""
    root = os.path.dirname(os.path.dirname(os.path.dirname(__file__))) if root is None else root
    folder = os.path.join(root, "csrc")
    if not (os.path.isdir(folder) and os.path.isfile(os.path.join(root, "CMakeLists.txt"))):
        return
    try:
        built_ns = os.stat(core).st_mtime_ns
        if (
            any(os.stat(path).st_mtime_ns >= built_ns for path in _core_paths(folder))
            and core_digest(root) != built_from
        ):
            text = "the C++ core is older than its sources, and may not do what Python expects of it: run `make build`"
            warnings.warn(text, StaleCoreWarning, stacklevel=2)
    except OSError:
        return  # sources that come and go while somebody works on them


def core_digest(root: str) -> str:
    """Of the sources of the core in a checkout, by name; CMakeLists.txt takes the same."""
    folder, lines = os.path.join(root, "csrc"), []
    for path in _core_paths(folder):
        if path.endswith((".cpp", ".h")):
            with open(path, "rb") as file:
                digest = hashlib.sha256(file.read()).hexdigest()
            lines.append(f"{os.path.relpath(path, root).replace(os.sep, '/')} {digest}\n")
    return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()


def _core_paths(folder: str) -> Iterator[str]:
    """Folders and files of the core: in a folder's time stamp one sees what went."""
    for place, folders, files in os.walk(folder):
        if place == folder:
            folders[:] = [name for name in folders if name not in ("tests", "qemu", "library")]
        yield place
        yield from (os.path.join(place, name) for name in files)
