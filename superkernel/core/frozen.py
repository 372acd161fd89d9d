"""Frozen dataclasses that are made as fast as others.

Model: to a type checker, `@frozen` is `dataclass(frozen=True)`: what assigns to a field is refused. At run time nothing
stands in its way, as what dataclasses do for that, a call per field of each new object, was an eighth of the time of
planning. For classes of which a compilation makes hundreds; equality and hash are those of the fields.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(*, slots: bool = True) -> Callable[[type[T]], type[T]]:
    """Makes a class such a dataclass. Without `slots` it may have cached properties."""
    return dataclass(slots=slots, unsafe_hash=True)
