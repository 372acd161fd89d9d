"""`superkernel sim run` tells programs of the accelerator from plain ones."""

from __future__ import annotations

from pathlib import Path

import pytest

import superkernel as sk
from superkernel.cli import main


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    b = sk.GraphBuilder("small")
    b.output(b.relu(b.input("x", (64, 64))), "y")
    path: Path = tmp_path_factory.mktemp("program") / "small.elf"
    sk.compile(b.graph(), target="mini").save(path)
    return str(path)


def test_it_runs_on_its_target(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "run", program, "--target", "mini"]) == 0
    assert capsys.readouterr().out.startswith("PASS: ")


def test_it_is_refused_without_a_target(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It would wait for its engines for ever."""
    assert main(["sim", "run", program]) == 2
    assert "--target" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [["--harts", "2"], ["--memory", "4096"], ["--memory-base", "0"], ["--quantum", "9"], ["--icache", "4096"]]
)
def test_what_the_target_says_cannot_be_given(
    words: list[str], program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sim", "run", program, "--target", "mini", *words]) == 2
    assert words[0] in capsys.readouterr().err


def test_another_target_stops_it(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim", "run", program, "--target", "a3"]) == 2
    assert "--target must name what the program was compiled for" in capsys.readouterr().err
