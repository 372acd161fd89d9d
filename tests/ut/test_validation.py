"""Published figures against the simulated engines: the page is what the command prints, and probes measure what they
say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from superkernel.analysis.device_probes import Probe, ProbeLoop, moved_bytes, span_cycles
from superkernel.analysis.validation import SOURCES, Comparison, Fact, facts, validate
from superkernel.analysis.validation_page import page, text
from superkernel.core.errors import InputError
from superkernel.target.aicore import load_target

DOCS = Path(__file__).resolve().parents[2] / "docs"
MINI = load_target("mini")


def test_the_page_is_what_is_simulated() -> None:
    """The errors on the page are the bound: a model that comes to differ from them has to say so there."""
    target = load_target("a3")
    rows = validate(target)
    assert page(target, rows) == (DOCS / "validation.md").read_text()
    assert all(row.simulated is not None for row in rows)


def test_what_does_not_fit_is_said() -> None:
    rows = validate(MINI)
    missing = [row.fact.name for row in rows if row.simulated is None]
    assert missing == [f"working set of {size}" for size in ("80 MiB", "132 MiB", "368 MiB", "2.5 GiB")]
    assert "too large" in text(MINI, rows)
    assert all(row.error_percent is None for row in rows if row.fact.name in missing)


def test_every_fact_has_a_source_and_conditions() -> None:
    found = list(facts(MINI))
    assert {fact.source for fact in found} <= set(SOURCES)
    assert all(fact.conditions and fact.published > 0 for fact in found)
    assert len({fact.name for fact in found}) == len(found)


def test_errors_are_signed_and_zero_inside_a_range() -> None:
    def row(unit: str, simulated: float, **bounds: Any) -> Comparison:
        return Comparison(Fact("x", unit, 100, "preset", "none", lambda _: 0.0, **bounds), simulated)

    assert row("GB/s", 120).error_percent == pytest.approx(20)
    assert row("GB/s", 80).error_percent == pytest.approx(-20)
    assert row("%", 93).error_percent == pytest.approx(-7)
    assert row("GB/s", 93, low=90, high=100).error_percent == 0


def test_a_probe_counts_what_its_loops_move() -> None:
    loop = ProbeLoop(
        name="gm_to_ub", count=5, operands={"src": 0, "dst": 0, "bytes": 4096}, place="src",
        turn_bytes=4 * 4096, core_bytes=4096,
    )  # fmt: skip
    result = Probe(vector=(loop,), warm_bytes=20 * 4096, touched_bytes=20 * 4096).run(MINI)
    assert moved_bytes(result, "mte2") == 4 * 5 * 4096
    assert result.memory.misses < 20  # nothing of the data
    alone = MINI.move_cycles("rates.gm_to_ub_gb_per_s", 1, 4096)
    assert 5 * alone <= span_cycles(result, "mte2") <= 1.1 * 5 * alone


def test_a_probe_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="too small for this measurement"):
        Probe(touched_bytes=1 << 40).run(MINI)
