"""What readers are told of an ablation on the host."""

from __future__ import annotations

import dataclasses
import html

from superkernel.analysis.ablate_host import HostAblation, HostRow
from superkernel.analysis.ablation import ablation_page
from superkernel.backends.host.conditions import Conditions

ROWS = (
    HostRow("one by one", 4.0, 3.9, 4.1, None, 1.0, None, {"work": 3.0, "launch": 1.0}),
    HostRow("fused, full sync", 3.2, 3.1, 3.3, 0.2, 1.25, 2, {"work": 3.0, "pure sync": 0.2}, beyond_noise=True),
    HostRow("minimal sync", 3.3, 3.0, 3.5, -0.03, 1.21, 1, {"work": 3.0, "pure sync": 0.3}),
)
QUIET = HostAblation("g", "host", 2, 2, ROWS, Conditions(60, 0, 0))


def test_bars_and_table_say_gains_alike() -> None:
    """With one sign: what a step saves is positive."""
    assert [bar.said for bar in QUIET.chart().bars] == ["", "gain 20.0%", "no gain here"]
    page = ablation_page(QUIET).html()
    for text in (page, QUIET.text()):
        assert "20.0%" in text
        assert "-20.0" not in text


def test_the_page_has_the_intervals_of_the_text() -> None:
    text, page = QUIET.text(), ablation_page(QUIET).html()
    for row in ROWS:
        assert f"{row.us:>9.2f}{row.low_us:>9.2f}{row.high_us:>9.2f}" in text
        assert f"<td>{row.us:.3f}</td><td>{row.low_us:.3f}</td><td>{row.high_us:.3f}</td>" in page
    assert "95 % intervals" in page
    assert "a report's bars of the same names have those of the chosen kernel" in html.unescape(page)


def test_what_lies_within_noise_is_no_headline() -> None:
    said = "Of all steps, fused, full sync gives most: 20.0% of the row above."
    assert f"{said} The whole is 1.21x as fast as one by one." in ablation_page(QUIET).html()
    noisy = dataclasses.replace(ROWS[1], gain=0.2, beyond_noise=False, high_us=4.5)
    last = dataclasses.replace(ROWS[2], high_us=4.0)
    page = ablation_page(dataclasses.replace(QUIET, rows=(ROWS[0], noisy, last))).html()
    assert "No step gives anything beyond noise. The whole and one by one do not differ beyond noise." in page
    assert "1.21x as fast" not in page


def test_on_a_busy_machine_neither_gains_nor_speedups_are_told() -> None:
    rows = tuple(dataclasses.replace(row, split={}) for row in ROWS)
    busy = dataclasses.replace(QUIET, rows=rows, conditions=Conditions(60, 55, 80, trusted=False))
    page = ablation_page(busy).html()
    for told, text in ((QUIET.text(), busy.text()), (ablation_page(QUIET).html(), page)):
        for figure in ("20.0%", "1.25x", "no gain here"):
            assert figure in told, figure
            assert figure not in text, figure
        assert "the machine was busy" in text
        assert "3.20" in text, "times of whole launches"
    assert "The machine was too busy to tell what each step gives." in page
    assert busy.to_json()["rows"][1]["speedup"] == 1.25
