"""What a compilation for the host made, as data; see `compilation/compiled.py`."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from io import BytesIO
from typing import TYPE_CHECKING, Any, ClassVar

from superkernel.backends.host.regions import COUNTER_BYTES, constants_bytes, tcm_bytes
from superkernel.compilation.compiled import Compilation
from superkernel.core.arrays import owners
from superkernel.core.option import HOST
from superkernel.sync.plan import Plan
from superkernel.target.cpu import CpuTarget

if TYPE_CHECKING:
    from superkernel.backends.host.executable import HostExecutable
    from superkernel.codegen.host.image import HostImage
    from superkernel.sync.verify import Certificate


@dataclass(frozen=True, kw_only=True, eq=False)
class HostCompiled(Compilation[CpuTarget, Plan]):
    """Everything a compilation for the host made."""

    certificate: Certificate
    image: HostImage
    executable: HostExecutable

    executor: ClassVar[str] = "host"
    cores_are: ClassVar[str] = "threads"
    counter_bytes: ClassVar[int] = COUNTER_BYTES

    @property
    def objects(self) -> Mapping[str, bytes]:
        return self.image.objects

    @cached_property
    def symbols(self) -> tuple[tuple[str, ...], ...]:
        return tuple(() if symbol is None else (symbol,) for symbol in self.image.symbols)

    @cached_property
    def function_bytes(self) -> Mapping[str, int]:
        names = {symbol for row in self.symbols for symbol in row}
        return {name: size for name, size in _function_sizes(self.image.objects.values()) if name in names}

    def held(self) -> dict[Hashable, int]:
        image, constants, workspace = self.image, self.image.constants, self.executable.workspace
        arrays = owners((constants.own, *constants.shared))
        memory = {id(self): image.arena_bytes + image.scratch_bytes * image.cores}
        if workspace is not None:
            memory = {id(workspace): workspace.nbytes}
        return super().held() | arrays | memory | {id(image): sum(map(len, image.objects.values()))}

    def idle_options(self) -> tuple[str, ...]:
        from superkernel.backends.host.computed_in import idle_precision

        on_host = self.options.without_effect(HOST)
        return (*on_host, *super().idle_options(), *idle_precision(self.options.precision, self.schedule))

    def _summaries(self) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
        from superkernel.backends.host.computed_in import formats_in_force

        cores = {"target": f"host {self.target.tier}", "threads": self.cores}
        plan = {
            "computed_in": formats_in_force(self.schedule),
            "distinct_kernels": len({s for row in self.symbols for s in row}),
            "waits": self.plan.waits,
            "sets": sum(self.plan.sets),
        }
        code = {
            "code_bytes": sum(map(len, self.image.objects.values())),
            "from_cache": self.image.from_cache,
            "fallbacks": [self.schedule.subops[i].name for i in self.image.host_calls],
        }
        if regions := self.target.regions():
            used = {
                "tcm": tcm_bytes(self.schedule, self.counter_bytes),
                "flash": constants_bytes(self.schedule) + self.image.code_bytes,
            }
            code["regions"] = {name: {"used_bytes": used[name], "bytes": regions[name]} for name in regions}
        return cores, plan, code


def _function_sizes(objects: Iterable[bytes]) -> Iterator[tuple[str, int]]:
    """The functions of object files, with their bytes."""
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import SymbolTableSection

    for data in objects:
        for table in ELFFile(BytesIO(data)).iter_sections():
            if isinstance(table, SymbolTableSection):
                functions = (s for s in table.iter_symbols() if s["st_info"]["type"] == "STT_FUNC")
                yield from ((s.name, int(s["st_size"])) for s in functions)
