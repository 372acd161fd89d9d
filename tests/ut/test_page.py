"""Pages of recordings and reports: whole, offline, readable in both themes; the timeline answers in a browser."""

from __future__ import annotations

import json
import re
from html import unescape
from html.parser import HTMLParser
from importlib.resources import files
from itertools import combinations
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
from accessibility import violations
from browser import Browser, Tab, needs_browser
from numpy.typing import NDArray

import superkernel as sk
from superkernel.backends.page_parts import flow_of, memory_of
from superkernel.cli import main
from superkernel.display.charts import (
    FULLEST,
    LAYER_PX,
    NODE_PX,
    NODES_MAX,
    Bars,
    DataFlow,
    MemoryUse,
    Roofline,
    RooflinePoint,
    StackedBar,
    colour_of,
)
from superkernel.display.page import LEGEND, Gain, Page, PageTable, headline
from superkernel.display.spans import Recording, SignalFlow, Span, SpanKind, Track
from superkernel.frontends.json_form import save_json
from superkernel.ir.body import Role, SubOperator

PAGE_START = '<!doctype html><html lang="en"><title>t</title><main>'
STYLE = files("superkernel.display").joinpath("page.css").read_text("utf-8")
TRACKS = (Track(0, 0, "control"), Track(0, 3, "m"), Track(2, 0, "control"))
SPANS = (
    Span(0, 0.0, 2.0, "x<y body", SpanKind.WORK, 0),
    Span(1, 0.5, 1.5, "mmad", SpanKind.COMPUTE, 0, {"cycles": 1850}),
    Span(2, 1.0, 1.5, "cross_wait", SpanKind.IMBALANCE, 1, {"why": "AIV 2 waits for AIC 0: 'y</script>' comes first"}),
    Span(2, 1.5, 1.75, "cross_wait", SpanKind.WAIT, 1),
    Span(2, 1.75, 4.0, "norm body", SpanKind.WORK, 1),
)
FLOWS = (SignalFlow(0, 1.5, "flag", 7, taken=False), SignalFlow(2, 1.75, "flag", 7, taken=True))
PATH = ((0, 0.0, 1.5), (2, 1.5, 4.0))
SMALL = Recording("a <b> & c", {0: "AIC 0", 2: "AIV 2"}, TRACKS, SPANS, FLOWS, {0: "x<y", 1: "norm"}, ("a note",), PATH)
WHOLE = Page(
    SMALL,
    "Work limits this kernel.",
    (StackedBar("in one launch", 4.0, (("work", 3.0), ("pure sync", 1.0), ("rest", 0.0))), StackedBar("one by one", 8)),
    (Gain("no core ever waits", 0.25),),
    (PageTable("Boundaries", ("", "ahead of", "pure us"), ((0, "x<y", 0.25), (1, "norm", None))),),
    (
        Roofline(
            (
                RooflinePoint("x<y", 2.0, 10.0, 0.7),
                RooflinePoint("norm", 0.1, 0.5, 0.3),
                RooflinePoint("empty", 0.0, 0.0, 0.0),
            ),
            (("cube", 100.0), ("vector", 25.0)),
            (("L2", 20.0), ("HBM", 5.0)),
        ),
        MemoryUse(((0.0, 1024), (2.0, 4096), (3.5, 512)), 4.0, 8192),
        DataFlow(((0, "x<y", 2.0), (1, "norm", 1.0)), ((0, 1),)),
    ),
)


class Elements(HTMLParser):
    """Elements of a page with their attributes, what it links to, its text."""

    VOID = frozenset({"meta", "link", "input", "br", "circle", "polyline", "path", "rect"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.found.append((tag, dict(attrs)))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in self.VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.found if name == tag]


def data_of(page: str) -> dict[str, Any]:
    text = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert text is not None
    found: dict[str, Any] = json.loads(text[1])
    return found


def test_a_page_is_whole_and_fetches_nothing() -> None:
    page = Elements(WHOLE.html())
    links = [attrs[name] for _, attrs in page.found for name in ("src", "href") if name in attrs]
    assert links == ["data:,"]
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|https?://", WHOLE.html())
    text = "".join(page.texts)
    for said in ("a <b> & c", "Work limits this kernel.", "a note", "no core ever waits", "25.0 % less", "x<y"):
        assert said in text
    assert len(page.of("circle")) == 2
    assert "pure sync 25.0 %" in text
    assert "one by one, 8.00 us" in text


def test_a_page_without_data_is_small() -> None:
    empty = Page(Recording("nothing", {}, (), ()))
    assert len(empty.html()) < 100_000


def test_columns_of_nothing_but_zeros_are_left_out() -> None:
    rows = ((0, "a", 0.0, 1.5, None, 0), (1, "b", 0.0, 0.0, 2, 0))
    text = Page(None, tables=(PageTable("T", ("", "name", "none us", "some us", "few", "no"), rows),), title="t").html()
    page = Elements(text)
    said = "".join(page.texts)
    assert "none us" not in said
    assert all(name in said for name in ("name", "some us", "few", "1.500"))
    assert len(page.of("td")) == 2 * 4


def test_changes_have_their_sign_and_nothing_is_less_than_zero() -> None:
    rows = (("a", 1.5, 2.0), ("b", -1.5, -0.00001), ("c", -0.0, 0.0))
    table = PageTable("T", ("what", "change us", "us"), rows, chooses=False, signed=("change us",))
    page = Elements(Page(None, tables=(table,), title="t").html())
    said = "".join(page.texts)
    assert "+1.500" in said
    assert "-1.500" in said
    assert "+2.000" not in said
    assert "-0" not in said


def test_times_on_a_page_have_the_unit_that_keeps_them_short() -> None:
    bar = StackedBar("as chosen", 371_864.05, (("work", 371_864.05),))
    flow = DataFlow(((0, "a", 371_864.05), (1, "b", 0.25)), ((0, 1),))
    memory = MemoryUse(((0.0, 64), (5.0, 0)), 371_864.05, 64)
    for text in (Bars("T", (bar,)).html(), flow.html(), memory.html()):
        assert "371.86 ms" in text
        assert " us" not in text
    assert "250 ns" in flow.html()


def test_tables_of_long_times_are_in_milliseconds() -> None:
    rows = (("a", 371_864.05, -12.5, 3.5), ("b", 7.0, 0.0, 2.5))
    table = PageTable("T", ("what", "busy us", "change us", "GB/s"), rows, chooses=False, signed=("change us",))
    page = Elements(Page(None, tables=(table,), title="t").html())
    texts = [text for text in page.texts if text.strip()]
    assert {"busy ms", "change ms", "371.864", "-0.013", "0.007", "3.500"} <= set(texts)
    assert "busy us" not in texts


def test_a_part_has_one_name_for_readers() -> None:
    bars = Bars("T", (StackedBar("a", 3.0, (("pure", 1.0), ("work", 1.5), ("numpy", 0.5))),)).html()
    assert 'aria-label="a: 3.00 us: work 50.0 %, NumPy 16.7 %, pure sync 33.3 %"' in bars
    assert "var(--numpy)" in bars
    assert "var(--wait)" in bars


def test_waiting_is_explained_where_there_is_some() -> None:
    track = (Track(0, 0, "worker"),)
    work = Span(0, 0.0, 1.0, "a", SpanKind.WORK, 0)
    wait = Span(0, 1.0, 2.0, "wait", SpanKind.WAIT, 0)
    for spans, said in (((work,), False), ((work, wait), True)):
        page = Page(Recording("t", {0: "core 0"}, track, spans, subops={0: "a"})).html()
        assert ("Times of waiting are means" in page) == said


def test_the_roofline_shows_no_backticks() -> None:
    page = Roofline((RooflinePoint("a", 1.0, 9.0, 1.0),), (("all cores", 2.0),), (("cache", 2.0),)).html()
    assert "<code>superkernel machine --again</code>" in page
    assert "`" not in page


def test_what_the_script_reads() -> None:
    data = data_of(WHOLE.html())
    assert data["duration"] == 4000
    assert data["cores"] == ["AIC 0", "AIV 2"]
    assert [track["core"] for track in data["tracks"]] == [0, 0, 1]
    track, begin, length, kind, name, subop, why = data["columns"]
    assert track == [0, 1, 2, 2, 2]
    assert (begin, length) == ([0, 500, 1000, 1500, 1750], [2000, 1000, 500, 250, 2250])
    assert [data["kinds"][k] for k in kind] == ["work", "compute", "imbalance", "wait", "work"]
    assert [data["names"][n] for n in name][1] == "mmad"
    assert subop == [0, 0, 1, 1, 1]
    assert [data["details"][w] if w >= 0 else "" for w in why][2].startswith("AIV 2 waits for AIC 0: 'y</script>'")
    assert data["flows"] == [[0, 1500, 2, 1750]]
    assert data["path"] == [[0, 0, 1500], [1, 1500, 4000]]


def test_elements_say_what_they_are() -> None:
    page = Elements(WHOLE.html())
    (html,) = page.of("html")
    assert html["lang"] == "en"
    (canvas,) = page.of("canvas")
    assert canvas["role"] == "img"
    assert "4.00 us on 2 cores" in str(canvas["aria-label"])
    assert canvas["tabindex"] == "0"
    assert all(attrs.get("aria-label") for attrs in page.of("svg"))
    assert all(attrs["scope"] == "col" for attrs in page.of("th"))
    assert all(attrs.get("type") == "button" for attrs in page.of("button"))
    assert all(attrs.get("aria-label") for attrs in page.of("table"))
    ids = [attrs["id"] for _, attrs in page.found if "id" in attrs]
    assert len(ids) == len(set(ids))
    labelled = {attrs["aria-labelledby"] for _, attrs in page.found if "aria-labelledby" in attrs}
    assert labelled <= set(ids)


def themes() -> list[dict[str, str]]:
    light, dark = re.findall(r":root \{(.*?)\}", STYLE, re.S)
    return [dict(re.findall(r"--(\w+): (#\w{6});", text)) for text in (light, dark)]


def linear(colour: str) -> NDArray[np.float64]:
    parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


def luminance(colour: str) -> float:
    return float(linear(colour) @ [0.2126, 0.7152, 0.0722])


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1])
def test_text_reads_on_its_ground(theme: int) -> None:
    colours = themes()[theme]
    assert contrast(colours["ink"], colours["back"]) >= 7
    assert contrast(colours["faint"], colours["back"]) >= 4.5
    for kind in SpanKind:
        best = max(contrast(colours[colour_of(kind.part)], text) for text in ("#000000", "#ffffff"))
        assert best >= 4.5, kind


def test_every_kind_of_span_and_part_has_a_colour() -> None:
    for colours in themes():
        assert {colour_of(kind.part) for kind in SpanKind} <= set(colours)
        assert {"work", "end", "launch", "rest", "numpy"} <= set(colours)
        parts = {name: colour for name, colour in colours.items() if name not in ("ink", "back", "faint", "line")}
        del parts["compute"]  # is work
        assert len(set(parts.values())) == len(parts), "a colour means one thing"
        for one, other in combinations(sorted({colour_of(kind.part) for kind in SpanKind} - {"compute"}), 2):
            assert np.linalg.norm(lab(colours[one]) - lab(colours[other])) >= 20, (one, other)


def lab(colour: str) -> NDArray[np.float64]:
    """CIELAB, D65: distances are about those that one sees, 2 of them just noticeable."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    white = np.array([0.95047, 1.0, 1.08883])
    parts = to_xyz @ linear(colour) / white
    x, y, z = np.where(parts > 0.008856, np.cbrt(parts), 7.787 * parts + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


@pytest.mark.parametrize("kinds", [tuple(SpanKind), (SpanKind.WORK, SpanKind.MOVEMENT, SpanKind.SIGNAL, SpanKind.WAIT)])
def test_a_legend_has_one_entry_for_a_colour(kinds: tuple[SpanKind, ...]) -> None:
    """With the words of the bars, and every kind's meaning: on an accelerator, and on the host."""
    spans = tuple(Span(0, at, at + 1.0, kind.value, kind, 0) for at, kind in enumerate(kinds))
    page = Page(Recording("r", {0: "core 0"}, (Track(0, 0, "worker"),), spans, subops={0: "a"}))
    data = data_of(page.html())
    entries = dict(data["legend"])
    assert len(entries) == len(data["legend"])
    for kind, (part, colour) in zip(data["kinds"], data["parts"], strict=True):
        assert colour == colour_of(part)
        assert entries[colour].startswith(f"{part}: ")
        assert LEGEND[SpanKind(kind)] in entries[colour]
    assert (data["parts"][0] == ["control", "between"]) == (SpanKind.COMPUTE in kinds)
    assert entries["wait"] == "pure sync: waiting for cores that have signalled; signalling"


def test_the_headline_names_limit_and_remedy() -> None:
    gains = (Gain("no core ever waits", 0.1), Gain("sub-operator 3 twice as fast", 0.2))
    said = headline([("launching", 0.2), ("waiting for cores", 0.7)], gains)
    assert said == (
        "Waiting for cores limits this kernel: 70% of a launch. What would help most: sub-operator 3 twice as fast, "
        "20.0 % less time."
    )
    assert "help" not in headline([("work", 1.0)], (Gain("nothing", 0.001),))


def blended(colour: str, ground: str, opacity: float) -> str:
    pairs = [(int(colour[i : i + 2], 16), int(ground[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(opacity * above + (1 - opacity) * below):02x}" for above, below in pairs)


@pytest.mark.parametrize("theme", [0, 1])
def test_names_read_on_the_fullest_box_of_the_graph(theme: int) -> None:
    colours = themes()[theme]
    assert contrast(colours["ink"], blended(colours["work"], colours["back"], FULLEST)) >= 4.5


# Charts ---------------------------------------------------------------------------------------------------------------


def test_bars_share_one_scale_and_say_their_parts() -> None:
    bars = Bars("Time", (StackedBar("a", 2.0, (("work", 1.5), ("pure sync", 0.5))), StackedBar("b", 8.0, said="slow")))
    text = bars.html()
    widths = [float(width) for width in re.findall(r"width:([\d.]+)%", text)]
    assert widths == [18.75, 6.25, 100.0]
    assert 'aria-label="a: 2.00 us: work 75.0 %, pure sync 25.0 %"' in text
    assert 'aria-label="b: 8.00 us, slow"' in text
    assert Bars("Time", ()).html() == ""


def test_a_graph_of_one_or_of_too_many_is_not_drawn() -> None:
    assert DataFlow(((0, "a", 1.0),), ()).html() == ""
    many = tuple((number, f"s{number}", 1.0) for number in range(NODES_MAX + 1))
    assert DataFlow(many, ()).html() == ""
    assert MemoryUse((), 1.0, 0).html() == ""


def test_layers_follow_the_longest_way() -> None:
    nodes = tuple((number, f"s{number}", 1.0) for number in range(5))
    flow = DataFlow(nodes, ((0, 1), (1, 2), (0, 3), (2, 4), (3, 4)))
    assert flow.layers == {0: 0, 1: 1, 2: 2, 3: 1, 4: 3}
    assert flow.html().count("<rect") == 5


def test_no_line_of_the_graph_passes_a_box() -> None:
    """One that leads over several layers has a lane of its own there, the same one for all readers."""
    nodes = tuple((number, f"s{number}", 1.0) for number in range(7))
    flow = DataFlow(nodes, ((0, 1), (1, 2), (2, 3), (3, 4), (0, 3), (0, 4), (1, 4), (1, 5), (5, 6), (2, 6)))
    text = flow.html()
    boxes = [tuple(map(float, box)) for box in re.findall(r'<rect x="([\d.]+)" y="([\d.]+)"', text)]
    assert len(boxes) == len(nodes)
    through = [tuple(map(float, line)) for line in re.findall(r'"M([\d.]+),([\d.]+)H([\d.]+)"', text)]
    assert len(through) == len(set(through)) == 5, "node 0 passes three layers, node 1 two"
    for left, middle, right in through:
        assert not any(left < x + NODE_PX[0] and x < right and y <= middle <= y + NODE_PX[1] for x, y in boxes)
    curves = re.findall(r"M([\d.]+),[\d.]+C[\d., ]+? ([\d.]+),[\d.]+\"", text)
    assert {float(end) - float(begin) for begin, end in curves} == {float(LAYER_PX - NODE_PX[0])}, "layer by layer"


def test_a_name_in_the_roofline_lies_on_no_circle() -> None:
    close = (RooflinePoint("first", 2.0, 10.0, 0.7), RooflinePoint("second", 2.2, 10.0, 0.2))
    apart = (RooflinePoint("first", 2.0, 10.0, 0.7), RooflinePoint("second", 2.2, 500.0, 0.2))
    for points in (close, apart):
        text = Roofline(points, (("r", 1e3),), (("s", 100.0),)).html()
        circles = [tuple(map(float, c)) for c in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)" r="([\d.]+)"', text)]
        names = re.findall(r'<text x="(\d+)"( text-anchor="end")? y="(\d+)">(first|second)</text>', text)
        assert [name for *_, name in names] == ["first", "second"]
        for x, end, y, name in names:
            left = float(x) - 6 * len(name) * bool(end)
            for cx, cy, radius in circles:
                across = left - radius < cx < left + 6 * len(name) + radius
                assert not (across and abs(float(y) - 4 - cy) < radius), name


@pytest.mark.parametrize("target", ["host", "mini"])
def test_the_graph_is_who_reads_what_whom_wrote(target: str) -> None:
    """A diamond whose middle values share an arena with what comes behind."""
    b = sk.GraphBuilder("diamond")
    x = b.softmax(b.input("x", (4, 64)))
    one, two = b.matmul(x, b.constant(np.ones((64, 64), np.float32))), b.softmax(x)
    b.output(b.softmax(b.matmul(b.softmax(one), b.transpose(two, perm=(1, 0)))), "y")
    kernel = sk.compile(b.graph(), target=target, threads=2 if target == "host" else None)
    schedule = kernel._compiled.schedule
    writer = {value: sub.index for sub in schedule.subops for value in _values(sub, written=True)}
    expected = {
        (writer[value], sub.index)
        for sub in schedule.subops
        for value in _values(sub, written=False)
        if value in writer
    }
    flow = flow_of(schedule, {sub.index: 1.0 for sub in schedule.subops})
    assert set(flow.edges) == expected
    assert max(flow.layers.values()) >= 3
    memory = memory_of(schedule, kernel.trace())
    assert 0 < max(nbytes for _, nbytes in memory.steps) <= memory.kept_bytes == schedule.arena_bytes
    assert memory.steps[-1][1] == 0
    assert memory.steps == tuple(sorted(memory.steps))


def _values(sub: SubOperator, *, written: bool) -> list[str]:
    pairs = zip(sub.values, sub.body.operands, strict=True)
    return [value for value, operand in pairs if (operand.role is Role.OUTPUT) is written]


def test_points_lie_under_what_the_accelerator_can_do() -> None:
    """A product is under the cube's roof and both slopes are of the target; a copy has no operations, so no point."""
    kernel = sk.compile(models.mlp((64, 128), batch=32), target="mini")
    report = kernel.report()
    assert report.source is not None
    page = report.source.page(report)
    (roofline,) = (chart for chart in page.charts if isinstance(chart, Roofline))
    target = kernel._compiled.target
    assert roofline.roofs[0][1] == target.cube_flops_per_ns(target.cube.k_f16) > roofline.roofs[1][1]
    assert roofline.slopes[0][1] == target.l2.aggregate_gb_per_s > roofline.slopes[1][1]
    assert {point.name for point in roofline.points} == {sub.name for sub in kernel._compiled.schedule.subops}
    for point in roofline.points:
        assert 0 < point.rate < roofline.roofs[0][1]
        assert point.rate < point.intensity * roofline.slopes[0][1]
    assert sum(point.share for point in roofline.points) == pytest.approx(1.0)
    text = roofline.html()
    assert text.count("<circle") == len(roofline.points)
    assert f"cube cores, f16 {roofline.roofs[0][1]:,.0f} GFLOP/s" in text
    assert f"HBM {roofline.slopes[1][1]:,.0f} GB/s" in text


# In a browser ---------------------------------------------------------------------------------------------------------


def opened(tab: Tab, folder: Path, page: str) -> None:
    file = folder / "page.html"
    file.write_text(page, encoding="utf-8")
    tab.open(file.as_uri())


DRAWN = """
(() => {
  const box = canvas.getBoundingClientRect(), seen = ink.getImageData(0, 0, canvas.width, canvas.height).data;
  const colours = new Set();
  for (let at = 0; at < seen.length; at += 4) colours.add(seen[at] << 16 | seen[at + 1] << 8 | seen[at + 2]);
  const marks = [...document.querySelectorAll("svg circle, svg rect, svg polyline, svg path")];
  const size = mark => { const { width, height } = mark.getBoundingClientRect(); return width + height; };
  const empty = marks.filter(mark => size(mark) < 1);
  const bars = [...document.querySelectorAll(".stack")].filter(bar => bar.getBoundingClientRect().width < 10);
  const wide = document.documentElement.scrollWidth > innerWidth;
  return { area: box.width * box.height, colours: colours.size, marks: marks.length, empty: empty.length,
           bars: bars.length, wide };
})()
"""


def check_drawn(tab: Tab) -> None:
    """Nothing went wrong, nothing was fetched, all charts have something in them, and everybody can use the page."""
    assert tab.errors == []
    assert tab.fetched == []
    found = tab.run(DRAWN)
    assert found["area"] > 10_000
    assert found["colours"] > 8
    assert (found["empty"], found["bars"], found["wide"]) == (0, 0, False), found
    assert violations(tab) == []


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 1920])
def test_a_page_is_drawn(width: int, dark: bool, tmp_path: Path, browser: Browser) -> None:
    with browser.tab(width=width, height=1080, dark=dark) as tab:
        opened(tab, tmp_path, WHOLE.html())
        check_drawn(tab)
        ground = tab.run("getComputedStyle(document.body).backgroundColor")
        assert ground == ("rgb(21, 24, 28)" if dark else "rgb(255, 255, 255)")


WRONG = {
    "html-has-lang": "<!doctype html><title>t</title><main><h1>a</h1></main>",
    "document-title": '<!doctype html><html lang="en"><main><h1>a</h1></main>',
    "landmark-one-main": '<!doctype html><html lang="en"><title>t</title><h1>a</h1>',
    "not one first heading": PAGE_START + "<h2>b</h2><h1>a</h1><h1>b</h1>",
    "heading-order": PAGE_START + "<h1>a</h1><h3>b</h3>",
    "id twice": PAGE_START + '<h1>a</h1><p id="a">b</p><p id="a">b</p>',
    "tabindex": PAGE_START + '<h1>a</h1><p tabindex="2">b</p>',
    "aria-roles": PAGE_START + '<h1>a</h1><p role="knob">b</p>',
    "aria-valid-attr": PAGE_START + '<h1>a</h1><p aria-lable="x">b</p>',
    "aria-valid-attr-value": PAGE_START + '<h1>a</h1><section aria-labelledby="q">b</section>',
    "aria-required-attr": PAGE_START + '<h1>a</h1><p role="heading">b</p>',
    "landmark-unique": PAGE_START + "<h1>a</h1><aside>b</aside><aside>c</aside>",
    "a table without heads": PAGE_START + "<h1>a</h1><table><tr><td>1</td></tr></table>",
    "a label of nothing": PAGE_START + "<h1>a</h1><label>b</label>",
    "it scrolls, and cannot be reached": PAGE_START
    + '<h1>a</h1><div style="overflow:auto;width:90px"><p style="width:900px">b</p></div>',
    "contrast of a text is 1.9": PAGE_START + '<h1>a</h1><p style="color:#bbb">b</p>',
    "contrast of a text is 1.00": PAGE_START
    + '<h1>a</h1><div style="background:#000"><p style="color:#000">b</p></div>',
    "contrast of a border is 1.": PAGE_START + '<h1>a</h1><label>b <input style="border:1px solid #eee"></label>',
    "button-name": PAGE_START + "<h1>a</h1><button></button>",
    "label: ": PAGE_START + "<h1>a</h1><input>",
    "svg-img-alt": PAGE_START + '<h1>a</h1><svg role="img" width="9" height="9"></svg>',
    "focus is not seen": PAGE_START + '<h1>a</h1><button style="outline:none">b</button>',
    "focus does not follow the document": PAGE_START
    + '<h1>a</h1><button tabindex="2">b</button><button tabindex="1">c</button>',
}


@needs_browser
@pytest.mark.slow
def test_what_cannot_be_used_is_found(tmp_path: Path, browser: Browser) -> None:
    """The check for accessibility itself: each rule has a page that breaks it, and there is one that breaks none."""
    with browser.tab() as tab:
        opened(tab, tmp_path, PAGE_START + '<h1>a</h1><label>b <input></label><button>c</button><a href="#x">d</a>')
        assert violations(tab) == []
        for rule, page in WRONG.items():
            opened(tab, tmp_path, page)
            found = violations(tab)
            assert any(rule in text for text in found), (rule, found)


@needs_browser
@pytest.mark.slow
def test_a_page_that_fetches_or_fails_is_found(tmp_path: Path, browser: Browser) -> None:
    with browser.tab() as tab:
        opened(
            tab,
            tmp_path,
            '<img src="http://example.org/a.png"><script>console.error("one"); throw Error("two")</script>',
        )
        assert tab.fetched == ["http://example.org/a.png"]
        assert [any(word in text for text in tab.errors) for word in ("one", "two")] == [True, True]


@needs_browser
@pytest.mark.slow
def test_the_timeline_answers(tmp_path: Path, browser: Browser) -> None:
    with browser.tab() as tab:
        opened(tab, tmp_path, WHOLE.html())
        found = tab.run(
            """
            (() => {
            const x = xOf(1250), row = rowOf(2), at = spanAt(x, row.top + 3);
            const hover = describe(at), all = totals(0, WHOLE), path = data.path.length;
            zoom(0.5, 2000); const half = wide; zoom(1e9, 2000);
            canvas.dispatchEvent(new KeyboardEvent('keydown', { key: '+' })); const keyed = wide; whole();
            const before = rows.length; fold(rows[0]); const after = rows.length; fold(rows[0]);
            const search = document.getElementById('search');
            search.value = 'norm'; search.dispatchEvent(new Event('input'));
            const searched = status.textContent; search.value = ''; search.dispatchEvent(new Event('input'));
            choose(1); const rowsChosen = document.querySelectorAll('.chosen').length;
            document.getElementById('arrows').click();
            document.querySelector('thead button').click();
            return { hover, all, path, half, keyed, before, after, searched, rowsChosen, tall: canvas.clientHeight };
            })()
            """
        )
        assert tab.errors == []
    assert found["hover"].splitlines() == [
        "cross_wait",
        "imbalance, 500 ns from 1.000 us",
        "sub-operator 1 (norm)",
        "AIV 2 waits for AIC 0: 'y</script>' comes first",
    ]
    assert "control 4.250 us, compute 1.000 us, imbalance 500 ns, pure sync 250 ns" in found["all"]
    assert (found["half"], found["keyed"]) == (2000, 2800)
    assert (found["before"], found["after"]) == (3, 2)
    assert found["searched"] == "1 of 5 spans"
    assert found["rowsChosen"] == 3, "in the boundaries, in the table of times, and in the graph"
    assert found["tall"] > 40


def many_spans(count: int, cores: int = 8) -> Recording:
    tracks = tuple(Track(core, 0, "worker") for core in range(cores))
    kinds = (SpanKind.WORK, SpanKind.WORK, SpanKind.WORK, SpanKind.WAIT)
    spans = tuple(
        Span(i % cores, i // cores * 0.1, i // cores * 0.1 + 0.09, f"s{i % 40}", kinds[i // cores % 4], i % 40)
        for i in range(count)
    )
    return Recording("many", {c: f"core {c}" for c in range(cores)}, tracks, spans, (), {n: f"s{n}" for n in range(40)})


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize("cores", [8, 32], ids=["cores", "groups"])
def test_a_hundred_thousand_spans_answer(cores: int, tmp_path: Path, browser: Browser) -> None:
    """What is drawn is bounded by the pixels of a track, not by its spans, so that zooming and moving take less than
    100 ms each. Times are medians of what the script takes, the drawing itself included (reading a pixel awaits it)."""
    with browser.tab(width=1920) as tab:
        opened(tab, tmp_path, Page(many_spans(100_000, cores)).html())
        found = tab.run(
            """
            (() => {
            const median = act => {
              const times = [];
              for (let n = 0; n < 15; n++) {
                const start = performance.now();
                act(n); ink.getImageData(0, 0, 1, 1);
                times.push(performance.now() - start);
              }
              return times.sort((a, b) => a - b)[7];
            };
            const at = clientX => ({ clientX, clientY: 40, pointerId: 1 });
            const wheel = (deltaY, x) => canvas.dispatchEvent(new WheelEvent('wheel', { deltaY, ...at(x) }));
            const point = (type, x) => canvas.dispatchEvent(new PointerEvent(type, at(x)));
            canvas.setPointerCapture = () => {};
            let rects = 0; const real = ink.fillRect.bind(ink); ink.fillRect = (...box) => { rects++; real(...box); };
            draw(); const all = rects;
            rects = 0; wide = 1000; left = 500000; draw(); const near = rects;
            ink.fillRect = real; whole();
            const times = { draw: median(draw), in: median(() => wheel(-60, 900)), out: median(() => wheel(60, 900)) };
            wheel(-400, 900); const before = left; point('pointerdown', 900);
            times.move = median(n => point('pointermove', 900 - 20 * n)); point('pointerup', 600);
            const search = document.getElementById('search');
            times.search = median(n => { search.value = 's' + n; search.dispatchEvent(new Event('input')); });
            times.totals = median(() => totals(0, WHOLE));
            return { count, times, all, near, width, moved: left - before };
            })()
            """
        )
        assert not [text for text in tab.errors if "getImageData" not in text], "but for how it is measured here"
    assert found["count"] == 100_000
    assert found["all"] < 8 * 2 * found["width"] + 100, "of a group, four kinds in a column at most"
    assert found["near"] < (8 * 14 if cores == 8 else 4 * found["width"]) + 100
    assert found["moved"] > 0
    assert max(found["times"].values()) < 100, found["times"]


GROUPED = Recording(
    "two types of cores",
    {core: f"AIC {core}" if core < 20 else f"AIV {core}" for core in range(60)},
    tuple(Track(core, lane, "control") for core in range(60) for lane in range(2)),
    tuple(
        span
        for core in range(60)
        for span in (
            Span(
                2 * core,
                0.0,
                4.0,
                "wait",
                SpanKind.IMBALANCE if core % 4 else SpanKind.WAIT,
                1,
                {"why": "AIC 3 waits for AIV 20: norm reads 'x'"} if core == 3 else {},
            ),
            Span(2 * core + 1, 1.0, 2.0 if core < 20 else 1.0, "mmad", SpanKind.COMPUTE, 0),
        )
    ),
    (SignalFlow(0, 1.0, "flag", 1, taken=False), SignalFlow(50, 2.0, "flag", 1, taken=True)),
    {0: "product", 1: "norm"},
    path=((0, 0.0, 2.0), (30, 2.0, 4.0)),
)


@needs_browser
@pytest.mark.slow
def test_many_cores_are_rows_of_their_types(tmp_path: Path, browser: Browser) -> None:
    with browser.tab() as tab:
        opened(tab, tmp_path, Page(GROUPED).html())
        found = tab.run(
            """
            (() => {
            const told = rows.map(row => [row.group, row.high, row.tracks.length]);
            const at = ns => [xOf(ns), rows[0].top + 5];
            const colour = (x, y) => [...ink.getImageData(x, y, 1, 1).data].slice(0, 3).join();
            shown.path = false; draw();
            const bottom = rows[0].top + GROUP - 4, top = rows[0].top + 4;
            const seen = [colour(xOf(1500), bottom), colour(xOf(630), bottom), colour(xOf(630), top)];
            choose(0); const faded = [colour(xOf(630), bottom), colour(xOf(1500), bottom)]; choose(null);
            document.getElementById('arrows').click();
            const tips = [crowd(...at(1500)), crowd(...at(500)), crowd(...at(500).map((v, n) => v + 60 * n))];
            const tall = canvas.clientHeight;
            fold(rows[1]); const opened = rows.length;
            document.getElementById('groups').click(); document.getElementById('fold').click();
            const all = rows.length;
            return { told, seen, faded, tips, tall, opened, all, path: data.path.length };
            })()
            """
        )
        assert not [text for text in tab.errors if "getImageData" not in text], "but for how it is measured here"
        assert violations(tab) == []
    light = {name: tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5)) for name, colour in themes()[0].items()}
    compute, wait, imbalance, ground = (
        ",".join(map(str, light[name])) for name in ("compute", "wait", "imbalance", "back")
    )
    assert found["told"] == [["AIC", 44, 0], ["AIV", 44, 0]]
    assert found["seen"] == [compute, wait, imbalance], "the cores that wait lie below those that are ahead"
    assert found["faded"] == [ground, compute], "only what is chosen"
    assert found["tips"][0].splitlines() == ["AIC at 1.500 us, 20 cores", "20 compute"]
    why = "longest: AIC 3 waits for AIV 20: norm reads 'x', 4.000 us"
    assert found["tips"][1].splitlines() == ["AIC at 500 ns, 20 cores", "5 pure sync", "15 imbalance", why]
    assert found["tips"][2].splitlines() == ["AIV at 500 ns, 40 cores", "10 pure sync", "30 imbalance"]
    assert found["tall"] < 150
    assert found["opened"] == 2 + 40
    assert found["all"] == 2 + 120


# Reports --------------------------------------------------------------------------------------------------------------


def small_graph() -> sk.Graph:
    b = sk.GraphBuilder("small")
    x = b.matmul(b.input("x", (4, 64)), b.constant(np.ones((64, 64), np.float32)))
    b.output(b.softmax(x), "y")
    return b.graph()


@pytest.mark.parametrize("target", ["host", "mini"])
def test_the_report_s_page(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_json(small_graph(), tmp_path / "m.json")
    out = tmp_path / "report.html"
    words = ["report", str(tmp_path / "m.json"), "--target", target, "--random-inputs", "0", "--rounds", "3"]
    more = ["--threads", "2"] if target == "host" else []
    assert main([*words, *more, "--html", str(out)]) == 0
    assert "matmul_0" in capsys.readouterr().out
    text = out.read_text(encoding="utf-8")
    page = Elements(text)
    said = "".join(page.texts)
    assert "limits this kernel" in said or "too busy to say" in said
    for title in (
        "Where the time goes",
        "Timeline",
        "Graph",
        "Memory over time",
        "Boundaries",
        "Kernels",
        "Why these kernels",
        "Sub-operators in time",
    ):
        assert title in said
    data = data_of(text)
    assert set(data["subops"].values()) >= {"matmul_0", "y"}
    assert data["path"]
    assert main([*words, "--critical", "--html", str(out)]) == 2


@needs_browser
@pytest.mark.slow
@pytest.mark.parametrize("target", ["host", "mini"])
def test_the_report_s_page_is_drawn(target: str, tmp_path: Path, browser: Browser) -> None:
    kernel = sk.compile(models.transformer(layers=1), target=target, threads=2 if target == "host" else None)
    report = kernel.report(rounds=3)
    assert isinstance(report, (sk.Report, sk.SimReport))
    page = report.html()
    for dark in (False, True):
        with browser.tab(dark=dark) as tab:
            opened(tab, tmp_path, page)
            check_drawn(tab)


def test_the_accelerator_s_bars_are_the_report_s_times() -> None:
    report = sk.compile(models.transformer(layers=1), target="mini").report()
    assert isinstance(report, sk.SimReport)
    assert report.source is not None
    assert report.baseline is not None
    bars = {bar.name: bar for bar in report.source.page(report).bars}
    assert list(bars) == ["one by one", "full barriers", "as chosen"]
    assert bars["as chosen"].us == pytest.approx(report.time_us, rel=0.01)
    assert bars["one by one"].us == pytest.approx(report.baseline.time_us, rel=0.02)
    assert bars["as chosen"].us < bars["full barriers"].us < bars["one by one"].us
    page = unescape(report.html())
    assert re.search(r"1 event; it reads '[\w/.]+' of sub-operator \d+ \(layer0/", page)
    assert " of arena0" not in page
    for bar in bars.values():
        assert sum(us for _, us in bar.parts) == pytest.approx(bar.us)
    parts = {name: dict(bar.parts) for name, bar in bars.items()}
    assert parts["full barriers"]["pure sync"] > parts["as chosen"]["pure sync"]
    assert parts["one by one"]["launch"] > parts["full barriers"]["launch"]


def test_a_report_that_nobody_measured_has_no_page() -> None:
    kernel = sk.compile(small_graph(), target="mini")
    report = kernel.run({"x": np.ones((4, 64), np.float32)}).report
    assert report is not None
    with pytest.raises(sk.UnsupportedError, match="without a timeline"):
        report.html()
    assert "source" not in report.to_json()
    host = sk.compile(small_graph(), threads=1).report(rounds=1)
    assert "timeline" not in host.to_json()
