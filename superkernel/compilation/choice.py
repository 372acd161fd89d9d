"""The registry at work in one compilation: each body that grouping forms gets its kernel here, and the reasons stay."""

from __future__ import annotations

import fnmatch
from collections.abc import Hashable, Sequence
from dataclasses import replace
from os.path import isfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from superkernel.codegen.host.abi import ABI_VERSION
from superkernel.core.errors import InputError, ManifestError, UnsupportedError, Violation, raise_all
from superkernel.core.options import Options
from superkernel.ir.body import Body, SubOperator
from superkernel.ops.grouped import TILINGS
from superkernel.registry.records import Policy
from superkernel.registry.selection import Registry, Selection
from superkernel.scheduler.hostcall import HOST_REFERENCE
from superkernel.target.base import Target

if TYPE_CHECKING:
    from superkernel.registry.manifest import Manifest


class Smaller(NamedTuple):
    """What another kernel than the chosen one takes for its constants, and what that saves and costs."""

    constant_bytes: int
    saved_bytes: int
    lost_ns: float


class KernelChooser:
    """Chooses through the registry of a kind of target, under the policy that the options express."""

    def __init__(self, target: Target, options: Options, registry: Registry) -> None:
        self.target = target
        self.registry = registry
        self.policy = Policy.of(options, target)
        self._refused: dict[Hashable, Policy] = {}
        self.refusals: dict[Hashable, list[str]] = {}
        self.sinks_tilings = options.tiling == "sunk" or not target.tables_beside
        self._check_patterns(options)
        self._files, self._unlisted = options.manifest, dict[Hashable, ManifestError]()
        self._rows = {row.id: row for row in registry.rows}
        self.manifest = self._listed() if options.manifest else None

    def _listed(self) -> Manifest:
        """The manifest that the options name. Raises InputError, UserError, FileFormatError."""
        missing = [Violation("no such file", f"option 'manifest', file {f!r}") for f in self._files if not isfile(f)]
        raise_all(InputError, missing)
        return self._fitting(self._files, "option 'manifest'")

    def _fitting(self, files: Sequence[str], place: str) -> Manifest:
        """What manifests list together, for this registry and target. Raises UserError, FileFormatError."""
        from superkernel.registry.manifest import Manifest, merge

        found = merge(Manifest.load(Path(file)) for file in files)
        found.check_fits(self.registry, self.target, ABI_VERSION, f"{place}, {', '.join(files)}")
        return found

    def _check_patterns(self, options: Options) -> None:
        """A pattern that matches no row is a slip of the pen: say so."""
        if not any((options.allow, options.deny, options.pin)):
            return
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
        return HOST_REFERENCE if self._is_table(body) else self.select(body).kernel

    def _is_table(self, body: Body) -> bool:
        """Whether it computes a tiling that depends on data, which NumPy does between two launches."""
        return body.op in TILINGS and not self.sinks_tilings

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

    def narrow(self, tcm_bytes: int) -> None:
        """All kernels keep to that much working memory on a core from now on. Who has a policy of its own has this
        limit in it, too."""
        self.policy = replace(self.policy, tcm_bytes=tcm_bytes)
        self._refused = {problem: replace(old, tcm_bytes=tcm_bytes) for problem, old in self._refused.items()}

    def smaller(self, body: Body) -> Smaller | None:
        """The best kernel that takes fewer bytes for a body's constants than the one that it has, if there is one."""
        selection = self.select(body)
        estimate_of = selection.explanation.facts.estimate_of
        have = estimate_of(selection.kernel)
        for candidate in selection.explanation.eligible if have is not None and have.constant_bytes else ():
            other = estimate_of(candidate.row.kernel)
            if have is not None and other is not None and other.constant_bytes < have.constant_bytes:
                saved, lost_ns = have.constant_bytes - other.constant_bytes, max(0.0, other.time_ns - have.time_ns)
                return Smaller(other.constant_bytes, saved, lost_ns)
        return None

    def pack_less(self, body: Body, flash_bytes: int) -> None:
        """The kernel of a body packs no more than that from now on."""
        problem = _problem(body)
        self._refused[problem] = replace(self._refused.get(problem, self.policy), flash_bytes=flash_bytes)

    def refused(self, body: Body) -> tuple[str, ...]:
        """Kernels that were chosen for a body and could not be cut for it, with their reasons."""
        return tuple(self.refusals.get(_problem(body), ()))

    def code_bytes(self, kernel: str) -> int:
        """Size of a kernel's code, by its rows; 0 where it has none."""
        return max((row.code_bytes for row in self.registry.rows if row.kernel == kernel), default=0)

    def selection_of(self, sub: SubOperator) -> Selection:
        """The selection of the kernel that a sub-operator has, also where others were refused first: by whoever planned
        it, which may have been another process."""
        policy, first = self._refused.get(_problem(sub.body), self.policy), self.select(sub.body)
        found = first
        while found.kernel != sub.kernel:
            policy = replace(policy, deny=(*policy.deny, found.kernel))
            try:
                found = self.registry.select_body(sub.body, self.target, policy)
            except UnsupportedError:
                found = first
                break
        return replace(found, requirement=replace(found.requirement, policy=self.policy))

    def refuse_unlisted(self, subops: Sequence[SubOperator]) -> bool:
        """Whether sub-operators have kernels that the manifest does not hold: others are chosen from now on. Raises
        ManifestError where it holds none."""
        if self.manifest is None:
            return False
        refused: set[Hashable] = set()
        for sub in subops:
            problem = _problem(sub.body)
            if problem in refused:
                continue
            selection = self.selection_of(sub)
            if self.manifest.holds(selection.row, selection.requirement.op, self._rows):
                continue
            miss = ManifestError(violations=[_miss(sub, selection, self.manifest, self._files)])
            error = self._unlisted.setdefault(problem, miss)
            if self._is_table(sub.body):
                raise error
            policy = self._refused.get(problem, self.policy)
            self._refused[problem] = replace(policy, deny=(*policy.deny, sub.kernel))
            refused.add(problem)
            try:
                self.select(sub.body)
            except UnsupportedError:
                raise error from None
        return bool(refused)

    def require_listed(self, subops: Sequence[SubOperator], files: Sequence[str]) -> Manifest:
        """What manifests list together, which is all that sub-operators need. Raises ManifestError with all that is
        missing, and what `_fitting` raises."""
        listed = self._fitting(files, "argument 'manifest'")
        chosen = [(sub, self.selection_of(sub)) for sub in subops]
        raise_all(
            ManifestError,
            [
                _miss(sub, selection, listed, files)
                for sub, selection in chosen
                if not listed.holds(selection.row, selection.requirement.op, self._rows)
            ],
        )
        return listed

    def manifest_of(self, model: str, subops: Sequence[SubOperator], symbols: Sequence[Sequence[str]]) -> Manifest:
        """The manifest of a model: the kernels that its sub-operators have, with the symbols of their functions."""
        from superkernel.registry.manifest import dump

        return dump(model, [self.selection_of(sub) for sub in subops], self.registry, ABI_VERSION, symbols)


def _miss(sub: SubOperator, selection: Selection, listed: Manifest, files: Sequence[str]) -> Violation:
    """What is not listed, by its key, and how it gets there."""
    return Violation(
        "the manifest does not list the kernel that it needs",
        f"sub-operator {sub.name!r}",
        f"one of the {len(listed.kernels)} kernels of {', '.join(files)}",
        f"{selection.row.id} for {selection.requirement}, key {selection.requirement.key}",
        f"superkernel kernels dump MODEL -o NEW, then superkernel kernels merge {' '.join(files)} NEW -o MERGED",
    )


class ChoiceOfAll:
    """`KernelChooser.choose` for grouping, which goes on where there is no kernel, as if NumPy computed the body: so
    that all nodes without one are found at once."""

    def __init__(self, chooser: KernelChooser) -> None:
        self._chooser = chooser
        self._errors: dict[Hashable, UnsupportedError] = {}

    def __call__(self, body: Body) -> str:
        try:
            return self._chooser.choose(body)
        except UnsupportedError as error:
            if all(row.kernel != HOST_REFERENCE for row in self._chooser.registry.rows):
                raise
            self._errors.setdefault(_problem(body), error)
            return HOST_REFERENCE

    def raise_unsupported(self, subops: Sequence[SubOperator]) -> None:
        """Raises UnsupportedError, or what of it all the errors are, with the nodes of each body that has no kernel:
        what is missing first, then which candidates there were."""
        if not self._errors:
            return
        nodes: dict[Hashable, list[str]] = {}
        for sub in subops:
            if sub.kernel == HOST_REFERENCE and _problem(sub.body) in self._errors:
                nodes.setdefault(_problem(sub.body), []).extend(sub.nodes)
        # What was asked on the way and is not needed now, such as a program of one node that became an anchor, is left
        # out, unless there is nothing else.
        errors = {problem: self._errors[problem] for problem in nodes or self._errors}
        heads, candidates = [], []
        for problem, error in errors.items():
            names = ", ".join(map(repr, nodes.get(problem, ())))
            head, *others = error.violations
            heads.append(head.within(f"node{'s' if ',' in names else ''} {names}") if names else head)
            candidates += others
        kinds = {type(error) for error in errors.values()}
        kind = kinds.pop() if len(kinds) == 1 else UnsupportedError
        raise kind(violations=[*heads, *dict.fromkeys(candidates)]) from next(iter(errors.values()))


def _problem(body: Body) -> Hashable:
    """What a refusal is about: an anchor with its types, whatever is joined to it; a program as it is."""
    return body if body.op is None else (body.op, body.attrs, body.anchor_input_types, body.anchor_outputs)
