"""A trace as one HTML page without outside parts: the timeline as SVG, and a table of sub-operators.

Model: one SVG, a unit wide per ns and a unit high per pixel, stretched over the page's width; zooming is another view
box. Everything is drawn here; the page's script only zooms, and shows what is under the pointer. Work has the colour
of its sub-operator, waiting that of its cause.

What a screen cannot show is not drawn: neighbours on a track that are the same for the eye (sub-operator, activity)
and closer than `1 / DETAIL` of the run become one; the pointer then reads the first one's name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib.resources import files
from string import Template

from superkernel.display.spans import Recording, Span, SpanKind, Track

DETAIL = 8000
ROW_PX = 13
CORE_GAP_PX = 8
HUE_STEP = 137.508  # degrees; the golden angle keeps neighbours apart, however many there are
WAITING = (SpanKind.WAIT, SpanKind.IMBALANCE, SpanKind.FETCH)
WORKING = (SpanKind.WORK, SpanKind.COMPUTE, SpanKind.MOVEMENT)
LEGEND = {
    SpanKind.WAIT: "waiting for other cores: the synchronisation itself",
    SpanKind.IMBALANCE: "waiting for other cores: they still work",
    SpanKind.FETCH: "waiting for instructions",
    SpanKind.SIGNAL: "signalling",
    SpanKind.BETWEEN: "ahead of a sub-operator's work and behind it: starting, signalling",
    SpanKind.STALL: "control unit stands still",
    SpanKind.FLAG: "engine waits for another one of its core",
}


@dataclass(frozen=True, slots=True)
class Bar:
    """What is drawn: [begin, end) in ns."""

    track: int
    begin: int
    end: int
    name: str
    activity: SpanKind
    subop: int | None


def page(trace: Recording) -> str:
    """The page's text."""
    tops, height = _rows(trace.tracks)
    bars = list(merged(trace))
    names = list(dict.fromkeys(bar.name for bar in bars))
    number = {name: i for i, name in enumerate(names)}
    template = Template(files("superkernel.display").joinpath("tracing_page.html").read_text("utf-8"))
    return template.substitute(
        title=escape(trace.title),
        summary=escape(f"{trace.duration_us:,.2f} us on {len(trace.cores)} cores"),
        height=height,
        width=max(1, round(trace.duration_us * 1000)),
        legend="\n".join(_legend({span.activity for span in trace.spans})),
        labels="\n".join(_labels(trace, tops)),
        bars="\n".join(_rect(bar, tops[bar.track], number[bar.name]) for bar in bars),
        colours="\n".join(_colours(trace.subops)),
        rows="\n".join(_table(trace)),
        names="\n".join(f"<li>{escape(name)}</li>" for name in names),
    )


def merged(trace: Recording) -> Iterator[Bar]:
    """The spans as bars, by track and time."""
    least = trace.duration_us * 1000 / DETAIL
    by_track: dict[int, list[Span]] = {}
    for span in trace.spans:
        by_track.setdefault(span.track, []).append(span)
    for track in sorted(by_track):
        last: Bar | None = None
        for span in sorted(by_track[track], key=lambda s: (s.begin_us, s.end_us)):
            bar = Bar(
                track, round(span.begin_us * 1000), round(span.end_us * 1000), span.name, span.activity, span.subop
            )
            if last is None:
                last = bar
            elif _alike(last, bar) and bar.begin - last.end <= least:
                last = replace(last, end=max(last.end, bar.end))
            else:
                yield last
                last = bar
        if last is not None:
            yield last


def _alike(one: Bar, other: Bar) -> bool:
    return one.activity is other.activity and one.subop == other.subop


def _rows(tracks: Sequence[Track]) -> tuple[list[int], int]:
    """The top of each track in pixels, and the height of all."""
    tops: list[int] = []
    at, core = 0, None
    for track in tracks:
        at += CORE_GAP_PX if core not in (None, track.core) else 0
        core = track.core
        tops.append(at)
        at += ROW_PX
    return tops, max(at, ROW_PX)


def _legend(activities: set[SpanKind]) -> Iterator[str]:
    for activity, text in LEGEND.items():
        if activity in activities:
            yield f'<span><i class="{activity.value}"></i>{text}</span>'


def _labels(trace: Recording, tops: Sequence[int]) -> Iterator[str]:
    core = None
    for track, top in zip(trace.tracks, tops, strict=True):
        head = f"<b>{escape(trace.cores[track.core])}</b>" if track.core != core else ""
        core = track.core
        yield f'<div style="top:{top}px">{head}<span>{escape(track.name)}</span></div>'


def _rect(bar: Bar, top: int, name: int) -> str:
    colour = bar.activity.value
    if bar.activity in WORKING and bar.subop is not None:
        colour += f" s{bar.subop}"
    place = f'x="{bar.begin}" y="{top}" width="{max(1, bar.end - bar.begin)}" height="{ROW_PX - 2}"'
    subop = "" if bar.subop is None else f' data-s="{bar.subop}"'
    return f'<rect class="{colour}" {place} data-n="{name}"{subop}/>'


def _colours(subops: Iterable[int]) -> Iterator[str]:
    for subop in subops:
        colour = f"hsl({subop * HUE_STEP % 360:.0f} 60% 55%)"
        yield f".s{subop}{{fill:{colour};background:{colour}}}"


def _table(trace: Recording) -> Iterator[str]:
    """A row per sub-operator: when, how long, and what its cores waited for, means over the cores that have it."""
    for subop, spans in sorted(_of_subops(trace).items(), key=lambda item: min(s.begin_us for s in item[1])):
        cores = {trace.tracks[s.track].core for s in spans}
        works = [s for s in spans if s.activity in WORKING] or spans
        begin, end = min(s.begin_us for s in works), max(s.end_us for s in works)
        waits = [sum(s.end_us - s.begin_us for s in spans if s.activity is kind) / len(cores) for kind in WAITING]
        figures = (begin, end, end - begin, *waits)
        cells = "".join(f"<td>{us:,.3f}</td>" for us in figures)
        head = f'<td><i class="s{subop}"></i>{subop}</td><th>{escape(trace.subops[subop])}</th><td>{len(cores)}</td>'
        yield f'<tr data-s="{subop}">{head}{cells}</tr>'


def _of_subops(trace: Recording) -> Mapping[int, list[Span]]:
    found: dict[int, list[Span]] = {}
    for span in trace.spans:
        if span.subop is not None and span.subop in trace.subops:
            found.setdefault(span.subop, []).append(span)
    return found
