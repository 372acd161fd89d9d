"""What the program around the kernels is made from, and the names that its parts have.

Data only: `program` and `launch` write the code, `footprint` reads from here where it will stand.

A sub-operator's units stand in each core's private memory, two 32-bit numbers in a table of those that its type runs
(`ranges_of`). A *stub* (`preload`) is a list of code lines to prefetch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from superkernel.codegen.aicore.emission import KernelCode
from superkernel.scheduler.families.aicore.base import CoreRole
from superkernel.sync.aicore.plan import AICPU, AicorePlan, CoreKind, HartKind, LaunchEnd, Pause, Run, Step

SINGLE = 1 << 20  # launch number of sub-operator 0 alone
PHASE_ENTRY, PHASE_BODY, PHASE_BEHIND = 1, 2, 3  # 0: nothing marked yet


@dataclass(frozen=True)
class KernelCall:
    """A sub-operator's kernel by role, the addresses of its operands, and where its workspaces are: `scratch` for core
    number 0 of those that own one, `scratch_stride` further for each next one. `strides`: how much further than for the
    first group an operand lies for each next one, where groups have copies of their own."""

    codes: Mapping[CoreRole, KernelCode]
    addresses: tuple[int, ...]
    scratch: int
    scratch_stride: int
    everywhere: bool  # every core of its types has units
    barriers: int = 0  # of all cores of its type, inside
    strides: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CodeLine:
    """A line of code: it holds the byte `offset` behind a function's start. `lane`: only cores of that number within
    their group run it; None: all of the type."""

    symbol: str
    offset: int
    lane: int | None = None


@dataclass(frozen=True)
class ProgramSpec:
    """Everything the program is made from. `calls[i]` None: a fallback, or no units at all. `stubs`: of a launch, the
    lines to prefetch ahead of its first, second... kernel."""

    plan: AicorePlan
    calls: tuple[KernelCall | None, ...]
    private_bytes: int
    constants: int  # their address
    stubs: Mapping[str, Sequence[Sequence[CodeLine]]] = field(default_factory=dict)


def ranges_of(plan: AicorePlan, calls: Sequence[KernelCall | None]) -> dict[HartKind, dict[int, int]]:
    """Number in the table of unit ranges of each sub-operator, by type."""
    found: dict[HartKind, dict[int, int]] = {}
    for kind, program in plan.programs.items():
        runs = [s.subop for s in program if isinstance(s, Run) and calls[s.subop] is not None]
        found[kind] = {subop: at for at, subop in enumerate(runs)}
    return found


def parts_of(program: Sequence[Step]) -> list[list[Step]]:
    """The launches of a fused program: split where sub-operators run elsewhere, and where the plan cuts."""
    parts: list[list[Step]] = [[]]
    for step in program:
        if isinstance(step, (Pause, LaunchEnd)):
            parts.append([])
        else:
            parts[-1].append(step)
    return parts


def launch_name(part: int, kind: HartKind) -> str:
    """The function of a part of the fused kernel on a type of core."""
    return f"sk_fused{part}_{kind.value}"


def single_name(subop: int, kind: HartKind) -> str:
    """The function of a sub-operator alone on a type of core."""
    return f"sk_single{subop}_{kind.value}"


def runs_on(role: CoreRole, kind: HartKind) -> bool:
    """Whether harts of a type have a role."""
    if kind is AICPU:
        return role is CoreRole.AICPU
    return role.is_cube if kind is CoreKind.CUBE else role.is_vector
