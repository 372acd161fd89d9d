"""A static library: objects in one file, with the index by which linkers find who defines a symbol.

Model: the format of System V and GNU (`ar` of binutils): a magic line, and per member a header of 60 bytes and its
contents, at an even place. The first member, "/", is the index: a count, the place of a member for each symbol, the
symbols' names. Nothing in it depends on when and by whom it was made.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from superkernel.backends.host.library.symbols import defined

MAGIC = b"!<arch>\n"
_HEADER_BYTES = 60


def archive(objects: Sequence[bytes]) -> bytes:
    """The file of a library."""
    symbols = [(name, number) for number, data in enumerate(objects) for name in defined(data)]
    names = b"".join(name.encode() + b"\0" for name, _ in symbols)
    index_bytes = 4 + 4 * len(symbols) + len(names)
    members = [_member(f"part{number}.o/", data) for number, data in enumerate(objects)]
    places, at = [], len(MAGIC) + _HEADER_BYTES + index_bytes + index_bytes % 2
    for member in members:
        places.append(at)
        at += len(member)
    index = struct.pack(f">{1 + len(symbols)}I", len(symbols), *(places[number] for _, number in symbols)) + names
    return b"".join([MAGIC, _member("/", index), *members])


def _member(name: str, data: bytes) -> bytes:
    header = f"{name:<16}{0:<12}{0:<6}{0:<6}{'644':<8}{len(data):<10}`\n".encode()
    assert len(header) == _HEADER_BYTES
    return header + data + b"\n" * (len(data) % 2)
