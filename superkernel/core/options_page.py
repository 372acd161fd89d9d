"""Print docs/options.md from the declared options: `python -m superkernel.core.options_page > docs/options.md`.

The page is never edited by hand; a test compares it with what this module prints.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

from superkernel.core.option import TARGETS, Option
from superkernel.core.options import OPTIONS

_INTRODUCTION = """# Options

Generated from the declared options (`superkernel/core/options.py`) by `python -m superkernel.core.options_page`. Do not
edit.

`superkernel.compile(graph, options={"sync": "full"})`, `superkernel.Options(sync="full")`, or `--option sync=full` on
the [command line](command-line.md), where patterns are separated by commas. An option that is only about how a target
works is accepted on every target, so that one set of options serves several; where it changes nothing, `summary()`
(`options_without_effect`) and `explain` say so and why. A value that a target cannot have and that would change
results or promises is refused.
"""


_WRAPPED = textwrap.TextWrapper(120, break_long_words=False, break_on_hyphens=False)


def _text(value: Any) -> str:
    """A value as the command line takes it."""
    if isinstance(value, tuple):
        return ", ".join(map(_text, value))
    word = {True: "on", False: "off"}[value] if isinstance(value, bool) else value
    return f"`{word:g}`" if isinstance(word, float) else f"`{word}`"


def _values(option: Option) -> str:
    if option.element is tuple:
        return f"any number of `{option.entry}`"
    return ", ".join(map(_text, option.values)) if option.element in (bool, str) else option.takes.replace("'", "`")


def _section(option: Option) -> Iterator[str]:
    yield f"## `{option.name}`"
    yield ""
    yield option.doc
    yield ""
    yield f"- Values: {_values(option)}. Default: {_text(option.default) or 'none'}."
    for target, why in option.idle.items():
        yield f"- No effect on {TARGETS[target]}: {why}."
    for target, refused in option.refused.items():
        for choice, why in refused.items():
            yield f"- {_text(choice)} is refused on {TARGETS[target]}" + ("." if "not on" in why else f": {why}.")
    if option.steps:
        steps = ", ".join(f"*{step}* ({_text(value)})" for step, value in option.steps.items())
        yield f"- Rows of `superkernel ablate`: {steps}; {_text(option.off)} in the rows above."
    yield ""


def page(options: Iterable[Option]) -> str:
    """The whole page."""
    rows = list(options)
    lines = [_INTRODUCTION, "| option | values | what it decides | on |", "|---|---|---|---|"]
    lines += [f"| [`{o.name}`](#{o.name}) | {_values(o)} | {o.effect} | {', '.join(o.targets)} |" for o in rows]
    sections = [line for o in rows for line in _section(o)]
    return "\n".join([*lines, "", *map(_WRAPPED.fill, sections)]).rstrip() + "\n"


if __name__ == "__main__":
    sys.stdout.write(page(OPTIONS.values()))
