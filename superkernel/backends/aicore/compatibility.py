"""Whether an accelerator's program may run on a target: its file says what it was compiled for (`target/note.py`).
And by which launches: its table of them (`target/launch_note.py`) is held against its functions.

A fused kernel without that note is told by its private memories, which must lie where the target has them: their
address follows from the number of harts, the size of memory and `control.private_bytes`, so that it tells targets of
different shapes apart, mostly. Targets that differ in times only run one another's programs.
"""

from __future__ import annotations

import io
import itertools

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from superkernel.codegen.aicore.memory_map import MemoryMap
from superkernel.codegen.aicore.program_spec import launch_name
from superkernel.core.errors import FileFormatError, InputError, raise_all
from superkernel.sync.aicore.plan import CoreKind
from superkernel.target.aicore import AicoreTarget
from superkernel.target.launch_note import LaunchNote, noted_launches
from superkernel.target.note import SECTION, missing, noted_target


def check_compatible(data: bytes, target: AicoreTarget, name: str) -> None:
    """Raises InputError with all that a program relies on and the target has not; programs that neither name a target
    nor are fused kernels are nobody's. Raises FileFormatError for a note that cannot be read."""
    if (compiled_for := noted_target(data, name)) is not None:
        raise_all(InputError, missing(compiled_for, target, f"file {name!r}, section {SECTION!r}"))
        return
    symbols = _symbols(data)
    found, expected = symbols.get("sk_private"), MemoryMap.of(target).private_address
    if launch_name(0, CoreKind.CUBE) not in symbols or found is None or found == expected:
        return
    raise InputError(
        "a program for another target",
        location=f"file {name!r}, symbol 'sk_private'",
        expected=f"private memories at {expected:#x}, where target {target.name!r} has them",
        found=f"{found:#x}",
        hint="--target must name what the program was compiled for",
    )


def launches_of(data: bytes, name: str) -> LaunchNote:
    """The launches that run a program; one where neither a table nor a function tells of any. Raises FileFormatError
    where the table is not that of the functions, or cannot be read."""
    note = noted_launches(data, name) or LaunchNote(((),), ())
    symbols = _symbols(data)
    functions = next(n for n in itertools.count() if launch_name(n, CoreKind.CUBE) not in symbols)
    if functions and functions != len(note.launches):
        raise FileFormatError(
            "a program without the table of its launches", location=f"file {name!r}",
            expected=f"{functions} launches, for which it has functions", found=f"{len(note.launches)}",
            hint="save it again",
        )  # fmt: skip
    return note


def _symbols(data: bytes) -> dict[str, int]:
    """Symbols by name; none of a file that is no ELF file, which whoever runs it says."""
    try:
        tables = [s for s in ELFFile(io.BytesIO(data)).iter_sections() if isinstance(s, SymbolTableSection)]
        return {symbol.name: symbol["st_value"] for table in tables for symbol in table.iter_symbols()}
    except (ELFError, ValueError, KeyError, UnicodeDecodeError, OverflowError, MemoryError):
        return {}
