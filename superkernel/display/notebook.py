"""What notebooks show of kernels, results and reports: the parts of HTML that their `_repr_html_` are made of.

Model: every function gives a piece of HTML that stands by itself, without script and without a style sheet: notebooks
have their own, light or dark, and may show a page to others without running it. Texts are escaped here, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from superkernel.display.units import format_us

BAR_COLOUR = "#4a90d966"  # reads on light and on dark ground
PAGE_HEIGHT_PX = 480


@dataclass(frozen=True, slots=True)
class Share:
    """A part of 1, shown as a number with a bar behind it."""

    part: float


@dataclass(frozen=True, slots=True)
class Time:
    """A time in us, shown with its unit on one line."""

    us: float


Cell = str | int | float | Share | Time | None
"""Text stands left, numbers and times right; None is empty."""


def shown(title: str, *pieces: str) -> str:
    """A title with what belongs to it below."""
    return f"<div><strong>{escape(title)}</strong>{''.join(pieces)}</div>"


def lines(texts: Iterable[str]) -> str:
    """Sentences, one per line."""
    return "".join(f"<div>{escape(text)}</div>" for text in texts)


def table(head: Sequence[str], rows: Iterable[Sequence[Cell]], more: str = "") -> str:
    """A table; `more` is said below it. Nothing where there are no rows."""
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    if not body:
        return ""
    names = "".join(f"<th>{escape(name)}</th>" for name in head)
    below = f"<div>{escape(more)}</div>" if more else ""
    return f"<table><thead><tr>{names}</tr></thead><tbody>{body}</tbody></table>{below}"


def folded(summary: str, text: str) -> str:
    """Text as it stands, behind a line to click on."""
    return f"<details><summary>{escape(summary)}</summary><pre>{escape(text)}</pre></details>"


def framed(page: str) -> str:
    """A whole page within the notebook, with its scripts but without access to the notebook."""
    style = f"width:100%;height:{PAGE_HEIGHT_PX}px;border:0"
    return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{escape(page)}"></iframe>'


def _cell(value: Cell) -> str:
    if isinstance(value, str):
        return f'<td style="text-align:left">{escape(value)}</td>'
    style = "text-align:right"
    if isinstance(value, Share):
        percent = 100 * value.part
        style += f";background:linear-gradient(90deg,{BAR_COLOUR} {percent:.1f}%,transparent 0)"
        text = f"{percent:.1f} %"
    elif isinstance(value, Time):
        style += ";white-space:nowrap"
        text = format_us(value.us)
    elif isinstance(value, float):
        text = f"{value:,.1f}"
    else:
        text = "" if value is None else f"{value:,}"
    return f'<td style="{style}">{text}</td>'
