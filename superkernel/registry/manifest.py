"""Which kernels a set of models needs: dumped per model, merged for a build, and what a build from it may then use.

Model: a manifest is canonical JSON: the package and the registry it came from (version, ABI, digest), the target, one
entry per kernel row (canonical name, content hash, the symbols of its functions in the models' objects, and for each
requirement key the models that have it), and the fallbacks the models rely on. Merging is a union of sets, so it is
commutative, associative and idempotent. Manifests of two versions, registries, ABIs or targets do not merge, nor two
contents under one id: the error names the models on both sides.

A selective build (option `manifest`) may use what `Manifest.holds`: the kernels listed, the generic ones behind them,
and NumPy for the operators that the models listed have it compute.

Invariant: equal selections give equal bytes, whatever the order of registration, selection or merging.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from os import PathLike
from pathlib import Path
from typing import Any

from superkernel.core.errors import FileFormatError, InputError, UserError, Violation, raise_all
from superkernel.core.version import __version__
from superkernel.registry.canonical import digest, read_json, write_json
from superkernel.registry.records import Capability, KernelRole, row_data
from superkernel.registry.selection import REGISTRY_VERSION, Registry, Selection
from superkernel.target.base import Target, identity_of

SCHEMA = 2


@dataclass(frozen=True)
class KernelEntry:
    """One kernel: `keys` maps each requirement key to the models that have it. `functions`: the symbols of what was
    emitted of it."""

    symbol: str
    content: str
    keys: Mapping[str, frozenset[str]]
    functions: frozenset[str] = frozenset()

    @property
    def models(self) -> frozenset[str]:
        """Models that have any of its keys."""
        return frozenset().union(*self.keys.values())


@dataclass(frozen=True, order=True)
class FallbackEntry:
    """A model's operator that runs on less than a tuned kernel."""

    model: str
    kernel: str
    op: str
    reason: str


@dataclass(frozen=True)
class Manifest:
    """See the module docstring. `package`: its version; `registry`: digest of its rows."""

    abi: int
    target: tuple[str, str, str]
    package: str
    registry: str
    kernels: Mapping[str, KernelEntry]
    fallbacks: frozenset[FallbackEntry] = field(default_factory=frozenset)

    @property
    def models(self) -> frozenset[str]:
        """All models in it."""
        return frozenset().union(*(entry.models for entry in self.kernels.values()))

    def holds(self, row: Capability, op: str, rows: Mapping[str, Capability]) -> bool:
        """Whether a build from it may compute an operator by a row; `rows`: those of its registry, by id."""
        if row.role is KernelRole.REFERENCE:
            return any(f.kernel == row.id and f.op == op for f in self.fallbacks)
        if row.id in self.kernels:
            return True
        listed = (rows[kernel] for kernel in self.kernels)
        return any(row.role.rank > k.role.rank and row.tier in (None, k.tier) and op in k.ops for k in listed)

    def check_fits(self, registry: Registry, target: Target, abi: int, location: str) -> None:
        """Whether it is of this package, registry, ABI and target. Raises UserError with all that is not."""
        mine = {"package": __version__, "registry": registry.digest, "ABI": str(abi)}
        theirs = {"package": self.package, "registry": self.registry, "ABI": str(self.abi)}
        hint = "dump the kernels of its models again with this version: superkernel kernels dump MODEL -o FILE"
        wrong = [
            Violation(f"a manifest of another {what}", location, mine[what], theirs[what], hint)
            for what in mine
            if mine[what] != theirs[what]
        ]
        rows = {row.id: row for row in registry.rows}
        for kernel, entry in sorted(self.kernels.items()):
            found = content_hash(rows[kernel]) if kernel in rows else "no such kernel"
            if found != entry.content:
                place = f"{location}, kernel {kernel!r}, models {_names(entry.models)}"
                wrong.append(Violation("not the kernel that was listed", place, found[:16], entry.content[:16], hint))
        if identity_of(target) != self.target:
            message, hint = "a manifest for another target", "a manifest is for one target: dump one for each"
            expected = ", ".join(identity_of(target))
            wrong.append(Violation(message, location, expected, ", ".join(self.target), hint))
        raise_all(UserError, wrong)

    @property
    def digest(self) -> str:
        """Hash of the whole manifest."""
        return digest(self.to_json())

    def to_json(self) -> dict[str, Any]:
        """Plain data, everything sorted."""
        kernels = {
            kernel: {
                "symbol": entry.symbol,
                "content": entry.content,
                "functions": sorted(entry.functions),
                "keys": {key: sorted(models) for key, models in sorted(entry.keys.items())},
            }
            for kernel, entry in sorted(self.kernels.items())
        }
        fallbacks = [
            {"model": f.model, "kernel": f.kernel, "op": f.op, "reason": f.reason} for f in sorted(self.fallbacks)
        ]
        return {
            "schema": SCHEMA,
            "kind": "kernel-manifest",
            "package": self.package,
            "registry": {"version": REGISTRY_VERSION, "abi": self.abi, "digest": self.registry},
            "target": dict(zip(("triple", "tier", "features"), self.target, strict=True)),
            "kernels": kernels,
            "fallbacks": fallbacks,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any], location: str = "") -> Manifest:
        """Inverse of `to_json`. Raises FileFormatError on another schema or damage."""
        if data.get("kind") != "kernel-manifest" or data.get("schema") != SCHEMA:
            found = f"{data.get('kind')!r} of schema {data.get('schema')!r}"
            raise FileFormatError("not a kernel manifest", location=location, expected=f"schema {SCHEMA}", found=found)
        try:
            registry, target = data["registry"], data["target"]
            if registry["version"] != REGISTRY_VERSION:
                found = str(registry["version"])
                raise FileFormatError(
                    "another registry version", location=location, expected=str(REGISTRY_VERSION), found=found
                )
            kernels = {
                str(kernel): KernelEntry(
                    str(entry["symbol"]),
                    str(entry["content"]),
                    {str(key): frozenset(map(str, models)) for key, models in entry["keys"].items()},
                    frozenset(map(str, entry["functions"])),
                )
                for kernel, entry in data["kernels"].items()
            }
            fallbacks = frozenset(
                FallbackEntry(f["model"], f["kernel"], f["op"], f["reason"]) for f in data["fallbacks"]
            )
            triple = (str(target["triple"]), str(target["tier"]), str(target["features"]))
            package, rows = str(data["package"]), str(registry["digest"])
            return Manifest(int(registry["abi"]), triple, package, rows, kernels, fallbacks)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FileFormatError("a damaged kernel manifest", location=location, found=repr(error)) from error

    @staticmethod
    def load(path: str | PathLike[str]) -> Manifest:
        """Read a manifest file."""
        path = Path(path)
        return Manifest.from_json(read_json(path, "kernel manifest"), f"file {str(path)!r}")

    def save(self, path: str | PathLike[str]) -> None:
        """Write the file atomically."""
        write_json(Path(path), self.to_json())


def content_hash(row: Capability) -> str:
    """What identifies the contents of a row: all its fields."""
    return digest(row_data(row))


def dump(
    model: str,
    selections: Iterable[Selection],
    registry: Registry,
    abi: int,
    symbols: Iterable[Sequence[str]] | None = None,
) -> Manifest:
    """The manifest of one model from what was selected for it; `symbols`: of the functions of each. Raises
    InputError without selections, or for two targets."""
    chosen = list(selections)
    targets = {identity_of(s.requirement.platform.target) for s in chosen}
    if len(targets) != 1:
        raise InputError(
            "a manifest is for one target", location=f"model {model!r}", expected="1", found=str(len(targets))
        )
    keys: dict[str, dict[str, frozenset[str]]] = {}
    rows = {s.row.id: s.row for s in chosen}
    fallbacks = set()
    functions: dict[str, set[str]] = {}
    for s, names in zip(chosen, symbols if symbols is not None else [()] * len(chosen), strict=True):
        functions.setdefault(s.row.id, set()).update(names)
        keys.setdefault(s.row.id, {})[s.requirement.key] = frozenset({model})
        if s.fallback is not None:
            fallbacks.add(FallbackEntry(model, s.row.id, s.requirement.op, s.fallback.reason))
    kernels = {i: KernelEntry(row.name, content_hash(row), keys[i], frozenset(functions[i])) for i, row in rows.items()}
    return Manifest(abi, targets.pop(), __version__, registry.digest, kernels, frozenset(fallbacks))


def merge(manifests: Iterable[Manifest]) -> Manifest:
    """The union. Raises UserError with every conflict, or InputError where there is nothing to merge."""
    given = list(manifests)
    if not given:
        raise InputError("nothing to merge", expected="at least one manifest", found="none")
    return reduce(_merge_two, given)


def _merge_two(a: Manifest, b: Manifest) -> Manifest:
    wrong: list[Violation] = []
    sides = f"models {_names(a.models)} against {_names(b.models)}"
    again = "dump all models with one version"
    if a.package != b.package:
        wrong.append(Violation("manifests of two versions of the package", sides, a.package, b.package, again))
    if a.registry != b.registry:
        wrong.append(Violation("manifests of two registries", sides, a.registry[:16], b.registry[:16], again))
    if a.abi != b.abi:
        wrong.append(Violation("manifests of two ABIs", sides, f"ABI {a.abi}", f"ABI {b.abi}", again))
    if a.target != b.target:
        hint = "merge per target, or dump all models for one"
        wrong.append(Violation("manifests of two targets", sides, ", ".join(a.target), ", ".join(b.target), hint))
    kernels = dict(a.kernels)
    for kernel, theirs in b.kernels.items():
        ours = kernels.get(kernel)
        if ours is None:
            kernels[kernel] = theirs
            continue
        if (ours.content, ours.symbol) != (theirs.content, theirs.symbol):
            place = f"kernel {kernel!r}, models {_names(ours.models)} against {_names(theirs.models)}"
            hint = "dump both models again with the same version"
            wrong.append(Violation("two contents under one id", place, ours.content[:16], theirs.content[:16], hint))
            continue
        keys = {k: ours.keys.get(k, frozenset()) | theirs.keys.get(k, frozenset()) for k in {*ours.keys, *theirs.keys}}
        kernels[kernel] = KernelEntry(ours.symbol, ours.content, keys, ours.functions | theirs.functions)
    raise_all(UserError, wrong)
    return Manifest(a.abi, a.target, a.package, a.registry, kernels, a.fallbacks | b.fallbacks)


def _names(models: Iterable[str]) -> str:
    return ", ".join(sorted(models)) or "none"
