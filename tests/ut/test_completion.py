"""Scripts of `superkernel completion`: what bash itself proposes, and that no command or argument is left out."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from superkernel.cli import _parser, main
from superkernel.cli.completion import SHELLS, completion
from superkernel.core.options import OPTIONS

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")


def proposed(*words: str) -> set[str]:
    """What bash proposes for the last of the words."""
    line = " ".join(f"'{word}'" for word in ("superkernel", *words))
    ask = f"COMP_WORDS=({line}); COMP_CWORD={len(words)}; _superkernel; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    script = completion(_parser(), "bash") + ask
    done = subprocess.run(["bash", "--norc", "-c", script], capture_output=True, text=True, check=True, cwd="/")
    assert done.stderr == ""
    return set(done.stdout.split())


@needs_bash
def test_what_bash_proposes() -> None:
    assert {"report", "run", "ablate", "completion"} <= proposed("")
    assert proposed("rep") == {"report"}
    assert {"--html", "--rounds", "--json"} <= proposed("report", "model.onnx", "--")
    assert "--html" not in proposed("compile", "--")
    assert proposed("run", "m.onnx", "--executor", "") == {"host", "sim", "qemu", "reference"}
    assert proposed("compile", "m.onnx", "--option", "") == {f"{name}=" for name in OPTIONS}
    assert {"list", "explain", "dump"} <= proposed("kernels", "")
    assert "--op" in proposed("kernels", "list", "--")
    assert proposed("completion", "") >= set(SHELLS)


@pytest.mark.parametrize("shell", SHELLS)
def test_the_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for word in ("report", "ablate", "quantise", "html", "sensitivity", "reference"):
        assert word in script


def test_an_unknown_shell_is_refused() -> None:
    assert main(["completion", "csh"]) == 2
