"""Snapshots held against each other: nothing where nothing changed, and each kind of change found, over its limit and
within it."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import superkernel as sk
from superkernel.analysis.canary import Limits, Snapshot, compare, read, take, ulps_apart, write
from superkernel.cli import main
from superkernel.frontends.json_form import save_json
from superkernel.ir.graph import Graph
from superkernel.reference.random_inputs import random_inputs


def _graph() -> Graph:
    b = sk.GraphBuilder("guarded")
    weights = np.random.default_rng(0).standard_normal((32, 16), dtype=np.float32)
    b.output(b.softmax(b.matmul(b.input("x", (4, 32)), b.constant(weights)), axis=-1), "y")
    return b.graph()


def _snapshot(target: str = "mini", **options: Any) -> Snapshot:
    graph = _graph()
    return take(sk.compile(graph, target=target, options=options), random_inputs(graph.inputs, 0), rounds=5)


@pytest.fixture(scope="module")
def old() -> Snapshot:
    return _snapshot()


def _changed(snapshot: Snapshot, path: str, value: Any) -> Snapshot:
    """The snapshot with another value at a path of keys."""
    found: Any = copy.deepcopy(dict(snapshot))
    *keys, last = [int(key) if key.isdecimal() else key for key in path.split(".")]
    place = found
    for key in keys:
        place = place[key]
    place[last] = value
    result: Snapshot = found
    return result


def test_nothing_changed(old: Snapshot, tmp_path: Path) -> None:
    write(old, tmp_path / "old.json")
    canary = compare(read(tmp_path / "old.json"), _snapshot())
    assert (canary.ok, canary.changes, canary.text()) == (True, (), "no difference")
    canary.check()


def test_a_snapshot_of_the_host_holds_what_it_computes() -> None:
    graph = _graph()
    inputs = random_inputs(graph.inputs, 0)
    kernel = sk.compile(graph)
    one = take(kernel, inputs, rounds=5)
    assert one["repeatable"]
    assert 0 < one["launch"]["low_ns"] <= one["launch"]["median_ns"] <= one["launch"]["high_ns"]
    assert [use["kernel"] for use in one["kernels"]] == [sub.kernel for sub in kernel._compiled.schedule.subops]
    again = {**one, "launch": one["launch"]}
    assert compare(one, again).changes == ()


def test_other_kernels_and_outputs_are_found() -> None:
    """By the registry's choice, not by hand: the generic kernel, and less precision."""
    one, generic = _snapshot("host"), _snapshot("host", deny=("host.matmul.gemv", "host.matmul.packed"))
    found = compare(one, generic, Limits(ulps=64, slower=1e9, memory=1e9))
    assert {change.kind for change in found.changes} >= {"environment", "kernel"}
    assert not compare(one, generic, Limits(ulps=64, slower=1e9, memory=1e9, kernels=False)).ok
    full, narrow = _snapshot("mini", precision="f32"), _snapshot("mini", precision="bf16")
    canary = compare(full, narrow, Limits(slower=1e9, memory=1e9))
    assert any(change.kind == "output" and change.over_limit for change in canary.changes)
    with pytest.raises(sk.OutputChangedError, match="y: output over its limit"):
        canary.check()
    assert compare(full, narrow, Limits(tolerance=0.1, slower=1e9, memory=1e9)).ok


@pytest.mark.parametrize(
    ("path", "value", "kind", "error", "allowed"),
    [
        ("launch", {"median_ns": 9e9, "low_ns": 9e9, "high_ns": 9e9}, "latency", sk.RegressionError, {"slower": 1e9}),
        ("memory.arena_bytes", 1 << 40, "memory", sk.RegressionError, {"memory": 1e12}),
        ("kernels.0.role", "reference", "fallback", sk.RegressionError, None),
        ("kernels.0.determinism", "run-to-run", "promise", sk.OutputChangedError, None),
        ("repeatable", False, "promise", sk.OutputChangedError, None),
        ("kernels.0.row", "another", "kernel", None, {}),
        ("package", "9.9", "environment", None, {}),
    ],
)
def test_each_kind_of_change(
    old: Snapshot, path: str, value: Any, kind: str, error: type[Exception] | None, allowed: dict[str, Any] | None
) -> None:
    new = _changed(old, path, value)
    canary = compare(old, new)
    assert kind in {change.kind for change in canary.changes}
    assert canary.ok == (error is None)
    if error is not None:
        with pytest.raises(error) as caught:
            canary.check()
        assert type(caught.value) is error
    if allowed is not None:
        assert compare(old, new, Limits(**allowed)).ok


def test_noise_makes_no_regression(old: Snapshot) -> None:
    def timed(low: float, high: float) -> Snapshot:
        return _changed(old, "launch", {"median_ns": (low + high) / 2, "low_ns": low, "high_ns": high})

    assert compare(timed(100, 200), timed(190, 400)).changes == ()
    assert compare(timed(100, 200), timed(205, 400)).ok
    assert not compare(timed(100, 200), timed(250, 400)).ok
    elsewhere = _changed(timed(250, 400), "target", ["another", "machine", "", "2"])
    assert compare(timed(100, 200), elsewhere).ok


def test_distances_in_units_of_the_last_place() -> None:
    for kind in (np.float16, np.float32, np.float64):
        one = np.array([1.0, -0.0, 0.0, np.nan, np.inf], kind)
        assert ulps_apart(one, one) == 0
        assert ulps_apart(one, np.array([np.nextafter(kind(1), kind(2)), 0.0, -0.0, np.nan, np.inf], kind)) == 1
        assert ulps_apart(one, np.array([1.0, 0.0, 0.0, 0.0, np.inf], kind)) == np.inf
        tiny = np.finfo(kind).smallest_subnormal
        assert ulps_apart(np.array([tiny], kind), np.array([-tiny], kind)) == 2
    assert ulps_apart(np.array([3], np.int8), np.array([-4], np.int8)) == 7


def test_what_is_no_snapshot_is_refused(old: Snapshot, tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    with pytest.raises(sk.InputError, match="cannot read"):
        read(path)
    for text in ("", "[]", "{}", json.dumps({**old, "schema": "superkernel.snapshot/9"})):
        path.write_text(text)
        with pytest.raises(sk.FileFormatError):
            read(path)
    write(_changed(old, "outputs.y.data", "AAAA"), path)
    with pytest.raises(sk.FileFormatError, match="damaged"):
        read(path)
    with pytest.raises(sk.InputError, match="different inputs"):
        compare(old, _changed(old, "inputs.x", "0" * 64))
    with pytest.raises(sk.InputError, match="limit 'ulps'"):
        Limits(ulps=-1)


def test_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, one, two = (str(tmp_path / name) for name in ("m.json", "old.json", "new.json"))
    save_json(_graph(), model)
    for path, precision in ((one, "f32"), (two, "bf16")):
        words = ["snapshot", model, "--target", "mini", "--random-inputs", "0", "--option", f"precision={precision}"]
        assert main([*words, "-o", path, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["output"] == path
    assert main(["canary", one, one]) == 0
    assert capsys.readouterr().out == "no difference\n"
    loose = ["--slower", "1000000", "--memory", "1000000"]
    assert main(["canary", one, two, *loose]) == 1
    assert "OVER LIMIT output: y: bits -> " in capsys.readouterr().out
    assert main(["canary", one, two, *loose, "--tolerance", "0.1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"]
    assert main(["canary", one, two, *loose, "--tolerance", "0.1", "--same-kernels"]) == 1
    assert main(["canary", one, str(tmp_path / "gone.json")]) == 2
