"""What there is to know of the interpreter."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from superkernel.target.base import Target


@dataclass(frozen=True)
class ToyTarget(Target):
    """`cores` that take turns, `seed` of their order, `tick_ns` for each unit of work and each step of a program."""

    cores: int = 3
    seed: int = 0
    tick_ns: float = 100.0

    kind: ClassVar[str] = "toy"

    def identity(self) -> tuple[str, str, str]:
        return "python", "toy", repr(self)

    def facts(self) -> Mapping[str, Any]:
        return {}
