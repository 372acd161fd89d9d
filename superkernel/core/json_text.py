"""JSON in and out: texts from outside may be anything, texts of ours are JSON as the standard has it."""

from __future__ import annotations

import json
import math
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """What `json.loads` makes of a text. Raises ValueError for whatever is no JSON, endless nesting too."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def json_text(data: Any, indent: int = 2, *, sort_keys: bool = False) -> str:
    """The data for a reader: null for the numbers that JSON has not, and the text of what it has no form for."""
    return json.dumps(_plain(data), indent=indent, sort_keys=sort_keys, default=str, allow_nan=False)


def _plain(data: Any) -> Any:
    if isinstance(data, dict):
        return {key: _plain(value) for key, value in data.items()}
    if isinstance(data, (list, tuple)):
        return [_plain(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
