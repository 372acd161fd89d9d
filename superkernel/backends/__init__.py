"""Backends: one package per kind of target, found through one table.

Model: a target (`superkernel.target`) is data and names its kind; the package of that kind has everything that differs
from kind to kind: its module `backend` a `BACKEND` (`compilation/backend.py` says what one is), its module `kernel` a
`KERNEL`, the class of what users hold. Packages are imported when their kind is asked for. A further kind makes itself
known by `register("kind", "package")`, where `kind` is that of its targets, and needs no edit of anything else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from superkernel.core.errors import InternalError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from superkernel.compilation.backend import AnyBackend
    from superkernel.compilation.compiled import AnyCompilation
    from superkernel.runtime.kernel import Kernel
    from superkernel.target.base import Target

_PACKAGES: dict[str, str] = {
    "cpu": "superkernel.backends.host",
    "microcontroller": "superkernel.backends.microcontroller",
    "aicore": "superkernel.backends.aicore",
}


def register(kind: str, package: str) -> None:
    """Make a further kind of target known. Raises InternalError where another package serves it already."""
    if _PACKAGES.setdefault(kind, package) != package:
        raise InternalError(f"two backends for {kind!r}", found=f"{_PACKAGES[kind]} and {package}")


def kinds() -> tuple[str, ...]:
    """The kinds of targets that are known."""
    return tuple(_PACKAGES)


def backend_of(target: Target | str) -> AnyBackend:
    """The backend that compiles for a target, or for a kind of them. Raises InternalError where none is registered."""
    kind = target if isinstance(target, str) else target.kind
    backend: AnyBackend = import_module(f"{_package(kind)}.backend").BACKEND
    return backend


def kernel_of(compiled: AnyCompilation, states: Mapping[str, NDArray[Any]] | None = None) -> Kernel:
    """What was compiled as users hold it, its states kept in arrays that are given: see `Kernel`."""
    kernel: Kernel = import_module(f"{_package(compiled.target.kind)}.kernel").KERNEL(compiled, states)
    return kernel


def all_backends() -> Iterator[AnyBackend]:
    """Every backend, each imported when it is reached."""
    yield from map(backend_of, kinds())


def _package(kind: str) -> str:
    if kind not in _PACKAGES:
        raise InternalError("no backend for this kind of target", expected=", ".join(_PACKAGES), found=repr(kind))
    return _PACKAGES[kind]
