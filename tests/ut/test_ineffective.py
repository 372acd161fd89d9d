"""Options that change nothing on a target are named; files of the wrong kind are told apart."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import superkernel as sk
from superkernel.cli import main
from superkernel.core.option import ACCELERATOR, HOST
from superkernel.core.options import OPTIONS, Options
from superkernel.frontends.json_form import save_json
from superkernel.ir.graph import Graph

GIVEN: dict[str, Any] = {"scopes": ("s:*",), "watchdog_ms": 5.0}
OTHER: dict[str, Any] = {
    o.name: GIVEN.get(o.name) or next(value for value in o.values if value != o.default)
    for o in OPTIONS.values()
    if o.idle
}


def _graph() -> Graph:
    b = sk.GraphBuilder("tiny")
    b.output(b.relu(b.input("x", (4, 32))), "y")
    return b.graph()


def test_further_kinds_of_targets_say_what_has_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OPTIONS, "streams", replace(OPTIONS["streams"], idle={"toy": "cores take turns"}))
    assert Options(streams="off").without_effect("toy") == ("streams='off' has no effect on toy: cores take turns",)
    assert Options(streams="off").without_effect(HOST) == ()


@pytest.mark.parametrize("name", OTHER)
@pytest.mark.parametrize("target", ["host", "mini"])
def test_it_is_named_where_it_has_no_effect_and_nowhere_else(target: str, name: str) -> None:
    kind = HOST if target == "host" else ACCELERATOR
    idle = kind not in OPTIONS[name].targets
    found = Options.of({name: OTHER[name]}).without_effect(kind)
    assert [text.partition("=")[0] for text in found] == ([name] if idle else [])
    if not idle:
        return
    plain, given = (sk.compile(_graph(), target=target, options=o) for o in ({}, {name: OTHER[name]}))
    assert given.summary()["options_without_effect"] == list(found)
    assert plain.summary()["options_without_effect"] == []
    assert f"option: {name}=" in str(given.explain("y"))
    assert given.stage_text("plan") == plain.stage_text("plan")


def _convolution() -> Graph:
    b = sk.GraphBuilder("convolution")
    weights = np.random.default_rng(0).standard_normal((16, 16, 3, 3), dtype=np.float32)
    b.output(b.relu(b.conv(b.input("x", (1, 16, 12, 12)), b.constant(weights), pads=(1, 1, 1, 1))), "y")
    return b.graph()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"pin": ("*conv.nhwc_bf16",), "precision": "bf16"},
            [
                r"pin='\*conv.nhwc_bf16' has no effect on this graph: host.conv.nhwc_bf16 does not fit '.*': "
                r"layout: layout must be channels_last, is row_major$",
                r"precision='bf16' has no effect on this graph: no product is computed in it",
            ],
        ),
        ({"pin": ("host.attention*",)}, [r"pin='host.attention\*' .*: it has no sub-operator of the kind$"]),
        (
            {"pin": ("host.conv.*", "host.conv.generic")},
            [r"pin='host.conv.generic' .*: host.conv.\w+ is preferred for '"],
        ),
        ({"pin": ("host.conv*",)}, []),
    ],
)
def test_kernels_and_formats_that_compute_nothing_are_named(options: dict[str, Any], said: list[str]) -> None:
    kernel = sk.compile(_convolution(), threads=1, options=options)
    found = kernel.summary()["options_without_effect"]
    assert len(found) == len(said)
    assert all(re.search(pattern, text) for pattern, text in zip(said, found, strict=True)), found
    assert all(text in str(kernel.explain("y")) for text in found)


def test_formats_and_pins_in_force_are_not_named() -> None:
    b = sk.GraphBuilder("product")
    weights = np.random.default_rng(0).standard_normal((256, 512), dtype=np.float32)
    b.output(b.matmul(b.input("x", (64, 256)), b.constant(weights)), "y")
    kernel = sk.compile(b.graph(), threads=1, options={"precision": "bf16", "pin": ("host.matmul.bf16",)})
    assert kernel.summary()["computed_in"].get("bf16") == 1
    assert kernel.summary()["options_without_effect"] == []


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
