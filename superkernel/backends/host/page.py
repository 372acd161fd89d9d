"""A host report as a page (`superkernel.display.page`)."""

from __future__ import annotations

from superkernel.backends.host.report import LEAST_SHARE, BoundaryReport, Report, TimePart, Work
from superkernel.backends.page_parts import flow_of, kernels_table, memory_of
from superkernel.display.charts import Roofline, RooflinePoint, StackedBar, with_stamps
from superkernel.display.page import Cell, Page, PageTable, headline
from superkernel.scheduler.schedule import Schedule

WITHHELD = "Times are withheld: the machine was too busy."
FORMS = {
    "none": "no core waits: what is read was written by the same core, or earlier waits order it",
    "point-to-point": "each core waits only for the cores whose data it needs",
    "subset": "each core waits for some of the cores",
    "full": "every core waits for all others",
}
LIMITS = {
    "work": "the work of its sub-operators",
    "movement": "moving data that nothing is computed of",
    "pure sync": "synchronisation itself",
    "imbalance": "waiting for cores that still work",
    "end": "cores that are done ahead of the last one",
    "launch": "launching",
    "rest": "what is not accounted for",
}


def page_of(schedule: Schedule, report: Report) -> Page:
    """The page of a report that has a timeline. What a report withholds it leaves out; the timeline and the times in
    it are those of one launch, as it was."""
    assert report.timeline is not None
    notes = () if report.conditions is None else tuple(report.conditions.sentences())
    if report.parts:
        said = headline([(LIMITS[part.name], part.share) for part in report.parts], report.gains)
    else:
        said = "The machine was too busy to say what limits this kernel."
    return Page(
        report.timeline,
        said,
        _bars(report),
        report.gains,
        (_boundaries(report), _work(report), kernels_table(report.kernels)),
        (
            flow_of(schedule, {work.subop: work.busy_ns / 1e3 for work in report.work if report.trusted}),
            memory_of(schedule, report.timeline),
            _roofline(report),
        ),
        (*(() if report.timeline.notes == notes else notes), *([report.idle] if report.idle else [])),
    )


def _bars(report: Report) -> tuple[StackedBar, ...]:
    bars = []
    if report.one_by_one is not None:
        bars.append(StackedBar("one by one", report.one_by_one.median_ns / 1e3, _parts(report.one_by_one_parts)))
    for each in report.variants:
        bars.append(StackedBar(each.name, each.run.median_ns / 1e3, _parts(each.parts)))
    return (*bars, StackedBar("as chosen", report.run_ns / 1e3, _parts(report.parts), with_stamps(_rest(report.parts))))


def _rest(parts: tuple[TimePart, ...]) -> float:
    """What the parts leave of the launch, in us, where it is worth a mention."""
    return sum(part.ns / 1e3 for part in parts if part.name == "rest" and abs(part.share) >= LEAST_SHARE)


def _parts(parts: tuple[TimePart, ...]) -> tuple[tuple[str, float], ...]:
    return tuple((part.name, part.ns / 1e3 if part.share >= LEAST_SHARE else 0.0) for part in parts)


def _boundaries(report: Report) -> PageTable:
    def why(boundary: BoundaryReport) -> str:
        said = FORMS.get(boundary.form, boundary.form)
        return f"{said}; {boundary.why}" if boundary.why else said

    def times(boundary: BoundaryReport) -> tuple[float | None, float | None]:
        return (boundary.pure_ns / 1e3, boundary.imbalance_ns / 1e3) if report.trusted else (None, None)

    rows = tuple((b.subop, b.name, b.form, b.arrivals, *times(b), why(b)) for b in report.boundaries)
    head = ("", "ahead of", "form", "waits", "pure us", "imbalance us", "why")
    note = "Times are sums over the cores that wait." if report.trusted else WITHHELD
    return PageTable("Boundaries", head, rows, note)


def _work(report: Report) -> PageTable:
    def row(w: Work) -> tuple[Cell, ...]:
        busy_us, *rates = (w.busy_ns / 1e3, w.gflops, w.gbytes) if report.trusted else (None, None, None)
        return (w.subop, w.name, busy_us, w.cores, *rates, w.kernel)

    rows = tuple(map(row, report.work))
    head = ("", "sub-operator", "busy us", "cores", "GFLOP/s", "GB/s", "kernel")
    note = "Times are those of the busiest core, over many launches." if report.trusted else WITHHELD
    return PageTable("Kernels", head, rows, note)


def _roofline(report: Report) -> Roofline | None:
    if not all(report.peak) or not report.trusted:
        return None
    flops_per_ns, bytes_per_ns = report.peak
    whole = sum(w.busy_ns for w in report.work) or 1.0
    points = (
        RooflinePoint(w.name, w.flops / w.operand_bytes, w.gflops, w.busy_ns / whole)
        for w in report.work
        if w.operand_bytes
    )
    return Roofline(tuple(points), (("all cores", flops_per_ns),), (("level-two caches", bytes_per_ns),))
