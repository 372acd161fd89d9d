"""A recording, and what a report says of it, as one HTML file: `Page`.

Model: the page is the template `page.html` with its style and script inlined, and the recording as columns of JSON: it
stands by itself, fetches nothing, and a span costs a few bytes. The script draws the timeline on a canvas; everything
else is there without it. A colour means one kind of span, or one part of the time, everywhere on the page.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from superkernel.core.counted import counted
from superkernel.display.charts import Bars, Chart, StackedBar, colour_of, drawn
from superkernel.display.spans import WORKING, Recording, Span, SpanKind
from superkernel.display.units import format_us

LEGEND = {
    SpanKind.WORK: "inside a sub-operator",
    SpanKind.COMPUTE: "engines compute",
    SpanKind.MOVEMENT: "data is moved, nothing computed of it",
    SpanKind.NUMPY: "computes on the host",
    SpanKind.WAIT: "waiting for cores that have signalled",
    SpanKind.IMBALANCE: "waiting for cores that still work",
    SpanKind.FETCH: "waiting for instructions",
    SpanKind.SIGNAL: "signalling",
    SpanKind.BETWEEN: "ahead of a sub-operator's work and behind it, signalling too",
    SpanKind.STALL: "a control unit stands still for another reason",
    SpanKind.FLAG: "an engine waits for another one of its core",
}
"""What spans of a kind are, behind the name of the part of the time that they belong to (`Recording.part_of`)."""
WAITING = (SpanKind.WAIT, SpanKind.IMBALANCE, SpanKind.FETCH)
TIME_TITLE = "Where the time goes"
LONG_LETTERS = 40
LONG_US = 1e4  # a table with times from here on has them in ms
LEAST_GAIN = 0.005  # of a launch: what would save less is not recommended
LEAST_LISTED = 0.0005  # what would save less is not told
PARTS = ("page.html", "page.css", "timeline.html", "timeline.js", "tables.js")

Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Gain:
    """What a launch would save, as part of 1, if something were otherwise: an estimate."""

    what: str
    share: float


@dataclass(frozen=True)
class PageTable:
    """Rows under a title; a row's first cell, where `chooses` is set, is the number of a sub-operator. `signed`: heads
    of columns of changes, whose numbers have their sign."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    chooses: bool = True
    signed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Page:
    """See the module docstring. `headline`: what limits the kernel, and what would help most; `bars`: its time and that
    of other ways to run it; `charts` stand behind the list of gains. `title`: the recording's where there is none."""

    recording: Recording | None
    headline: str = ""
    bars: tuple[StackedBar, ...] = ()
    gains: tuple[Gain, ...] = ()
    tables: tuple[PageTable, ...] = ()
    charts: tuple[Chart | None, ...] = ()
    notes: tuple[str, ...] = ()
    title: str = ""

    def html(self) -> str:
        """The page's text."""
        folder = files("superkernel.display")
        template, style, timeline, script, sorting = (folder.joinpath(name).read_text("utf-8") for name in PARTS)
        recording, summary, scripts, shown, times = self.recording, "", [sorting], "", []
        if recording is not None:
            summary = f"{format_us(recording.duration_us)} on {counted(len(recording.cores), 'core')}"
            counts = f"{counted(len(recording.spans), 'span')} on {counted(len(recording.tracks), 'track')}"
            shown = Template(timeline).substitute(summary=escape(f"Timeline: {summary}, {counts}"))
            data = json.dumps(_data(recording), separators=(",", ":")).replace("</", "<\\/")
            shown += f'<script type="application/json" id="data">{data}</script>'
            scripts.append(script)
            times.append(_times(recording))
        told = (*self.notes, *(() if recording is None else recording.notes))
        return Template(template).substitute(
            title=escape(self.title or (recording.title if recording else "")),
            headline=escape(self.headline or summary),
            notes="\n".join(f'<p class="note">{escape(note)}</p>' for note in told),
            bars=Bars(TIME_TITLE, self.bars).html(),
            timeline=shown,
            gains=_gains(self.gains),
            charts="\n".join(drawn(self.charts)),
            tables="\n".join(map(_table, (*self.tables, *times))),
            style=style,
            script="\n".join(scripts),
        )


# The timeline's data --------------------------------------------------------------------------------------------------


def _data(recording: Recording) -> dict[str, Any]:
    """What the script reads: spans as columns, by track and begin; times in ns; texts by number."""
    kinds = list(dict.fromkeys(span.activity for span in recording.spans))
    parts = [recording.part_of(kind) for kind in kinds]
    names: dict[str, int] = {}
    details: dict[str, int] = {}
    order = sorted(range(len(recording.tracks)), key=lambda n: (recording.tracks[n].core, recording.tracks[n].lane))
    place = {number: row for row, number in enumerate(order)}
    cores = {core: number for number, core in enumerate(dict.fromkeys(recording.tracks[n].core for n in order))}
    columns: list[list[float]] = [[] for _ in range(7)]
    for span in sorted(recording.spans, key=lambda s: (place[s.track], s.begin_us, s.end_us)):
        why = str(span.details.get("why", ""))
        row = (
            place[span.track],
            round(span.begin_us * 1e3, 1),
            round((span.end_us - span.begin_us) * 1e3, 1),
            kinds.index(span.activity),
            names.setdefault(span.name, len(names)),
            -1 if span.subop is None else span.subop,
            details.setdefault(why, len(details)) if why else -1,
        )
        for column, value in zip(columns, row, strict=True):
            column.append(value)
    starts = {flow.number: flow for flow in recording.flows if not flow.taken}
    flows = [
        (place[starts[f.number].track], starts[f.number].at_us * 1e3, place[f.track], f.at_us * 1e3)
        for f in recording.flows
        if f.taken and f.number in starts
    ]
    return {
        "duration": recording.duration_us * 1e3,
        "kinds": [kind.value for kind in kinds],
        "parts": [(part, colour_of(part)) for part in parts],
        "names": list(names),
        "details": list(details),
        "tracks": [{"core": cores[recording.tracks[n].core], "name": recording.tracks[n].name} for n in order],
        "cores": [recording.cores[core] for core in cores],
        "columns": columns,
        "flows": flows,
        "path": [(cores[core], begin * 1e3, end * 1e3) for core, begin, end in recording.path if core in cores],
        "subops": dict(recording.subops),
        "legend": _legend(dict(zip(kinds, parts, strict=True))),
    }


def _legend(parts: Mapping[SpanKind, str]) -> list[tuple[str, str]]:
    """A colour and its text for each part of the time, given the parts of the kinds that there are."""
    texts: dict[str, list[str]] = {}
    for kind, text in LEGEND.items():
        if kind in parts:
            texts.setdefault(parts[kind], []).append(text)
    return [(colour_of(part), f"{part}: {'; '.join(found)}") for part, found in texts.items()]


# Everything else ------------------------------------------------------------------------------------------------------


def _gains(gains: Sequence[Gain]) -> str:
    rows = tuple((gain.what, f"{100 * gain.share:.1f} % less") for gain in gains if gain.share >= LEAST_LISTED)
    if not rows:
        return ""
    note = (
        "Estimates, each for itself: the recorded launch played again with that one thing otherwise. What then begins "
        "sooner ends sooner, and others wait less for it: a gain may be larger than the part of the time that it is of."
    )
    return _table(PageTable("What would help", ("if", "a launch takes"), rows, note, chooses=False))


def _table(table: PageTable) -> str:
    if not table.rows:
        return ""
    table = _in_short_units(_without_zeros(table))
    head = "".join(
        f'<th scope="col"{_text(column, table)}><button type="button">{escape(name) or "no."}</button></th>'
        for column, name in enumerate(table.head)
    )
    body = []
    for row in table.rows:
        number = f' data-subop="{row[0]}" tabindex="0"' if table.chooses else ""
        cells = "".join(
            f"<td{_text(column, table)}>{escape(_cell(value, signed=table.head[column] in table.signed))}</td>"
            for column, value in enumerate(row)
        )
        body.append(f"<tr{number}>{cells}</tr>")
    note = f'<p class="faint">{escape(table.note)}</p>' if table.note else ""
    return (
        f'<section><h2>{escape(table.title)}</h2><div class="scroll"><table aria-label="{escape(table.title)}">'
        f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody></table></div>{note}</section>"
    )


def _without_zeros(table: PageTable) -> PageTable:
    """Without columns of numbers that are 0 everywhere: they say nothing of these rows."""
    columns = range(len(table.head))
    kept = [c for c in columns if (c == 0 and table.chooses) or any(row[c] not in (0, None) for row in table.rows)]
    rows = tuple(tuple(row[c] for c in kept) for row in table.rows)
    return replace(table, head=tuple(table.head[c] for c in kept), rows=rows)


def _in_short_units(table: PageTable) -> PageTable:
    """With times in ms where they are long in us: columns whose heads end in `us`, all of a table alike."""
    timed = [c for c, name in enumerate(table.head) if name.split(" ")[-1] == "us"]
    cells = (row[column] for row in table.rows for column in timed)
    if not any(isinstance(cell, float) and abs(cell) >= LONG_US for cell in cells):
        return table

    def in_ms(name: str) -> str:
        return name.removesuffix("us") + "ms"

    def cell(column: int, value: Cell) -> Cell:
        return value / 1e3 if column in timed and isinstance(value, float) else value

    return replace(
        table,
        head=tuple(in_ms(name) if column in timed else name for column, name in enumerate(table.head)),
        rows=tuple(tuple(cell(column, value) for column, value in enumerate(row)) for row in table.rows),
        signed=tuple(in_ms(name) if name.split(" ")[-1] == "us" else name for name in table.signed),
    )


def _text(column: int, table: PageTable) -> str:
    """Words stand at the left; long ones may take several lines."""
    cells = [row[column] for row in table.rows]
    if not any(isinstance(cell, str) for cell in cells):
        return ""
    return ' class="text long"' if max(len(str(cell)) for cell in cells) > LONG_LETTERS else ' class="text"'


def _cell(value: Cell, *, signed: bool = False) -> str:
    if isinstance(value, float):
        if not round(value, 3):
            return "0.000" if value else "0"
        return f"{value:+,.3f}" if signed else f"{value:,.3f}"
    return "" if value is None else f"{value:,}" if isinstance(value, int) else value


def _times(recording: Recording) -> PageTable:
    """A row per sub-operator: how many cores work on it, when, how long, and what cores waited for, means over those
    that work or wait."""
    rows: list[tuple[Cell, ...]] = []
    for subop, spans in sorted(_of_subops(recording).items(), key=lambda item: min(s.begin_us for s in item[1])):
        works = [s for s in spans if s.activity in WORKING] or spans
        cores, there = ({recording.tracks[s.track].core for s in some} for some in (works, spans))
        begin, end = min(s.begin_us for s in works), max(s.end_us for s in works)
        waits = [sum(s.end_us - s.begin_us for s in spans if s.activity is kind) / len(there) for kind in WAITING]
        rows.append((subop, recording.subops[subop], len(cores), begin, end, end - begin, *waits))
    head = ("", "sub-operator", "cores", "begin us", "end us", "us", *(f"{kind.part} us" for kind in WAITING))
    note = "Of the launch in the timeline."
    if any(any(row[-len(WAITING) :]) for row in rows):
        note += " Times of waiting are means over the cores that work on the sub-operator or wait for it."
    return PageTable("Sub-operators in time", head, tuple(rows), note)


def _of_subops(recording: Recording) -> dict[int, list[Span]]:
    found: dict[int, list[Span]] = {}
    for span in recording.spans:
        if span.subop is not None and span.subop in recording.subops:
            found.setdefault(span.subop, []).append(span)
    return found


def headline(limits: Iterable[tuple[str, float]], gains: Sequence[Gain]) -> str:
    """What limits a kernel and what would help most, from the parts of its time (as parts of 1) and gains."""
    worst, share = max(limits, key=lambda item: item[1])
    text = f"{worst[0].upper()}{worst[1:]} limits this kernel: {share:.0%} of a launch."
    best = max(gains, key=lambda gain: gain.share, default=None)
    if best is None or best.share < LEAST_GAIN:
        return text
    return f"{text} What would help most: {best.what}, {100 * best.share:.1f} % less time."
