"""The texts behind `superkernel kernels list | explain | dump | merge | name`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from superkernel.core.counted import counted
from superkernel.core.dtypes import DType
from superkernel.core.errors import InputError
from superkernel.core.json_text import json_text
from superkernel.ops.table import op_table
from superkernel.registry.eligibility import clauses_of
from superkernel.registry.manifest import Manifest, merge
from superkernel.registry.name_rules import channel_runs, passes_of
from superkernel.registry.names import parse_name
from superkernel.registry.predicates import matches_any, show
from superkernel.registry.records import Capability, Policy, row_data
from superkernel.registry.requirement import parse_requirement
from superkernel.registry.selection import Registry
from superkernel.target.base import Target


def kernels_list(
    registry: Registry,
    *,
    op: str | None = None,
    dtype: str | None = None,
    role: str | None = None,
    tier: str | None = None,
    features: Collection[str] | None = None,
    as_json: bool = False,
) -> str:
    """All rows, or those that serve an operator, take an element type as first input, have a role, run on a tier, need
    none but the `features`."""
    rows = registry.rows
    wanted = None if dtype is None else DType.of(dtype)
    found = [
        row
        for row in rows
        if (op is None or op in row.ops)
        and (wanted is None or not row.input_dtypes or wanted in row.input_dtypes[0])
        and (role is None or row.role.value == role)
        and (tier is None or row.tier in (None, tier))
        and (features is None or row.features.issubset(features))
    ]
    if as_json:
        return _json([row_data(row) for row in found])
    head = ("KERNEL", "ROLE", "NAME", "OPERATORS")
    lines = [(row.id, row.role.value, row.name, _operators(row)) for row in found]
    return _columns([head, *lines]) + f"\n{counted(len(found), 'kernel')}"


def kernels_explain(
    registry: Registry,
    query: str,
    *,
    target: Target | None = None,
    policy: Policy | None = None,
    as_json: bool = False,
) -> str:
    """What would be chosen for a problem, and why: `query` is "matmul(f32[8,64], const f32[64,64]; trans_b=true)" (with
    a target), an operator's name, or a pattern of kernel ids; the latter two print what the kernels demand. Raises
    InputError."""
    if "(" in query:
        if target is None:
            raise InputError(
                "a problem is explained for a target",
                location=repr(query),
                expected="a CpuTarget or an AicoreTarget",
                found="none",
            )
        selection = registry.select(parse_requirement(query, target, policy or Policy()))
        explanation = selection.explanation
        return _json(explanation.to_json(selection.cached)) if as_json else explanation.text
    rows = [r for r in registry.rows if query in r.ops or matches_any((query,), r.names)]
    if not rows:
        expected = "an operator, a kernel id or pattern, or OPERATOR(TYPE, ...)"
        raise InputError("no kernel or operator of this name", location=repr(query), expected=expected, found=query)
    if as_json:
        return _json([{**row_data(r), "clauses": [_clause_data(c) for c in clauses_of(r)]} for r in rows])
    return "\n".join(line for row in rows for line in _demands(row))


def kernels_dump(manifest: Manifest) -> str:
    """The manifest as JSON text."""
    return _json(manifest.to_json())


def kernels_merge(paths: Sequence[str | Path], *, output: str | Path) -> str:
    """Merge manifest files into `output`; says what it now holds. Raises UserError on conflicts, FileFormatError on bad
    files."""
    merged = merge(Manifest.load(Path(path)) for path in paths)
    merged.save(Path(output))
    count, models = len(merged.kernels), ", ".join(sorted(merged.models))
    return f"{output}: {counted(count, 'kernel')} for {models} (digest {merged.digest[:16]})"


def kernels_name(text: str, *, elements: int | None = None, channels: int | None = None) -> str:
    """What a canonical name says, and how a kernel of its tile walks a window of `elements`, or `channels`. Raises
    UserError on what is no name, and on a window that the tile does not take."""
    name = parse_name(text)
    sizes = () if name.params is None else name.params.sizes
    rows = [
        ("types", " ".join(name.dtypes)),
        ("operator", name.op),
        ("activation", name.activation or "none"),
        ("requantisation", name.requantisation or "none"),
        ("tile", ", ".join(f"{field} {size}" for field, size in sizes) or "none"),
        ("instruction set", name.instruction_set or "unknown"),
        ("target", " ".join(name.target)),
    ]
    if elements is not None:
        found = passes_of(name, elements)
        middle = f", {found.turns} times {found.middle}" if found.turns else ""
        last = f", {found.last}" if found.last else ""
        rows.append((f"window of {elements}", f"{found.first}{middle}{last}"))
    if channels is not None:
        runs = channel_runs(name, channels)
        rows.append((f"{channels} channels", f"{runs.tiles} tiles, {runs.subtiles} subtiles"))
    return text + "\n" + _columns([("  " + field, value) for field, value in rows])


def kernels_size(
    models: Mapping[str, tuple[Manifest, Mapping[str, int]]],
    selected: Manifest | None = None,
    *,
    firmware: Callable[[Iterable[str] | None], int] | None = None,
    as_json: bool = False,
) -> str:
    """What the code of kernels takes: of all functions that models have, of those of the kernels that `selected` lists,
    of each kernel alone. `models`: name -> manifest, and bytes by function. `firmware`: bytes of an emulator's firmware
    that serves some functions, or (None) whatever there may be."""
    sizes: dict[str, int] = {}
    rows: dict[str, set[str]] = {}
    for manifest, functions in models.values():
        sizes.update(functions)
        for kernel, entry in manifest.kernels.items():
            rows.setdefault(kernel, set()).update(entry.functions & functions.keys())
    each = {kernel: sum(sizes[f] for f in functions) for kernel, functions in sorted(rows.items()) if functions}
    taken = sorted(each if selected is None else each.keys() & selected.kernels.keys())
    own = {kernel: rows[kernel] if selected is None else _listed(rows, selected, kernel) for kernel in taken}
    data: dict[str, Any] = {
        "models": {name: sum(functions.values()) for name, (_, functions) in models.items()},
        "full": {"kernels": len(each), "functions": len(sizes), "bytes": sum(sizes.values())},
        "selected": {
            "kernels": len(taken),
            "functions": len({f for functions in own.values() for f in functions}),
            "bytes": sum(sizes[f] for f in {f for functions in own.values() for f in functions}),
        },
        "kernels": each,
    }
    if firmware is not None:
        taken_functions = {f for functions in own.values() for f in functions}
        data["firmware"] = {
            "full": firmware(None),
            "selected": firmware(taken_functions),
            "kernels": {kernel: firmware(rows[kernel]) for kernel in each},
        }
    if as_json:
        return _json(data)
    head = ("", "KERNELS", "FUNCTIONS", "BYTES OF CODE", *(["OF FIRMWARE"] if firmware is not None else []))
    of_firmware = data.get("firmware", {})
    more = {**of_firmware, **of_firmware.get("kernels", {})}
    table = [(name, *(str(data[name][f]) for f in ("kernels", "functions", "bytes"))) for name in ("full", "selected")]
    alone = [(kernel, "1", str(len(rows[kernel])), str(count)) for kernel, count in each.items()]
    return _columns([head, *((*row, str(more[row[0]])) if more else row for row in (*table, *alone))])


def _listed(rows: Mapping[str, set[str]], selected: Manifest, kernel: str) -> set[str]:
    """The functions of a kernel that a manifest names."""
    return rows[kernel] & selected.kernels[kernel].functions


def _operators(row: Capability) -> str:
    if len(row.ops) > len(op_table()):
        return "every operator"
    return ", ".join(row.ops[:4]) + (f" and {len(row.ops) - 4} more" if len(row.ops) > 4 else "")


def _demands(row: Capability) -> Iterable[str]:
    yield f"{row.id}  ({row.name})"
    yield f"  serves {', '.join(row.ops)}"
    yield f"  {row.role.value}, {row.determinism.value}, {row.numeric.value} within {row.error_ulps:g} ulp"
    for transform in row.transforms:
        yield f"  {transform.kind} of input {transform.slot}, {'when compiling' if transform.amortised else 'per call'}"
    for clause in clauses_of(row):
        demand = _clause_data(clause)["required"]
        yield f"  {clause.reason.value}: {clause.field} must be {demand}"


def _clause_data(clause: Any) -> Mapping[str, str]:
    """A clause without a problem: bounds that depend on one are named, not figured."""
    try:
        required = clause.test.required({})
    except (KeyError, TypeError):
        required = show(type(clause.test).__name__)
    return {"reason": clause.reason.value, "field": clause.field, "required": required}


def _columns(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    return "\n".join("  ".join([*(c.ljust(w) for c, w in zip(r, widths, strict=False)), r[-1]]).rstrip() for r in rows)


def _json(data: Any) -> str:
    return json_text(data, 1, sort_keys=True)
