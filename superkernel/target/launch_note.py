"""Which launches a program is run by, said by its file: an ELF note.

Model: section `.note.superkernel.launches` holds a note as `note.py` has them, of type 2; its text is JSON: `launches`,
for each launch the numbers of the sub-operators that run in it, and `names`, what those are called. Launch n is asked
for by a word in each hart's private memory (`codegen/aicore/memory_map.py`); all harts then begin at the entry, and it
has ended where the exit address is stored to. The launches of a file are run in their order, on one memory, with
nothing between them: what only NumPy can compute there keeps a program from being saved.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

from superkernel.core.errors import FileFormatError
from superkernel.core.json_text import parse_json
from superkernel.target.note import note_place, read_note, write_note

SECTION: Final = ".note.superkernel.launches"
KIND: Final = 2


@dataclass(frozen=True)
class LaunchNote:
    """See the module docstring. `names` of all sub-operators, by number."""

    launches: tuple[tuple[int, ...], ...]
    names: tuple[str, ...]

    def note_bytes(self) -> bytes:
        """The contents of the section."""
        return write_note(KIND, json.dumps({"launches": self.launches, "names": self.names}))


def noted_launches(data: bytes, name: str = "program") -> LaunchNote | None:
    """The launches that an ELF file names; None where it names none. Raises FileFormatError for a note that cannot be
    read."""
    text = read_note(data, SECTION, KIND, name)
    if text is None:
        return None
    try:
        table = parse_json(text)
        note = LaunchNote(tuple(tuple(map(int, row)) for row in table["launches"]), tuple(map(str, table["names"])))
    except (ValueError, KeyError, TypeError) as error:
        raise _unreadable(name, f"{type(error).__name__}: {error}") from error
    if not note.launches or any(not 0 <= n < len(note.names) for row in note.launches for n in row):
        raise _unreadable(name, f"{len(note.launches)} launches of {len(note.names)} sub-operators")
    return note


def _unreadable(name: str, found: str) -> FileFormatError:
    where, expected = note_place(name, SECTION), "one launch or more, of sub-operators that have names"
    return FileFormatError("not a table of launches", location=where, expected=expected, found=found)
