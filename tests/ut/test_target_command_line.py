"""`superkernel target list | show | check`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from superkernel.cli import main
from superkernel.target.aicore import load_target, parse_target


def run(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> str:
    assert main(["target", *words]) == status
    captured = capsys.readouterr()
    return captured.out if status == 0 or "--json" in words else captured.err


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "list").splitlines()[1].startswith("a3      24 cube and 48 vector")
    assert [(t["name"], t["cores"]) for t in json.loads(run(capsys, "list", "--json"))] == [
        ("a2", 60),
        ("a3", 72),
        ("mini", 6),
    ]


def test_show(capsys: pytest.CaptureFixture[str]) -> None:
    assert "icache.miss_latency_cycles" in run(capsys, "show", "a3")
    assert json.loads(run(capsys, "show", "a2", "--json"))["fields"]["device.clock_mhz"]["value"] == 1500
    assert parse_target(run(capsys, "show", "mini", "--toml")) == load_target("mini")
    assert "did you mean 'a3'" in run(capsys, "show", "a33", status=2)
    assert "exclude one another" in run(capsys, "show", "a3", "--toml", "--json", status=2)


def test_check(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('schema_version = 1\nname = "own"\nbase = "mini"\n[icache]\nways = 2\n')
    assert "own: 6 cores" in run(capsys, "check", str(path))
    assert json.loads(run(capsys, "check", str(path), "--json"))["origins"]["user"] == 1
    path.write_text('schema_version = 1\nname = "own"\nbase = "mini"\n[icache]\nways = 3\nlines = 2\n')
    said = run(capsys, "check", str(path), status=2)
    assert "2 problems" in said
    assert "did you mean" in said
    error = json.loads(run(capsys, "check", str(path), "--json", status=2))
    assert (error["category"], len(error["violations"])) == ("user", 2)
