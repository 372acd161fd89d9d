"""What the declaration of an option is, and what follows from it alone: the check of a value, the value of a word of
the command line, texts. The options themselves are in `options.py`.

Model: `Options` is a frozen dataclass. A field's annotation is the option's type, whose `Literal` members are its
choices; the rest of `Option` is the field's metadata. Checks, command line, targets, `ablate`, documentation and tests
walk `OPTIONS` and so know an option the moment it stands in `Options`.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Any, Literal, get_args, get_origin, get_type_hints

from superkernel.core.errors import Violation

HOST, ACCELERATOR = "host", "accelerator"
TARGETS = {HOST: "the host", ACCELERATOR: "an accelerator"}
"""Kinds of targets that declarations speak of -> the kind in words."""

Stage = Literal["graph", "schedule", "program", "run"]
"""The first that differs where an option does: what is computed by which kernels; where and when; the code and the
synchronisation of one schedule; how a program is kept and run."""

FILE = "file"
"""Entries that are names of files: one may stand by itself."""

_SWITCHES = {True: "auto", False: "off"}  # what a truth value means for choices that are these two
_SCOPED = "a mapping of scopes to patterns"
_WORDS = {"true": True, "on": True, "false": False, "off": False}
_FAULTS = {bool: "not a truth value", int: "not a number in range", float: "not a number in range"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option. `kind` is the annotation; the first sentence of `doc` (Markdown, as in docs/) says what the option
    decides; `low` to `high`, inclusive, and `tried`, values besides the choices that tests and benchmarks combine, are
    of numbers; `entry` is the form of a tuple's elements.

    idle: kind of target -> why the option changes nothing there. refused: kind of target -> choice -> why that cannot
    be had there. steps: the rows of `ablate` -> the value that the row gives the option, `off` in the rows before.
    """

    name: str
    kind: Any
    default: Any
    stage: Stage
    doc: str
    low: float = 0
    high: float = 0
    power_of_two: bool = False
    unit: str = ""
    tried: tuple[float, ...] = ()
    entry: str = "pattern"
    idle: Mapping[str, str] = field(default_factory=dict)
    refused: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    off: Any = None
    steps: Mapping[str, Any] = field(default_factory=dict)

    @property
    def effect(self) -> str:
        """What it decides, as one line."""
        return self.doc.partition(". ")[0].rstrip(".")

    @property
    def location(self) -> str:
        """Where errors say that something is wrong."""
        return f"option {self.name!r}"

    @property
    def choices(self) -> tuple[str, ...]:
        """The names among its values."""
        kinds = (self.kind, *get_args(self.kind))
        return tuple(choice for kind in kinds if get_origin(kind) is Literal for choice in get_args(kind))

    @property
    def element(self) -> type:
        """The type of its values that are no choices; str where there are none."""
        kinds = (self.kind, get_origin(self.kind), *get_args(self.kind))
        return next((kind for kind in (bool, int, float, tuple) if kind in kinds), str)

    def choices_on(self, target: str) -> tuple[str, ...]:
        """The choices that a kind of target has."""
        return tuple(choice for choice in self.choices if choice not in self.refused.get(target, {}))

    @property
    def targets(self) -> tuple[str, ...]:
        """The kinds of targets on which it changes something."""
        return tuple(target for target in TARGETS if target not in self.idle)

    @property
    def _is_switch(self) -> bool:
        return set(self.choices) == set(_SWITCHES.values())

    @property
    def values(self) -> tuple[Any, ...]:
        """Its values, as far as they can be listed; of numbers those to try."""
        return (True, False) if self.element is bool else (*self.choices, *self.tried)

    @property
    def takes(self) -> str:
        """What it takes, in words."""
        if self.element is bool:
            return "True or False"
        if self.element is tuple:
            return {"pattern": "tuple of str", FILE: "a file, or several"}.get(self.entry, _SCOPED)
        if self.element is str:
            return ", ".join(self.choices)
        if self.power_of_two:
            return f"0 or a power of two, 2 to {self.high:g}"
        return ", or ".join([f"{self.low:g} to {self.high:g} {self.unit}".rstrip(), *map(repr, self.choices)])

    def check(self, given: Any, wrong: list[Violation]) -> Any:
        """A value in the form that is kept; what is wrong with it goes to `wrong`."""
        value = plain(given)
        if isinstance(value, bool) and self._is_switch:
            value = _SWITCHES[value]
        if self.element is tuple:
            return self._check_entries(value, wrong)
        if not self._takes(value):
            fault = _FAULTS.get(self.element, "not a legal choice")
            wrong.append(Violation(fault, self.location, self.takes, repr(value), did_you_mean([value], self.choices)))
        elif self.element is float and not isinstance(value, str):
            return float(value)
        return value

    def _takes(self, value: Any) -> bool:
        if isinstance(value, str):
            return value in self.choices
        if isinstance(value, bool) or self.element in (bool, str):
            return isinstance(value, bool) and self.element is bool
        numbers: Any = (int, self.element)
        if not isinstance(value, numbers) or not self.low <= value <= self.high:
            return False
        return not self.power_of_two or (value != 1 and not value & (value - 1))

    def _check_entries(self, value: Any, wrong: list[Violation]) -> Any:
        if ":" in self.entry and isinstance(value, Mapping):
            value = _entries(value)
        if self.entry == FILE:
            value = (value,) if isinstance(value, (str, PathLike)) else value
            value = [fspath(v) if isinstance(v, PathLike) else v for v in value] if _is_row(value) else value
        if not _is_row(value) or not all(isinstance(p, str) for p in value):
            wrong.append(Violation("not a tuple of patterns", self.location, self.takes, repr(value)))
            return value
        for entry in value:
            if ":" in self.entry and not all(entry.partition(":")[::2]):
                hint = "name the nodes, or leave the scope out" if entry.endswith(":") else ""
                wrong.append(Violation("not an entry", self.location, self.entry, repr(entry), hint))
        return tuple(map(plain, value))

    def parse(self, word: str) -> Any:
        """The value that a word of the command line stands for; what stands for none remains, for `check` to refuse."""
        if self.element is tuple:
            return tuple(word.split(","))
        if self.element is bool or self._is_switch:
            return word if word in self.choices else _WORDS.get(word.lower(), word)
        if self.element is float or (self.element is int and word.isdecimal()):
            with suppress(ValueError):  # no number, or one of thousands of digits
                return self.element(word)
        return word


def option(default: Any, stage: Stage, doc: str, **about: Any) -> Any:
    """A field of `Options`; `about` are further fields of `Option`."""
    return field(default=default, metadata={"stage": stage, "doc": doc, **about})


def declared_by(options: type) -> dict[str, Option]:
    """The options that a dataclass declares, by name, in their order."""
    hints = get_type_hints(options)
    fields = dataclasses.fields(options)
    return {f.name: Option(name=f.name, kind=hints[f.name], default=f.default, **f.metadata) for f in fields}


def did_you_mean(names: Iterable[Any], known: Iterable[str]) -> str:
    """A hint at the known names that are nearest to what was given; empty where there are none."""
    near = [m for n in names if isinstance(n, str) for m in difflib.get_close_matches(n, list(known), n=1, cutoff=0.6)]
    return f"did you mean {', '.join(map(repr, near))}?" if near else ""


def plain(value: Any) -> Any:
    """NumPy's scalars, and subclasses of Python's, as Python's own: equal options print equally, and share a plan."""
    if type(value).__module__ == "numpy" and value.ndim == 0:
        value = value.item()
    if isinstance(value, bool):
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return str.__str__(value) if kind is str else kind(value)
    return value


def _is_row(value: Any) -> bool:
    return isinstance(value, (tuple, list))


def _entries(scopes: Mapping[Any, Any]) -> tuple[str, ...]:
    """A mapping of scopes as entries; what is no text, and a scope without patterns, stays to be found wrong."""
    rows = [(name, [found] if isinstance(found, str) else found) for name, found in scopes.items()]
    return tuple(f"{name}:{p}" for name, row in rows for p in ((isinstance(row, (tuple, list)) and row) or [""]))
