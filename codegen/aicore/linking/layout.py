"""Where the linker is to put code and data: `LinkLayout`, the caller's side of the contract.

Model: the code is a stretch of *shared* functions, then `copies` copies of all others, every copy laid out alike and
at an address of its own, one behind the other. Within a copy the functions of `order` come first, the others behind in
the order of the objects; each starts at a multiple of `func_align`. Data follows on a page of its own: constants,
data, zero-filled data.

Names: function f of copy 0 is `f`, of copy c > 0 `f.copy<c>`. References may also use `f.copy0`, which means copy 0
from wherever it is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from superkernel.codegen.aicore.memory_map import MemoryMap
from superkernel.core.errors import LinkError, Violation, raise_all
from superkernel.target.aicore import AicoreTarget

PAGE_BYTES = 4096
ADDRESS_BITS = 56  # of physical addresses; sums of addresses and sizes stay within 63 bits
COPIES_MAX = 1024


@dataclass(frozen=True, kw_only=True)
class LinkLayout:
    """See the module docstring. Addresses and sizes in bytes; the ends are the first addresses not to be used.

    order           symbols of functions, first to last; no symbol twice
    shared          symbols of functions that are not copied: they call copy 0 where they do not say otherwise
    copy_align      copies start at multiples of it (default: an L2 line, so that no two copies share one)
    entered_cold    symbols of functions that start at multiples of `copy_align` too: nobody can prefetch their first
                    instructions, and what stands behind these in the same L2 line comes with them
    absolute        symbols with addresses that no object defines
    """

    code_address: int
    code_end: int | None = None
    func_align: int = 128
    order: Sequence[str] = ()
    copies: int = 1
    shared: Sequence[str] = ()
    copy_align: int = 512
    entered_cold: Sequence[str] = ()
    data_end: int | None = None
    absolute: Mapping[str, int] = field(default_factory=dict)
    entry: str = "sk_start"

    def __post_init__(self) -> None:
        raise_all(LinkError, self._violations())

    @classmethod
    def of(cls, target: AicoreTarget, **options: Any) -> LinkLayout:
        """The layout for a target: code and data within its memory map's stretch for both, functions on instruction
        cache lines, `sk_private` at the map's private memories, the start code (boot.py) shared. `options` are further
        fields, or override these."""
        memory = MemoryMap.of(target)
        values: dict[str, Any] = {
            "code_address": memory.code_address,
            "code_end": memory.data_address,
            "data_end": memory.data_address,
            "func_align": target.icache.line_bytes,
            "copy_align": max(target.l2.line_bytes, target.icache.line_bytes),
            "shared": ("sk_start", "sk_trap", "sk_fence"),
        }
        values |= options
        values["absolute"] = {"sk_private": memory.private_address, **values.get("absolute", {})}
        return cls(**values)

    def _violations(self) -> list[Violation]:
        found: list[Violation] = []

        def check(holds: bool, where: str, expected: str, value: object) -> None:
            if not holds:
                found.append(Violation("an impossible layout", f"layout.{where}", expected, str(value)))

        for name in ("func_align", "copy_align"):
            value = getattr(self, name)
            check(2 <= value <= 1 << 20 and value & (value - 1) == 0, name, "a power of two from 2 to 2^20", value)
        check(1 <= self.copies <= COPIES_MAX, "copies", f"1 to {COPIES_MAX}", self.copies)
        for name in ("code_address", "code_end", "data_end"):
            value = getattr(self, name)
            check(value is None or 0 <= value < 1 << ADDRESS_BITS, name, f"0 to 2^{ADDRESS_BITS} - 1", value)
        for name in ("order", "shared", "entered_cold"):
            names = getattr(self, name)
            twice = sorted({n for n in names if names.count(n) > 1}) if len(set(names)) < len(names) else []
            check(not twice, name, "no symbol twice", ", ".join(twice))
        for symbol, address in self.absolute.items():
            check(0 <= address < 1 << 64, f"absolute[{symbol!r}]", "64 bits", address)
        return found
