"""Do the canonical names say what the fields say? The fields are the truth; a name that disagrees is reported."""

from __future__ import annotations

from collections.abc import Iterable

from superkernel.core.errors import UserError, Violation
from superkernel.registry.names import CORE_TOKENS, FEATURE_TOKENS, NAME_DTYPES, TIER_TOKENS, KernelName, parse_name
from superkernel.registry.records import Capability


def lint(rows: Iterable[Capability]) -> list[Violation]:
    """Every disagreement between the names and the fields of rows, and every name that two rows share."""
    wrong: list[Violation] = []
    seen: dict[str, str] = {}
    for row in rows:
        place = f"kernel {row.id!r}"
        if row.name in seen:
            wrong.append(
                Violation("two rows share a canonical name", place, "a name of its own", f"that of {seen[row.name]!r}")
            )
        seen[row.name] = row.id
        try:
            name = parse_name(row.name)
        except UserError as error:
            wrong += [Violation(v.message, place, v.expected, v.found) for v in error.violations]
            continue
        wrong += [Violation(what, place, expected, found) for what, expected, found in _differences(row, name)]
    return wrong


def _differences(row: Capability, name: KernelName) -> Iterable[tuple[str, str, str]]:
    first = row.input_dtypes[0] if row.input_dtypes else frozenset()
    want = NAME_DTYPES[next(iter(first))] if len(first) == 1 else "xx"
    if name.dtypes[0] != want:
        yield "the name's data type is not the row's", want, name.dtypes[0]
    tile = {} if name.params is None else {field: size.count for field, size in name.params.sizes}
    for field, size in row.tile:
        if tile.get(field) != size:
            yield f"the name's {field} is not the row's", str(size), str(tile.get(field, "absent"))
    if set(tile) - {field for field, _ in row.tile}:
        yield "the name has a tile the row has not", str(dict(row.tile)), str(tile)
    if row.core_type is not None:
        tokens = CORE_TOKENS.get(row.core_type, (row.core_type,))
        if name.target[: len(tokens)] != tokens:
            yield "the name's core type is not the row's", "_".join(tokens), "_".join(name.target)
        return
    own = next((FEATURE_TOKENS[name] for name in row.features if name in FEATURE_TOKENS), None)
    token = own or ("scalar" if row.tier is None else TIER_TOKENS.get(row.tier, row.tier))
    if name.instruction_set != token:
        yield "the name's instruction set is not the row's tier", token, str(name.instruction_set)
