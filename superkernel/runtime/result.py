"""What one run of a kernel gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from numpy.typing import NDArray

from superkernel.core.dtypes import DType
from superkernel.core.tensor import TensorType
from superkernel.display import notebook


class RunReport(Protocol):
    """What a run cost, and where, on whatever target."""

    def text(self) -> str:
        """For a terminal."""

    def to_json(self) -> dict[str, Any]:
        """Plain data, stable keys."""

    def _repr_html_(self) -> str:
        """For notebooks."""


AnyReport = TypeVar("AnyReport", bound=RunReport, covariant=True)


@dataclass(frozen=True)
class RunResult(Generic[AnyReport]):
    """Outputs by name; `report` where the run was profiled; `dumps`: what option `dump` asked for, by name."""

    outputs: dict[str, NDArray[Any]]
    report: AnyReport | None = None
    dumps: dict[str, NDArray[Any]] = field(default_factory=dict)

    def __repr__(self) -> str:
        """One line: names and types of what there is, and what the report is about."""
        arrays = {**self.outputs, **self.dumps}
        rows = [f"{name}: {_type_of(array)}" for name, array in arrays.items()]
        report = f"; {self.report!r}" if self.report is not None else ""
        return f"<superkernel.RunResult {', '.join(rows)}{report}>"

    def _repr_html_(self) -> str:
        """For notebooks: names and types, and the report."""
        kinds = (("output", self.outputs), ("dump", self.dumps))
        rows = [(kind, name, str(_type_of(array))) for kind, arrays in kinds for name, array in arrays.items()]
        below = "" if self.report is None else self.report._repr_html_()
        return notebook.shown("result", notebook.table(("", "name", "type"), rows), below)


def _type_of(array: NDArray[Any]) -> TensorType:
    return TensorType(DType.of(array.dtype), array.shape)
