"""The benchmark of changing lengths: results equal to fresh compilations, constants held once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).resolve().parents[2] / "bench" / "shapes.py"


def test_many_lengths_through_one_object() -> None:
    done = subprocess.run(
        [sys.executable, str(BENCH), "--quick", "--json"], capture_output=True, text=True, check=True, timeout=600
    )
    figures = json.loads(done.stdout)
    assert figures["equal"] == figures["lengths"] == 11
    weights = 2 * 12 * 96 * 96 * 4  # of two layers, as given, and again as packed
    assert 2 * weights < figures["held_bytes"]
    assert figures["held_alone_bytes"] - figures["held_bytes"] > (figures["lengths"] - 2) * weights, "not shared"
