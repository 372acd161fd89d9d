"""All engine commands, and what holds for all of them: what encoder, simulator header and chapter follow."""

from __future__ import annotations

import difflib
from functools import cache

from superkernel.core.errors import InputError
from superkernel.target.engines.commands_cube import CUBE_COMMANDS
from superkernel.target.engines.commands_move import MOVE_COMMANDS
from superkernel.target.engines.commands_sync import SYNC_COMMANDS
from superkernel.target.engines.commands_vector import VECTOR_COMMANDS
from superkernel.target.engines.commands_vector_move import VECTOR_MOVE_COMMANDS
from superkernel.target.engines.model import CommandSpec

CONVENTIONS = (
    "Each engine executes the commands of its queue in order and completely, one after the other: a command reads "
    "what the ones ahead of it in the same queue wrote. Between queues, and between a queue and the control unit, "
    "nothing is ordered but by flags, drains and waits. The queue of sdma is shared: its commands run in the "
    "order of their doorbells, by cycle and then by core. A command reads its operand words when the doorbell is "
    "stored, memory when it executes.",
    "A command behaves as if it read all its inputs before it wrote anything. `Overlap` says which overlaps are "
    "legal; an illegal one is an error, not another result.",
    "The register page takes aligned 8-byte stores into its windows only; any other access to it is an error. A "
    "command sees what its control unit stored in global memory before a `fence w, o` ahead of the doorbell, and "
    "the control unit sees what an engine wrote after the drain, flag or wait that orders the two and a `fence i, "
    "r` behind it. Local memories can be reached by commands only.",
    "Numbers are little-endian. f32, f16 and bf16 are the IEEE 754 and bfloat16 formats with subnormals; rounding "
    "is to nearest even unless a command says otherwise. Arithmetic on f16 and bf16 widens to f32, does the f32 "
    "operation with its rounding and rounds the result to the type. A NaN that an arithmetic command, `l0c_to_gm` "
    "or `v_cast` writes is the canonical one (f32 0x7fc00000, f16 0x7e00, bf16 0x7fc0); copies, selections, "
    "`v_abs` and `v_neg` keep bits.",
    "Integer arithmetic is two's complement modulo 2^(width of the type).",
    "Layout of L0A for m x k elements: fractals of cube.m rows of memory.block_bytes bytes each; fractal number "
    "(row / cube.m) x (fractals per row of fractals) + (byte of the row / memory.block_bytes), row-major inside, "
    "one fractal after the other. L0B holds B transposed, n rows of k elements, in the same layout. Layout of L0C "
    "for m x n accumulators of 4 bytes: blocks of cube.m x cube.n, block number (row / cube.m) x ceil(n / cube.n) "
    "+ column / cube.n, row-major inside. All divisions round down.",
    "Errors, which stop the machine and name the command: an undefined opcode, engine, type or bit; an address "
    "that is not aligned or not in its memory; an illegal overlap; rows of a destination that share bytes; a read "
    "of local memory that was never written; a count above its maximum. With one row strides are not looked at.",
    "Time: the queue starts a command at the latest of its doorbell, the end of the command ahead, and the event "
    "it waits for; it is busy for start-up + beats cycles. Others see its effect `visible` cycles later. Traffic "
    "that misses L2 or meets other cores' takes longer.",
    "tanh, sigmoid, erf, softmax and norms are composed: tanh(x) = 1 - 2 / (exp(2x) + 1).",
)


@cache
def command_table() -> dict[str, CommandSpec]:
    """Every command by name, in the order of opcodes."""
    rows = sorted(
        (*SYNC_COMMANDS, *MOVE_COMMANDS, *CUBE_COMMANDS, *VECTOR_COMMANDS, *VECTOR_MOVE_COMMANDS),
        key=lambda spec: spec.opcode,
    )
    return {spec.name: spec for spec in rows}


@cache
def by_opcode() -> dict[int, CommandSpec]:
    """Every command by opcode."""
    return {spec.opcode: spec for spec in command_table().values()}


def spec_of(name: str) -> CommandSpec:
    """The row of a command. Raises InputError with the nearest name."""
    found = command_table().get(name)
    if found is None:
        near = difflib.get_close_matches(name, command_table(), n=1)
        raise InputError("unknown command", found=repr(name), hint=f"did you mean {near[0]!r}?" if near else "")
    return found
