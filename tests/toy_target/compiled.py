"""What a compilation for the interpreter made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from superkernel.compilation.compiled import Compilation
from superkernel.sync.plan import Plan
from superkernel.sync.verify import Certificate
from toy_target.machine import ToyImage, ToyMachine
from toy_target.target import ToyTarget


@dataclass(frozen=True, kw_only=True, eq=False)
class ToyCompiled(Compilation[ToyTarget, Plan]):
    """See the module docstring."""

    certificate: Certificate
    image: ToyImage
    executable: ToyMachine

    executor: ClassVar[str] = "toy"

    def _summaries(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        cores = {"target": "toy", "cores": self.cores}
        return cores, {"waits": self.plan.waits}, {"code_bytes": 0, "fallbacks": []}
