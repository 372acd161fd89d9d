"""The fused kernel's entries as machine code of x86-64: what `entry.py` says in LLVM's words, written as bytes by
csrc/entries, in less time than to read them from a cache. They are recorded and verified like any other program's
(`backends/host/attest.py`).
"""

from __future__ import annotations

from superkernel import _core
from superkernel.codegen.host.entry_spec import (
    LINES_PER_SPIN,
    WAITS_IN_A_TABLE,
    BasePointer,
    EntrySpec,
    RunTask,
    SetCount,
    WaitFor,
)
from superkernel.codegen.host.handover import LINE_BYTES

_SPACES = BasePointer.ARENA, BasePointer.CONSTANTS, BasePointer.IO
_KINDS = RunTask, WaitFor, SetCount


def entries_object(spec: EntrySpec) -> bytes:
    """The object with the three entries."""
    return _core.entries_object(
        spec.tasks, spec.programs, spec.sets, spec.subops, spaces=_SPACES, kinds=_KINDS,
        table_waits=WAITS_IN_A_TABLE, spin_bytes=LINE_BYTES * LINES_PER_SPIN, spin_lines=LINES_PER_SPIN,
    )  # fmt: skip
