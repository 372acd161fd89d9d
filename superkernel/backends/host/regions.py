"""What a schedule takes of memories that are no larger than they are: a microcontroller's, by its target.

Model: `tcm`, tightly coupled memory, holds what a launch writes: the arena, each core's working memory, its progress
counter. `flash` holds what never changes: packed constants and code. Inputs, outputs and states are the caller's and
count in neither.

Invariant: what is counted is what the runtime allocates and what is linked, alignment included.
"""

from __future__ import annotations

from collections import Counter
from typing import Never

from superkernel.codegen.host.abi import FLAG_STRIDE
from superkernel.codegen.host.constants import ALIGN_BYTES, SPARE_BYTES
from superkernel.core.errors import WorkspaceError
from superkernel.scheduler.schedule import Schedule, Space

COUNTER_BYTES = 8 * FLAG_STRIDE
"""Of a core's progress counter, on cache lines of its own. A microcontroller, whose one core waits for nobody, has
none."""
_NAMED = 3  # largest parts that an error names


def tcm_bytes(schedule: Schedule, counter: int = COUNTER_BYTES) -> int:
    """What a launch writes, but for the caller's own memory. `counter`: bytes of a core's progress counter."""
    return _values(schedule, counter) + schedule.cores * _rounded(schedule.scratch_bytes)


def workspace_left(schedule: Schedule, limit_bytes: int, counter: int = COUNTER_BYTES) -> int:
    """Working memory that a core may have beside the values of a schedule; below 0 where these leave none."""
    left = limit_bytes - _values(schedule, counter)
    return left // schedule.cores // ALIGN_BYTES * ALIGN_BYTES if left >= 0 else left


def constants_bytes(schedule: Schedule) -> int:
    """Packed constants, with what may be read behind them."""
    end = max((slot.offset + slot.nbytes for slot in schedule.constants), default=0)
    return _rounded(end) + SPARE_BYTES if end else 0


def raise_tcm(schedule: Schedule, limit_bytes: int, counter: int = COUNTER_BYTES) -> Never:
    """Raises WorkspaceError: the values alone do not fit; names the largest of them."""
    sizes: dict[str, int] = {}
    for sub, addresses in zip(schedule.subops, schedule.addresses, strict=True):
        for value, operand, address in zip(sub.values, sub.body.operands, addresses, strict=True):
            if address.space is Space.ARENA:
                sizes[value] = operand.type.nbytes
    parts = f"values {schedule.arena_bytes}, counters {counter * schedule.cores}"
    _raise(
        "tcm",
        tcm_bytes(schedule, counter),
        limit_bytes,
        parts,
        _largest(sizes),
        "smaller values: less batch, or i8 for f32",
    )


def raise_flash(schedule: Schedule, limit_bytes: int, code_bytes: int = 0) -> Never:
    """Raises WorkspaceError: constants, and code where it is known, do not fit, and no kernel packs less."""
    sizes: Counter[str] = Counter()
    slots = {slot.offset: slot.nbytes for slot in schedule.constants}
    for sub, addresses in zip(schedule.subops, schedule.addresses, strict=True):
        for address in addresses:
            if address.space is Space.CONSTANT:
                sizes[f"{sub.name} ({sub.kernel})"] += slots.pop(address.offset, 0)
    parts = f"constants {constants_bytes(schedule)}" + (f", code {code_bytes}" if code_bytes else "")
    need = constants_bytes(schedule) + code_bytes
    hint = "no kernel packs less: fewer weights, or i8 for f32"
    if code_bytes:
        hint = "option 'objective': size, for kernels with less code"
    _raise("flash", need, limit_bytes, parts, _largest(sizes), hint)


def _raise(region: str, need: int, limit: int, parts: str, largest: str, hint: str) -> Never:
    raise WorkspaceError(
        "the model does not fit the target's memory",
        location=f"region {region!r}",
        expected=f"at most {limit} bytes",
        found=f"{need} bytes ({parts}); the largest: {largest}",
        hint=hint,
    )


def _largest(sizes: dict[str, int]) -> str:
    rows = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))[:_NAMED]
    return ", ".join(f"{name} {nbytes}" for name, nbytes in rows if nbytes) or "none"


def _values(schedule: Schedule, counter: int) -> int:
    return _rounded(schedule.arena_bytes) + counter * schedule.cores


def _rounded(nbytes: int) -> int:
    return -(-nbytes // ALIGN_BYTES) * ALIGN_BYTES
