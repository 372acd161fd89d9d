"""Kernels from outside: a declaration, and a family and an emitter that are the package's or one's own.

    from superkernel.kernels import HostTiling, KernelBuilder, KernelFamily, kernel

    @kernel(id="mine.row_sum", ops=("reduce_sum",), family=RowSums(), micro="reduce", dtypes=..., problems=(...))
    def emit(kb: KernelBuilder, body: Body, tiling: RowSumTiling) -> None: ...

Model: a kernel from outside is a `KernelDef` like any other and stands in the same table, so whatever lists, chooses,
explains, verifies and records kernels has it too. What it is made from (its sources) is part of cache keys, manifests
and saved plans. The names in `__all__` are what such a kernel is written against; docs/own-kernels.md is their guide.

Registering is for the process. Packages name the module that does it in an entry point of the group
`superkernel.kernels`; the command line takes `--kernels FILE`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import marshal
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any, TypeVar

from superkernel.codegen.aicore.layer import KernelBuilder as AicoreKernelBuilder
from superkernel.codegen.host.builder import KernelBuilder
from superkernel.codegen.host.loops import each_row, vector_loop
from superkernel.core.dtypes import DType
from superkernel.core.errors import InputError, UnsupportedError, UserError
from superkernel.core.files import is_file
from superkernel.core.tensor import Region
from superkernel.ir.body import Body, View
from superkernel.registry.predicates import Clause, Reason, one_of, within
from superkernel.registry.records import KernelRole
from superkernel.registry.rounding import EXACT, PRODUCT_SUMS, ROUNDED, ROW_SUMS
from superkernel.scheduler.families import HOST_KERNELS
from superkernel.scheduler.families.aicore import AICORE_KERNELS
from superkernel.scheduler.families.aicore.base import VectorTiling
from superkernel.scheduler.families.aicore.kernel import AicoreKernelDef
from superkernel.scheduler.families.boxes import AccessSet
from superkernel.scheduler.families.kernel import HostKernelDef, HostTiling
from superkernel.scheduler.kerneldef import KernelDef
from superkernel.scheduler.tiling import Access, KernelFamily, Pack
from superkernel.target.aicore import AicoreTarget
from superkernel.target.cpu import CpuTarget
from superkernel.target.engines import Local

__all__ = [
    "EXACT", "PRODUCT_SUMS", "ROUNDED", "ROW_SUMS", "Access", "AccessSet", "AicoreKernelBuilder", "AicoreKernelDef",
    "AicoreTarget", "Body", "Clause", "CpuTarget", "DType", "HostKernelDef", "HostTiling", "KernelBuilder",
    "KernelFamily", "KernelRole", "Local", "Pack", "Reason", "Region", "UnsupportedError", "VectorTiling", "View",
    "declared", "each_row", "kernel", "load_file", "one_of", "register", "unregister", "vector_loop", "within",
]  # fmt: skip

_ID = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)+")
_OURS = ("host", "aicore")
EmitterT = TypeVar("EmitterT", bound=Callable[..., None])


def kernel(*, on: str = "host", **declaration: Any) -> Callable[[EmitterT], EmitterT]:
    """Registers the kernel whose emitter is decorated. `on`: "host" or "aicore"; `declaration`: the fields of
    `HostKernelDef` or `AicoreKernelDef` but for the emitter. Raises InputError, as `register` does."""
    kinds: dict[str, type[KernelDef[Any]]] = {"host": HostKernelDef, "aicore": AicoreKernelDef}
    if on not in kinds:
        raise InputError("no kernels of such a target", location="on", expected=" or ".join(kinds), found=repr(on))

    def decorate(emitter: EmitterT) -> EmitterT:
        try:
            made = kinds[on](emitter=emitter, **{"modifier": _words(declaration.get("id")), **declaration})
        except TypeError as error:
            place = f"kernel {declaration.get('id')!r}"
            raise InputError("not a whole declaration", location=place, found=str(error)) from error
        register(made)
        return emitter

    return decorate


def register(declaration: KernelDef[Any]) -> None:
    """Adds a kernel to those of its target, for compilations that begin from now on; a variant of one that is there is
    `dataclasses.replace(declared(...), id=..., modifier=...)`. Raises InputError where its id is no name of its own, it
    has no problems that it can be tried on, or its rows' names are taken or do not say what they say."""
    place = f"kernel {declaration.id!r}"
    if not isinstance(declaration.id, str) or not _ID.fullmatch(declaration.id) or _owner(declaration.id) in _OURS:
        expected = "PACKAGE.NAME in small letters, not host.* or aicore.*"
        raise InputError("not an id for a kernel from outside", location=place, expected=expected)
    if not declaration.problems or not isinstance(declaration.problems, tuple):
        expected = "problems=('softmax(f32[4,37]; axis=-1)', ...)"
        raise InputError("no problems that it can be tried on", location=place, expected=expected)
    tables: dict[type[Any], Any] = {HostKernelDef: HOST_KERNELS, AicoreKernelDef: AICORE_KERNELS}
    table = next((t for kind, t in tables.items() if isinstance(declaration, kind)), None)
    if table is None:
        found = type(declaration).__name__
        raise InputError("not a declaration", location=place, expected="HostKernelDef or AicoreKernelDef", found=found)
    object.__setattr__(declaration, "sources", _sources(declaration))
    try:
        table.add(declaration)
    except UserError as error:
        raise InputError(violations=error.violations) from error


def unregister(kernel: str) -> None:
    """Takes a kernel back on all targets, so that its id is free. Raises InputError where none of this id was
    registered."""
    tables = [t for t in (HOST_KERNELS, AICORE_KERNELS) if kernel in t.kernels and t.kernels[kernel].sources]
    if not tables:
        raise InputError("no such kernel from outside", location=f"kernel {kernel!r}")
    for table in tables:
        table.remove(kernel)


def declared(kernel: str) -> KernelDef[Any]:
    """The declaration of a kernel that is there, by its id. Raises InputError on an unknown one."""
    for table in (HOST_KERNELS, AICORE_KERNELS):
        if kernel in table.kernels:
            return table.kernels[kernel]
    raise InputError("no such kernel", location=f"kernel {kernel!r}", hint="superkernel kernels list")


def load_file(path: str | Path) -> None:
    """Run a Python file that registers kernels, as a module of its name. Raises InputError where there is none, or it
    fails."""
    file = Path(path)
    if not is_file(file):
        raise InputError("no such file", location=f"file {str(path)!r}")
    if file.stem in sys.modules:
        raise InputError("a module of this name is loaded already", location=f"file {str(path)!r}", found=file.stem)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise InputError("not a Python file", location=f"file {str(path)!r}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[file.stem]
        found = f"{type(error).__name__}: {error}"
        raise InputError("the file does not run", location=f"file {str(path)!r}", found=found) from error


def _owner(name: str) -> str:
    return name.partition(".")[0]


def _words(name: object) -> str:
    """What tells its rows' names from others."""
    return re.sub(r"[._]+", "_", name).strip("_") if isinstance(name, str) else ""


def _sources(declaration: KernelDef[Any]) -> str:
    """A digest of the declaration and of what its emitter and family are written in: the file, or all files of their
    package; of what stands in no file, the code."""
    things: list[Any] = [type(declaration.family)]
    things += [declaration.emitter] if callable(declaration.emitter) else []
    data = hashlib.sha256(repr(declaration).encode() if isinstance(declaration.emitter, str) else b"")
    for thing in things:
        for part in _parts(thing):
            data.update(part)
    return data.hexdigest()


def _parts(thing: Any) -> Iterator[bytes]:
    if thing.__module__.partition(".")[0] == __package__:
        return  # the package's own: part of all keys already
    module = sys.modules.get(thing.__module__)
    file = getattr(module, "__file__", None)
    if file is None or not is_file(file):
        functions = [thing] if isinstance(thing, FunctionType) else [*vars(thing).values()]
        yield from (marshal.dumps(f.__code__) for f in map(inspect.unwrap, filter(inspect.isfunction, functions)))
        return
    package = getattr(module, "__package__", None)
    root = Path(file).parents[package.count(".")] if package else None
    for source in sorted(root.rglob("*.py")) if root else [Path(file)]:
        yield source.read_bytes()
