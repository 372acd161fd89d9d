"""Kernels of installed packages: those that an entry point of the group `superkernel.kernels` names.

Model: an entry point names a module, or an object in one; importing it registers what it declares (`kernels.py`). This
is done once per process, when kernels are first asked for. A package that cannot be imported is warned of and left out.

Why the files are looked at here: `importlib.metadata` takes a tenth of a second to look through an environment, which
is more than a small graph's compilation takes. It is asked where a file says that it has something to say.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

from superkernel.core.warn import warn

GROUP = "superkernel.kernels"


class KernelWarning(UserWarning):
    """Kernels of an installed package that cannot be loaded."""


@cache
def load_installed() -> None:
    """Import what entry points name."""
    if not any(map(_has_kernels, dict.fromkeys(sys.path))):
        return
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP):
        try:
            point.load()
        except Exception as error:  # of others' code anything may come
            warn(f"kernels of {point.value!r} are left out: {type(error).__name__}: {error}", KernelWarning)


def _has_kernels(folder: str) -> bool:
    """Whether a package that is installed in a folder has entry points of the group."""
    mark = f"[{GROUP}]".encode()
    try:
        return any(mark in file.read_bytes() for file in Path(folder).glob("*.dist-info/entry_points.txt"))
    except OSError:
        return False
