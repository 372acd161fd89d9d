"""The simulator for timing only and for the function only: the same cycles, the same bits, and what each cannot do."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import aicore_systems
import models
import numpy as np
import pytest

import superkernel as sk
from superkernel import cli
from superkernel.backends.aicore.compiled import AicoreCompiled
from superkernel.backends.aicore.report import SimReport
from superkernel.core.errors import InputError, UnsupportedError
from superkernel.reference.random_inputs import random_inputs

MODES = ("both", "timing", "functional")


def chosen_rows() -> sk.Graph:
    """Rows of a table chosen by the largest of what a product gives: where they lie depends on data."""
    rng = np.random.default_rng(0)
    b = sk.GraphBuilder("chosen")
    scores = b.input("x", (8, 64), "f16") @ b.constant(rng.standard_normal((64, 96)).astype(np.float16))
    table = b.constant(rng.standard_normal((96, 64)).astype(np.float16))
    b.output(b.gather(table, b.argmax(scores, axis=1, keepdims=False), axis=0), name="y")
    return b.graph()


GRAPHS: dict[str, Callable[[], sk.Graph]] = {
    "mlp": lambda: models.mlp(batch=4),
    "fused": aicore_systems.fused_model,
    "chosen rows": chosen_rows,
}


@cache
def kernel(name: str, mode: str) -> sk.Kernel:
    return sk.compile(GRAPHS[name](), target="mini", options={"simulation": mode})


def inputs(name: str) -> dict[str, Any]:
    return random_inputs(kernel(name, "both").inputs, 3)


@pytest.mark.parametrize("name", GRAPHS)
def test_a_functional_run_computes_the_same_bits(name: str) -> None:
    whole = kernel(name, "both").run(inputs(name))
    function = kernel(name, "functional").run(inputs(name))
    assert whole.report is not None
    assert function.report is None
    assert {n: a.tobytes() for n, a in function.outputs.items()} == {n: a.tobytes() for n, a in whole.outputs.items()}
    called = kernel(name, "functional")(**inputs(name))
    assert (called if isinstance(called, tuple) else (called,))[0].tobytes() == next(
        iter(whole.outputs.values())
    ).tobytes()


@pytest.mark.parametrize("name", ["mlp", "fused"])
def test_a_timing_run_takes_the_same_cycles(name: str) -> None:
    """All of a report but for the mode."""
    whole, timing = (kernel(name, mode).report(inputs(name), rounds=1).to_json() for mode in ("both", "timing"))
    assert timing.pop("simulation") == "timing"
    assert whole.pop("simulation") == "both"
    assert timing["data_dependent"] == ()
    assert timing == whole
    assert kernel(name, "timing").time(inputs(name), rounds=1) == kernel(name, "both").time(inputs(name), rounds=1)


def test_reports_say_where_cycles_may_depend_on_data() -> None:
    report = reported(kernel("chosen rows", "timing"), inputs("chosen rows"))
    gathers = [s.name for s in _compiled(kernel("chosen rows", "timing")).schedule.subops if s.body.op == "gather"]
    assert gathers
    assert set(gathers) <= set(report.data_dependent)
    assert f"cycles may depend in: {', '.join(report.data_dependent)}" in report.text()
    assert "simulated, timing only" in report.text()
    trace = kernel("chosen rows", "both").trace(inputs("chosen rows"))
    assert any(note.endswith(f"cycles may depend in: {', '.join(report.data_dependent)}") for note in trace.notes)
    assert reported(kernel("chosen rows", "both"), inputs("chosen rows")).data_dependent == ()


def test_data_is_computed_where_tilings_depend_on_it() -> None:
    b = sk.GraphBuilder("grouped")
    sizes = b.input("sizes", (4,), "i64")
    weights = b.constant(np.ones((4, 32, 32), np.float16))
    b.output(b.grouped_matmul(b.input("x", (64, 32), "f16"), weights, sizes))
    given = {"sizes": np.array([40, 0, 20, 4]), "x": np.ones((64, 32), np.float16)}
    whole, timing = (
        reported(sk.compile(b.graph(), target="mini", options={"simulation": mode}), given)
        for mode in ("both", "timing")
    )
    assert timing.cycles == whole.cycles
    assert timing.needed_data
    assert "data was computed, as tilings depend on it: " in timing.text()
    trace = sk.compile(b.graph(), target="mini").trace(given)
    assert any(note.startswith("simulated for timing, with data, as tilings depend on it: ") for note in trace.notes)


def test_a_timing_run_packs_no_constants() -> None:
    """What is made when somebody asks for it stays; nobody asks for what engines read."""
    for mode, made in (("timing", False), ("both", True)):
        fresh = sk.compile(models.mlp(batch=4), target="mini", options={"simulation": mode})
        fresh.report(rounds=0)
        packed = [part for part in _compiled(fresh).image.data if part.pack is not None]
        assert packed
        assert {"data" in vars(part) for part in packed} == {made}


def test_what_a_mode_cannot_do_is_refused() -> None:
    given = inputs("mlp")
    timing, functional = kernel("mlp", "timing"), kernel("mlp", "functional")
    for call in (lambda: timing(**given), lambda: timing.run(given), lambda: timing.run(given, delays=1)):
        with pytest.raises(UnsupportedError, match="for timing only computes no outputs"):
            call()
    for call in (
        lambda: functional.report(given), lambda: functional.time(given), lambda: functional.trace(given),
        lambda: functional.critical(given), lambda: functional.run(given, profile=True),
    ):  # fmt: skip
        with pytest.raises(UnsupportedError, match="of the function only has no cycles") as caught:
            call()
        assert caught.value.violations[0].location == "option 'simulation'"
    assert timing.run(given, executor="reference").outputs.keys() == functional.run(given).outputs.keys()
    assert "simulated for timing only" in timing.trace(given).notes
    assert "(simulated for timing only): " in timing.critical(given, confirm=0).text()
    with pytest.raises(InputError, match="timing, functional"):
        sk.compile(models.mlp(batch=4), target="mini", options={"simulation": "fast"})


def test_delays_change_no_bit_of_a_functional_run() -> None:
    given = inputs("fused")
    plain, late = (kernel("fused", "functional").run(given, delays=seed).outputs for seed in (0, 5))
    assert {n: a.tobytes() for n, a in plain.items()} == {n: a.tobytes() for n, a in late.items()}


def test_saved_programs_run_in_each_mode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(tmp_path / "mlp.elf")
    kernel("mlp", "both").save(path)
    found = {}
    for mode in MODES:
        assert cli.main(["sim", "run", path, "--simulation", mode, "--json"]) == 0
        found[mode] = json.loads(capsys.readouterr().out)
        assert found[mode].pop("simulation") == mode
    assert found["timing"] == found["both"]
    assert found["functional"] == {"succeeded": True, "instructions": found["functional"]["instructions"]}
    assert cli.main(["sim", "run", path, "--simulation", "timing"]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("instructions (timing only)")
    assert cli.main(["sim", "run", path, "--simulation", "functional"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("PASS: ")
    assert line.endswith("(functional only)")
    assert "cycles" not in line


def test_a_saved_program_says_where_cycles_may_depend_on_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tmp_path / "chosen.elf")
    kernel("chosen rows", "both").save(path)
    assert cli.main(["sim", "run", path, "--simulation", "timing"]) == 0
    assert "no data was computed, on which cycles may depend in: " in capsys.readouterr().out


def reported(compiled: sk.Kernel, given: dict[str, Any]) -> SimReport:
    report = compiled.report(given, rounds=0)
    assert isinstance(report, SimReport)
    return report


def _compiled(compiled: sk.Kernel) -> AicoreCompiled:
    found = compiled._compiled
    assert isinstance(found, AicoreCompiled)
    return found
