"""What an import refuses, gathered for one error: operators without a lowering before the walk, and what lowerings
refuse in it.

Model: where a lowering refuses a node, inputs of the types that the foreign framework infers stand for its results, and
the walk goes on to find what else is refused; the graph that comes of it is never seen. Where a type is not known there
is no stand-in, and the importer passes over all that reads the result.

Invariant: nothing is reported that follows from an earlier refusal. A stand-in for what would have been a constant is
no constant, so a node that reads one and is refused is not reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from superkernel.builder import GraphBuilder
from superkernel.builder.tensor import Tensor, Value
from superkernel.core.errors import UnsupportedError, Violation, raise_all
from superkernel.core.tensor import TensorType

_PLACES = 5  # that an error names of an operator


def refuse_unknown(
    framework: str, unknown: Mapping[str, Sequence[str]], hint: Callable[[str], str], separator: str = ", "
) -> None:
    """Raises UnsupportedError that lists every operator without a lowering (operator -> places that use it) with a
    hint, where there are any."""
    raise_all(
        UnsupportedError,
        [
            Violation(
                f"no lowering for {framework} operator {op}",
                location=f"{len(places)} node{'s' * (len(places) > 1)}: {separator.join(places[:_PLACES])}"
                + f"{separator}..." * (len(places) > _PLACES),
                hint=hint(op),
            )
            for op, places in sorted(unknown.items())
        ],
    )


class Refusals:
    """What has been refused so far in a walk."""

    def __init__(self, builder: GraphBuilder) -> None:
        self.builder = builder
        self.violations: list[Violation] = []
        self._guessed: set[Value] = set()  # they stand for constants

    def followed(self, read: Sequence[Tensor], written: Iterable[Tensor]) -> None:
        """Notes a node that was lowered."""
        if self._reads_guesses(read) and self._reads_constants(read):
            self._guessed.update(t.value for t in written)

    def refused(
        self, violations: Sequence[Violation], read: Sequence[Tensor], kinds: Sequence[TensorType], stem: str
    ) -> list[Tensor]:
        """Notes a node that was refused; what stands for its results."""
        if not self._reads_guesses(read):
            self.violations += violations
        stand_ins = [self.builder.input(f"{stem} refused:{i}", k.shape, k.dtype) for i, k in enumerate(kinds)]
        if self._reads_constants(read):
            self._guessed.update(t.value for t in stand_ins)
        return stand_ins

    def raise_all(self) -> None:
        """Raises UnsupportedError where anything was refused."""
        raise_all(UnsupportedError, self.violations)

    def _reads_guesses(self, read: Sequence[Tensor]) -> bool:
        return bool(self._guessed) and any(t.value in self._guessed for t in read)

    def _reads_constants(self, read: Sequence[Tensor]) -> bool:
        """True where everything that is read is a constant, or stands for one."""
        return all(t.value.data is not None or t.value in self._guessed for t in read)
