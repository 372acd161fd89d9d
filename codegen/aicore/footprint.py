"""Which lines of code each core runs, from a linked program: what `preload` and `split` are decided on.

Model: a fused launch is a straight line, cut into *segments* at its kernel calls: segment n goes from the call of run
n - 1 to that of run n + 1, so that neighbours share the stretch between their calls (where in it the stub of the later
one stands, only the compiler knows). Its lines are the stretch up to the call, the kernel (twice: what comes back in a
loop stays in use), the wait function, the stretch behind the call. Calls are found by the relocations of the program's
object, in order. Vector cores of a group that run different functions have footprints of their own, by `lane`.

A line is named by a `CodeLine`: a function and an offset, which holds in every copy of the code.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from superkernel.codegen.aicore.launch import OFFSET_BROKEN, OFFSET_BYTES
from superkernel.codegen.aicore.layer import FENCE_FUNCTION, WAIT_FUNCTION
from superkernel.codegen.aicore.linking import Image
from superkernel.codegen.aicore.linking.objects import read_object
from superkernel.codegen.aicore.linking.relocations import NUMBERS
from superkernel.codegen.aicore.preload import INSTRUCTION_BYTES, STUB_OVERHEAD, CodeSegment
from superkernel.codegen.aicore.program_spec import CodeLine, KernelCall, launch_name, parts_of, runs_on
from superkernel.scheduler.families.aicore.base import CoreRole
from superkernel.sync.aicore.plan import AicorePlan, Await, CoreKind, Run, Step


@dataclass(frozen=True)
class Footprint:
    """The segments of one launch on the cores of a type (and lane), the places of its lines, and which segments begin
    with a wait that releases all cores at once."""

    kind: CoreKind
    launch: str
    lane: int
    segments: tuple[CodeSegment, ...]
    places: Mapping[int, CodeLine]
    released: tuple[bool, ...]

    def enters_kernel(self, lines: Sequence[int]) -> bool:
        """Any of the lines belongs to a kernel, not to the launch."""
        return any(self.places[line].symbol != self.launch for line in lines)


def footprints(
    image: Image,
    program: bytes,
    plan: AicorePlan,
    calls: Sequence[KernelCall | None],
    line_bytes: int,
    stubs: Mapping[str, Sequence[Sequence[CodeLine]]] = MappingProxyType({}),
) -> list[Footprint]:
    """Of all fused launches that call kernels. `program`: the object with the launches of `image`, which has no stubs;
    `stubs` that are to be added to it move what stands behind them."""
    sites = _call_sites(program)
    found = []
    for kind in CoreKind:
        lanes = sorted({r.lane for c in calls if c for r in c.codes if runs_on(r, kind)}) or [0]
        for number, steps in enumerate(parts_of(plan.programs[kind])):
            runs, released = _runs(steps, calls)
            name = launch_name(number, kind)
            for lane in lanes if runs else ():
                walk = _Walk(image, sites.get(name, {}), line_bytes, kind, name, lane)
                found.append(walk.walk(runs, calls, released, [_stub_bytes(s) for s in stubs.get(name, ())]))
    return found


def _runs(steps: Sequence[Step], calls: Sequence[KernelCall | None]) -> tuple[list[Run], tuple[bool, ...]]:
    """The kernel calls of a launch, and which of them follow or contain a wait."""
    runs: list[Run] = []
    released: list[bool] = []
    waits = False
    for step in steps:
        waits |= isinstance(step, Await)
        if isinstance(step, Run):
            waits |= any(wait.events for wait in step.waits)
            if calls[step.subop] is not None:
                runs.append(step)
                released.append(waits)
                waits = False
    return runs, tuple(released)


def _stub_bytes(stub: Sequence[CodeLine]) -> int:
    """Code of a stub: an instruction per line, and per function those that form its address; a branch per lane."""
    bases = len({line.symbol for line in stub})
    lanes = len({line.lane for line in stub} - {None})
    return INSTRUCTION_BYTES * (len(stub) + STUB_OVERHEAD * (bases + lanes))


def _call_sites(program: bytes) -> dict[str, dict[str, list[int]]]:
    """Offsets of the calls in each function, by whom they call, in order."""
    obj = read_object(program, "program")
    kinds = (NUMBERS["CALL"], NUMBERS["CALL_PLT"])
    sites: dict[str, dict[str, list[int]]] = {}
    for row, piece in zip(obj.relocations.tolist(), obj.relocation_piece.tolist(), strict=True):
        offset, info, _ = row
        if info & 0xFFFFFFFF in kinds:
            function = obj.pieces[piece].name.removeprefix(".text.")
            sites.setdefault(function, {}).setdefault(obj.symbol_names[info >> 32], []).append(offset)
    for calls in sites.values():
        for offsets in calls.values():
            offsets.sort()
    return sites


class _Walk:
    """One launch on one type of core."""

    def __init__(
        self, image: Image, sites: Mapping[str, Sequence[int]], line_bytes: int, kind: CoreKind, launch: str, lane: int
    ) -> None:
        self.image, self.sites, self.line_bytes = image, sites, line_bytes
        self.kind, self.launch, self.lane = kind, launch, lane
        self.places: dict[int, CodeLine] = {}
        self.size = 0  # of the launch, with stubs
        self._taken: dict[str, int] = {}

    def walk(
        self, runs: Sequence[Run], calls: Sequence[KernelCall | None], released: tuple[bool, ...], added: Sequence[int]
    ) -> Footprint:
        """`added`: bytes of the stub ahead of each run."""
        moved = 0
        ends: list[int] = []
        kernels = []
        for number, run in enumerate(runs):
            moved += added[number] if number < len(added) else 0
            call = calls[run.subop]
            assert call is not None
            roles = [role for role in call.codes if runs_on(role, self.kind)]
            at = moved + max(self._site(call.codes[role].symbol) for role in roles)
            ends.append(max(at, ends[-1] if ends else 0))
            mine = next((r for r in roles if r.lane == self.lane), roles[0])
            kernels.append(self._kernel(call, mine, lane=self.lane if len(roles) > 1 else None))
        self.size = size = self.image.symbol(self.launch).size + moved
        stops = [*(end + 2 * INSTRUCTION_BYTES for end in ends[1:]), size]
        starts = [0, *ends[:-1]]
        segments = []
        for run, kernel, start, end, stop in zip(runs, kernels, starts, ends, stops, strict=True):
            head = self._lines(self.launch, start, end + 2 * INSTRUCTION_BYTES)
            wait = self._lines(WAIT_FUNCTION) if run.waits else []
            lines = (*head, *kernel, *wait, *kernel, *self._lines(self.launch, end, stop))
            cycles = len(set(lines)) * self.line_bytes // INSTRUCTION_BYTES
            segments.append(CodeSegment(lines, cycles))
        return Footprint(self.kind, self.launch, self.lane, tuple(segments), self.places, released)

    def _site(self, symbol: str) -> int:
        """Where the next call of a function is; the last one again where the compiler merged calls."""
        number = self._taken.get(symbol, 0)
        self._taken[symbol] = number + 1
        offsets = self.sites.get(symbol, ())
        return offsets[min(number, len(offsets) - 1)] if offsets else 0

    def _kernel(self, call: KernelCall, role: CoreRole, lane: int | None) -> list[int]:
        code = call.codes[role]
        lines = self._lines(code.symbol, lane=lane)
        return [*self._lines(FENCE_FUNCTION), *lines] if code.scalar else lines

    def _lines(self, symbol: str, start: int = 0, stop: int | None = None, lane: int | None = None) -> list[int]:
        """The lines of a stretch of a function."""
        found = self.image.symbol(symbol)
        first = (found.address + start) // self.line_bytes
        size = self.size if symbol == self.launch else found.size
        last = (found.address + (size if stop is None else min(stop, size)) - 1) // self.line_bytes
        lines = list(range(first, last + 1))
        for line in lines:
            begin = line * self.line_bytes - found.address
            offset = max(0, -(-begin // OFFSET_BYTES) * OFFSET_BYTES)
            if offset == OFFSET_BROKEN and offset + OFFSET_BYTES < begin + self.line_bytes:
                offset += OFFSET_BYTES
            self.places.setdefault(line, CodeLine(symbol, offset, lane))
        return lines
