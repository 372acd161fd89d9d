"""Objects that kernels of several sizes share, and how one becomes a kernel's own.

Model: an object is compiled once for a representative (`scheduler/tiling.py`). Its function has the representative's
symbol, its table of sizes holds *marks*, words that occur nowhere else. A kernel's own object is a copy with its own
sizes in their place and its own symbol, which differs in the digest behind it alone: a whole object like any other, to
whoever links, keeps or attests it.

Invariant: an object in which a mark does not occur exactly once is an InternalError, never a guess.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Mapping

from superkernel.core.errors import InternalError
from superkernel.scheduler.symbols import DIGEST_DIGITS

_WORD = struct.Struct("<q")


def marks(symbol: str, sizes: Iterable[str]) -> dict[str, int]:
    """What stands in the table of a shared object in the place of its sizes."""
    return {name: _WORD.unpack_from(hashlib.sha256(f"{symbol} {name}".encode()).digest())[0] for name in sizes}


def own_object(shared: bytes, symbol: str, own: str, sizes: Mapping[str, int]) -> bytes:
    """The object of the kernel `own`, out of the one compiled for the representative `symbol`. Raises InternalError."""
    common, digest, own_digest = symbol[:-DIGEST_DIGITS], symbol[-DIGEST_DIGITS:], own[-DIGEST_DIGITS:]
    if own[:-DIGEST_DIGITS] != common or digest.encode() not in shared:
        raise InternalError("a shared object is of another kernel", expected=own, found=symbol)
    data = shared.replace(digest.encode(), own_digest.encode())
    for name, mark in marks(symbol, sizes).items():
        word = _WORD.pack(mark)
        if data.count(word) != 1:
            raise InternalError("a shared object has no single place for a size", location=own, found=name)
        data = data.replace(word, _WORD.pack(sizes[name]))
    return data
