"""Options that change nothing on a target are named; files of the wrong kind are told apart."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import superkernel as sk
from superkernel.cli import main
from superkernel.frontends.json_form import save_json
from superkernel.graph import Graph
from superkernel.ineffective import ON_ACCELERATOR, ON_HOST, without_effect
from superkernel.options import Options

OTHER: dict[str, Any] = {
    "func_align": 64, "preload": "max", "split": 3, "launches": "single", "locality": "off", "scopes": ("s:*",),
    "strict_scope": "abort", "watchdog_ms": 5.0, "cost_placement": False,
}  # fmt: skip


def _graph() -> Graph:
    b = sk.GraphBuilder("tiny")
    b.output(b.relu(b.input("x", (4, 32))), "y")
    return b.graph()


def test_every_such_option_is_one() -> None:
    assert {*ON_HOST, *ON_ACCELERATOR} == {*OTHER}
    assert {*OTHER} <= {f.name for f in dataclasses.fields(Options)}


@pytest.mark.parametrize("name", OTHER)
@pytest.mark.parametrize("target", ["host", "mini"])
def test_it_is_named_where_it_has_no_effect_and_nowhere_else(target: str, name: str) -> None:
    idle = name in (ON_HOST if target == "host" else ON_ACCELERATOR)
    found = without_effect(Options.of({name: OTHER[name]}), host=target == "host")
    assert [text.partition("=")[0] for text in found] == ([name] if idle else [])
    if not idle:
        return
    plain, given = (sk.compile(_graph(), target=target, options=o) for o in ({}, {name: OTHER[name]}))
    assert given.summary()["options_without_effect"] == list(found)
    assert plain.summary()["options_without_effect"] == []
    assert f"option: {name}=" in str(given.explain("y"))
    assert given.stage_text("plan") == plain.stage_text("plan")


def test_a_program_runs_on_its_own_target_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "program.elf"
    sk.compile(_graph(), target="mini").save(path)
    assert main(["sim", "run", str(path), "--target", "mini"]) == 0
    assert main(["sim", "run", str(path), "--target", "a3"]) == 2
    said = capsys.readouterr().err
    assert "a program for another target: device.groups" in said
    assert "without --target it runs on what it was compiled for" in said
    assert main(["sim", "run", str(path)]) == 0


def test_a_run_names_its_executor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "tiny.json"
    save_json(_graph(), path)
    for target, executor in (("host", "host"), ("mini", "sim")):
        assert main(["run", str(path), "--target", target, "--random-inputs", "0", "--json"]) == 0
        said = json.loads(capsys.readouterr().out)
        assert said["executor"] == executor
        assert said["threads"] >= 1


def test_a_program_is_no_model_and_no_saved_kernel(tmp_path: Path) -> None:
    path = tmp_path / "program.elf"
    sk.compile(_graph(), target="mini").save(path)
    with pytest.raises(sk.InputError, match=r"not a model.*sim run PROGRAM runs it"):
        sk.compile(path)
    with pytest.raises(sk.FileFormatError, match=r"not a saved kernel.*sim run PROGRAM runs it"):
        sk.load(path)
