"""What changed between two measurements, as their JSON forms say it: `difference`.

Model: a report, an ablation or a trace gives *figures*: the time of a launch, and what parts of it took, each with its
95 % interval. Figures of a simulator are *exact*, but for what NumPy computed beside it. A trace of the host is one
launch that was measured: its figures, and those of fewer than `SAMPLES_MIN` launches, have no interval, for nothing
says how far the next launch would be from them. A figure has *changed* where the intervals of both sides are disjoint
and its change is at least `limit` of the whole time: a part that doubles and is a thousandth of the launch is no news.
The two are *worse* where the whole time itself has changed upwards. Without intervals what differs is listed all the
same, and the two are never *worse*. Nor are they where other processes had `BUSY` of the CPUs during one of them, which
slow launches that they do not interrupt; where CPUs reach each other in another time, for a hypervisor moves them; or
where threads lost their CPU in most launches of one: of such a report whole launches alone are compared, for it
withholds what these consist of. Intervals are those of launches of one process; how processes differ, by where their
threads and their memory lie, no interval of one says, so that a change between two of them is told with that.

It reads data alone, so that measurements of other machines and versions can be held against each other; it cannot know
what either machine did beside. What is not of its form is refused with the place of the first such value.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from os import PathLike
from typing import Any

from superkernel.core.errors import FileFormatError, InputError
from superkernel.core.files import file_name, text_of
from superkernel.core.json_text import parse_json
from superkernel.display.spans import SpanKind
from superkernel.display.units import format_us

LIMIT = 0.02
WHOLE = "a launch"
NUMPY = "NumPy"
_MOST = 1e300  # what a file may hold as a time; whole numbers of JSON have no end
NUMPY_WITHIN = 2.0  # times: what one measurement of a call of NumPy is believed to
TRACE = "trace"
SAMPLES_MIN = 6  # below, not even the range of the samples is a 95 % interval of a median: 1 - 2 * 0.5**5 < 0.95
EXACT, INTERVALS, SINGLE, DISTURBED = "exact", "intervals", "single launches", "disturbed"
PROVES_NOTHING = (SINGLE, DISTURBED)
MENTIONED = 0.02  # part of the CPUs' time from which on others are mentioned
ELSEWHERE = 1.5  # times: what a flag takes from CPU to CPU moves by less while these stay where they are
LONGEST_NS = 1e9  # what a flag may take; more is no such time
BUSY = 0.25  # part of the CPUs' time that others, the hypervisor among them, may take before nothing is proved
ONE_LAUNCH = (
    "a trace of the host is one launch, and two launches of one kernel differ by chance: this proves nothing; "
    "reports can (superkernel report --json)"
)
MOVED = "a flag takes {:.0f} ns from CPU to CPU in {}, {:.0f} ns in {}: the CPUs lie elsewhere, and this proves nothing"
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
        hint = f"{names[0]} is what {_WRITTEN_BY[kinds[0]]} writes, {names[1]} is from {_WRITTEN_BY[kinds[1]]}"
        message = "measurements of different kinds"
        raise InputError(message, location=names[1], expected=kinds[0], found=kinds[1], hint=hint)
    figures = figures_of_both(kinds[0], before, after, names)
    whole = figures[0][WHOLE]
    rows = [_change(name, figures[0].get(name), figures[1].get(name), whole) for name in figures[0] | figures[1]]
    changed = [row for row in rows if not _overlap(row) and abs(row.share) >= limit and row.share]
    subject = str(before.get("graph") or _about(before).get("title") or kinds[0])
    ordered = sorted(changed, key=lambda row: (row.name != WHOLE, -abs(row.share), row.name))
    evidence, busy = _evidence(figures), tuple(_busy(before, after, names))
    moved = tuple(_moved(before, after, names))
    why: tuple[str, ...] = ()
    if evidence == SINGLE:
        why = (ONE_LAUNCH,) if kinds[0] == TRACE else (FEW_LAUNCHES,)
    elif evidence == INTERVALS and (any(told for _, told in busy) or moved):
        evidence, why = DISTURBED, (*((BUSY_MACHINE,) if any(told for _, told in busy) else ()), *moved)
    elif evidence == INTERVALS and ordered and kinds[0] in MEASURED:
        why = (OTHER_PROCESSES,)
    notes = (*why, *(note for note, _ in busy), *_notes(before, after, names))
    return MeasuredDifference(subject, limit, rows[0], tuple(ordered), notes, evidence)


def read_measurement(path: str | PathLike[str]) -> dict[str, Any]:
    """A JSON object from a file. Raises InputError, FileFormatError."""
    name, where = file_name(path), f"file {str(path)!r}"
    try:
        data = parse_json(text_of(name))
    except OSError as error:
        raise InputError("the file cannot be read", location=where, found=str(error.strerror), hint=_HINT) from error
    except ValueError as error:
        hint = f"was it cut short? It has to be {_HINT}"
        raise FileFormatError(
            "not JSON", location=where, expected="a JSON object", found=str(error), hint=hint
        ) from error
    if not isinstance(data, dict):
        found = _said(data)
        raise FileFormatError("no measurement", location=where, expected="a JSON object", found=found, hint=_HINT)
    return data


def kind_of(data: Mapping[str, Any], name: str) -> str:
    """The form of a measurement: its schema, or `TRACE`. Raises FileFormatError on anything else."""
    kind = TRACE if "traceEvents" in data else str(data.get("schema", "no schema"))
    if kind not in _FORMS:
        raise FileFormatError("no measurement", location=name, expected=", ".join(_FORMS), found=kind, hint=_HINT)
    return kind


def figures_of(kind: str, data: Mapping[str, Any], name: str) -> dict[str, Figure]:
    """Figures by name, the whole first. Raises FileFormatError."""
    return {figure.name: figure for figure in _FORMS[kind](_Value(data, kind, name))}


def figures_of_both(
    kind: str, before: Mapping[str, Any], after: Mapping[str, Any], names: tuple[str, str]
) -> tuple[dict[str, Figure], dict[str, Figure]]:
    """The figures of two measurements that are compared: all, or those of both where one withholds its parts. Raises
    FileFormatError."""
    first, second = figures_of(kind, before, names[0]), figures_of(kind, after, names[1])
    if _trusted(before) and _trusted(after):
        return first, second
    return {n: f for n, f in first.items() if n in second}, {n: f for n, f in second.items() if n in first}


@dataclass(frozen=True, slots=True)
class _Value:
    """A value of a form, and its place there; what is asked of it and does not hold raises FileFormatError."""

    value: Any
    kind: str
    name: str
    path: str = ""

    def refused(self, expected: str, found: str = "") -> FileFormatError:
        """The error for this value."""
        where = f"{self.name}, {self.path}" if self.path else self.name
        found = found or _said(self.value)
        return FileFormatError(
            f"not of the form {self.kind}", location=where, expected=expected, found=found, hint=_HINT
        )

    def __getitem__(self, key: str) -> _Value:
        inner = f"{self.path}.{key}" if self.path else key
        if not isinstance(self.value, Mapping):
            raise self.refused("an object")
        if key not in self.value:
            raise replace(self, path=inner).refused("a value", "none")
        return replace(self, value=self.value[key], path=inner)

    def get(self, key: str) -> _Value | None:
        """The value of a key; None where there is none, or null."""
        if not isinstance(self.value, Mapping):
            raise self.refused("an object")
        return None if self.value.get(key) is None else self[key]

    def items(self) -> list[_Value]:
        """Of a list, or of the tuple that it is ahead of being written."""
        if not isinstance(self.value, (list, tuple)):
            raise self.refused("a list")
        return [replace(self, value=item, path=f"{self.path}[{i}]") for i, item in enumerate(self.value)]

    def rows(self) -> list[_Value]:
        """Of a list that has some."""
        if not (found := self.items()):
            raise self.refused("at least one row", "an empty list")
        return found

    def numbers(self) -> dict[str, float]:
        """Of an object."""
        if not isinstance(self.value, Mapping):
            raise self.refused("an object")
        return {key: self[key].number for key in self.value}

    @property
    def number(self) -> float:
        """A finite one."""
        if isinstance(self.value, bool) or not isinstance(self.value, (int, float)) or not -_MOST < self.value < _MOST:
            raise self.refused("a number")
        return float(self.value)

    @property
    def text(self) -> str:
        """A text."""
        if not isinstance(self.value, str):
            raise self.refused("a text")
        return self.value

    def figure(self, name: str, keys: Sequence[str], unit_us: float, median: bool = False) -> Figure:
        """A time and the ends of its interval under these keys; a median lies between them."""
        us, low, high = (self[key].number * unit_us for key in keys)
        if low > high or (median and not low <= us <= high):
            between = "a median inside of its interval" if median else "the ends of an interval in their order"
            raise self.refused(between, ", ".join(f"{key} {self[key].number:g}" for key in keys))
        return Figure(name, us, low, high)


def _said(value: Any) -> str:
    """A value of JSON in a few words."""
    if isinstance(value, (list, Mapping)):
        return "a list" if isinstance(value, list) else "an object"
    return json.dumps(value)[:40]


def _trusted(data: Mapping[str, Any]) -> bool:
    """Whether a measurement is not one of a machine so busy that it withholds what launches consist of."""
    conditions = data.get("conditions")
    return not isinstance(conditions, Mapping) or conditions.get("trusted") is not False


def _launches(data: _Value) -> float:
    """Of a host's ablation; enough where it does not say."""
    conditions = data.get("conditions")
    launches = None if conditions is None else conditions.get("launches")
    return SAMPLES_MIN if launches is None else launches.number


def _without_intervals(figures: Iterable[Figure], samples: float) -> Iterator[Figure]:
    """The figures as they are, or without their intervals where there were too few launches for any."""
    return (f if samples >= SAMPLES_MIN else replace(f, low_us=None, high_us=None) for f in figures)


def _exact(name: str, us: float) -> Figure:
    return Figure(name, us, us, us)


def _of_one_launch(name: str, us: float) -> Figure:
    return Figure(name, us, None, None)


def _of_host(data: _Value) -> Iterator[Figure]:
    yield _median(WHOLE, data["run"])
    if (single := data.get("one_by_one")) is not None:
        yield _median("one by one", single)
    if not _trusted(data.value):
        return
    for row in data["parts"].items():
        yield row.figure(row["name"].text, ("ns", "low_ns", "high_ns"), 1e-3)
    for row in data["work"].items():
        name = f"{row['name'].text} ({row['kernel'].text})"
        yield row.figure(name, ("busy_ns", "low_ns", "high_ns"), 1e-3)


def _median(name: str, interval: _Value) -> Figure:
    return interval.figure(name, ("median_ns", "low_ns", "high_ns"), 1e-3, median=True)


def _of_simulator(data: _Value) -> Iterator[Figure]:
    clock = data["clock_mhz"]
    if clock.number <= 0:
        raise clock.refused("a number above 0")
    us = 1 / clock.number
    numpy = data.get("numpy_us")
    numpy_us = 0.0 if numpy is None else numpy.number
    yield _with_numpy(WHOLE, data["time_us"].number - numpy_us, numpy_us)
    for row in data["subops"].items():
        name = f"{row['name'].text} ({row['kernel'].text})"
        yield _exact(name, (row["last"].number - row["first"].number) * us)
    split = data.get("split")
    for name, part_us in ({} if split is None else split.numbers()).items():
        yield _with_numpy(name, 0.0, numpy_us) if name == NUMPY else _exact(name, part_us)


def _with_numpy(name: str, us: float, numpy_us: float) -> Figure:
    """A simulated time and one that was measured once, on a machine of which nothing is known."""
    return Figure(name, us + numpy_us, us + numpy_us / NUMPY_WITHIN, us + numpy_us * NUMPY_WITHIN)


def _of_ablation(data: _Value) -> Iterator[Figure]:
    rows = data["rows"].rows()
    yield _exact(WHOLE, rows[-1]["us"].number)
    for row in rows:
        yield _exact(f"up to {row['name'].text}", row["us"].number)


def _of_host_ablation(data: _Value) -> Iterator[Figure]:
    keys = ("us", "low_us", "high_us")
    rows = [row.figure(f"up to {row['name'].text}", keys, 1.0, median=True) for row in data["rows"].rows()]
    yield replace(rows[-1], name=WHOLE)
    yield from rows


def rows_apart(data: Mapping[str, Any]) -> bool:
    """Whether a trace has one row per core, whose spans do not overlap."""
    rows = {(event.get("pid"), str(event.get("tid"))) for event in data["traceEvents"] if event.get("ph") == "X"}
    return len(rows) == len({core for core, _ in rows})


def _of_trace(data: _Value) -> Iterator[Figure]:
    events = [(event, event.get("ph")) for event in data["traceEvents"].items()]
    spans = [event for event, phase in events if phase is not None and phase.value == "X"]
    made = _exact if _about(data.value).get("times") == "simulated" else _of_one_launch
    whole = max((span["ts"].number + span["dur"].number for span in spans), default=0.0)
    yield made(WHOLE, whole)
    tracks = max(1, len({span["pid"].number for span in spans}))
    totals: dict[str, float] = {}
    # Where engines do the work, what a control unit is in contains what it waits for there.
    engines = any(span["cat"].value == SpanKind.COMPUTE.value for span in spans)
    skipped = {SpanKind.WORK.value, SpanKind.BETWEEN.value} if engines else set()
    for span in spans:
        kind = span["cat"].text
        if kind in skipped:
            continue
        part = _PARTS.get(kind, kind)
        totals[part] = totals.get(part, 0.0) + span["dur"].number / tracks
    for name, us in totals.items():
        yield made(f"{name}, mean over cores", us)
    if made is _of_one_launch and rows_apart(data.value):
        yield made("rest, mean over cores", whole - sum(totals.values()))


_PARTS = {kind.value: kind.part for kind in SpanKind}
"""Of a span's category: what it is called everywhere."""
_HINT = "what `superkernel report --json`, `ablate --json` and `trace --out FILE.json` write"
_WRITTEN_BY = {
    "superkernel.report/2": "`superkernel report --json` of the host",
    SIMULATED: "`superkernel report --json` of an accelerator",
    "superkernel.ablation/1": "`superkernel ablate --json` of an accelerator",
    "superkernel.host_ablation/1": "`superkernel ablate --json` of the host",
    TRACE: "`superkernel trace --out FILE.json`",
}
_FORMS: Mapping[str, Callable[[_Value], Iterator[Figure]]] = {
    "superkernel.report/2": lambda data: _without_intervals(_of_host(data), data["run"]["samples"].number),
    SIMULATED: _of_simulator,
    "superkernel.ablation/1": _of_ablation,
    "superkernel.host_ablation/1": lambda data: _without_intervals(_of_host_ablation(data), _launches(data)),
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
        if not isinstance(conditions, Mapping):
            continue
        if not _trusted(data):
            yield f"{name} was measured on a busy machine: only whole launches are compared", True
        taken = (conditions.get(key) for key in ("others_share", "stolen_share"))
        share = sum(part for part in taken if isinstance(part, (int, float)) and 0 <= part <= 1)
        if share >= MENTIONED:
            yield f"{name}: others took {share:.0%} of the CPUs", share >= BUSY


def _moved(before: Mapping[str, Any], after: Mapping[str, Any], names: tuple[str, str]) -> Iterator[str]:
    """That CPUs reached each other in another time, where that is known."""
    conditions = [data.get("conditions") for data in (before, after)]
    taken = [each.get("handover_ns") for each in conditions if isinstance(each, Mapping)]
    known = [float(ns) for ns in taken if isinstance(ns, (int, float)) and 0 < ns < LONGEST_NS]
    if len(known) == 2 and apart(*known):
        first, second = known
        yield MOVED.format(first, names[0], second, names[1])


def apart(first_ns: float, second_ns: float) -> bool:
    """Whether two times of a flag from CPU to CPU are those of CPUs that lie differently."""
    return max(first_ns, second_ns) > ELSEWHERE * min(first_ns, second_ns)


def _notes(before: Mapping[str, Any], after: Mapping[str, Any], names: tuple[str, str]) -> Iterator[str]:
    told = [(key, before.get(key), after.get(key)) for key in ("graph", "target", "cores", "waits", "sets")]
    for key, *sides in (*told, ("run", _about(before).get("title"), _about(after).get("title"))):
        if sides[0] == sides[1] or not all(side is None or isinstance(side, (str, int)) for side in sides):
            continue
        if None in sides:
            yield f"{names[sides.index(None)]} does not say its {key}; the other one is of {sides[0] or sides[1]}"
        else:
            yield f"{key}: {sides[0]} -> {sides[1]}"
