"""What each optimisation gives, on whatever target: `ablate.py` simulates an accelerator, `ablate_host.py` measures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from superkernel.analysis.ablate import Ablation, ChartRow, ablate, ablation_target
from superkernel.analysis.ablate_host import ROUNDS, HostAblation, HostRow, ablate_host
from superkernel.api import resolved
from superkernel.backends import backend_of
from superkernel.backends.host.backend import BACKEND as HOST
from superkernel.core.errors import InputError
from superkernel.core.options import Options
from superkernel.display.page import Page, PageTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from superkernel.ir.graph import Graph
    from superkernel.target.base import Target
    from superkernel.target.cpu import CpuTarget

AnyAblation = Ablation | HostAblation


def ablation(
    graph: Graph,
    target: str | Target,
    *,
    threads: int | None = None,
    options: Options | Mapping[str, Any] | None = None,
    inputs: Mapping[str, NDArray[Any]] | None = None,
    sensitivity: bool = False,
    rounds: int = ROUNDS,
) -> AnyAblation:
    """Switch optimisations on one after the other. `threads` and `rounds` (launches of each row) are the host's,
    `sensitivity` an accelerator's. `options`: for everything that no step decides. `inputs`: random ones of seed 0 by
    default. Raises InputError, UnsupportedError."""
    device, given = resolved(target), Options.of(options)
    if backend_of(device) is not HOST:
        accelerator = ablation_target(device)
        if threads not in (None, accelerator.cores):
            hint = "with `--target host` the steps are measured on threads of this machine"
            raise InputError("an accelerator has cores, not threads", location="threads", found=str(threads), hint=hint)
        return ablate(graph, accelerator, options=given, inputs=inputs, sensitivity=sensitivity)
    if sensitivity:
        hint = "an accelerator's description has uncertain figures; the host is measured"
        raise InputError("no sensitivity on the host", location="sensitivity", hint=hint)
    return ablate_host(graph, cast("CpuTarget", device), threads=threads, options=given, inputs=inputs, rounds=rounds)


def ablation_page(found: AnyAblation) -> Page:
    """The rows as a page of its own: a chart, a table, and a sentence."""
    told = found.told if isinstance(found, HostAblation) else found.rows
    known = not isinstance(found, HostAblation) or found.conditions.trusted
    rows = tuple(
        (row.name, row.us, *_interval(row), _percent(row.gain), f"{row.speedup:.2f}x" if known else "", row.verdict)
        for row in told
    )
    head = ("step", "us", "from us", "to us", "gain", "speedup", "verdict")
    note = "Medians with 95 % intervals." if isinstance(found, HostAblation) else ""
    table = PageTable("Rows", head, rows, note, chooses=False)
    said = _headline(found) if known else "The machine was too busy to tell what each step gives."
    notes = tuple(found.conditions.sentences()) if isinstance(found, HostAblation) else ()
    title = f"{found.graph} on {found.target}: what each optimisation gives"
    return Page(None, said, charts=(found.chart(),), tables=(table,), notes=notes, title=title)


def _interval(row: ChartRow) -> tuple[float | None, float | None]:
    """In us, of what was measured; nothing else has one."""
    return (row.low_us, row.high_us) if isinstance(row, HostRow) else (None, None)


def _headline(found: AnyAblation) -> str:
    """The step that gives most, and the whole against one by one, as far as either is beyond noise."""
    steps: Sequence[ChartRow] = found.rows[1:]
    best = max(steps, key=lambda row: (not row.verdict, row.gain or 0.0))
    most = f"{best.name} gives most: {_percent(best.gain)} of the row above"
    measured = isinstance(found, HostAblation)
    nothing = "No step gives anything beyond noise." if measured else "No step gives anything."
    said = nothing if best.verdict else f"Of all steps, {most}."
    if isinstance(found, HostAblation) and not found.told_apart:
        return f"{said} The whole and one by one do not differ beyond noise."
    return f"{said} The whole is {found.rows[-1].speedup:.2f}x as fast as one by one."


def _percent(part: float | None) -> str:
    return "" if part is None else f"{part:.1%}"
