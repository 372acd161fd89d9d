"""Prints what the extra `bench` of pyproject.toml asks for, one requirement per line: `make bench` installs each on its
own, so that one that cannot be had does not keep the others away."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path


def requirements() -> list[str]:
    """The requirements in their order."""
    with (Path(__file__).resolve().parent.parent / "pyproject.toml").open("rb") as file:
        return list(tomllib.load(file)["project"]["optional-dependencies"]["bench"])


if __name__ == "__main__":
    sys.stdout.write("\n".join(requirements()) + "\n")
