"""The pages of the gallery: runs the commands that docs/gallery.md shows, in a folder, on a small model.

python docs/site/gallery.py FOLDER
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
from pathlib import Path

import numpy as np

import superkernel as sk
from superkernel.cli import main
from superkernel.frontends.json_form import save_json

GALLERY = Path(__file__).parents[1] / "gallery.md"
WIDTH, INNER = 64, 128


def block() -> sk.Graph:
    """One token through a feed-forward block."""
    rng = np.random.default_rng(0)
    first, second = (rng.standard_normal(s, np.float32) / np.float32(8) for s in ((WIDTH, INNER), (INNER, WIDTH)))
    b = sk.GraphBuilder("block")
    x = b.input("x", (1, WIDTH))
    h = b.layer_norm(x, b.constant(np.ones(WIDTH, np.float32)), b.constant(np.zeros(WIDTH, np.float32)))
    b.output(x + b.gelu(h @ b.constant(first)) @ b.constant(second), "y")
    return b.graph()


def commands() -> list[list[str]]:
    """The words of every command that the gallery shows."""
    blocks = re.findall(r"^```\n(.*?)^```$", GALLERY.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    lines = [line for text in blocks for line in text.splitlines()]
    return [shlex.split(line)[1:] for line in lines if line.startswith("superkernel ")]


def make(folder: Path) -> None:
    """Run them there. Raises RuntimeError where one fails."""
    folder.mkdir(parents=True, exist_ok=True)
    save_json(block(), folder / "model.json")
    before = Path.cwd()
    os.chdir(folder)
    try:
        for words in commands():
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                status = main(words)
            if status:
                raise RuntimeError(f"superkernel {shlex.join(words)} ended with {status}: {printed.getvalue()}")
    finally:
        os.chdir(before)
    for extra in folder.iterdir():
        if extra.suffix != ".html":
            extra.unlink()


if __name__ == "__main__":
    make(Path(sys.argv[1]))
