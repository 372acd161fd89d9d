"""What a field of a target description is: meaning, unit, legal range. The sections are in `sections.py`.

Model: a section is a frozen dataclass whose fields all carry a `Quantity`. A field is addressed by its path,
"section.field"; its type is the annotation, its unit the end of its name. Everything else (reading, checking, printing,
the simulator's struct) walks the schema and so knows a new field the moment it stands in its section.
"""

from __future__ import annotations

import typing
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Any

Value = int | float | bool | str | tuple[int, ...] | tuple[float, ...]

# Longest first: `_bytes_per_cycle` ends in `_cycle` of nothing else, but `_bytes` must not win over it.
UNITS = {
    "_bytes_per_cycle": "bytes per cycle",
    "_gb_per_s": "GB/s (10^9 bytes per second)",
    "_commands": "commands",
    "_percent": "percent",
    "_address": "address",
    "_cycles": "cycles",
    "_bytes": "bytes",
    "_mhz": "MHz",
    "_ns": "ns",
}


@dataclass(frozen=True, slots=True)
class Quantity:
    """What is known of a field apart from its value; bounds are inclusive, elementwise for lists."""

    doc: str
    low: float = 0
    high: float = 0
    power_of_two: bool = False
    multiple_of: int = 1
    increasing: bool = False  # lists: each element larger than the one before


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One field of one section."""

    section: str
    name: str
    kind: Any  # the annotation: int, float, bool, str, tuple[int, ...], tuple[float, ...]
    quantity: Quantity

    @property
    def path(self) -> str:
        """Its name in messages, `section.name`."""
        return f"{self.section}.{self.name}"

    @property
    def unit(self) -> str:
        """The unit in words; empty for counts, factors, switches and texts."""
        return next((words for suffix, words in UNITS.items() if self.name.endswith(suffix)), "")

    @property
    def element(self) -> type:
        """The scalar type: of the elements where the field is a list."""
        arguments = typing.get_args(self.kind)
        element: type = arguments[0] if arguments else self.kind
        return element

    @property
    def is_list(self) -> bool:
        """Whether it holds several values."""
        return bool(typing.get_args(self.kind))

    @property
    def is_numeric(self) -> bool:
        """True of numbers and lists of numbers, not of switches and texts."""
        return self.element in (int, float)

    @property
    def range_text(self) -> str:
        """What the field takes, in words."""
        if self.element is bool:
            return "true or false"
        if self.element is str:
            return "a text"
        noun = {int: "an integer", float: "a number"}[self.element]
        if self.is_list:
            noun = {int: "a list of integers", float: "a list of numbers"}[self.element]
        text = f"{noun} from {_number(self.quantity.low)} to {_number(self.quantity.high)}"
        if self.quantity.power_of_two:
            text += ", a power of two"
        if self.quantity.multiple_of > 1:
            text += f", a multiple of {self.quantity.multiple_of}"
        if self.quantity.increasing:
            text += ", increasing"
        return f"{text} ({self.unit})" if self.unit else text


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else repr(value)


def quantity(
    doc: str,
    low: float = 0,
    high: float = 0,
    *,
    power_of_two: bool = False,
    multiple_of: int = 1,
    increasing: bool = False,
) -> Any:
    """A dataclass field with a `Quantity`; it has no default, because numbers live in preset files only."""
    return field(metadata={"quantity": Quantity(doc, low, high, power_of_two, multiple_of, increasing)})


@cache
def section_fields(section: str, kind: type) -> tuple[FieldSpec, ...]:
    """The fields of a section's dataclass in the order of their definition."""
    hints = typing.get_type_hints(kind)
    return tuple(FieldSpec(section, f.name, hints[f.name], f.metadata["quantity"]) for f in fields(kind))
