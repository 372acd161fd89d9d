"""Estimates of the accelerator's kernels against the simulator: `bench/estimates.py` on a part of its grid, and what it
makes of rows that it is given."""

from __future__ import annotations

from dataclasses import replace

import estimates
import pytest
from estimates import Problem, Row, problems, rank, row, summary

import superkernel as sk
from superkernel.scheduler.families.aicore.base import AicoreTiling, streaming_cycles
from superkernel.target.aicore import load_target


def _problem(name: str) -> Problem:
    (found,) = [p for p in problems() if p.name == name]
    return found


@pytest.mark.parametrize(("name", "usable_percent"), [("add 2048x2048", 60), ("add 2048x2048", 2)])
def test_kernels_that_stream_take_what_memory_gives_all_cores(name: str, usable_percent: int) -> None:
    """From L2, and from HBM where L2 has no room: to 15 % what the engines take; a core's own rates say a half."""
    found = row(_problem(name), load_target("a3").replaced({"l2.usable_percent": usable_percent}))
    assert 1.0 < found.ratio < 1.15


def test_what_all_vector_cores_stream_is_bounded_by_the_published_rates() -> None:
    a3, size = load_target("a3"), 1 << 25
    gb_per_s = size * a3.device.clock_mhz / 1000 / streaming_cycles(size, size // 2, a3)
    assert gb_per_s == pytest.approx(a3.l2.vector_gb_per_s)
    both = a3.replaced({"l2.aggregate_gb_per_s": 2500.0})
    assert streaming_cycles(size, size, both) == pytest.approx(2 * size / both.bytes_per_cycle(2500.0))
    beyond = a3.l2_room_bytes
    assert streaming_cycles(beyond, 1, a3) == pytest.approx((beyond + 1) / a3.bytes_per_cycle(a3.hbm_gb_per_s))


def test_a_part_of_the_range_takes_a_part_of_what_memory_gives() -> None:
    compiled = sk.compile(_problem("relu 4096x4096").graph(), target="a3")._compiled
    (tiling,), (sub,), target = compiled.schedule.tilings, compiled.schedule.subops, compiled.target
    assert isinstance(tiling, AicoreTiling)
    cores = target.device.vector_cores
    share = tiling.units // cores
    whole = tiling.contended_cycles(sub.body, 0, share, target)
    assert whole == pytest.approx(streaming_cycles(1 << 25, 1 << 25, target) * share * cores / tiling.units)
    assert tiling.contended_cycles(sub.body, 0, share // 2, target) == pytest.approx(whole * (share // 2) / share)
    alone = tiling.cost_cycles(sub.body, 0, tiling.units, target)
    assert tiling.contended_cycles(sub.body, 0, tiling.units, target) == alone


def test_a_row_times_a_computed_matrix_is_not_cut_into_parts_of_lines() -> None:
    """Columns in parts of an L2 line and depths in groups made each core fetch lines by itself: 44 % more cycles."""
    assert row(_problem("product 1x2048x2048 computed"), "a3").regret < 0.05


@pytest.mark.parametrize("name", ["product 128x128x128 constant", "convolution 1x64x56x64x3x1"])
def test_tilings_whose_estimates_are_alike_are_told_apart(name: str) -> None:
    """By the kept weights' place in the kernel, and by what it takes where SDMA has brought them: 9 % of the cycles."""
    assert row(_problem(name), "a3").regret < 0.05


def test_fewer_rows_are_not_turned_in_more_time() -> None:
    few, many = (row(_problem(f"transpose {rows}x1024"), "a3").simulated for rows in (128, 512))
    assert few < many


ROWS = [Row("vector", name, float(n), 2 * n, 2 * n, 1) for n, name in enumerate("abcd", 1)]


def test_ranks_and_regrets_are_told(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert rank(ROWS) == 1.0
    turned = [replace(r, estimated=-r.estimated) for r in ROWS]
    assert rank(turned) == 0.0
    assert rank([ROWS[0], turned[1], *ROWS[2:]]) == pytest.approx(5 / 6)
    slow = replace(ROWS[3], best=5, offered=2)
    assert slow.regret == pytest.approx(0.6)
    assert summary("vector", [*ROWS[:3], slow]) == (
        "vector         4 problems; ratio 2.00 to 2.00, mean 2.00; rank 100.0%; regret 15.0%, at most 60.0%"
    )
    monkeypatch.setattr(estimates, "problems", lambda quick: [_problem("add 128x1024")])
    monkeypatch.setattr("sys.argv", ["estimates.py"])
    for found, status in ((ROWS[0], 0), (slow, 1)):
        monkeypatch.setattr(estimates, "row", lambda problem, target, f=found: f)
        assert estimates.main() == status
        assert f"{found.name} " in capsys.readouterr().out
