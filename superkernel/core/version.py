"""The version of the package, and what its sources say."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

__version__ = "0.1.0"


@cache
def sources_digest(*parts: str) -> str:
    """Of files and folders of the package (what lies in them, not below): another one where a source says something
    else, the same one wherever and whenever they were installed. What is generated from sources is kept under it."""
    root = Path(__file__).parents[1]
    digest = hashlib.sha256()
    for part in parts:
        path = root / part
        for file in sorted(path.glob("*.py")) if path.is_dir() else (path,):
            data = file.read_bytes()
            digest.update(f"{part} {file.name} {len(data)}\n".encode() + data)
    return digest.hexdigest()
