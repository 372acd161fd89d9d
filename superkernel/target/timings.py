"""Times of kernels that were measured on a machine: the timing database, as a value and as a file.

Model: an entry is the time of all units of one kernel function on one core, in ns, by a digest of what determines it:
the function's kernel, body and tiling, and from where its constants come. `superkernel tune` makes entries
(`analysis/tuning.py`); a target has them with its profile, so that whatever is kept under a target is kept under them.
They are of the sources that they were measured with: with others they are none.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from superkernel.core.errors import FileFormatError
from superkernel.core.files import text_of
from superkernel.core.json_text import parse_json

SCHEMA = 1
_FIELDS = {"kind", "schema", "machine", "sources", "ns"}


@dataclass(frozen=True, eq=False, repr=False)
class Timings:
    """ns by digest. Equal where all entries are; its text is a digest of them."""

    ns: Mapping[str, float] = field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        """Of all entries; "" of none."""
        rows = "\n".join(f"{key} {ns}" for key, ns in sorted(self.ns.items()))
        return hashlib.sha256(rows.encode()).hexdigest()[:32] if rows else ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Timings) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        return f"Timings({self.digest!r})"


NO_TIMINGS = Timings()


_EVEN, _BARELY = 0.95, 1 + 1e-6


def settled_ns(ns: float, usual_ns: float) -> float:
    """The measured time of something beside that of what the models like best: it has to be clearly shorter to count as
    shorter, for equal code in equal time must not change places by noise."""
    return usual_ns * _BARELY if _EVEN * usual_ns <= ns <= usual_ns else ns


def timing_key(code: str, constants_from: str) -> str:
    """The digest of an entry. `code`: what determines the function; `constants_from`: "l2", "l3" or "memory"."""
    return hashlib.sha256(f"{code}\n{constants_from}".encode()).hexdigest()[:32]


def timings_text(timings: Timings, machine: str, sources: str) -> str:
    """The file of entries, of a machine and of the sources that they were measured with."""
    head = {"kind": "timings", "schema": SCHEMA, "machine": machine, "sources": sources}
    return json.dumps({**head, "ns": dict(sorted(timings.ns.items()))}, indent=0) + "\n"


def load_timings(path: Path, machine: str, sources: str) -> Timings:
    """The entries of a file; none where they are of another machine or of other sources. Raises FileFormatError."""
    place = f"file {str(path)!r}"
    try:
        data = parse_json(text_of(path))
    except (OSError, ValueError) as error:
        raise FileFormatError("the file of measured times cannot be read", location=place, found=str(error)) from error
    if not isinstance(data, dict) or set(data) != _FIELDS or data["kind"] != "timings" or data["schema"] != SCHEMA:
        raise FileFormatError("not a file of measured times", location=place, expected=f"schema {SCHEMA}")
    if (data["machine"], data["sources"]) != (machine, sources):
        return NO_TIMINGS
    found = data["ns"]
    if not isinstance(found, dict) or not all(_is_time(ns) for ns in found.values()):
        raise FileFormatError("not a file of measured times", location=place, expected="ns: finite numbers > 0")
    return Timings({key: float(ns) for key, ns in found.items()})


def _is_time(ns: object) -> bool:
    return isinstance(ns, (int, float)) and not isinstance(ns, bool) and math.isfinite(ns) and ns > 0
