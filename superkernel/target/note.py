"""Which target a program was compiled for, said by its file: an ELF note with the whole description.

Model: a section of its own that is not loaded, `.note.superkernel.target`, holds one note of owner `SuperKernel` and
type 1; its text is what `AicoreTarget.text()` gives and `parse_target` reads. So a file needs nobody to remember what
it is for. Other notes (`launch_note.py`) have other sections and types.

A program may run on another target where that one has all it relies on: shape, layout and addresses are the same
(`_SAME`), local memories and flags at least as large (`_AT_LEAST`). All else is time, and a target that differs in
times is a legal question to a program: what would it be with a slower memory? `compatibility.py` asks, and falls back
to the memory map for files without the note.
"""

from __future__ import annotations

import io
import struct
from typing import Final

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from superkernel.core.errors import FileFormatError, Violation
from superkernel.target.aicore import AicoreTarget, parse_target

SECTION: Final = ".note.superkernel.target"
OWNER: Final = b"SuperKernel\0"
KIND: Final = 1

_SAME: Final = (
    "device.groups", "device.cube_cores_per_group", "device.vector_cores_per_group", "device.cube_cores",
    "device.vector_cores", "device.aicpu_harts", "memory.block_bytes", "memory.fractal_bytes",
    "memory.accumulator_bytes", "control.isa", "control.private_bytes", "cube.m", "cube.n", "cube.k_f16", "cube.k_i8",
    "cube.k_f32", "map.page_address", "map.page_bytes", "map.ram_address", "map.ram_bytes", "map.clint_address",
    "map.exit_address", "map.console_address",
)  # fmt: skip
_AT_LEAST: Final = (
    "device.sdma_engines", "memory.l1_bytes", "memory.l0a_bytes", "memory.l0b_bytes", "memory.l0c_bytes",
    "memory.ub_bytes", "queue.flag_ids", "queue.flag_count_max", "sync.point_to_point", "sync.flags_per_core",
    "sync.flag_count_max",
)  # fmt: skip
RELIED_ON: Final = (*_SAME, *_AT_LEAST)
"""The fields that a program's meaning rests on; the others are about time."""


def note_bytes(target: AicoreTarget) -> bytes:
    """The contents of the section."""
    return write_note(KIND, target.text())


def noted_target(data: bytes, name: str = "program") -> AicoreTarget | None:
    """The target that an ELF file names; None where it names none, or is no ELF file, which whoever loads it says.
    Raises FileFormatError for a note that cannot be read."""
    text = read_note(data, SECTION, KIND, name)
    return None if text is None else parse_target(text, origin=note_place(name, SECTION))


def note_place(name: str, section: str) -> str:
    """Where a note is, for messages."""
    return f"file {name!r}, section {section!r}"


def write_note(kind: int, text: str) -> bytes:
    """A note of a type, as a section's contents."""
    data = text.encode()
    head = struct.pack("<III", len(OWNER), len(data), kind)
    return b"".join(part + bytes(-len(part) % 4) for part in (head, OWNER, data))


def read_note(data: bytes, section: str, kind: int, name: str) -> str | None:
    """The text of a note; None where an ELF file has no such section, or is none. Raises FileFormatError."""
    try:
        there = ELFFile(io.BytesIO(data)).get_section_by_name(section)
        found = None if there is None else there.data()
    except (ELFError, ValueError, KeyError, UnicodeDecodeError, OverflowError, MemoryError):
        return None
    if found is None:
        return None
    where = note_place(name, section)
    if len(found) < 12:
        raise FileFormatError("not a whole note", location=where, expected="12 bytes or more", found=str(len(found)))
    owner_bytes, text_bytes, found_kind = struct.unpack_from("<III", found)
    start = 12 + owner_bytes + (-owner_bytes % 4)
    owner, text = found[12 : 12 + owner_bytes], found[start : start + text_bytes]
    if owner != OWNER or found_kind != kind or len(text) != text_bytes:
        raise FileFormatError(
            "not a note of this version", location=where, expected=f"owner {OWNER!r}, type {kind}, its whole text",
            found=f"owner {owner[:32]!r}, type {found_kind}, {len(text)} of {text_bytes} bytes",
        )  # fmt: skip
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise FileFormatError("not a text", location=where, expected="UTF-8", found=str(error)) from error


def missing(compiled_for: AicoreTarget, target: AicoreTarget, where: str) -> list[Violation]:
    """What a program for one target relies on and another has not; empty where it may run there."""
    wrong = [path for path in _SAME if compiled_for.value(path) != target.value(path)]
    wrong += [path for path in _AT_LEAST if compiled_for.value(path) > target.value(path)]  # type: ignore[operator]
    return [
        Violation(
            f"a program for another target: {path}", where,
            f"{compiled_for.value(path)!r}{' or more' if path in _AT_LEAST else ''}, as {compiled_for.name!r} has it",
            f"{target.value(path)!r} of {target.name!r}",
            hint="" if number else "without --target it runs on what it was compiled for",
        )
        for number, path in enumerate(wrong)
    ]  # fmt: skip
