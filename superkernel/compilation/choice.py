"""The registry at work in one compilation: each body that grouping forms gets its kernel here, and the reasons stay."""

from __future__ import annotations

import fnmatch
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from superkernel.codegen.host.abi import ABI_VERSION
from superkernel.core.errors import InputError, UnsupportedError, Violation, raise_all
from superkernel.core.options import Options
from superkernel.ir.body import Body
from superkernel.ops.grouped import TILINGS
from superkernel.registry.records import Policy
from superkernel.registry.selection import Registry, Selection
from superkernel.scheduler.hostcall import HOST_REFERENCE
from superkernel.target.base import Target


class KernelChooser:
    """Chooses through the registry of a kind of target, under the policy that the options express."""

    def __init__(self, target: Target, options: Options, registry: Registry) -> None:
        self.target = target
        self.registry = registry
        self.policy = Policy.of(options)
        self._refused: dict[Hashable, Policy] = {}
        self.refusals: dict[Hashable, list[str]] = {}
        self.sinks_tilings = options.tiling == "sunk" or not target.tables_beside
        self._check_patterns(options)

    def _check_patterns(self, options: Options) -> None:
        """A pattern that matches no row is a slip of the pen: say so."""
        names = [name for row in self.registry.rows for name in (row.id, row.kernel, row.name)]
        idle = [
            Violation(f"the pattern {p!r} matches no kernel", f"option {option!r}", hint="superkernel kernels list")
            for option in ("allow", "deny", "pin")
            for p in getattr(options, option)
            if not fnmatch.filter(names, p)
        ]
        raise_all(InputError, idle)

    def choose(self, body: Body) -> str:
        """The kernel id for a body. Raises UnsupportedError where the policy leaves none."""
        if body.op in TILINGS and not self.sinks_tilings:
            return HOST_REFERENCE
        return self.select(body).kernel

    def select(self, body: Body) -> Selection:
        """The whole selection, with its explanation."""
        return self.registry.select_body(body, self.target, self._refused.get(_problem(body), self.policy))

    def refuse(self, body: Body, error: UnsupportedError) -> None:
        """The kernel chosen for a body cannot be cut for it: choose another one from now on, the reference at last.
        Raises `error` where there is none, or the policy forbids what is left."""
        problem = _problem(body)
        policy, kernel = self._refused.get(problem, self.policy), self.select(body).kernel
        if kernel in policy.deny:
            raise error
        self._refused[problem] = replace(policy, deny=(*policy.deny, kernel))
        try:
            self.select(body)
        except UnsupportedError:
            raise error from None
        self.refusals.setdefault(problem, []).append(f"{kernel}: {error}")

    def refused(self, body: Body) -> tuple[str, ...]:
        """Kernels that were chosen for a body and could not be cut for it, with their reasons."""
        return tuple(self.refusals.get(_problem(body), ()))

    def code_bytes(self, kernel: str) -> int:
        """Size of a kernel's code, by its rows; 0 where it has none."""
        return max((row.code_bytes for row in self.registry.rows if row.kernel == kernel), default=0)

    def manifest(self, model: str, bodies: Sequence[Body], symbols: Sequence[Sequence[str]]) -> Any:
        """The manifest of a model: the kernels that its bodies need, with the symbols of their functions."""
        from superkernel.registry.manifest import dump

        return dump(model, [self.select(body) for body in bodies], self.registry, ABI_VERSION, symbols)


def _problem(body: Body) -> Hashable:
    """What a refusal is about: an anchor with its types, whatever is joined to it; a program as it is."""
    return body if body.op is None else (body.op, body.attrs, body.anchor_input_types, body.anchor_outputs)
