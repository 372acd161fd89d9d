"""What `superkernel.export` made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from superkernel.registry.manifest import Manifest


@dataclass(frozen=True)
class Library:
    """A library on disk. `models`: the numbers of threads that each has plans for. `manifest`: the kernels in it;
    `idle`: those that were listed for it and that none of its models needs. `code_bytes`: of kernels and entries, with
    the constants in their code; `constant_bytes`: packed; `file_bytes`: all of it, with the runtime."""

    path: str
    header: str
    models: Mapping[str, tuple[int, ...]]
    manifest: Manifest
    idle: tuple[str, ...]
    code_bytes: int
    constant_bytes: int
    file_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "schema": "superkernel.library/1",
            "path": self.path,
            "header": self.header,
            "models": {name: list(threads) for name, threads in self.models.items()},
            "kernels": sorted(self.manifest.kernels),
            "idle": list(self.idle),
            "code_bytes": self.code_bytes,
            "constant_bytes": self.constant_bytes,
            "file_bytes": self.file_bytes,
        }

    def __str__(self) -> str:
        models = "; ".join(f"{n!r} for {', '.join(map(str, t))} threads" for n, t in self.models.items())
        return (
            f"{self.path} and {self.header}: models {models}\n"
            f"kernels: {len(self.manifest.kernels)}; {self.code_bytes:,} bytes of code, {self.constant_bytes:,} of "
            f"constants, {self.file_bytes:,} in all"
            + (f"\nlisted, and needed by none of these models: {', '.join(self.idle)}" if self.idle else "")
        )
