"""docs/json.md names every form that commands write, and every field of each."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from superkernel.analysis.ablate import Ablation, Row, Sweep
from superkernel.analysis.ablate_host import HostAblation, HostRow
from superkernel.analysis.bisection import Bisection, Finding
from superkernel.analysis.quantising import Layer, OutputAgreement, Quantisation
from superkernel.analysis.sweeping import SweepRow
from superkernel.analysis.tuning import LaunchComparison, Tuned, TuningChange
from superkernel.backends.aicore.critical import BoundaryRow, CriticalReport
from superkernel.backends.aicore.report import Baseline, CoreRow, PartRow, SimReport, SubopRow
from superkernel.backends.host.report import Report
from superkernel.compilation.library import Library
from superkernel.display.difference import Figure, FigureChange, MeasuredDifference

ROOT = Path(__file__).parents[2]
SCHEMA = re.compile(r"superkernel\.[a-z_]+/\d+")
TEXT = (ROOT / "docs/json.md").read_text(encoding="utf-8")
CLASSES: dict[str, tuple[Any, ...]] = {
    "superkernel.report/2": (Report,),
    "superkernel.sim_report/2": (SimReport, SubopRow, CoreRow, PartRow, Baseline),
    "superkernel.critical/1": (CriticalReport, BoundaryRow),
    "superkernel.ablation/1": (Ablation, Row, Sweep),
    "superkernel.host_ablation/1": (HostAblation, HostRow),
    "superkernel.tuned/1": (Tuned, TuningChange, LaunchComparison),
    "superkernel.diff/1": (MeasuredDifference, FigureChange, Figure),
    "superkernel.sweep/1": (SweepRow,),
    "superkernel.bisection/1": (Bisection, Finding),
    "superkernel.quantisation/1": (Quantisation, Layer, OutputAgreement),
    "superkernel.library/1": (Library,),
}
NOT_WRITTEN = {"timeline", "page_of", "source", "manifest"}  # what makes pages, and a file of its own


def paragraph(schema: str) -> str:
    """What is said of a form: up to the next form, or the next heading."""
    behind = TEXT.split(f"`{schema}`", 1)[1]
    return re.split(r"\n## |\n`superkernel\.", behind)[0]


def test_every_form_that_is_written_is_documented() -> None:
    written = {found for path in ROOT.glob("superkernel/**/*.py") for found in SCHEMA.findall(path.read_text("utf-8"))}
    assert len(written) > 8
    assert written == set(SCHEMA.findall(TEXT))


@pytest.mark.parametrize("schema", CLASSES)
def test_every_field_is_documented(schema: str) -> None:
    said = set(re.findall(r"`(\w+)`", paragraph(schema)))
    fields = {field.name for kind in CLASSES[schema] for field in dataclasses.fields(kind)}
    assert fields - NOT_WRITTEN <= said, fields - NOT_WRITTEN - said
