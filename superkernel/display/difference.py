"""What changed between two measurements, as their JSON forms say it: `difference`.

Model: a report, an ablation or a trace gives *figures*: the time of a launch, and what parts of it took, each with its
95 % interval. Figures of a simulator are *exact*, but for what NumPy computed beside it. A trace of the host is one
launch that was measured: its figures, and those of fewer than `SAMPLES_MIN` launches, have no interval, for nothing
says how far the next launch would be from them. A figure has *changed* where the intervals of both sides are disjoint
and its change is at least `limit` of the whole time: a part that doubles and is a thousandth of the launch is no news.
The two are *worse* where the whole time itself has changed upwards. Without intervals what differs is listed all the
same, and the two are never *worse*. Nor are they where other processes had `BUSY` of the CPUs during one of them: they
slow launches that they do not interrupt. Intervals are those of launches of one process; how processes differ, by where
their threads and their memory lie, no interval of one says, so that a change between two of them is told with that.

It reads data alone, so that measurements of other machines and versions can be held against each other; it cannot know
what either machine did beside.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from os import PathLike
from typing import Any

from superkernel.core.errors import FileFormatError, InputError
from superkernel.core.files import file_name
from superkernel.display.spans import SpanKind
from superkernel.display.units import format_us

LIMIT = 0.02
WHOLE = "a launch"
NUMPY = "NumPy"
NUMPY_WITHIN = 2.0  # times: what one measurement of a call of NumPy is believed to
TRACE = "trace"
SAMPLES_MIN = 6  # below, not even the range of the samples is a 95 % interval of a median: 1 - 2 * 0.5**5 < 0.95
EXACT, INTERVALS, SINGLE, DISTURBED = "exact", "intervals", "single launches", "disturbed"
PROVES_NOTHING = (SINGLE, DISTURBED)
MENTIONED = 0.02  # part of the CPUs' time from which on others are mentioned
BUSY = 0.25  # part of the CPUs' time that others, the hypervisor among them, may take before nothing is proved
ONE_LAUNCH = (
    "a trace of the host is one launch, and two launches of one kernel differ by chance: this proves nothing; "
    "reports can (superkernel report --json)"
)
BUSY_MACHINE = "others kept the CPUs busy: what differs may be their doing, and this proves nothing"
SIMULATED = "superkernel.sim_report/2"
MEASURED = ("superkernel.report/2", "superkernel.host_ablation/1")
OTHER_PROCESSES = (
    "intervals are those of one process each, and processes differ by more: measure both again before you believe it"
)
FEW_LAUNCHES = f"fewer than {SAMPLES_MIN} launches: they differ by chance, and this proves nothing"


@dataclass(frozen=True, slots=True)
class Figure:
    """A time in us with its interval, and what it is the time of; no interval where it is that of too few launches."""

    name: str
    us: float
    low_us: float | None
    high_us: float | None

    @property
    def interval(self) -> str:
        """As text; empty where there is none, or nothing between its ends."""
        if self.low_us is None or self.high_us is None or self.low_us == self.high_us:
            return ""
        return f"[{format_us(self.low_us)}, {format_us(self.high_us)}]"

    def __str__(self) -> str:
        return f"{format_us(self.us)} {self.interval}".rstrip()


@dataclass(frozen=True, slots=True)
class FigureChange:
    """A figure before and after; `share`: its change as part of 1 of the whole time before."""

    name: str
    before: Figure | None
    after: Figure | None
    share: float

    def __str__(self) -> str:
        if self.before is None or self.after is None:
            found = self.before or self.after
            assert found is not None
            return f"{self.name}: {'gone' if self.after is None else 'new'}, {format_us(found.us)}"
        ratio = self.after.us / self.before.us - 1 if self.before.us else float("inf")
        return f"{self.name}: {self.before} -> {self.after}, {ratio:+.1%}"


@dataclass(frozen=True)
class MeasuredDifference:
    """See the module docstring. `changes`: the whole time first where it is one of them, then by size. `evidence`: one
    of `EXACT`, `INTERVALS`, `SINGLE` and `DISTURBED`, what the figures of both are."""

    subject: str
    limit: float
    whole: FigureChange
    changes: tuple[FigureChange, ...]
    notes: tuple[str, ...]
    evidence: str = "intervals"

    @property
    def proves(self) -> bool:
        """Whether a change of the figures is one of what was measured."""
        return self.evidence not in PROVES_NOTHING

    @property
    def worse(self) -> bool:
        """Whether the whole time has grown beyond noise, by `limit` at least."""
        return self.proves and any(change.name == WHOLE and change.share > 0 for change in self.changes)

    @property
    def beyond(self) -> str:
        """What a change is, in words."""
        return "by the limit or more" if self.evidence != INTERVALS else "beyond noise"

    def to_json(self) -> dict[str, Any]:
        """Plain data, stable keys."""
        return {"schema": "superkernel.diff/1", **asdict(self), "worse": self.worse}

    def text(self) -> str:
        """For a terminal."""
        differs = "changed" if self.proves else "differs"
        said = "slower" if self.worse else differs if self.changes else f"nothing {differs} {self.beyond}"
        lines = [f"{self.subject}: {said} (limit {self.limit:.1%} of a launch)", *self.notes, str(self.whole)]
        return "\n".join(lines + [f"  {change}" for change in self.changes if change.name != WHOLE])


def difference(
    before: Mapping[str, Any], after: Mapping[str, Any], limit: float = LIMIT, names: tuple[str, str] = ("A", "B")
) -> MeasuredDifference:
    """What changed from one measurement to another of its kind, given their JSON forms. Raises InputError where they
    are of different kinds or `limit` is no part of 1, FileFormatError where one is none of the forms."""
    if not 0 <= limit < 1:
        raise InputError("not a limit", location="limit", expected="0 up to 1", found=str(limit))
    kinds = [kind_of(data, name) for data, name in zip((before, after), names, strict=True)]
    if kinds[0] != kinds[1]:
        raise InputError("measurements of different kinds", expected=kinds[0], found=kinds[1])
    figures = [figures_of(kinds[0], data, name) for data, name in zip((before, after), names, strict=True)]
    whole = figures[0][WHOLE]
    rows = [_change(name, figures[0].get(name), figures[1].get(name), whole) for name in figures[0] | figures[1]]
    changed = [row for row in rows if not _overlap(row) and abs(row.share) >= limit and row.share]
    subject = str(before.get("graph") or _about(before).get("title") or kinds[0])
    ordered = sorted(changed, key=lambda row: (row.name != WHOLE, -abs(row.share), row.name))
    evidence, busy = _evidence(figures), tuple(_busy(before, after, names))
    why: tuple[str, ...] = ()
    if evidence == SINGLE:
        why = (ONE_LAUNCH,) if kinds[0] == TRACE else (FEW_LAUNCHES,)
    elif evidence == INTERVALS and any(told for _, told in busy):
        evidence, why = DISTURBED, (BUSY_MACHINE,)
    elif evidence == INTERVALS and ordered and kinds[0] in MEASURED:
        why = (OTHER_PROCESSES,)
    notes = (*why, *(note for note, _ in busy), *_notes(before, after, names))
    return MeasuredDifference(subject, limit, rows[0], tuple(ordered), notes, evidence)


def read_measurement(path: str | PathLike[str]) -> dict[str, Any]:
    """A JSON object from a file. Raises InputError, FileFormatError."""
    name = file_name(path)
    try:
        data = json.loads(name.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError("the file cannot be read", location=f"file {str(path)!r}", found=str(error)) from error
    except ValueError as error:
        raise FileFormatError("not JSON", location=f"file {str(path)!r}", found=str(error)) from error
    if not isinstance(data, dict):
        raise FileFormatError("not a JSON object", location=f"file {str(path)!r}", found=type(data).__name__)
    return data


def kind_of(data: Mapping[str, Any], name: str) -> str:
    """The form of a measurement: its schema, or `TRACE`. Raises FileFormatError on anything else."""
    kind = TRACE if "traceEvents" in data else str(data.get("schema"))
    if kind not in _FORMS:
        hint = "what `superkernel report --json`, `ablate --json` and `trace --out FILE.json` write"
        raise FileFormatError("no measurement", location=name, expected=", ".join(_FORMS), found=kind, hint=hint)
    return kind


def figures_of(kind: str, data: Mapping[str, Any], name: str) -> dict[str, Figure]:
    """Figures by name, the whole first. Raises FileFormatError."""
    try:
        return {figure.name: figure for figure in _FORMS[kind](data)}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        found = f"{type(error).__name__}: {error}"
        raise FileFormatError(f"not of the form {kind}", location=name, found=found) from error


def _without_intervals(figures: Iterable[Figure], samples: int) -> Iterator[Figure]:
    """The figures as they are, or without their intervals where there were too few launches for any."""
    return (f if samples >= SAMPLES_MIN else replace(f, low_us=None, high_us=None) for f in figures)


def _exact(name: str, us: float) -> Figure:
    return Figure(name, us, us, us)


def _of_one_launch(name: str, us: float) -> Figure:
    return Figure(name, us, None, None)


def _of_host(data: Mapping[str, Any]) -> Iterator[Figure]:
    yield _median(WHOLE, data["run"])
    if data["one_by_one"] is not None:
        yield _median("one by one", data["one_by_one"])
    if data["conditions"] is not None and not data["conditions"]["trusted"]:
        return
    for row in data["parts"]:
        yield Figure(row["name"], row["ns"] / 1e3, row["low_ns"] / 1e3, row["high_ns"] / 1e3)
    for row in data["work"]:
        name = f"{row['name']} ({row['kernel']})"
        yield Figure(name, row["busy_ns"] / 1e3, row["low_ns"] / 1e3, row["high_ns"] / 1e3)


def _median(name: str, interval: Mapping[str, float]) -> Figure:
    return Figure(name, interval["median_ns"] / 1e3, interval["low_ns"] / 1e3, interval["high_ns"] / 1e3)


def _of_simulator(data: Mapping[str, Any]) -> Iterator[Figure]:
    us = 1 / data["clock_mhz"]
    numpy_us = data.get("numpy_us", 0.0)
    yield _with_numpy(WHOLE, data["time_us"] - numpy_us, numpy_us)
    for row in data["subops"]:
        yield _exact(f"{row['name']} ({row['kernel']})", (row["last"] - row["first"]) * us)
    for name, part_us in data.get("split", {}).items():
        yield _with_numpy(name, 0.0, numpy_us) if name == NUMPY else _exact(name, part_us)


def _with_numpy(name: str, us: float, numpy_us: float) -> Figure:
    """A simulated time and one that was measured once, on a machine of which nothing is known."""
    return Figure(name, us + numpy_us, us + numpy_us / NUMPY_WITHIN, us + numpy_us * NUMPY_WITHIN)


def _of_ablation(data: Mapping[str, Any]) -> Iterator[Figure]:
    yield _exact(WHOLE, data["rows"][-1]["us"])
    for row in data["rows"]:
        yield _exact(f"up to {row['name']}", row["us"])


def _of_host_ablation(data: Mapping[str, Any]) -> Iterator[Figure]:
    rows = [Figure(f"up to {row['name']}", row["us"], row["low_us"], row["high_us"]) for row in data["rows"]]
    yield replace(rows[-1], name=WHOLE)
    yield from rows


def rows_apart(data: Mapping[str, Any]) -> bool:
    """Whether a trace has one row per core, whose spans do not overlap."""
    rows = {(event.get("pid"), event.get("tid")) for event in data["traceEvents"] if event.get("ph") == "X"}
    return len(rows) == len({core for core, _ in rows})


def _of_trace(data: Mapping[str, Any]) -> Iterator[Figure]:
    spans = [event for event in data["traceEvents"] if event.get("ph") == "X"]
    made = _exact if _about(data).get("times") == "simulated" else _of_one_launch
    whole = max((span["ts"] + span["dur"] for span in spans), default=0.0)
    yield made(WHOLE, whole)
    tracks = max(1, len({span["pid"] for span in spans}))
    totals: dict[str, float] = {}
    # Where engines do the work, what a control unit is in contains what it waits for there.
    engines = any(span["cat"] == SpanKind.COMPUTE.value for span in spans)
    skipped = {SpanKind.WORK.value, SpanKind.BETWEEN.value} if engines else set()
    for span in spans:
        if span["cat"] in skipped:
            continue
        part = _PARTS.get(span["cat"], span["cat"])
        totals[part] = totals.get(part, 0.0) + span["dur"] / tracks
    for name, us in totals.items():
        yield made(f"{name}, mean over cores", us)
    if made is _of_one_launch and rows_apart(data):
        yield made("rest, mean over cores", whole - sum(totals.values()))


_PARTS = {kind.value: kind.part for kind in SpanKind}
"""Of a span's category: what it is called everywhere."""
_FORMS: Mapping[str, Callable[[Mapping[str, Any]], Iterator[Figure]]] = {
    "superkernel.report/2": lambda data: _without_intervals(_of_host(data), data["run"]["samples"]),
    SIMULATED: _of_simulator,
    "superkernel.ablation/1": _of_ablation,
    "superkernel.host_ablation/1": lambda data: _without_intervals(
        _of_host_ablation(data), (data.get("conditions") or {}).get("launches", SAMPLES_MIN)
    ),
    TRACE: _of_trace,
}


def _change(name: str, before: Figure | None, after: Figure | None, whole: Figure) -> FigureChange:
    grown = (after.us if after else 0.0) - (before.us if before else 0.0)
    return FigureChange(name, before, after, grown / whole.us if whole.us else 0.0)


def _overlap(change: FigureChange) -> bool:
    """Whether the intervals of both sides do, where there are two."""
    ends = [(f.low_us, f.high_us) for f in (change.before, change.after) if f is not None]
    known = [(low, high) for low, high in ends if low is not None and high is not None]
    if len(known) < 2:
        return False
    (low, high), (other_low, other_high) = known
    return low <= other_high and other_low <= high


def _evidence(figures: Sequence[Mapping[str, Figure]]) -> str:
    ends = [(figure.low_us, figure.high_us) for side in figures for figure in side.values()]
    if any(None in pair for pair in ends):
        return SINGLE
    return EXACT if all(low == high for low, high in ends) else INTERVALS


def _about(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a trace says of itself."""
    found = data.get("otherData")
    return found if isinstance(found, dict) else {}


def _busy(before: Mapping[str, Any], after: Mapping[str, Any], names: tuple[str, str]) -> Iterator[tuple[str, bool]]:
    """What others took of the CPUs while each was measured, where that is known, and whether it was too much."""
    for data, name in zip((before, after), names, strict=True):
        conditions = data.get("conditions")
        if not isinstance(conditions, dict):
            continue
        shares = [float(conditions.get(key) or 0.0) for key in ("others_share", "stolen_share")]
        if sum(shares) >= MENTIONED:
            yield f"{name}: others took {sum(shares):.0%} of the CPUs", sum(shares) >= BUSY


def _notes(before: Mapping[str, Any], after: Mapping[str, Any], names: tuple[str, str]) -> Iterator[str]:
    for key in ("graph", "target", "cores", "waits", "sets"):
        if isinstance(before.get(key), (str, int)) and before[key] != after.get(key):
            yield f"{key}: {before[key]} -> {after.get(key)}"
    titles = [_about(data).get("title") for data in (before, after)]
    if titles[0] != titles[1]:
        yield f"run: {titles[0]} -> {titles[1]}"
    for data, name in zip((before, after), names, strict=True):
        conditions = data.get("conditions")
        if isinstance(conditions, dict) and not conditions.get("trusted", True):
            yield f"{name} was measured on a busy machine: only whole launches are compared"
