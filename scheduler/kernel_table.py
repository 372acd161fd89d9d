"""All kernels of a target: what the modules of a package declare in their `KERNELS`.

Nobody lists them a second time: a module that is there is found, and imported when the first kernel is asked for.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Generic, TypeVar

from superkernel.core.errors import InputError, InternalError, raise_all
from superkernel.ir.body import Body
from superkernel.registry.canonical import digest
from superkernel.registry.lint import lint
from superkernel.registry.records import Capability, Estimate, KernelRole, Requirement
from superkernel.registry.requirement import body_of
from superkernel.scheduler.installed import load_installed
from superkernel.scheduler.kerneldef import KernelDef
from superkernel.scheduler.tiling import KernelFamily
from superkernel.target.base import Target

if TYPE_CHECKING:
    from superkernel.registry.selection import Registry

TargetT = TypeVar("TargetT", bound=Target)


class KernelTable(Generic[TargetT]):
    """The kernels of the modules in `package`, by id, with `further` ones, those of installed packages and those that
    were added; all of them run on targets of class `kind`."""

    def __init__(self, package: str, kind: type[TargetT], *further: KernelDef[TargetT]) -> None:
        self._package, self._kind, self._further = package, kind, further

    def add(self, kernel: KernelDef[TargetT]) -> None:
        """One more kernel, of compilations that begin from now on. Raises InputError where its id or a name of its
        rows is taken, or its names do not say what its rows say."""
        if kernel.id in self.kernels:
            raise InputError("a kernel of this id is there already", location=f"kernel {kernel.id!r}")
        raise_all(InputError, lint([*self.registry.rows, *_rows_of(kernel)]))
        self._set_further((*self._further, kernel))

    def remove(self, kernel: str) -> None:
        """Without a kernel that was added, from now on. Raises InputError where none of this id was."""
        kept = tuple(own for own in self._further if own.id != kernel or not own.sources)
        if len(kept) == len(self._further):
            raise InputError("no such kernel from outside", location=f"kernel {kernel!r}")
        self._set_further(kept)

    def _set_further(self, further: tuple[KernelDef[TargetT], ...]) -> None:
        self._further = further
        for name in ("kernels", "registry", "_rows", "_declaring", "sources"):
            self.__dict__.pop(name, None)

    @cached_property
    def sources(self) -> str:
        """A digest of the kernels from outside: what is kept of their choice and code is kept under it."""
        load_installed()
        own = sorted(f"{kernel.id} {kernel.sources}" for kernel in self._further if kernel.sources)
        return digest(own) if own else ""

    def sources_of(self, kernel: str) -> str:
        """Those of one kernel; "" where it is the package's."""
        return next((own.sources for own in self._further if own.id == kernel), "")

    @cached_property
    def kernels(self) -> Mapping[str, KernelDef[TargetT]]:
        """Every declaration by its id. Raises InternalError where two share one."""
        load_installed()
        found: dict[str, KernelDef[TargetT]] = {}
        for kernel in (*self._declared(), *self._further):
            if kernel.id in found:
                raise InternalError("two kernels share an id", location=f"kernel {kernel.id!r}")
            found[kernel.id] = kernel
        return found

    def _declared(self) -> list[KernelDef[TargetT]]:
        return [kernel for name in self._modules for kernel in getattr(import_module(name), "KERNELS", ())]

    @cached_property
    def _modules(self) -> tuple[str, ...]:
        path = import_module(self._package).__path__
        return tuple(f"{self._package}.{m.name}" for m in pkgutil.iter_modules(path) if not m.ispkg)

    def declared_class(self, name: str) -> type:
        """The class `module.Class` of a module that declares kernels; no other is imported. Raises KeyError."""
        module, _, kind = name.rpartition(".")
        found = getattr(import_module(module), kind, None) if module in self._declaring else None
        if not isinstance(found, type) or found.__module__ != module:
            raise KeyError(name)
        return found

    @cached_property
    def _declaring(self) -> frozenset[str]:
        load_installed()
        further = {type(thing).__module__ for kernel in self._further for thing in (kernel, kernel.family)}
        return frozenset(self._modules) | further

    def __getitem__(self, kernel: str) -> KernelDef[TargetT]:
        """The declaration of an id. Raises InternalError on an unknown one."""
        found = self.kernels.get(kernel)
        if found is None:
            raise InternalError(f"no kernel {kernel!r} in {self._package}")
        return found

    def serving(self, op: str) -> str:
        """The id of the package's one tuned kernel of an operator. Raises InternalError where there are none or
        several."""
        ours = (k for k in self.kernels.values() if k.role is KernelRole.TUNED and not k.sources)
        found = [k.id for k in ours if op in k.ops]
        if len(found) != 1:
            raise InternalError(f"operator {op!r} has not one tuned kernel in {self._package}", found=", ".join(found))
        return found[0]

    def family_of(self, kernel: str) -> KernelFamily[TargetT]:
        """How a kernel's work is cut. Raises InternalError on an unknown id."""
        return self[kernel].family

    @cached_property
    def registry(self) -> Registry:
        """The registry of all rows. What chooses among them is not imported where a plan is kept."""
        from superkernel.registry.selection import Registry

        return Registry((row for kernel in self.kernels.values() for row in _rows_of(kernel)), self._estimate)

    def name_of(self, kernel: str, body: Body, target: TargetT) -> str:
        """The canonical name of the row whose code a body gets on a target, the one of the most features; "" where no
        row is for it. Raises InternalError on an unknown id."""
        kinds = body.anchor_input_types if body.op is not None else [o.type for o in body.operands]
        dtype = next((kind.dtype for kind in kinds if kind is not None), None)
        found = [
            row
            for row in self._rows.get(kernel, ())
            if self[kernel].runs_on(row, target) and (not row.input_dtypes or dtype in row.input_dtypes[0])
        ]
        return max(found, key=lambda row: len(row.features)).name if found else ""

    @cached_property
    def _rows(self) -> Mapping[str, list[Capability]]:
        rows: dict[str, list[Capability]] = {}
        for row in self.registry.rows:
            rows.setdefault(row.kernel, []).append(row)
        return rows

    def _estimate(self, kernel: str, problem: Requirement) -> Estimate | None:
        """The registry asks it of kernels that are eligible, and so of targets of their own kind."""
        body, target = body_of(problem), problem.platform.target
        assert isinstance(target, self._kind)
        return None if body is None else self[kernel].estimate(body, target, problem.policy.workspace_max)


def _rows_of(kernel: KernelDef[TargetT]) -> list[Capability]:
    """Its rows, those of a kernel from outside with the digest of its sources."""
    return [replace(row, sources=kernel.sources) for row in kernel.rows()]
