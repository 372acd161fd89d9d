"""Fields of a model's configuration, each asked for as what it has to be: files come from elsewhere, and a field of
another type or size would come up as a wrong number far from where it was read.

A field that is missing or null has the reader's default; where there is none, that is an error of the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf, isfinite
from numbers import Integral, Real
from reprlib import repr as shortened
from typing import Any

from superkernel.core.errors import FileFormatError


class Fields:
    """The fields of `found`, whose names begin with `prefix` there. `where`: the file or folder. All methods raise
    FileFormatError with the field's name."""

    def __init__(self, found: Mapping[str, Any], where: str, prefix: str = "") -> None:
        self._found, self.where, self._prefix = found, where, prefix

    def __contains__(self, name: str) -> bool:
        return self._found.get(self._prefix + name) is not None

    def __bool__(self) -> bool:
        return bool(self._found)

    def is_null(self, name: str) -> bool:
        """Whether the field is there, and null."""
        return self._found.get(self._prefix + name, self) is None

    def over(self, **defaults: Any) -> Fields:
        """These fields, and `defaults` of those that are missing or null."""
        missing = {self._prefix + n: value for n, value in defaults.items() if n not in self}
        return Fields({**self._found, **missing}, self.where, self._prefix)

    def whole(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number of at least `least`."""
        value = self._value(name, default)
        is_whole = _is_number(value) and isfinite(value) and value == int(value)
        if not is_whole or value < least:
            raise self.error(name, f"a whole number, {least} or more")
        return int(value)

    def number(self, name: str, default: float | None = None, *, above: float = -inf) -> float:
        """A finite number larger than `above`."""
        value = self._value(name, default)
        if not _is_number(value) or not isfinite(value) or value <= above:
            raise self.error(name, "a number" if above == -inf else f"a number above {above:g}")
        return float(value)

    def is_on(self, name: str, default: bool = False) -> bool:
        """True or false."""
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self.error(name, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        """A string."""
        value = self._value(name, default)
        if not isinstance(value, str):
            raise self.error(name, "a string")
        return value

    def values(self, name: str) -> list[Any]:
        """A list; empty by default."""
        value = self._value(name, [])
        if not isinstance(value, (list, tuple)):
            raise self.error(name, "a list")
        return list(value)

    def inner(self, name: str) -> Fields:
        """The fields of an object; none by default."""
        value = self._value(name, {})
        if not isinstance(value, Mapping):
            raise self.error(name, "an object with fields")
        return Fields(value, f"{self.where}, field {self._prefix + name!r}")

    def error(self, name: str, expected: str) -> FileFormatError:
        """What says that the field is not as expected."""
        where = f"{self.where}, field {self._prefix + name!r}"
        found = shortened(self._found.get(self._prefix + name))
        return FileFormatError("not what the field has to be", location=where, expected=expected, found=found)

    def _value(self, name: str, default: Any) -> Any:
        if name in self:
            return self._found[self._prefix + name]
        if default is None:
            expected = self._prefix + name
            raise FileFormatError("the configuration lacks a field", location=self.where, expected=expected)
        return default


def _is_number(value: Any) -> bool:
    """Whether it is a real number that fits an f64: JSON has larger ones."""
    if isinstance(value, Integral):
        return not isinstance(value, bool) and abs(int(value)) < 1 << 1000
    return isinstance(value, Real)
