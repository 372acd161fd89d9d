"""Sweeps: every point once, kept as it comes, taken up again where it stopped."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import Executor, Future
from contextlib import suppress
from pathlib import Path
from typing import Any

import models
import pytest

import superkernel as sk
from superkernel.analysis.sweeping import FIGURES, SweepRow, TargetSweep, graph_digest, sweep
from superkernel.cli import main
from superkernel.display.scatter import ScatterPoint, scatter_page
from superkernel.frontends.json_form import save_json
from superkernel.target.aicore import load_target
from superkernel.target.schema import Value


class Inline(Executor):
    """Runs points here, and stops as one who presses Ctrl-C after so many."""

    def __init__(self, most: int = 1000) -> None:
        self.most, self.run = most, 0

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        if self.run == self.most:
            raise KeyboardInterrupt
        self.run += 1
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


def grid(**more: Any) -> TargetSweep:
    """3 x 3 x 3 points on the smallest target."""
    fields: dict[str, list[Value]] = {"device.groups": [1, 2, 4], "hbm.rate_gb_per_s": [200.0, 800.0, 1700.0]}
    options = {"sync": ["minimal", "type-range", "full"]}
    graph = models.mlp((32, 48, 16))
    return sweep({"mlp": graph}, [load_target("mini")], fields=fields, options=options, **more)


def test_an_interrupted_sweep_goes_on_where_it_stopped(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    first = Inline(10)
    with pytest.raises(KeyboardInterrupt):
        grid(file=file, executor=first)
    with file.open("a") as out:
        out.write('{"key": "cut o')
    second = Inline()
    found = grid(file=file, executor=second)
    assert len(found.rows) == 27
    assert first.run + second.run == 27
    assert all(row.error is None and row.cycles for row in found.rows)
    again = grid(file=file, executor=Inline(0))
    assert again.rows == found.rows
    assert (found.kept, again.kept) == (10, 27)
    one = sk.compile(models.mlp((32, 48, 16)), target="mini", options={"sync": "full"}).report(rounds=0)
    (same,) = (
        r
        for r in found.rows
        if r.fields == {"device.groups": 2, "hbm.rate_gb_per_s": 1700.0} and r.options == {"sync": "full"}
    )
    assert isinstance(one, sk.SimReport)
    assert (same.cycles, same.time_us) == (one.cycles, one.time_us)
    text = found.text(found.pareto("device.groups", "time_us"))
    assert text.splitlines()[0].split() == [
        "model",
        "target",
        "device.groups",
        "hbm.rate_gb_per_s",
        "sync",
        "cycles",
        "us",
    ]
    assert sum(line.startswith("*") for line in text.splitlines()) >= 1


def test_the_command_runs_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, rows = str(tmp_path / "m.json"), str(tmp_path / "rows.jsonl")
    save_json(models.mlp((32, 48, 16)), model)
    words = ["sweep", model, "--target", "mini", "--field", "device.groups=1,2", "--option", "sync=minimal,full"]
    shown = tmp_path / "sweep.html"
    words += ["--file", rows, "--workers", "2", "--pareto", "device.groups,cycles", "--html", str(shown), "--json"]
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kept"] == 0
    assert [(r["fields"]["device.groups"], r["options"]["sync"]) for r in found["rows"]] == [
        (1, "minimal"), (1, "full"), (2, "minimal"), (2, "full"),
    ]  # fmt: skip
    assert all(r["error"] is None and r["time_us"] > 0 for r in found["rows"])
    assert found["best"]
    html = shown.read_text()
    assert html.count("<circle") == html.count("<tr") - 1 == 4
    assert html.count('<tr class="best"') == len(found["best"])
    assert re.search(r"src=|href=|url\(|@import", html) is None  # nothing from elsewhere
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out) == {**found, "kept": 4}
    assert main([*words[:-1], "--option", "split=1"]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[-1] == "4 points, 0 of them known already"
    assert "mini" in text
    assert "*" in text


def test_a_sweep_that_is_killed_leaves_its_rows_and_no_worker(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, rows = str(tmp_path / "m.json"), tmp_path / "rows.jsonl"
    save_json(models.mlp((32, 48, 16)), model)
    words = ["sweep", model, "--target", "mini", "--field", "device.groups=1,2,4", "--option", "sync=minimal,full"]
    words += ["--file", str(rows), "--workers", "1", "--json"]
    process = subprocess.Popen([sys.executable, "-m", "superkernel", *words], stdout=subprocess.PIPE)
    while process.poll() is None and not (rows.exists() and rows.read_bytes().count(b"\n")):
        time.sleep(0.01)
    process.kill()
    process.communicate(timeout=120)  # the pipe is closed when the worker, which has it too, has ended
    kept = rows.read_bytes().count(b"\n")
    assert main(words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kept"] == kept >= 1
    assert len(found["rows"]) == 6
    assert all(r["error"] is None for r in found["rows"])


INTERRUPTIBLE = """
import runpy, signal

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that runs the tests behind it has it ignored
runpy.run_module("superkernel", run_name="__main__", alter_sys=True)
"""


@pytest.mark.parametrize("later_s", [0.0, 0.3, 0.6])
def test_a_sweep_that_is_interrupted_twice_ends_and_leaves_no_worker(tmp_path: Path, later_s: float) -> None:
    """As by Ctrl-C, which all its processes hear of: while workers begin, or work."""
    model = str(tmp_path / "m.json")
    save_json(models.mlp((32, 48, 16)), model)
    words = ["sweep", model, "--target", "mini", "--field", f"hbm.rate_gb_per_s={','.join(map(str, range(400, 460)))}"]
    words += ["--file", str(tmp_path / "rows.jsonl"), "--workers", "2"]
    command = [sys.executable, "-c", INTERRUPTIBLE, *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while process.poll() is None and len(children.read_text().split()) < 3:  # with the one that tracks resources
        time.sleep(0.01)
    time.sleep(later_s)
    for _ in range(2):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.05)
    process.communicate(timeout=60)  # the pipe is closed when the workers, which have it too, have ended
    assert process.returncode != 0


def test_what_cannot_be_is_a_row_that_says_so() -> None:
    found = sweep(
        {"mlp": models.mlp((32, 48, 16))},
        [load_target("mini")],
        fields={"device.vector_cores": [4, 5]},
        executor=Inline(),
    )
    assert found.rows[0].error is None
    assert "not groups x vector_cores_per_group" in (found.rows[1].error or "")
    assert "not groups x" in found.text()
    assert found.pareto("cycles", "time_us") == (found.rows[0],)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--field", "l2.nothing=1"], "no such field of a target"),
        (["--field", "l2.banks"], "not of the form"),
        (["--option", "sync=best"], "sync"),
        (["--pareto", "cycles"], "not two figures"),
        (["--pareto", "cycles,cost"], "no such figure"),
        (["--workers", "0"], "not a number of processes"),
        (["--target", "a4"], "unknown target"),
        (["--file", "."], "cannot keep rows"),
        (["--file", "README"], "not a file of a sweep's rows"),
        (["--file", "one-line.json"], "not a file of a sweep's rows"),
        (["--file", "binary"], "not a file of a sweep's rows"),
    ],
    ids=str,
)
def test_mistakes_are_named(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = {"README": b"something\nelse\n", "one-line.json": b'{"other": 1}', "binary": b"\xff\xfe\0"}
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
    save_json(models.mlp((32, 48, 16)), "m.json")
    target = [] if "--target" in words else ["--target", "mini"]
    assert main(["sweep", "m.json", *target, *words]) in (2, 4)
    assert message in capsys.readouterr().err
    assert {name: (tmp_path / name).read_bytes() for name in files} == files


def test_the_best_are_those_that_no_other_one_beats() -> None:
    rows = tuple(
        SweepRow(model, "t", {"device.groups": groups}, {}, cycles=cycles, time_us=float(cycles))
        for model, groups, cycles in (("a", 1, 9), ("a", 2, 5), ("a", 4, 5), ("a", 3, 4), ("a", 1, 9), ("b", 4, 9))
    )
    found = TargetSweep(rows, 0).pareto("device.groups", "cycles")
    assert found == (rows[0], rows[1], rows[3], rows[4], rows[5])


@pytest.mark.parametrize("values", [[], [(1.0, 2.0)], [(1.0, 5.0), (2.0, 5.0)], [(0.0, 1.0), (3.0, 900.0), (1.0, 2.0)]])
def test_plots_of_few_points(values: list[tuple[float, float]]) -> None:
    points = [ScatterPoint(f"<{i}>", x, y, i == 0, ("a", "<b>")) for i, (x, y) in enumerate(values)]
    html = scatter_page("A & B", ("x", "y"), ("one", "two"), [("m", points)])
    at = [(float(x), float(y)) for x, y in re.findall(r'cx="([^"]+)" cy="([^"]+)"', html)]
    assert len(at) == len(values)
    assert all(70 <= x <= 700 and 24 <= y <= 334 for x, y in at)
    assert len(set(at)) == len(values)
    assert "<b>" not in html
    assert "A &amp; B" in html
    assert ("(logarithmic)" in html) == (len(values) == 3)


def test_digests_differ_where_graphs_do() -> None:
    one, same, other = (models.mlp((32, 48, 16), seed=seed) for seed in (0, 0, 1))
    assert graph_digest(one) == graph_digest(same) != graph_digest(other)
    assert set(FIGURES) <= set(SweepRow.__dataclass_fields__)
