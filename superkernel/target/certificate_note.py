"""What was proved of a program, said by its file, and of which bytes: an ELF note.

Model: section `.note.superkernel.certificate` holds a note as `note.py` has them, of type 3; its text is JSON:
`sha256`, the digest of the whole file with zeros in this digest's place; `text`, the certificate as it is printed;
`figures`, its fields. Whoever loads the file computes the digest anew: code, constants, symbols and the other notes are
then those that the certificate was written with. It finds damage and changes, not forgery: who can write a file can
write a digest. The certificate's own digests (of the program without its data, of addresses and accesses) are those
that compiling the same model gives again.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from elftools.elf.elffile import ELFFile

from superkernel.core.errors import FileFormatError
from superkernel.core.json_text import parse_json
from superkernel.target.note import note_place, read_note, write_note

SECTION: Final = ".note.superkernel.certificate"
KIND: Final = 3
_DIGITS: Final = 2 * hashlib.sha256().digest_size
_BLANK: Final = b"0" * _DIGITS
_KEY: Final = b'{"sha256": "'


@dataclass(frozen=True)
class CertificateNote:
    """See the module docstring."""

    sha256: str
    text: str
    figures: Mapping[str, Any]


def note_bytes(text: str, figures: Mapping[str, Any]) -> bytes:
    """The contents of the section, without the digest, which `sealed` puts in."""
    return write_note(KIND, json.dumps({"sha256": _BLANK.decode(), "text": text, "figures": figures}))


def sealed(data: bytes) -> bytes:
    """An ELF file that has the note, with its digest."""
    at = _place(data)
    assert at is not None, "no note of a certificate"
    return b"".join((data[:at], _digest(data, at).encode(), data[at + _DIGITS :]))


def checked_certificate(data: bytes, name: str = "program") -> CertificateNote:
    """The certificate of an ELF file whose bytes are those it was written with. Raises FileFormatError for other bytes,
    and where there is no certificate or none that can be read."""
    text = read_note(data, SECTION, KIND, name)
    if text is None:
        hint = "save it again: kernels of an accelerator save one with it"
        raise FileFormatError("a program without a certificate", location=f"file {name!r}", hint=hint)
    where = note_place(name, SECTION)
    try:
        note = CertificateNote(**parse_json(text))
    except (ValueError, TypeError) as error:
        raise FileFormatError("not a certificate", location=where, found=f"{type(error).__name__}: {error}") from error
    at = _place(data)
    found = "no digest in its place" if at is None else _digest(data, at)
    if found != note.sha256:
        raise FileFormatError(
            "not the program of its certificate", location=where, expected=str(note.sha256), found=found,
            hint="copy the file again, or save the kernel again",
        )  # fmt: skip
    return note


def _place(data: bytes) -> int | None:
    """Where the digest stands in a file that has the section; None: nowhere."""
    section = ELFFile(io.BytesIO(data)).get_section_by_name(SECTION)
    if section is None:
        return None
    begin = section["sh_offset"]
    at = data.find(_KEY, begin, begin + section["sh_size"])
    return None if at < 0 or at + len(_KEY) + _DIGITS > len(data) else at + len(_KEY)


def _digest(data: bytes, at: int) -> str:
    whole = memoryview(data)
    found = hashlib.sha256(whole[:at])
    found.update(_BLANK)
    found.update(whole[at + _DIGITS :])
    return found.hexdigest()
