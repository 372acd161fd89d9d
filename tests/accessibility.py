"""Whether a page can be used without a mouse and by ear: what WCAG 2.2 (levels A and AA) asks that a program can see.

axe-core judges first (`AXE_TAGS`); what it leaves to a reader counts too, but for the contrast of texts, which is
computed here from the colours that the browser computed (behind a text lie the grounds of all elements around it).

Checked beside it: one first heading; heads of tables; labels of something; ids; contrast of texts (1.4.3: 4.5, large
ones 3) and of what can be operated against its ground (1.4.11: 3); regions that scroll can be reached; focus goes
through everything that can be operated, in the order of the document, and is seen (the order is found by pressing Tab).
Not checked: whether names say the right thing, contrast of what a canvas draws (`test_page.py` does), text on pictures.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from browser import Tab

AXE_TAGS = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")
TABS_MAX = 400
SCRIPT = Path(__file__).with_suffix(".js")


def violations(tab: Tab) -> list[str]:
    """What is wrong with the page that is open in a tab; see the module docstring."""
    tab.run(
        f"(() => {{ {SCRIPT.read_text('utf-8')} Object.assign(window, {{ wrongWithPage, focused, focusable }}); }})()"
    )
    return [*_axe(tab), *tab.run("wrongWithPage()"), *_focus(tab)]


@cache
def _axe_source() -> str:
    return files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8")


def _axe(tab: Tab) -> list[str]:
    tab.run(f"(() => {{ {_axe_source()} }})()")
    found = tab.run(f"axe.run(document, {{ runOnly: {list(AXE_TAGS)} }})")
    open_ones = [rule for rule in found["incomplete"] if rule["id"] != "color-contrast"]
    return [
        f"{rule['id']}: {node['html'][:120]}, {node.get('failureSummary', rule['help'])}"
        for rule in [*found["violations"], *open_ones]
        for node in rule["nodes"]
    ]


def _focus(tab: Tab) -> list[str]:
    """Tab is pressed until the focus leaves the page."""
    tab.run("document.activeElement.blur(); window.getSelection().removeAllRanges(); scrollTo(0, 0)")
    found: list[str] = []
    order: list[int] = []
    for _ in range(TABS_MAX):
        tab.key("Tab", 9)
        at = tab.run("focused()")
        if at is None or at["at"] in order:
            break
        order.append(at["at"])
        if not at["marked"]:
            found.append(f"focus is not seen: {at['what']}")
    if order != sorted(order):
        found.append(f"focus does not follow the document: {order}")
    expected = min(TABS_MAX, int(tab.run("focusable()")))
    if len(order) < expected:
        found.append(f"focus comes to {len(order)} of {expected} elements")
    return found
