"""Whether a page can be used without a mouse and by ear: what WCAG 2.2 (levels A and AA) asks that a program can see.

Names and roles are those that the browser itself computed (its accessibility tree), colours those that it computed
(behind a text lie the grounds of all elements around it), the order of the focus is found by pressing Tab.

Checked: language and title; landmarks; one first heading, none left out; names of what can be operated and of pictures;
heads of tables; references between elements, roles and attributes of ARIA, ids; contrast of texts (1.4.3: 4.5, large
ones 3) and of what can be operated against its ground (1.4.11: 3); regions that scroll can be reached; focus goes
through everything that can be operated, in the order of the document, and is seen.
Not checked: whether names say the right thing, contrast of what a canvas draws (`test_page.py` does), text on pictures.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from browser import Tab

OPERATED = frozenset({
    "button", "checkbox", "combobox", "link", "listbox", "menuitem", "option", "radio", "searchbox", "slider",
    "spinbutton", "switch", "tab", "textbox",
})  # fmt: skip
PICTURES = frozenset({"img", "image", "graphics-document", "figure"})
TABS_MAX = 400
SCRIPT = Path(__file__).with_suffix(".js")


def violations(tab: Tab) -> list[str]:
    """What is wrong with the page that is open in a tab; see the module docstring."""
    tab.run(
        f"(() => {{ {SCRIPT.read_text('utf-8')} Object.assign(window, {{ wrongWithPage, focused, focusable }}); }})()"
    )
    return [*tab.run("wrongWithPage()"), *_unnamed(tab), *_focus(tab)]


def _unnamed(tab: Tab) -> list[str]:
    found = []
    for node in tab.send("Accessibility.getFullAXTree")["nodes"]:
        role = str(node.get("role", {}).get("value", "")).lower()
        name = str(node.get("name", {}).get("value", "")).strip()
        if not node.get("ignored") and not name and role in OPERATED | PICTURES:
            found.append(f"no name: a {role}{_described(tab, node)}")
    return found


def _described(tab: Tab, node: dict[str, Any]) -> str:
    if "backendDOMNodeId" not in node:
        return ""
    return ", " + str(tab.send("DOM.getOuterHTML", backendNodeId=node["backendDOMNodeId"])["outerHTML"])[:120]


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
