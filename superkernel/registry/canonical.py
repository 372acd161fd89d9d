"""Canonical JSON, digests of it, and files that are written whole or not at all."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from superkernel.core.errors import FileFormatError, MachineError
from superkernel.core.files import text_of, whole
from superkernel.core.json_text import parse_json


def canonical_json(data: Any) -> str:
    """One text per value: sorted keys, no spaces, no NaN, ASCII."""
    return json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False, ensure_ascii=True)


def digest(data: Any) -> str:
    """SHA-256 of the canonical JSON, as hexadecimal text."""
    return hashlib.sha256(canonical_json(data).encode()).hexdigest()


def write_json(path: Path, data: Any) -> None:
    """Replace the file atomically. Raises MachineError where the place cannot be written."""
    text = json.dumps(data, sort_keys=True, indent=1, allow_nan=False) + "\n"
    try:
        with whole(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise MachineError("cannot write the file", location=f"file {str(path)!r}", found=str(error)) from error


def read_json(path: Path, what: str) -> dict[str, Any]:
    """The object a file holds. Raises FileFormatError where it is no JSON object, MachineError where it cannot be
    read."""
    try:
        content = text_of(path)
    except OSError as error:
        raise MachineError(f"cannot read the {what}", location=f"file {str(path)!r}", found=str(error)) from error
    except UnicodeDecodeError as error:
        raise FileFormatError(f"not a {what}", location=f"file {str(path)!r}", found=str(error)) from error
    try:
        data = parse_json(content)
    except ValueError as error:
        raise FileFormatError(f"not a {what}", location=f"file {str(path)!r}", found=str(error)) from error
    if not isinstance(data, dict):
        raise FileFormatError(
            f"not a {what}", location=f"file {str(path)!r}", expected="an object", found=type(data).__name__
        )
    return data
