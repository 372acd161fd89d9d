"""Progress: a line on a terminal for long compilations, nothing anywhere else."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys

import pytest

from superkernel.compilation.progress import Progress

CODE = """
import superkernel.compilation.progress as p
p.SILENT_SECONDS = {delay}
progress = p.Progress()
progress.update("compiling kernels", 1, 4)
progress.update("compiling kernels", 2, 4)
progress.close()
progress.update("after", 1, 1)
print("done")
"""


def _run_on_terminal(delay: float) -> str:
    """What appears on stderr where that is a terminal."""
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(
        [sys.executable, "-c", CODE.format(delay=delay)], stdout=subprocess.PIPE, stderr=follower, env=environment
    )
    os.close(follower)
    seen = b""
    while True:
        try:
            part = os.read(leader, 4096)
        except OSError:  # the other end is closed
            break
        if not part:
            break
        seen += part
    os.close(leader)
    assert process.communicate(timeout=120)[0] == b"done\n"
    assert process.returncode == 0
    return seen.decode()


def test_a_terminal_sees_what_is_being_done() -> None:
    assert "compiling kernels" in _run_on_terminal(0)


def test_short_compilations_show_nothing() -> None:
    assert _run_on_terminal(60) == ""


class Writer:
    """What a program may have put in the place of stderr."""

    def write(self, text: str) -> None:
        pytest.fail(f"written: {text}")


@pytest.mark.parametrize("kind", ["none", "closed", "no stream"])
def test_where_there_is_no_stderr(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """None stands there where a process was started without."""
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", {"none": None, "closed": closed, "no stream": Writer()}[kind])
    progress = Progress()
    progress.update("compiling kernels", 1, 4)
    progress.close()


def test_a_pipe_sees_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", CODE.format(delay=0)], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout == "done\n"
