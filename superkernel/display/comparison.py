"""Two measurements side by side, as a page: what changed, both times with their parts, both timelines on one axis.

It shows what `difference.py` finds, and what the JSON forms hold besides: parts of a launch, spans of a trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from superkernel.core.errors import FileFormatError
from superkernel.display.charts import StackedBar
from superkernel.display.difference import (
    SIMULATED,
    TRACE,
    WHOLE,
    Figure,
    FigureChange,
    MeasuredDifference,
    figures_of,
    kind_of,
)
from superkernel.display.page import Cell, Page, PageTable
from superkernel.display.spans import Recording
from superkernel.display.tracing import side_by_side


def comparison_page(
    found: MeasuredDifference, before: Mapping[str, Any], after: Mapping[str, Any], names: tuple[str, str]
) -> Page:
    """The page of a difference, given the JSON forms that it is of. Raises FileFormatError."""
    pairs = tuple(zip(names, (before, after), strict=True))
    recording: Recording | None = None
    kind = kind_of(before, names[0])
    if kind == TRACE:
        try:
            recording = side_by_side((before, after), "AB")
        except (KeyError, TypeError, ValueError) as error:
            message = f"{type(error).__name__}: {error}"
            raise FileFormatError("not a trace of ours", location=" and ".join(names), found=message) from error
    return Page(
        recording,
        _headline(found),
        tuple(_bar(letter, name, kind, data) for letter, (name, data) in zip("AB", pairs, strict=True)),
        tables=(_table(found, before, after, names),),
        notes=(f"A is {names[0]}, B is {names[1]}", *found.notes),
        title=f"{found.subject}: two runs side by side",
    )


def _headline(found: MeasuredDifference) -> str:
    change = found.whole
    assert change.before is not None
    assert change.after is not None
    if not found.changes:
        return f"Nothing changed beyond noise: a launch takes {change.after.us:,.2f} us."
    ratio = change.after.us / change.before.us - 1 if change.before.us else 0.0
    parts = [each for each in found.changes if each.name != WHOLE]
    most = (
        f' Of its parts "{parts[0].name}" changed most, by {100 * parts[0].share:+.1f} % of a launch.' if parts else ""
    )
    return f"A launch takes {change.before.us:,.2f} us in A, {change.after.us:,.2f} us in B: {ratio:+.1%}.{most}"


def _bar(letter: str, name: str, kind: str, data: Mapping[str, Any]) -> StackedBar:
    return StackedBar(f"{letter}", figures_of(kind, data, name)[WHOLE].us, tuple(_parts(kind, data)))


def _parts(kind: str, data: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Parts of a launch, where the form has them."""
    if kind == TRACE:
        rows = {(event["pid"], event["tid"]) for event in data["traceEvents"] if event.get("ph") == "X"}
        if len(rows) == len({core for core, _ in rows}):  # one row per core: its spans do not overlap
            for figure in list(figures_of(kind, data, "").values())[1:]:
                yield figure.name.partition(",")[0], figure.us
    elif kind == SIMULATED:
        yield from data.get("split", {}).items()
        yield "NumPy", data.get("numpy_us", 0.0)
    elif "rows" in data:
        yield from data["rows"][-1].get("split", {}).items()
    elif (data.get("conditions") or {}).get("trusted", True):
        yield from ((row["name"], row["ns"] / 1e3) for row in data["parts"])


def _table(
    found: MeasuredDifference, before: Mapping[str, Any], after: Mapping[str, Any], names: tuple[str, str]
) -> PageTable:
    kind = kind_of(before, names[0])
    first, second = figures_of(kind, before, names[0]), figures_of(kind, after, names[1])
    changed = {change.name: change for change in found.changes}
    rows = tuple(_row(name, first.get(name), second.get(name), changed.get(name)) for name in first | second)
    head = ("figure", "A us", "B us", "change us", "of a launch", "beyond noise")
    return PageTable(
        "What changed", head, rows, f"Beyond noise: by {found.limit:.1%} of a launch or more.", chooses=False
    )


def _row(name: str, before: Figure | None, after: Figure | None, change: FigureChange | None) -> tuple[Cell, ...]:
    us = tuple(None if figure is None else figure.us for figure in (before, after))
    grown = (us[1] or 0.0) - (us[0] or 0.0)
    said = "" if change is None else "more" if grown > 0 else "less"
    return (name, *us, grown, "" if change is None else f"{100 * change.share:+.1f} %", said)
