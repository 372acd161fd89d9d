"""What the README and the tutorial show as printed, as it is printed now.

    python docs/site/printed.py

Runs the tutorial's blocks and the README's example, and writes what they print in the place of what stands there. A
text of the tutorial with `...` in it is left alone: it varies with the machine. Tests hold both to the same.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from contextlib import chdir, redirect_stdout
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "accelerator.py"
_STEP = re.compile(r"^```python\n(.*?)^```\n(?:```text\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
_SHOWN = re.compile(r"(?<=^```text\n)decoder step.*?(?=^```$)", re.MULTILINE | re.DOTALL)


def tutorial(text: str) -> str:
    """The text with what its blocks print, run one after the other in the working directory."""
    namespace: dict[str, Any] = {"__name__": "tutorial"}

    def renewed(step: re.Match[str]) -> str:
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(compile(step[1], "docs/tutorial.md", "exec"), namespace)
        if step[2] is None or "..." in step[2]:
            return step[0]
        return f"```python\n{step[1]}```\n```text\n{printed.getvalue()}```\n"

    return _STEP.sub(renewed, text)


def readme(text: str, printed: str) -> str:
    """The text with the lines that the example prints for those that it shows: those with the same first two words."""
    lines = {tuple(line.split()[:2]): line for line in reversed(printed.splitlines())}

    def renewed(shown: re.Match[str]) -> str:
        return "".join(f"{lines[tuple(line.split()[:2])]}\n" for line in shown[0].splitlines())

    return _SHOWN.sub(renewed, text)


def main() -> int:
    """Both, written where they differ."""
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        command = [sys.executable, str(EXAMPLE)]
        ran = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), check=True)
        pages = {"README.md": lambda text: readme(text, ran.stdout), "docs/tutorial.md": tutorial}
        for name, renewed in pages.items():
            before = (ROOT / name).read_text(encoding="utf-8")
            if (after := renewed(before)) != before:
                (ROOT / name).write_text(after, encoding="utf-8")
                print(f"{name} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())
