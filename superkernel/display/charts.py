"""The charts of a page: bars of time, roofline, memory over time, the graph of sub-operators. HTML and SVG as text.

Model: a chart is data, a frozen dataclass with `html()`, which stands by itself: its colours are the page's variables,
its text is said to those who do not see it. A colour means one kind of time everywhere (`colour_of`); in the graph it
is the same blue as work, the fuller the longer a sub-operator takes. What cannot be drawn is "".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from html import escape
from math import atan2, degrees, floor, log10

from superkernel.core.counted import counted
from superkernel.display.units import format_us

TOLD_AS = {"pure": "pure sync", "numpy": "NumPy"}
"""What readers are told, where a JSON form calls a part otherwise."""
PART_COLOURS = {
    "pure sync": "wait",
    "misses": "fetch",
    "control": "between",
    "NumPy": "numpy",
}
"""Where they differ from the part's name."""
PART_ORDER = (
    "work", "compute", "movement", "NumPy", "misses", "control", "pure sync", "imbalance", "end", "launch", "rest",
)  # fmt: skip
"""From what a kernel is there for to what is lost: the same in every bar, so that bars can be compared."""
ROOFLINE_PX = (760, 380)
ROOFLINE_MARGINS_PX = (58, 16, 20, 36)  # left, right, top, bottom
ROOFLINE_NAMES, ROOFLINE_NAME_PX = 5, 150
SHORT_AXIS = 2.5  # powers of ten
ABOVE_ROOF = (
    " What lies above the highest roof was faster than what is known of this machine: <code>superkernel machine --again"
    "</code> measures it."
)
MEMORY_PX = (900, 180)
HIGHEST_ARENA = 4  # times the values in it: a larger one is told, not drawn
NODE_PX, LAYER_PX, LANE_PX = (150, 36), 190, 48
PASS_PX = 12  # what a line takes that passes a layer
NODES_MAX = 400  # a graph of more is not drawn
NAME_LETTERS = 22
FULLEST = 0.45  # opacity of the longest sub-operator's node: its text must read


def colour_of(part: str) -> str:
    """The variable of a part of the time."""
    return PART_COLOURS.get(part, part)


def ordered_parts(parts: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
    """Parts that there are, as readers are told them, in `PART_ORDER`."""
    known = [(TOLD_AS.get(name, name), us) for name, us in parts if us > 0]
    return sorted(known, key=lambda part: PART_ORDER.index(part[0]) if part[0] in PART_ORDER else len(PART_ORDER))


@dataclass(frozen=True, slots=True)
class StackedBar:
    """A time in us and its parts; parts may be unknown. `said`: what is written behind it."""

    name: str
    us: float
    parts: tuple[tuple[str, float], ...] = ()
    said: str = ""

    def ordered(self) -> list[tuple[str, float]]:
        """Parts that there are, in `PART_ORDER`."""
        return ordered_parts(self.parts)


def with_stamps(rest_us: float) -> str:
    """What is written behind a bar whose parts are of longer launches than it is: a bar shows nothing below nothing.
    `rest_us`: what the parts leave of it."""
    return f"its parts are of launches with time stamps, {format_us(-rest_us)} longer" if rest_us < 0 else ""


@dataclass(frozen=True)
class Bars:
    """Stacked bars under a title, on one scale."""

    title: str
    bars: Sequence[StackedBar]
    note: str = ""

    def html(self) -> str:
        """A section."""
        if not self.bars:
            return ""
        longest = max(bar.us for bar in self.bars) or 1.0
        place = f"bars-{_identifier(self.title)}"
        found = [f'<section aria-labelledby="{place}"><h2 id="{place}">{escape(self.title)}</h2>']
        for bar in self.bars:
            known = bar.ordered()
            parts = known or [("rest", bar.us)]
            whole = sum(us for _, us in parts) or 1.0
            told = ", ".join(f"{name} {100 * us / whole:.1f} %" for name, us in known)
            pieces = "".join(
                f'<div style="width:{100 * us / whole * bar.us / longest:.3f}%;background:var(--{colour_of(name)})"'
                f' title="{escape(name)}: {format_us(us)}"></div>'
                for name, us in parts
            )
            behind = f", {bar.said}" if bar.said else ""
            label = escape(f"{bar.name}: {format_us(bar.us)}{behind}" + (f": {told}" if told else ""), quote=True)
            found.append(
                f'<div class="bar"><span>{escape(bar.name)}, {format_us(bar.us)}{escape(behind)}</span>'
                f'<div class="stack" role="img" aria-label="{label}">{pieces}</div></div>'
            )
        found.append(self._keys())
        found += [f'<p class="faint">{escape(self.note)}</p>'] if self.note else []
        return "\n".join([*found, "</section>"])

    def _keys(self) -> str:
        """What the colours mean; with one bar of parts, how large they are too."""
        known = [parts for bar in self.bars if (parts := bar.ordered())]
        shares: dict[str, str] = {}
        for parts in known:
            whole = sum(us for _, us in parts)
            for name, us in parts:
                shares[name] = f" {100 * us / whole:.1f} %" if len(known) == 1 else ""
        ordered = StackedBar("", 0.0, tuple((name, 1.0) for name in shares)).ordered()
        shares = {name: shares[name] for name, _ in ordered}
        items = (
            f'<span><i class="key" style="background:var(--{colour_of(name)})"></i>{escape(name)}{share}</span>'
            for name, share in shares.items()
        )
        return f'<p class="parts">{"".join(items)}</p>' if shares else ""


@dataclass(frozen=True, slots=True)
class RooflinePoint:
    """A sub-operator: operations per byte of operands, operations per ns, and its share of the time, as part of 1."""

    name: str
    intensity: float
    rate: float
    share: float


@dataclass(frozen=True, slots=True)
class Roofline:
    """Points under what the machine can do at most, both axes logarithmic: `roofs` are (what computes, flops per ns),
    `slopes` (what data comes from, bytes per ns), each the highest first; the first of both are drawn whole."""

    points: tuple[RooflinePoint, ...]
    roofs: tuple[tuple[str, float], ...]
    slopes: tuple[tuple[str, float], ...]

    def html(self) -> str:
        """A section; "" without a point."""
        points = [p for p in self.points if p.intensity > 0 and p.rate > 0]
        if not points or not self.roofs or not self.slopes:
            return ""
        (wide, tall), (left, right, top, bottom) = ROOFLINE_PX, ROOFLINE_MARGINS_PX
        highest, steepest = self.roofs[0][1], self.slopes[0][1]
        xs = [p.intensity for p in points] + [highest / bytes_per_ns for _, bytes_per_ns in self.slopes]
        ys = [p.rate for p in points] + [highest]
        x0, x1 = log10(min(xs)) - 0.3, log10(max(xs)) + 0.5
        y0, y1 = log10(min(ys)) - 0.3, log10(max(ys)) + 0.2

        def at(intensity: float, rate: float) -> tuple[float, float]:
            x = left + (log10(intensity) - x0) / (x1 - x0) * (wide - left - right)
            return x, tall - bottom - (log10(rate) - y0) / (y1 - y0) * (tall - top - bottom)

        drawn = [self._grid(at, (x0, x1), (y0, y1))]
        for number, (name, bytes_per_ns) in enumerate(self.slopes):
            start = max(10**x0, 10**y0 / bytes_per_ns)
            ends = at(start, start * bytes_per_ns), at(highest / bytes_per_ns, highest)
            drawn.append(_line(*ends, f"{name} {bytes_per_ns:,.0f} GB/s", dashed=number > 0))
        for number, (name, flops_per_ns) in enumerate(self.roofs):
            ends = at(flops_per_ns / steepest, flops_per_ns), at(10**x1, flops_per_ns)
            drawn.append(_line(*ends, f"{name} {flops_per_ns:,.0f} GFLOP/s", dashed=number > 0, behind=True))
        drawn += self._dots(points, at, [(*at(10**x1, rate), -len(name) - 16) for name, rate in self.roofs])
        above = ABOVE_ROOF if any(p.rate > highest for p in points) else ""
        said = f"{counted(len(points), 'sub-operator')} under " + " and ".join(
            [f"{name} {rate:,.0f} GFLOP/s" for name, rate in self.roofs]
            + [f"{name} {rate:,.0f} GB/s" for name, rate in self.slopes]
        )
        return (
            '<section aria-labelledby="roofline-title"><h2 id="roofline-title">Roofline</h2><div class="scroll">'
            f'<svg width="{wide}" height="{tall}" viewBox="0 0 {wide} {tall}" role="img" aria-label="{escape(said)}">'
            f'{"".join(drawn)}<text x="{left}" y="12">GFLOP/s</text>'
            f'<text x="{wide - right}" y="{tall - 4}" text-anchor="end">operations per byte of operands</text></svg>'
            '</div><p class="faint">A circle per sub-operator, the larger the longer it takes. Under a slope the '
            f"operands could come faster, under a roof more could be computed.{above}</p></section>"
        )

    @staticmethod
    def _dots(
        points: Sequence[RooflinePoint],
        at: Callable[[float, float], tuple[float, float]],
        taken: list[tuple[float, float, int]],
    ) -> list[str]:
        """A circle for each, and the names of those that take longest, where neither a circle nor a text stands
        (`taken`: where it begins and its letters, to the left where negative)."""
        found: list[str] = []
        circles = {point: (*at(point.intensity, point.rate), 3 + 7 * max(0.0, point.share) ** 0.5) for point in points}
        boxes = [_box(*place) for place in taken]
        boxes += [(x - radius, y - radius, x + radius, y + radius) for x, y, radius in circles.values()]
        names = 0
        for point in sorted(points, key=lambda p: -p.share):
            x, y, radius = circles[point]
            name = escape(point.name)
            found.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}" fill="var(--work)" '
                f'fill-opacity="0.65" stroke="var(--back)"><title>{name}: {point.intensity:,.2f} operations per byte, '
                f"{point.rate:,.2f} GFLOP/s, {point.share:.1%} of the time</title></circle>"
            )
            short = _short(point.name)
            outwards = x > ROOFLINE_PX[0] - ROOFLINE_NAME_PX
            for left in (outwards, not outwards) if names < ROOFLINE_NAMES else ():
                box = _box(x - 12 if left else x + 12, y + 4, -len(short) if left else len(short))
                if (
                    ROOFLINE_MARGINS_PX[0] < box[0]
                    and box[2] < ROOFLINE_PX[0]
                    and not any(_meet(box, other) for other in boxes)
                ):
                    boxes.append(box)
                    names += 1
                    place = f'x="{x - 12:.0f}" text-anchor="end"' if left else f'x="{x + 12:.0f}"'
                    found.append(f'<text {place} y="{y + 4:.0f}">{escape(short)}</text>')
                    break
        return found

    @staticmethod
    def _grid(
        at: Callable[[float, float], tuple[float, float]], xs: tuple[float, float], ys: tuple[float, float]
    ) -> str:
        """A line and a number for every mark of both axes."""
        (left, top), (right, bottom) = at(10 ** xs[0], 10 ** ys[1]), at(10 ** xs[1], 10 ** ys[0])
        lines = [f'<path d="M{left:.1f},{top:.1f}V{bottom:.1f}H{right:.1f}" fill="none" stroke="var(--faint)"/>']
        for value in _marks(*xs):
            x = at(value, 10 ** ys[0])[0]
            lines.append(f'<path d="M{x:.1f},{top:.1f}V{bottom:.1f}" stroke="var(--line)"/>')
            lines.append(f'<text x="{x:.1f}" y="{bottom + 14:.1f}" text-anchor="middle">{_mark(value)}</text>')
        for value in _marks(*ys):
            y = at(10 ** xs[0], value)[1]
            lines.append(f'<path d="M{left:.1f},{y:.1f}H{right:.1f}" stroke="var(--line)"/>')
            lines.append(f'<text x="{left - 6:.1f}" y="{y + 4:.1f}" text-anchor="end">{_mark(value)}</text>')
        return "".join(lines)


Box = tuple[float, float, float, float]


def _box(x: float, y: float, letters: int) -> Box:
    """Where a text stands, about: left, top, right, bottom; to the left of x where `letters` is negative."""
    return min(x, x + 6.5 * letters), y - 12, max(x, x + 6.5 * letters), y + 3


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _line(
    begin: tuple[float, float], end: tuple[float, float], said: str, *, dashed: bool, behind: bool = False
) -> str:
    """A line with its text above it, along it; `behind`: at its end."""
    (x, y), (to_x, to_y) = begin, end
    angle = degrees(atan2(to_y - y, to_x - x))
    at, anchor = (end, "end") if behind else ((x + 0.1 * (to_x - x), y + 0.1 * (to_y - y)), "start")
    dashes = ' stroke-dasharray="5 4"' if dashed else ""
    return (
        f'<path d="M{x:.1f},{y:.1f}L{to_x:.1f},{to_y:.1f}" fill="none" stroke="var(--ink)"{dashes}/>'
        f'<text transform="translate({at[0]:.1f},{at[1]:.1f}) rotate({angle:.1f})" dy="-7" text-anchor="{anchor}">'
        f"{escape(said)}</text>"
    )


def _mark(value: float) -> str:
    """A mark's number."""
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _marks(low: float, high: float) -> Iterator[float]:
    """Values between two powers of ten at which a logarithmic axis has marks: one, two and five where it is short."""
    steps = (1, 2, 5) if high - low < SHORT_AXIS else (1,)
    for power in range(floor(low), floor(high) + 1):
        yield from (step * 10.0**power for step in steps if low <= log10(step * 10.0**power) <= high)


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of intermediate values that are alive: (us, bytes) from each change on, to `end_us`. `kept_bytes` is the
    size of the arena that they lie in."""

    steps: tuple[tuple[float, int], ...]
    end_us: float
    kept_bytes: int

    def html(self) -> str:
        """A section; "" where nothing lies in memory."""
        if not self.steps or not self.kept_bytes or self.end_us <= 0:
            return ""
        (wide, tall), left, top, bottom = MEMORY_PX, 12, 20, 24
        peak = max(nbytes for _, nbytes in self.steps)
        seen = self.kept_bytes <= HIGHEST_ARENA * peak
        most = max(peak, self.kept_bytes) if seen else peak

        def at(us: float, nbytes: float) -> str:
            x = left + us / self.end_us * (wide - 2 * left)
            return f"{x:.1f},{tall - bottom - nbytes / most * (tall - top - bottom):.1f}"

        points, last = [at(0, 0)], 0
        for us, nbytes in self.steps:
            points += [at(us, last), at(us, nbytes)]
            last = nbytes
        points += [at(self.end_us, last), at(self.end_us, 0)]
        kept = format_bytes(self.kept_bytes)
        said = f"intermediate values: at most {format_bytes(peak)} at a time, in an arena of {kept}"
        height = float(at(0, most).split(",")[1])
        line = f"{kept}: the arena" if seen else f"{format_bytes(peak)}; the arena, {kept}, is far above"
        return (
            '<section aria-labelledby="memory-title"><h2 id="memory-title">Memory over time</h2><div class="scroll">'
            f'<svg width="{wide}" height="{tall}" viewBox="0 0 {wide} {tall}" role="img" aria-label="{said}">'
            f'<polyline points="{" ".join(points)}" fill="var(--faint)" fill-opacity="0.25" '
            'stroke="var(--faint)"/>'
            f'<path d="M{left},{height:.1f}H{wide - left}" stroke="var(--ink)" stroke-dasharray="4 3"/>'
            f'<text x="{left}" y="{top - 6}">{line}</text>'
            f'<text x="{left}" y="{tall - 8}">0</text>'
            f'<text x="{wide - left}" y="{tall - 8}" text-anchor="end">{format_us(self.end_us)}</text></svg></div>'
            f'<p class="faint">{said[0].upper()}{said[1:]}. A value lives from the first sub-operator that touches it '
            "to the end of the last one.</p></section>"
        )


Place = int | tuple[int, int]
"""In a graph's picture: a node, or where a writer's line passes a layer."""


@dataclass(frozen=True)
class DataFlow:
    """The graph of sub-operators: number, name and us of each, and who reads what whom wrote (`edges`, by number). No
    time is told where all are 0: none is known."""

    nodes: tuple[tuple[int, str, float], ...]
    edges: tuple[tuple[int, int], ...]

    @cached_property
    def layers(self) -> Mapping[int, int]:
        """The longest way to each node, in edges. Writers come before readers in `nodes`."""
        found: dict[int, int] = {}
        writers: dict[int, list[int]] = {}
        for writer, reader in self.edges:
            writers.setdefault(reader, []).append(writer)
        for number, _, _ in self.nodes:
            found[number] = 1 + max((found[writer] for writer in writers.get(number, ())), default=-1)
        return found

    def html(self) -> str:
        """A section; "" for a single node and for more than `NODES_MAX`."""
        if not 1 < len(self.nodes) <= NODES_MAX:
            return ""
        place = {number: (x, y - NODE_PX[1] / 2) for number, _, _ in self.nodes for x, y in [self._places[number]]}
        longest = max(us for _, _, us in self.nodes) or 1.0
        whole = sum(us for _, _, us in self.nodes) or 1.0
        wide = (max(self.layers.values()) + 1) * LAYER_PX
        tall = int(max(y for _, y in self._places.values())) + LANE_PX // 2 + 4
        worst = max(self.nodes, key=lambda node: node[2])
        said = escape(
            f"{counted(len(self.nodes), 'sub-operator')}, {counted(len(self.edges), 'edge')}"
            + (f"; {worst[1]} takes longest, {format_us(worst[2])}" if worst[2] else "")
        )
        boxes = "".join(
            f'<g data-subop="{number}"><title>{escape(name)}'
            + (f": {format_us(us)}, {100 * us / whole:.1f} % of the sum" if worst[2] else "")
            + "</title>"
            f'<rect x="{x}" y="{y}" width="{NODE_PX[0]}" height="{NODE_PX[1]}" rx="4" stroke="var(--faint)" '
            f'style="fill:color-mix(in srgb, var(--work) {100 * FULLEST * us / longest:.1f}%, var(--back))"/>'
            f'<text x="{x + 6}" y="{y + 15}">{escape(_short(name))}</text>'
            + (f'<text x="{x + 6}" y="{y + 29}">{format_us(us)}</text></g>' if worst[2] else "</g>")
            for number, name, us in self.nodes
            for x, y in [place[number]]
        )
        return (
            '<section aria-labelledby="graph-title"><h2 id="graph-title">Graph</h2>'
            '<div class="scroll" tabindex="0" role="region" aria-label="Graph, to scroll">'
            f'<svg id="graph" width="{wide}" height="{tall}" viewBox="0 0 {wide} {tall}" role="img" '
            f'aria-label="{said}">{self._lines()}{boxes}</svg></div>'
            f'<p class="faint">A box per sub-operator{", the fuller the longer it takes" if worst[2] else ""}; a line '
            "leads from who writes a value to who reads it.</p></section>"
        )

    def _ahead(self, writer: int, layer: int) -> Place:
        """Where a writer's line comes from into a layer: the writer, or where the line passes the layer before."""
        return (writer, layer - 1) if layer - 1 > self.layers[writer] else writer

    @cached_property
    def _places(self) -> Mapping[Place, tuple[float, float]]:
        """The left and the middle of each box, and of each place where a writer's line passes a layer between it and
        its readers: lines have lanes of their own there. A column per layer; in it, the order of the means of who is
        read from."""
        columns: dict[int, dict[Place, list[Place]]] = {layer: {} for layer in range(max(self.layers.values()) + 1)}
        for number, layer in self.layers.items():
            columns[layer][number] = []
        for writer, reader in self.edges:
            layer = self.layers[reader]
            columns[layer][reader].append(self._ahead(writer, layer))
            for between in range(self.layers[writer] + 1, layer):
                columns[between][writer, between] = [self._ahead(writer, between)]
        room = {
            place: LANE_PX if isinstance(place, int) else PASS_PX for column in columns.values() for place in column
        }
        tall = {layer: sum(room[place] for place in column) for layer, column in columns.items()}
        found: dict[Place, tuple[float, float]] = {}
        for layer, column in columns.items():
            wanted = {p: sum(found[a][1] for a in ahead) / len(ahead) if ahead else 0.0 for p, ahead in column.items()}
            top = (max(tall.values()) - tall[layer]) / 2
            for place in sorted(column, key=lambda p: wanted[p]):
                found[place] = layer * LAYER_PX + 4.0, 4 + top + room[place] / 2
                top += room[place]
        return found

    def _lines(self) -> str:
        """Each piece of a line once, though it leads to several readers."""
        pieces: dict[str, None] = {}
        for writer, reader in self.edges:
            last: Place = reader
            for layer in range(self.layers[reader], self.layers[writer], -1):
                ahead = self._ahead(writer, layer)
                (x, y), (to_x, to_y) = self._places[ahead], self._places[last]
                bend, right = (LAYER_PX - NODE_PX[0]) * 0.8, x + NODE_PX[0]
                if ahead != writer:
                    pieces[f"M{x},{y}H{right}"] = None
                pieces[f"M{right},{y}C{right + bend},{y} {to_x - bend},{to_y} {to_x},{to_y}"] = None
                last = ahead
        return "".join(f'<path d="{piece}" fill="none" stroke="var(--faint)"/>' for piece in pieces)


Chart = Bars | Roofline | MemoryUse | DataFlow


def format_bytes(nbytes: float) -> str:
    """With a unit that keeps three digits readable."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes:.0f} bytes"


def _short(name: str) -> str:
    return name if len(name) <= NAME_LETTERS else name[: NAME_LETTERS - 1] + "…"


def _identifier(title: str) -> str:
    return "-".join(title.lower().split())


def drawn(charts: Sequence[Chart | None]) -> Iterator[str]:
    """The sections of those that there are."""
    for chart in charts:
        if chart is not None and (text := chart.html()):
            yield text
