"""What an interactive session shows of public objects: one line each, however large they are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import superkernel as sk
from superkernel.display import notebook

X = {"x": np.ones((4, 8), np.float32)}


@pytest.fixture(scope="module")
def shown() -> dict[str, Any]:
    b = sk.GraphBuilder("layer")
    x = b.input("x", (4, 8))
    b.output(b.relu(x @ b.constant(np.full((8, 300), 0.125, np.float32))), "y")
    graph = b.graph()
    host, mini = sk.compile(graph, threads=2), sk.compile(graph, "mini")
    return {
        "builder": b, "tensor": x, "graph": graph, "options": sk.Options(sync="full", split=3), "host": host,
        "mini": mini, "result": host.run(X), "simulated": mini.run(X), "report": host.report(rounds=0),
        "target": sk.load_target("mini"), "why": host.explain("y"), "why_mini": mini.explain("y"),
        "bound": host.bind(X["x"]),
    }  # fmt: skip


EXPECTED = {
    "builder": "<superkernel.GraphBuilder 'layer': 1 inputs, 2 nodes, 1 outputs>",
    "tensor": "Tensor('x': f32[4,8])",
    "graph": "<superkernel.Graph 'layer' (x: f32[4,8]) -> (y: f32[4,300]), 2 nodes>",
    "options": "Options(sync='full', split=3)",
    "mini": "<superkernel.Kernel 'layer' (x: f32[4,8]) -> (y: f32[4,300]), mini, 6 cores>",
    "result": "<superkernel.RunResult y: f32[4,300]>",
    "target": "<superkernel target 'mini': 2 cube and 4 vector cores, for tests>",
    "bound": "<superkernel.BoundKernel 'layer'>",
}
BEGINS = {
    "host": "<superkernel.Kernel 'layer' (x: f32[4,8]) -> (y: f32[4,300]), host ",
    "simulated": "<superkernel.RunResult y: f32[4,300]; <superkernel.SimReport 'layer' on mini: ",
    "report": "<superkernel.Report 'layer' on host ",
    "why": "<superkernel.Explanation of sub-operator 0 ",
    "why_mini": "<superkernel.AicoreExplanation of sub-operator ",
}


_TIME = re.compile(r'<td style="text-align:right;white-space:nowrap">([\d.]+ [num]?s)</td>')


@pytest.mark.parametrize("name", EXPECTED)
def test_it_says_what_it_is(name: str, shown: dict[str, Any]) -> None:
    assert repr(shown[name]) == EXPECTED[name]


@pytest.mark.parametrize("name", BEGINS)
def test_it_begins_with_what_it_is(name: str, shown: dict[str, Any]) -> None:
    text = repr(shown[name])
    assert text.startswith(BEGINS[name])
    assert "\n" not in text
    assert len(text) < 160


def test_options_are_evaluable() -> None:
    for options in (sk.Options(), sk.Options(fuse=False, scopes=("a:b",), watchdog_ms=5.0)):
        assert eval(repr(options), {"Options": sk.Options}) == options


def test_every_public_name_has_help_and_loads_without_a_warning() -> None:
    """`import superkernel` is light, and everything behind it loads with warnings as errors."""
    code = "import superkernel as sk; assert all(getattr(sk, n).__doc__ for n in sk.__all__ if n != '__version__')"
    done = subprocess.run([sys.executable, "-W", "error", "-X", "dev", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("kind", [sk.Kernel, sk.GraphBuilder, sk.Graph, sk.Options, sk.Report, sk.SimReport])
def test_every_public_method_says_what_it_does(kind: type) -> None:
    members = {n: m for n, m in vars(kind).items() if not n.startswith("_") and (callable(m) or hasattr(m, "fget"))}
    assert members
    assert not [n for n, m in members.items() if not m.__doc__]


class _Reader(HTMLParser):
    """Holds a piece of HTML to its form: every tag closed in order, every row of a table as long as its head."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.rows: list[list[str]] = []
        self.said = ""
        self.frames: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "style", "link", "img"), "notebooks may drop these"
        self.open.append(tag)
        self.frames += [value or "" for name, value in attrs if name == "srcdoc"]
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.said += data
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data


def _read(item: Any) -> _Reader:
    reader = _Reader(item._repr_html_())
    assert not reader.open
    return reader


@pytest.mark.parametrize("name", ["host", "mini"])
def test_a_notebook_shows_a_kernel(name: str, shown: dict[str, Any]) -> None:
    kernel, page = shown[name], _read(shown[name])
    assert page.rows[1:] == [["input", "x", "f32[4,8]"], ["output", "y", "f32[4,300]"]]
    assert str(kernel.certificate) in page.said
    assert kernel.plan in page.said


def test_a_notebook_shows_reports(shown: dict[str, Any]) -> None:
    host, report = _read(shown["report"]), shown["report"]
    assert [row[1] for row in host.rows] == [
        "sub-operator", report.work[0].name, "boundary ahead of", report.boundaries[0].name,
    ]  # fmt: skip
    assert host.rows[0][3] == "of launch"
    assert host.rows[1][3] == f"{100 * report.work[0].busy_ns / report.run_ns:.1f} %"
    simulated, result = shown["mini"].report(X, rounds=1), _read(shown["simulated"])
    page = _read(simulated)
    assert len(page.rows) == 1 + len(simulated.subops)
    assert page.rows[1][-1] == f"{simulated.subops[0].single_cycles:,}"
    assert ["output", "y", "f32[4,300]"] in result.rows
    assert result.rows[2][:2] == page.rows[0][:2], "with the report of the run"
    critical = shown["mini"].critical(X)
    rows = _read(critical).rows
    assert [row[:2] for row in rows[1 : 1 + sum(map(bool, critical.path.values()))]] == [
        [name, f"{cycles:,}"] for name, cycles in critical.path.items() if cycles
    ]


@pytest.mark.parametrize("name", ["why", "why_mini"])
def test_a_notebook_shows_decisions(name: str, shown: dict[str, Any]) -> None:
    page = _read(shown[name])
    assert ["kernel", shown[name].kernel] in page.rows
    assert shown[name].text() in page.said


def test_a_notebook_shows_a_run_in_a_frame_of_its_own(shown: dict[str, Any]) -> None:
    trace = shown["mini"].trace(X)
    assert _read(trace).frames == [trace.html()]


def test_times_stand_right_on_one_line(shown: dict[str, Any]) -> None:
    assert _TIME.findall(notebook.table(("a",), [(notebook.Time(0.137),)])) == ["137 ns"]
    report = shown["simulated"].report
    assert len(_TIME.findall(report._repr_html_())) == len(report.subops)


def test_names_are_text_in_a_notebook() -> None:
    b = sk.GraphBuilder("<b>&amp;")
    b.output(b.relu(b.input("<script>", (4,))), '"y"')
    kernel = sk.compile(b.graph(), threads=1)
    assert [row[1] for row in _read(kernel).rows] == ["name", "<script>", '"y"']
    page = _read(kernel.report(rounds=0))
    assert page.said.startswith("<b>&amp;: 1 node")


SUBINTERPRETER = r"""
import sys, {module} as interpreters
other = interpreters.create()
code = f"import sys; sys.path[:] = {{sys.path!r}}\ntry: import superkernel\nexcept ImportError as e: said = str(e)"
failed = interpreters.run_string(other, code + "\nassert 'subinterpreter (hint: use a thread' in said")
assert failed is None, "newer Pythons return what older ones raise"
interpreters.destroy(other)
"""


def test_an_import_in_a_subinterpreter_is_refused() -> None:
    """The extension module would hang there: mod_wsgi, for one, runs applications so unless told otherwise. In a
    process of its own: torch computes no gradients where there was a subinterpreter, which ends checks of the GIL."""
    module = "_xxsubinterpreters" if sys.version_info < (3, 13) else "_interpreters"
    pytest.importorskip(module)
    run = [sys.executable, "-c", SUBINTERPRETER.format(module=module)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


ANYWHERE = """
import sys, os
import numpy as np
import superkernel as sk
b = sk.GraphBuilder("größe")
b.output(b.relu(b.input("ξ", (4, 8)) @ b.constant(np.eye(8, 300, dtype=np.float32))), "y")
for target in ("host", "mini"):
    kernel = sk.compile(b.graph(), target)
    kernel(np.ones((4, 8), np.float32))
    kernel.save(f"{sys.argv[1]}/k.{target}")
    kernel.trace().save(f"{sys.argv[1]}/run.html")
    kernel.trace().save(f"{sys.argv[1]}/run.json")
sk.load(f"{sys.argv[1]}/k.host").report(rounds=1)
"""


@pytest.mark.parametrize("optimised", [[], ["-OO"]], ids=["", "-OO"])
def test_nothing_depends_on_the_locale_or_on_assertions(optimised: list[str], tmp_path: Path) -> None:
    """With warnings as errors, in a locale without anything but ASCII, with names that have more."""
    flags = ["-W", "error", "-X", "dev", "-X", "warn_default_encoding", "-X", "utf8=0", *optimised]
    locale = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "SK_TRACE": str(tmp_path / "stages.json")}
    environment = {**os.environ, **locale, "SK_CACHE_DIR": str(tmp_path / "cache")}
    script, folder = tmp_path / "script.py", tmp_path / "made"
    script.write_text(ANYWHERE, "utf-8")
    folder.mkdir()
    command = [sys.executable, *flags, str(script), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8")
    assert (done.returncode, done.stderr) == (0, "")
    assert {p.name for p in folder.iterdir()} == {"k.host", "k.mini", "run.html", "run.json"}
    assert (tmp_path / "stages.json").exists()
