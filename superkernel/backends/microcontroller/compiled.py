"""What a compilation for a microcontroller made, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Never

from superkernel.backends.host.compiled import HostCompiled
from superkernel.core.errors import UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from superkernel.codegen.microcontroller.image import MicrocontrollerImage
    from superkernel.target.microcontroller import MicrocontrollerTarget

FIRMWARE = "firmware"


class NotHere:
    """In the place of what runs: nothing on this machine does. `core`: what would."""

    def __init__(self, core: str) -> None:
        self.core = core

    def run(self, io: Sequence[NDArray[Any]], /) -> Never:
        """Raises UnsupportedError."""
        raise UnsupportedError(
            "a microcontroller's kernel does not run on this machine",
            expected=self.core,
            hint="superkernel.export makes a library for its firmware; executor='reference' computes with NumPy",
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class MicrocontrollerCompiled(HostCompiled):
    """Everything a compilation for a microcontroller made."""

    target: MicrocontrollerTarget
    image: MicrocontrollerImage  # type: ignore[assignment]
    executable: NotHere  # type: ignore[assignment]

    executor: ClassVar[str] = FIRMWARE
    counter_bytes: ClassVar[int] = 0

    def _summaries(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        cores, plan, code = super()._summaries()
        return cores | {"target": self.target.core}, plan, code | {"needs": list(self.image.needs)}
