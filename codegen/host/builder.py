"""The kernel builder: a thin, typed layer over llvmlite's IRBuilder in which host kernels are written.

Model: a kernel function is `void name(ptr operand0, ..., ptr operandN-1, ptr scratch, i64 begin, i64 end)`, internal
to the image, no calls except LLVM intrinsics and functions of the same module. Values are explicit vectors: `lanes`
elements of one dtype; lanes 1 is a scalar. Tails are vectors of exactly the remaining width (LLVM legalises odd
widths), never masks that read past the end.

Storage and arithmetic: f16/bf16 are loaded and stored as themselves and computed in f32 (`load` widens, `store`
rounds to nearest even); bool is stored as a byte 0/1 and computed as i1. Small types are bytes that only conversions
look into. All other dtypes are computed as themselves.
LLVM integers have no sign: pass the DType where it matters.

Invariants: pointers are opaque; all address arithmetic is in bytes or in elements of a named dtype on i64; loops are
do-nothing for empty ranges; `carry` variables are allocas in the entry block (mem2reg turns them into registers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from llvmlite import ir
from numpy.typing import ArrayLike

from superkernel.codegen.host.half import narrow_half, widen_half
from superkernel.core.dtypes import SMALL, DType
from superkernel.core.errors import InternalError
from superkernel.scheduler.families.open_extents import MARKS, mark_name
from superkernel.target.cpu import CpuTarget

I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
PTR = ir.PointerType()
VOID = ir.VoidType()

_STORAGE: dict[DType, ir.Type] = {
    DType.F64: ir.DoubleType(),
    DType.F32: ir.FloatType(),
    DType.F16: ir.HalfType(),
    DType.BF16: I16,  # llvmlite has no bfloat type: bits, converted by shifts and rounding arithmetic
    DType.BOOL: I8,
    **dict.fromkeys((DType.I64, DType.U64), I64),
    **dict.fromkeys((DType.I32, DType.U32), I32),
    **dict.fromkeys((DType.I16, DType.U16), I16),
    **dict.fromkeys((DType.I8, DType.U8, *SMALL), I8),
}

Index: TypeAlias = "int | ir.Value"


def storage_type(dtype: DType) -> ir.Type:
    """LLVM type of one element in memory."""
    return _STORAGE[dtype]


def compute_dtype(dtype: DType) -> DType:
    """The dtype that arithmetic on `dtype` is done in (f32 for f16 and bf16, else itself)."""
    return DType.F32 if dtype in (DType.F16, DType.BF16) else dtype


def register_type(dtype: DType, lanes: int) -> ir.Type:
    """LLVM type of `lanes` elements in registers, i.e. of `compute_dtype(dtype)`; bool is i1."""
    element = I1 if dtype is DType.BOOL else _STORAGE[compute_dtype(dtype)]
    return element if lanes == 1 else ir.VectorType(element, lanes)


def vector_type(element: ir.Type, lanes: int) -> ir.Type:
    """`element` for one lane, else a vector of it."""
    return element if lanes == 1 else ir.VectorType(element, lanes)


@dataclass(slots=True)
class Carry:
    """A mutable variable of the kernel (an accumulator, a running pointer)."""

    kb: KernelBuilder
    slot: ir.Value

    def get(self) -> ir.Value:
        """What it holds here."""
        return self.kb.b.load(self.slot, typ=self.slot.allocated_type)

    def set(self, value: ir.Value) -> None:
        """It holds `value` (of its own LLVM type) from here on."""
        self.kb.b.store(value, self.slot)


class _Bytes(ir.Constant):  # type: ignore[misc]  # llvmlite has no types
    """An array's contents as one text: constants of millions of elements would take longer to write than to run."""

    def __init__(self, data: bytes) -> None:
        super().__init__(ir.ArrayType(I8, len(data)), None)
        self.data = data

    def _get_reference(self) -> str:
        return 'c"\\' + self.data.hex("\\") + '"' if self.data else "zeroinitializer"


class LoadAgain(ir.LoadInstr):  # type: ignore[misc]
    """A load that LLVM neither merges with others of the same address nor works out: volatile, which llvmlite has no
    word for."""

    def descr(self, buf: list[str]) -> None:
        """Write the instruction as text."""
        text: list[str] = []
        super().descr(text)
        buf.append("".join(text).replace("load ", "load volatile ", 1))


class KernelBuilder:
    """Builds one kernel function in `module`. `b` is the llvmlite IRBuilder for what the helpers do not cover. `sizes`:
    those that are read from the function's table when it runs, with the table's contents; None: all are known."""

    def __init__(
        self,
        module: ir.Module,
        name: str,
        operand_count: int,
        cpu: CpuTarget,
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        self.module, self.cpu = module, cpu
        kind = ir.FunctionType(VOID, [PTR] * (operand_count + 1) + [I64, I64])
        self.function = ir.Function(module, kind, name)
        self.function.attributes.add("nounwind")
        # Loops stay loops: LLVM must not turn a clearing or copying one into a call of memset or memcpy. (llvmlite's
        # own `add` only takes the attributes it knows by name.)
        set.add(self.function.attributes, '"no-builtins"')
        self.entry = self.function.append_basic_block("entry")
        self.b = ir.IRBuilder(self.entry)
        self.operands: Sequence[ir.Value] = self.function.args[:operand_count]
        self.scratch = self.function.args[operand_count]
        self.begin, self.end = self.function.args[operand_count + 1 :]
        self._sizes = None if sizes is None else self._read_sizes(sizes)

    def finish(self) -> ir.Function:
        """Return from the kernel; nothing may be emitted afterwards."""
        self.b.ret_void()
        return self.function

    def _read_sizes(self, sizes: Mapping[str, int]) -> dict[str, ir.Value]:
        """The numbers of the table, read once, when the kernel begins."""
        base = self.opaque(self.table("sizes", list(sizes.values()), DType.I64))
        found = {}
        for index, name in enumerate(sizes):
            load = LoadAgain(self.b.block, self.at(base, index, DType.I64), typ=I64)
            load.align = DType.I64.itemsize
            self.b._insert(load)
            found[name] = load
        return found

    def size(self, name: str, value: int) -> Index:
        """A size that is `value` where all are known, else the one of that name in the table. Raises InternalError
        where it has none: `value` is a representative's then, and good for nothing."""
        if self._sizes is None:
            return value
        if name not in self._sizes:
            raise InternalError("a size is not in the kernel's table", location=self.function.name, found=name)
        return self._sizes[name]

    def known(self, number: int) -> Index:
        """A number, or the one that the table has in the place of a mark (`open_extents.py`)."""
        return self.size(mark_name(number), number) if number >= MARKS else number

    # Integers -------------------------------------------------------------------------------------------------------

    def i64(self, value: Index) -> ir.Value:
        """An index as LLVM's value."""
        return ir.Constant(I64, value) if isinstance(value, int) else value

    def add(self, a: Index, b: Index) -> Index:
        """a + b, folded where both are known or one is 0; must not overflow."""
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        if isinstance(a, int) and a == 0:
            return b
        if isinstance(b, int) and b == 0:
            return a
        return self.b.add(self.i64(a), self.i64(b), flags=("nsw",))

    def sub(self, a: Index, b: Index) -> Index:
        """a - b, folded where both are known or b is 0; must not overflow."""
        if isinstance(a, int) and isinstance(b, int):
            return a - b
        return a if isinstance(b, int) and b == 0 else self.b.sub(self.i64(a), self.i64(b), flags=("nsw",))

    def mul(self, a: Index, b: Index) -> Index:
        """a * b, folded where both are known or one is 0 or 1; must not overflow."""
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        for x, y in ((a, b), (b, a)):
            if isinstance(x, int) and x in (0, 1):
                return 0 if x == 0 else y
        return self.b.mul(self.i64(a), self.i64(b), flags=("nsw",))

    def div(self, a: Index, b: Index) -> Index:
        """Quotient of a non-negative index by a positive one."""
        if isinstance(a, int) and isinstance(b, int):
            return a // b
        return a if isinstance(b, int) and b == 1 else self.b.udiv(self.i64(a), self.i64(b))

    def rem(self, a: Index, b: Index) -> Index:
        """Remainder of a non-negative index by a positive one."""
        if isinstance(a, int) and isinstance(b, int):
            return a % b
        return 0 if isinstance(b, int) and b == 1 else self.b.urem(self.i64(a), self.i64(b))

    def minimum(self, a: Index, b: Index) -> Index:
        """The smaller one, signed; a plain int where both are."""
        return self._extreme("<", a, b)

    def maximum(self, a: Index, b: Index) -> Index:
        """The larger one, signed; a plain int where both are."""
        return self._extreme(">", a, b)

    def _extreme(self, op: str, a: Index, b: Index) -> Index:
        if isinstance(a, int) and isinstance(b, int):
            return min(a, b) if op == "<" else max(a, b)
        x, y = self.i64(a), self.i64(b)
        return self.b.select(self.b.icmp_signed(op, x, y), x, y)

    def compare(self, op: str, a: Index, b: Index) -> ir.Value:
        """Signed comparison of indices, an i1."""
        return self.b.icmp_signed(op, self.i64(a), self.i64(b))

    # Control --------------------------------------------------------------------------------------------------------

    @contextmanager
    def loop(self, start: Index, stop: Index, step: Index = 1, name: str = "i") -> Iterator[Index]:
        """`for i in range(start, stop, step)`; a range that is known to have one trip emits no loop."""
        if isinstance(start, int) and isinstance(stop, int) and isinstance(step, int):
            if stop - start <= 0:
                dead = self.function.append_basic_block(f"{name}.never")
                after = self.function.append_basic_block(f"{name}.after")
                self.b.branch(after)
                self.b.position_at_end(dead)
                yield start
                self.b.branch(after)
                self.b.position_at_end(after)
                return
            if stop - start <= step:
                yield start
                return
        head = self.function.append_basic_block(f"{name}.head")
        body = self.function.append_basic_block(f"{name}.body")
        after = self.function.append_basic_block(f"{name}.after")
        first, last = self.i64(start), self.i64(stop)
        before = self.b.block
        self.b.branch(head)
        self.b.position_at_end(head)
        index = self.b.phi(I64, name)
        index.add_incoming(first, before)
        self.b.cbranch(self.b.icmp_signed("<", index, last), body, after)
        self.b.position_at_end(body)
        yield index
        index.add_incoming(self.b.add(index, self.i64(step), flags=("nsw",)), self.b.block)
        self.b.branch(head)
        self.b.position_at_end(after)

    @contextmanager
    def when(self, condition: ir.Value) -> Iterator[None]:
        """`if condition:`"""
        with self.b.if_then(condition):
            yield

    def carry(self, value_type: ir.Type, initial: ir.Value | None = None) -> Carry:
        """A mutable register variable."""
        with self.b.goto_entry_block():
            slot = self.b.alloca(value_type)
        variable = Carry(self, slot)
        if initial is not None:
            variable.set(initial)
        return variable

    def stack(self, nbytes: int) -> ir.Value:
        """`nbytes` of the call's own memory, 64-byte aligned (small buffers; larger ones belong into scratch)."""
        with self.b.goto_entry_block():
            slot = self.b.alloca(ir.ArrayType(I8, nbytes))
            slot.align = 64
            return self.opaque(slot)

    def opaque(self, pointer: ir.Value) -> ir.Value:
        """llvmlite's allocas and globals have typed pointers: the same address without a type."""
        cast = ir.instructions.CastInstr(self.b.block, "bitcast", pointer, PTR)
        self.b._insert(cast)
        return cast

    # Memory ---------------------------------------------------------------------------------------------------------

    def element(self, offset: Index, coords: Iterable[Index], strides: Iterable[int]) -> Index:
        """Where the element at some coordinates lies: `offset` + the sum of coordinate times stride."""
        for coordinate, stride in zip(coords, strides, strict=False):
            offset = self.add(offset, self.mul(coordinate, self.known(stride)))
        return offset

    def table(self, name: str, values: ArrayLike, dtype: DType) -> ir.GlobalVariable:
        """A constant array of the module."""
        data = _Bytes(np.ascontiguousarray(values, dtype.numpy).tobytes())
        table = ir.GlobalVariable(self.module, data.type, self.module.get_unique_name(f"{self.function.name}.{name}"))
        table.linkage, table.global_constant = "internal", True
        table.align = dtype.itemsize if len(data.data) <= 16 else 16  # as LLVM aligns arrays of elements
        table.initializer = data
        return table

    def offset(self, base: ir.Value, nbytes: Index) -> ir.Value:
        """base + nbytes."""
        if isinstance(nbytes, int) and nbytes == 0:
            return base
        return self.b.gep(base, [self.i64(nbytes)], inbounds=True, source_etype=I8)

    def at(self, base: ir.Value, element: Index, dtype: DType) -> ir.Value:
        """Address of an element."""
        return self.offset(base, self.mul(element, dtype.itemsize))

    def load(self, base: ir.Value, element: Index, dtype: DType, lanes: int = 1, stride: int = 1) -> ir.Value:
        """`lanes` elements from base[element], `stride` elements apart (0: one element in all lanes), in compute
        form."""
        return self.widen(self.load_raw(base, element, dtype, lanes, stride), dtype)

    def load_raw(self, base: ir.Value, element: Index, dtype: DType, lanes: int = 1, stride: int = 1) -> ir.Value:
        """As `load`, in storage form."""
        kind = _STORAGE[dtype]
        if lanes == 1:
            return self.b.load(self.at(base, element, dtype), typ=kind, align=dtype.itemsize)
        if stride == 0:
            return self.splat(self.b.load(self.at(base, element, dtype), typ=kind, align=dtype.itemsize), lanes)
        if stride == 1:
            return self.b.load(self.at(base, element, dtype), typ=ir.VectorType(kind, lanes), align=dtype.itemsize)
        if -4 <= stride <= 4:  # everything from the first to the last element, then a shuffle: never beyond them
            span = (lanes - 1) * abs(stride) + 1
            first = element if stride > 0 else self.add(element, (lanes - 1) * stride)
            wide = self.b.load(self.at(base, first, dtype), typ=ir.VectorType(kind, span), align=dtype.itemsize)
            return self.pick(wide, [i * stride if stride > 0 else (i - lanes + 1) * stride for i in range(lanes)])
        value: ir.Value = ir.Constant(ir.VectorType(kind, lanes), ir.Undefined)
        for lane in range(lanes):
            part = self.b.load(self.at(base, self.add(element, lane * stride), dtype), typ=kind, align=dtype.itemsize)
            value = self.b.insert_element(value, part, ir.Constant(I32, lane))
        return value

    def store(self, value: ir.Value, base: ir.Value, element: Index, dtype: DType, stride: int = 1) -> None:
        """Inverse of `load`: rounds from compute form, stores all lanes."""
        raw = self.narrow(value, dtype)
        if not isinstance(raw.type, ir.VectorType) or stride == 1:
            self.b.store(raw, self.at(base, element, dtype), align=dtype.itemsize)
        elif stride == -1:
            lanes = raw.type.count
            first = self.add(element, 1 - lanes)
            self.b.store(self.pick(raw, range(lanes - 1, -1, -1)), self.at(base, first, dtype), align=dtype.itemsize)
        else:
            for lane in range(raw.type.count):
                part = self.b.extract_element(raw, ir.Constant(I32, lane))
                self.b.store(part, self.at(base, self.add(element, lane * stride), dtype), align=dtype.itemsize)

    def prefetch(self, address: ir.Value, write: bool = False, locality: int = 3) -> None:
        """Bring a cache line near."""
        function = self.intrinsic("llvm.prefetch.p0", VOID, [PTR, I32, I32, I32])
        self.b.call(function, [address, *(ir.Constant(I32, v) for v in (int(write), locality, 1))])

    # Values ---------------------------------------------------------------------------------------------------------

    def const(self, value: float | int, dtype: DType, lanes: int = 1) -> ir.Value:
        """The number in all lanes, in compute form."""
        return ir.Constant(register_type(dtype, lanes), float(value) if dtype.is_float else int(value))

    def splat(self, scalar: ir.Value, lanes: int) -> ir.Value:
        """A scalar in all lanes."""
        if lanes == 1:
            return scalar
        kind = ir.VectorType(scalar.type, lanes)
        one = self.b.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(I32, 0))
        mask = ir.Constant(ir.VectorType(I32, lanes), 0)
        return self.b.shuffle_vector(one, ir.Constant(kind, ir.Undefined), mask)

    def pick(self, vector: ir.Value, lanes: Iterable[int]) -> ir.Value:
        """The named lanes of a vector, in that order, as a new vector."""
        mask = list(lanes)
        kind = ir.VectorType(I32, len(mask))
        return self.b.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), ir.Constant(kind, mask))

    @property
    def has_half_conversion(self) -> bool:
        """Whether the CPU converts f16 itself (LLVM calls a library function otherwise)."""
        return self.cpu.triple.startswith(("aarch64", "arm64")) or self.cpu.has("f16c")

    def widen(self, raw: ir.Value, dtype: DType) -> ir.Value:
        """Storage form to compute form."""
        lanes = raw.type.count if isinstance(raw.type, ir.VectorType) else 1
        if dtype is DType.F16:
            if not self.has_half_conversion:
                return widen_half(self.b, raw)
            return self.b.fpext(raw, vector_type(ir.FloatType(), lanes))
        if dtype is DType.BF16:
            wide = self.b.shl(self.b.zext(raw, vector_type(I32, lanes)), _splat_constant(I32, 16, lanes))
            return self.b.bitcast(wide, vector_type(ir.FloatType(), lanes))
        if dtype is DType.BOOL:
            return self.b.icmp_unsigned("!=", raw, _splat_constant(I8, 0, lanes))
        return raw

    def narrow(self, value: ir.Value, dtype: DType) -> ir.Value:
        """Compute form to storage form, floats rounded to nearest even."""
        lanes = value.type.count if isinstance(value.type, ir.VectorType) else 1
        if dtype is DType.F16:
            if not self.has_half_conversion:
                return narrow_half(self.b, value)
            return self.b.fptrunc(value, vector_type(ir.HalfType(), lanes))
        if dtype is DType.BF16:
            return self._to_bf16(value, lanes)
        if dtype is DType.BOOL:
            return self.b.zext(value, vector_type(I8, lanes))
        return value

    def _to_bf16(self, value: ir.Value, lanes: int) -> ir.Value:
        """Adds 0x7fff plus the lowest kept bit, keeps the upper half; NaN stays NaN (quiet)."""
        wide = vector_type(I32, lanes)
        bits = self.b.bitcast(value, wide)
        lowest = self.b.and_(self.b.lshr(bits, _splat_constant(I32, 16, lanes)), _splat_constant(I32, 1, lanes))
        rounded = self.b.add(bits, self.b.add(lowest, _splat_constant(I32, 0x7FFF, lanes)))
        quiet = self.b.or_(bits, _splat_constant(I32, 0x400000, lanes))
        kept = self.b.select(self.b.fcmp_unordered("uno", value, value), quiet, rounded)
        return self.b.trunc(self.b.lshr(kept, _splat_constant(I32, 16, lanes)), vector_type(I16, lanes))

    def fma(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """a*b + c, rounded once where the CPU has FMA (on the plain path: rounded twice, LLVM's fmuladd)."""
        return self.call_float("llvm.fma" if self.fuses else "llvm.fmuladd", a, b, c)

    @property
    def fuses(self) -> bool:
        """Whether the CPU has FMA."""
        return self.cpu.tier != "plain" or "x86" not in self.cpu.triple

    def call_float(self, name: str, *args: ir.Value) -> ir.Value:
        """A floating-point intrinsic overloaded on its one type, e.g. llvm.sqrt, llvm.floor, llvm.minimum."""
        kind = args[0].type
        function = self.intrinsic(f"{name}.{mangle(kind)}", kind, [kind] * len(args))
        return self.b.call(function, list(args))

    def forget_vectors(self) -> None:
        """Nothing stays in a vector register from before this point to behind it: no instruction, but the register
        allocator must not keep anything there. Around a loop that fills all registers this keeps the constants of
        later code, which LLVM hoists to the function's entry, from pushing the loop's own values out to the stack."""
        count = 32 if self.cpu.tier == "avx512" or "x86" not in self.cpu.triple else 16
        kind = "v" if "x86" not in self.cpu.triple else "xmm"
        clobbers = ",".join(f"~{{{kind}{i}}}" for i in range(count))
        self.b.asm(ir.FunctionType(VOID, []), "", clobbers, [], side_effect=True)

    def intrinsic(self, name: str, result: ir.Type, args: Sequence[ir.Type]) -> ir.Function:
        """Declare (once per module) and return an intrinsic."""
        found = self.module.globals.get(name)
        return found if found is not None else ir.Function(self.module, ir.FunctionType(result, list(args)), name)

    def reduce_lanes(self, op: str, value: ir.Value) -> ir.Value:
        """Horizontal `fadd` (fixed tree order), `fmax`/`fmin` (NaN-propagating), `add`, `mul`, `and`, `or`, `smax`,
        ... of the lanes."""
        if not isinstance(value.type, ir.VectorType):
            return value
        if op in ("fadd", "fmul"):
            return self.reduce_tree(value, self.b.fadd if op == "fadd" else self.b.fmul)
        if op in ("fmax", "fmin"):
            name, order = {"fmax": ("llvm.maximum", ">"), "fmin": ("llvm.minimum", "<")}[op]
            if mangle(value.type.element) == "f64" and self.cpu.triple.startswith(
                "thumb"
            ):  # LLVM aborts on the intrinsic
                return self.reduce_tree(value, lambda a, b: self._first_of(order, a, b))
            return self.reduce_tree(value, lambda a, b: self.call_float(name, a, b))
        function = self.intrinsic(f"llvm.vector.reduce.{op}.{mangle(value.type)}", value.type.element, [value.type])
        return self.b.call(function, [value])

    def _first_of(self, order: str, a: ir.Value, b: ir.Value) -> ir.Value:
        """The one of two floats that comes first in an order (">", "<"), a NaN before all others."""
        best = self.b.select(self.b.fcmp_ordered(order, a, b), a, b)
        return self.b.select(self.b.fcmp_unordered("uno", a, a), a, best)

    def reduce_tree(self, value: ir.Value, combine: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Value:
        """All lanes combined pairwise: halved until one is left; an odd lane is combined last."""
        lanes = value.type.count if isinstance(value.type, ir.VectorType) else 1
        extra = None
        while lanes > 1:
            half = lanes // 2
            if lanes % 2:
                last = self.b.extract_element(value, ir.Constant(I32, lanes - 1))
                extra = last if extra is None else combine(extra, last)
            if half == 1:
                low, high = (self.b.extract_element(value, ir.Constant(I32, i)) for i in (0, 1))
            else:
                low, high = (self.pick(value, range(start, start + half)) for start in (0, half))
            value, lanes = combine(low, high), half
        return value if extra is None else combine(value, extra)


def mangle(kind: ir.Type) -> str:
    """The suffix of an overloaded intrinsic: f32, v16f32, i64, ..."""
    if isinstance(kind, ir.VectorType):
        return f"v{kind.count}{mangle(kind.element)}"
    if isinstance(kind, ir.IntType):
        return f"i{kind.width}"
    return {"float": "f32", "double": "f64", "half": "f16"}[str(kind)]


def _splat_constant(element: ir.Type, value: int, lanes: int) -> ir.Constant:
    return ir.Constant(vector_type(element, lanes), value)
