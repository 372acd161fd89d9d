"""Stands before the compiler and the linker where a wheel is built of sources that are those of `make build`, byte for
byte: `python built_already.py FOLDER COMMAND...`. A source goes through the preprocessor alone, which misses a header
as a compiler would; a library is copied from FOLDER, where the built ones lie."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path


def main(folder: str, *command: str) -> int:
    """The exit code of the preprocessor; 0 where a library was copied. FileNotFoundError where there is none."""
    place = command.index("-o") + 1
    if "-c" not in command:
        shutil.copy(Path(folder, Path(command[place]).name), command[place])
        return 0
    preprocess = ["-E" if word == "-c" else word for word in command]
    preprocess[place] = "/dev/null"
    Path(command[place]).touch()
    return subprocess.run(preprocess).returncode


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
