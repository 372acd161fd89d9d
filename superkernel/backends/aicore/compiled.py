"""What a compilation for the accelerator made, as data; see `compiled.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from superkernel.compilation.compiled import Compilation, Planned, Scheduled
from superkernel.core.dtypes import DType
from superkernel.core.option import ACCELERATOR
from superkernel.sync.aicore.plan import AicorePlan, Form
from superkernel.target.aicore import AicoreTarget
from superkernel.transforms.precision import error_bound
from superkernel.transforms.selections import selections

if TYPE_CHECKING:
    from superkernel.backends.aicore.executable import SimExecutable
    from superkernel.codegen.aicore.image import AicoreImage
    from superkernel.codegen.aicore.weight_prefetch import WeightPrefetch
    from superkernel.scheduler.aicore.launches import ScopePart
    from superkernel.scheduler.aicore.schedule import AicoreSchedule
    from superkernel.sync.aicore.verify import AicoreCertificate

LOWERED = {"auto": DType.F16, "f16": DType.F16, "bf16": DType.BF16}
"""Option `precision` -> what f32 values become; with "f32" they stay."""


@dataclass(frozen=True, eq=False)
class AicoreScheduled(Scheduled):
    """As far as the accelerator's schedule."""

    schedule: AicoreSchedule


@dataclass(frozen=True, eq=False)
class AicorePlanned(AicoreScheduled, Planned[AicorePlan]):
    """With the launches, each with what it has in one piece, and which constants SDMA brings into L2 when."""

    parts: tuple[ScopePart, ...]
    weights: WeightPrefetch


@dataclass(frozen=True, kw_only=True, eq=False)
class AicoreCompiled(AicorePlanned, Compilation[AicoreTarget, AicorePlan]):
    """Everything a compilation for the accelerator made."""

    certificate: AicoreCertificate
    image: AicoreImage
    executable: SimExecutable

    executor: ClassVar[str] = "sim"

    @cached_property
    def selections(self) -> tuple[str, ...]:
        """Operators that a rounding may tip over; none where nothing is lowered."""
        return () if self.options.precision == "f32" else selections(self.source)

    @property
    def error_bound(self) -> float | None:
        """What outputs may be off by because of narrow values (`transforms.precision`); None: no bound can be given.
        0: nothing is lowered."""
        if self.options.precision == "f32":
            return 0.0
        return error_bound(self.source, LOWERED[self.options.precision])

    @cached_property
    def symbols(self) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(row.values()) for row in self.image.symbols)

    @cached_property
    def function_bytes(self) -> Mapping[str, int]:
        names = {symbol for row in self.symbols for symbol in row}
        return {s.name: s.size for s in self.image.image.symbols if s.kind == "function" and s.name in names}

    def idle_options(self) -> tuple[str, ...]:
        return (*self.options.without_effect(ACCELERATOR), *super().idle_options())

    def _summaries(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        forms = [b.form.value for b in self.plan.boundaries if b.form is not Form.NONE]
        cores = {
            "target": self.target.name,
            "cube_cores": self.plan.cube_cores,
            "vector_cores": self.plan.vector_cores,
        }
        plan = {
            "distinct_kernels": len({s for row in self.symbols for s in row}),
            "events": len(self.plan.events),
            "launches": self.image.launches,
            "scopes": [str(part) for part in self.parts],
            "boundaries": {form: forms.count(form) for form in sorted(set(forms))},
        }
        code = {
            "code_bytes": self.image.image.code_bytes,
            "code_copies": self.image.code.copies,
            "preload": self.image.code.strength,
            "prefetched_lines": self.image.code.lines,
            "code_reasons": list(self.image.code.reasons),
            "streams": dict(self.schedule.arrangements),
            "weight_prefetch": self.weights.strength,
            "weight_prefetch_bytes": self.weights.nbytes,
            "weight_prefetch_reason": self.weights.reason,
            "fallbacks": [self.schedule.subops[i].name for i in self.image.host_calls],
            "error_bound": self.error_bound,
            "selections": list(self.selections),
        }
        return cores, plan, code

    def _texts(self) -> dict[str, Callable[[], str]]:
        return {**super()._texts(), "map": lambda: self.image.image.map_text()}
