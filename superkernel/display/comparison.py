"""Two measurements side by side, as a page: what changed, both times with their parts, both timelines on one axis.

It shows what `difference.py` finds, and what the JSON forms hold besides: parts of a launch, spans of a trace.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from superkernel.core.errors import FileFormatError
from superkernel.display.charts import StackedBar, with_stamps
from superkernel.display.difference import (
    INTERVALS,
    SIMULATED,
    TRACE,
    WHOLE,
    Figure,
    FigureChange,
    MeasuredDifference,
    figures_of,
    figures_of_both,
    kind_of,
    rows_apart,
)
from superkernel.display.page import Cell, Page, PageTable
from superkernel.display.spans import Recording, SpanKind
from superkernel.display.tracing import side_by_side
from superkernel.display.units import format_us


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
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            found_event = "an event with a value of another type"
            if isinstance(error, KeyError):
                found_event = f"an event without {error}"
            elif isinstance(error, ValueError):
                found_event = "another category than " + ", ".join(kind.value for kind in SpanKind)
            where = " or ".join(dict.fromkeys(names))
            hint = "traces of `superkernel trace --out FILE.json` have what the timelines of a page need"
            raise FileFormatError("not a trace of ours", location=where, found=found_event, hint=hint) from error
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
        differs = "changed" if found.proves else "differs"
        return f"Nothing {differs} {found.beyond}: a launch takes {format_us(change.after.us)}."
    ratio = change.after.us / change.before.us - 1 if change.before.us else 0.0
    parts = [each for each in found.changes if each.name != WHOLE]
    most = (
        f' Of its parts "{parts[0].name}" changed most, by {100 * parts[0].share:+.1f} % of a launch.' if parts else ""
    )
    takes = "takes" if found.proves else "took"
    times = f"{format_us(change.before.us)} in A, {format_us(change.after.us)} in B"
    if found.proves and change not in found.changes:
        return f"A launch takes {times}: no change {found.beyond}.{most}"
    return f"A launch {takes} {times}: {ratio:+.1%}.{most}"


def _bar(letter: str, name: str, kind: str, data: Mapping[str, Any]) -> StackedBar:
    parts = tuple(_parts(kind, data))
    return StackedBar(letter, figures_of(kind, data, name)[WHOLE].us, parts, with_stamps(dict(parts).get("rest", 0.0)))


def _parts(kind: str, data: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Parts of a launch, where the form has them."""
    if kind == TRACE:
        if rows_apart(data):
            for figure in list(figures_of(kind, data, "").values())[1:]:
                yield figure.name.partition(",")[0], figure.us
    elif kind == SIMULATED:
        yield from data.get("split", {}).items()
    elif "rows" in data:
        split = data["rows"][-1].get("split")
        yield from split.items() if isinstance(split, dict) else ()
    elif (data.get("conditions") or {}).get("trusted", True):
        yield from ((row["name"], row["ns"] / 1e3) for row in data["parts"])


def _table(
    found: MeasuredDifference, before: Mapping[str, Any], after: Mapping[str, Any], names: tuple[str, str]
) -> PageTable:
    kind = kind_of(before, names[0])
    first, second = figures_of_both(kind, before, after, names)
    changed = {change.name: change for change in found.changes}
    rows = tuple(_row(name, first.get(name), second.get(name), changed.get(name)) for name in first | second)
    times = (f"{side} {end}" for side in "AB" for end in ("us", "from us", "to us"))
    head = ("figure", *times, "change us", "of a launch", found.beyond)
    note = f"The limit is {found.limit:.1%} of a launch."
    if found.evidence == INTERVALS:
        note += " Beyond noise: by that at least, and the 95 % intervals, from and to, do not overlap."
    return PageTable("What changed", head, rows, note, chooses=False, signed=("change us",))


def _row(name: str, before: Figure | None, after: Figure | None, change: FigureChange | None) -> tuple[Cell, ...]:
    grown = (after.us if after else 0.0) - (before.us if before else 0.0)
    said = "" if change is None else "more" if grown > 0 else "less"
    share = "" if change is None else f"{100 * change.share:+.1f} %"
    return (name, *_cells(before), *_cells(after), grown, share, said)


def _cells(figure: Figure | None) -> tuple[Cell, Cell, Cell]:
    """A time and its interval, where it has one that says something."""
    if figure is None:
        return None, None, None
    return (figure.us, figure.low_us, figure.high_us) if figure.interval else (figure.us, None, None)
