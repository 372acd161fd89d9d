"""The test of every kernel: does it compute the reference, and does it touch exactly what its tiling declares?

`check_body` compiles a body for one CPU tier and each candidate tiling, and verifies: (a) the whole run agrees with
the reference; (b) for random unit ranges, nothing outside the declared writes changes, not even around the buffers;
(c) all declared writes are written; (d) neither inputs outside the declared reads nor what lies in scratch reach the
results; (e) of a sample of candidates, of all in a soak run: each load and each store is declared (`Recorded`).

LLVM's optimisation is most of what that takes, and no kernel needs it to compute the same bits: so it too is for a
sample of candidates, for all in a soak run. The others are translated as they were emitted."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import soak
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from superkernel.codegen.host.constants import aligned_bytes
from superkernel.codegen.host.features import detect_cpu
from superkernel.codegen.host.recording import READ, WRITTEN, MemoryWindow
from superkernel.codegen.host.standalone import StandaloneKernel
from superkernel.core.dtypes import DType
from superkernel.core.tensor import Region, TensorType, row_major_strides
from superkernel.ir.body import Body, Operand, PointwiseProgram, ProgramInput, ProgramOutput, Role
from superkernel.scheduler.families import family_of
from superkernel.scheduler.tiling import CostedTiling
from superkernel.target.cpu import TIERS, CpuTarget

Array = NDArray[Any]
Reference = Callable[[list[Array]], Mapping[int, Array]] | Mapping[int, Array]
RECORDED_ONE_IN = 32  # candidates, but in a soak run
OPTIMISED_ONE_IN = 8
GUARD = 256  # bytes of canary around each output


def tiers() -> list[str]:
    """The tiers this machine can run, best first."""
    return list(TIERS[TIERS.index(detect_cpu("").tier) :])


def check_body(
    kernel: str,
    body: Body,
    arrays: Sequence[Array | None],
    reference: Reference,
    *,
    tilings: Sequence[CostedTiling[CpuTarget]] = (),
    tol: float | Mapping[int, float] = 1e-6,
    tier: str | None = None,
    splits: int = 3,
    seed: int = 0,
    exact_writes: bool = True,
) -> list[CostedTiling[CpuTarget]]:
    """See the module docstring. `arrays`: one per operand, None for outputs. `reference`: expected arrays by operand
    index, or a function of the arrays. `tol`: relative and absolute tolerance (integers must be equal where it is 0).
    `exact_writes` False: declared writes of INOUT operands may be a superset. Without `tilings` all candidates are
    checked, without `tier` all tiers.
    Returns the tilings checked on the last tier."""
    given = [
        np.zeros(o.type.shape, o.type.dtype.numpy) if a is None else _as_operand(a, o)
        for a, o in zip(arrays, body.operands, strict=True)
    ]
    expected = reference(given) if callable(reference) else reference
    checked: list[CostedTiling[CpuTarget]] = []
    for name in [tier] if tier else tiers():
        cpu = detect_cpu(name)
        checked = list(tilings) or list(family_of(kernel).tilings(kernel, body, cpu))
        assert checked, "no tiling"
        first: dict[int, Array] = {}
        for candidate in checked:
            run = _Run(kernel, body, candidate, given, cpu)
            first = first or run.full
            for k, written in run.full.items():
                assert _same_bits(written, first[k], body.operands[k]), f"{run.where}, operand {k}: other bits"
            run.check_reference(expected, tol)
            ranges = run.check_ranges(random.Random(seed), splits, exact_writes)
            if soak.chosen(run.where, RECORDED_ONE_IN):
                Recorded(kernel, body, candidate, run.packed, cpu).check(ranges)
            assert candidate.cost_ns(body, 0, candidate.units, cpu) >= 0
            middle = candidate.units // 2
            assert 0 <= candidate.align(body, middle) <= candidate.units
    return checked


def _same_bits(left: Array, right: Array, operand: Operand) -> bool:
    """Whether two runs wrote the same, whatever the bits of what is not a number; guards included."""
    kind = operand.type.dtype.numpy
    if kind.kind != "f":
        return np.array_equal(left, right)
    return np.array_equal(left.view(kind), right.view(kind), equal_nan=True)


def _as_operand(array: Array, operand: Operand) -> Array:
    result = np.ascontiguousarray(np.asarray(array).astype(operand.type.dtype.numpy, copy=False))
    assert result.shape == operand.type.shape or result.ndim != len(operand.type.shape), (result.shape, operand.type)
    return result.reshape(operand.type.shape)


class _Run:
    """A compiled candidate with its inputs and the bytes of its full run."""

    def __init__(
        self, kernel: str, body: Body, tiling: CostedTiling[CpuTarget], arrays: list[Array], cpu: CpuTarget
    ) -> None:
        self.body, self.tiling, self.arrays = body, tiling, arrays
        self.where = f"{kernel} on {cpu.tier}, {tiling}"
        level = 2 if soak.chosen(f"{self.where}, {body.operands}", OPTIMISED_ONE_IN) else 0
        self.kernel = StandaloneKernel(kernel, body, tiling, cpu, level=level)
        assert not undefined_symbols(self.kernel.object), self.where
        self.packed = self.kernel.pack(arrays)
        for k, pack in tiling.packs(body).items():
            told = pack.packed_bytes(body.operands[k].type)
            assert body.operands[k].role is not Role.CONSTANT or told == self.packed[k].nbytes, self.where
        self.full = self._execute(0, tiling.units, 0x00, poison=None)

    def _execute(self, begin: int, end: int, canary: int, poison: tuple[int, list[Array]] | None) -> dict[int, Array]:
        """Run a range; returns the bytes (guards included) of written operands. `poison`: a byte, and which bytes of
        each operand are not overwritten with it: those whose reads are declared."""
        fill, reads = poison or (0, [])
        buffers: list[Array] = []
        results: dict[int, Array] = {}
        for k, operand in enumerate(self.body.operands):
            source = np.ascontiguousarray(self.packed[k]).reshape(-1).view(np.uint8)
            buffer = aligned_bytes(source.nbytes + 2 * GUARD)
            inside = buffer[GUARD : GUARD + source.nbytes]
            if operand.role is Role.OUTPUT:
                buffer[:] = canary
            else:
                buffer[:] = fill if poison else 0xFF
                inside[:] = source
                if poison and operand.role is not Role.INOUT:
                    inside[~reads[k]] = fill & 1 if operand.type.dtype is DType.BOOL else fill
            if operand.role in (Role.OUTPUT, Role.INOUT):
                results[k] = buffer
            buffers.append(inside)
        scratch = aligned_bytes(max(64, self.tiling.scratch_bytes))
        scratch[:] = fill  # what is left over there must not reach the results
        self.kernel.run_packed(buffers, begin, end, scratch)
        return results

    def _declared(self, begin: int, end: int) -> tuple[list[Array], list[Array]]:
        """Per operand a mask of the bytes whose reads are declared, and one of those whose writes are."""
        reads, writes = ([np.zeros(np.asarray(p).nbytes, bool) for p in self.packed] for _ in range(2))
        for access in self.tiling.accesses(self.body, begin, end):
            for region in access.regions:
                mark((writes if access.write else reads)[access.operand], region)
        return reads, writes

    def check_reference(self, expected: Mapping[int, Array], tol: float | Mapping[int, float]) -> None:
        for k, want in expected.items():
            operand = self.body.operands[k]
            got = self.full[k][GUARD:-GUARD].view(operand.type.dtype.numpy).reshape(operand.type.shape)
            limit = tol[k] if isinstance(tol, Mapping) else tol
            compare(got, np.asarray(want).reshape(operand.type.shape), limit, f"{self.where}, operand {k}")

    def check_ranges(self, rng: random.Random, splits: int, exact_writes: bool) -> list[tuple[int, int]]:
        """Returns the ranges checked."""
        units = self.tiling.units
        ranges: list[tuple[int, int]] = []
        for count in range(2, 2 + splits):
            cuts = sorted(rng.randint(0, units) for _ in range(count - 1))
            ranges += zip([0, *cuts], [*cuts, units], strict=True)
        for begin, end in ranges:
            self._check_range(begin, end, exact_writes)
        return ranges

    def _check_range(self, begin: int, end: int, exact_writes: bool) -> None:
        where = f"{self.where}, units {begin}..{end}"
        reads, writes = self._declared(begin, end)
        if begin == end:
            assert not any(m.any() for m in writes), f"{where}: an empty range declares writes"
        one = self._execute(begin, end, 0xA5, (0xFF, reads))
        two = self._execute(begin, end, 0x5A, (0x7F, reads))
        for k, mask in enumerate(writes):
            if k not in one:
                assert not mask.any(), f"{where}: an input is declared written"
                continue
            inout = self.body.operands[k].role is Role.INOUT
            for buffer, canary, guard in ((one[k], 0xA5, 0xFF), (two[k], 0x5A, 0x7F)):
                inside = buffer[GUARD : len(buffer) - GUARD]
                edge = guard if inout else canary
                outside = np.concatenate([buffer[:GUARD], buffer[-GUARD:]])
                assert (outside == edge).all(), f"{where}: written beyond operand {k}"
                before = np.ascontiguousarray(self.packed[k]).reshape(-1).view(np.uint8) if inout else np.uint8(canary)
                changed = (inside != before) & ~mask
                assert not changed.any(), f"{where}: undeclared write to operand {k}, byte {np.argmax(changed)}"
                if not inout or exact_writes:
                    self._same_bits(inside, k, mask, where)

    def _same_bits(self, inside: Array, k: int, mask: Array, where: str) -> None:
        """Declared bytes hold what the full run wrote; NaNs may differ in their payload."""
        want = self.full[k][GUARD:-GUARD]
        wrong = (inside != want) & mask
        if not wrong.any():
            return
        dtype = self.body.operands[k].type.dtype
        if dtype.is_float:
            a, b = (x.view(dtype.numpy).astype(np.float64) for x in (inside, want))
            wrong &= ~np.repeat(np.isnan(a) & np.isnan(b), dtype.itemsize)
        assert not wrong.any(), f"{where}: operand {k} differs from the full run at byte {np.argmax(wrong)}"


class Recorded:
    """The candidate again, recording what it touches (`codegen/host/recording.py`): each load and store is held to the
    declared accesses, bytes that keep their value and operands that are both read and written included."""

    def __init__(
        self, kernel: str, body: Body, tiling: CostedTiling[CpuTarget], packed: Sequence[Array], cpu: CpuTarget
    ) -> None:
        self.body, self.tiling, self.packed = body, tiling, packed
        self.where = f"{kernel} on {cpu.tier}, {tiling}"
        sizes = [*(p.nbytes for p in packed), max(64, tiling.scratch_bytes)]
        steps = [-(-(size + GUARD) // 64) * 64 for size in sizes]  # nothing but GUARD bytes between two
        starts = [GUARD + sum(steps[:k]) for k in range(len(steps))]
        self.places = [slice(start, start + size) for start, size in zip(starts, sizes, strict=True)]
        self.window = MemoryWindow(GUARD + sum(steps))
        self.kernel = StandaloneKernel(kernel, body, tiling, cpu, self.window)

    def check(self, ranges: Iterable[tuple[int, int]]) -> None:
        """An empty range is left out: the verifier refuses tasks of one."""
        memory = self.window.memory
        for begin, end in (r for r in ranges if r[0] < r[1]):
            for place, array in zip(self.places[:-1], self.packed, strict=True):
                memory[place] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            self.window.clear()
            self.kernel.run_packed([memory[p] for p in self.places[:-1]], begin, end, memory[self.places[-1]])
            self._check_record(begin, end, f"{self.where}, units {begin}..{end}")

    def _check_record(self, begin: int, end: int, where: str) -> None:
        assert not self.window.outside[0], f"{where}: {self.window.outside}: access outside of all memory"
        declared = np.zeros(self.window.nbytes, np.uint8)
        declared[self.places[-1]] = READ | WRITTEN
        for access in self.tiling.accesses(self.body, begin, end):
            for region in access.regions:
                mark(declared[self.places[access.operand]], region, WRITTEN if access.write else READ)
        for bit, what in ((WRITTEN, "stores to"), (READ, "loads from")):
            wrong = np.flatnonzero(self.window.shadow & ~declared & bit)
            if wrong.size:
                raise AssertionError(f"{where}: {what} {self._named(int(wrong[0]))}, undeclared ({wrong.size} bytes)")

    def _named(self, byte: int) -> str:
        """A byte of the window, by operand."""
        k = max(k for k, place in enumerate(self.places) if k == 0 or place.start <= byte)
        name = f"operand {k}" if k < len(self.packed) else "scratch"
        return f"{name}, byte {byte - self.places[k].start} of {self.places[k].stop - self.places[k].start}"


def mark(mask: Array, region: Region, bit: int = True) -> None:
    """Set a bit of a region's bytes."""
    assert region.start >= 0, region
    assert region.stop <= mask.size, f"{region} beyond {mask.size} bytes"
    if region.count > 8 and region.stride >= region.length:  # no two pieces overlap
        pieces = as_strided(mask[region.start :], (region.count, region.length), (region.stride, 1))
        pieces |= bit
        return
    for i in range(region.count):
        start = region.start + i * region.stride
        mask[start : start + region.length] |= bit


def compare(got: Array, want: Array, tol: float, where: str) -> None:
    """Within tol * (1 + |want|); equal NaN and infinities; integers exactly where tol is 0."""
    a, b = (np.asarray(x) for x in (got, want))
    if a.dtype.kind in "iub" and tol == 0:
        wrong = a != b
    else:
        a, b = a.astype(np.float64), b.astype(np.float64)
        with np.errstate(all="ignore"):
            wrong = ~((np.abs(a - b) <= tol * (1 + np.abs(b))) | (a == b) | (np.isnan(a) & np.isnan(b)))
    if np.any(wrong):
        at = np.unravel_index(int(np.argmax(wrong)), wrong.shape) if wrong.ndim else ()
        raise AssertionError(
            f"{where}: {int(np.sum(wrong))} of {wrong.size} differ, first at {tuple(int(i) for i in at)}: "
            f"{a[at]!r}, want {b[at]!r}"
        )


def undefined_symbols(data: bytes) -> list[str]:
    """Names an ELF64 object needs from outside (empty names and sections' own symbols left out)."""
    (offset,) = struct.unpack_from("<Q", data, 40)
    size, count = struct.unpack_from("<HH", data, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, offset + i * size) for i in range(count)]
    names: list[str] = []
    for section in sections:
        if section[1] != 2:  # SHT_SYMTAB
            continue
        strings = sections[section[6]][4]
        for i in range(section[5] // 24):
            name, _, _, where = struct.unpack_from("<IBBH", data, section[4] + 24 * i)
            if where == 0 and name:
                end = data.index(b"\0", strings + name)
                names.append(data[strings + name : end].decode())
    return names


# Making bodies --------------------------------------------------------------------------------------------------------


def operand(role: Role, dtype: DType, shape: Sequence[int]) -> Operand:
    return Operand(role, TensorType(dtype, tuple(shape)))


def dense_strides(shape: Sequence[int], target: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense tensor of `shape` broadcast to `target` by NumPy's rule."""
    own = row_major_strides(shape)
    lead = len(target) - len(shape)
    return (0,) * lead + tuple(0 if d == 1 else s for d, s in zip(shape, own, strict=True))


def store_epilogue(outputs: Sequence[tuple[int, TensorType]]) -> PointwiseProgram:
    """An epilogue that stores result k of an anchor densely to the operand named by pair k. All results have one
    shape."""
    shape = outputs[0][1].shape
    return PointwiseProgram(
        shape,
        tuple(ProgramInput(-1 - k, t.dtype) for k, (_, t) in enumerate(outputs)),
        (),
        tuple(ProgramOutput(k, index, t.strides) for k, (index, t) in enumerate(outputs)),
    )
