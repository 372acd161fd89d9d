"""Pointwise programs to tile code: registers, layouts, forms of values, and what moves in and out.

Model: an SSA value has *forms*: registers that hold it in an element type of the engines (an f16 input as f16 and,
once something computes with it, as f32), or it is a constant. Forms are made when they are first asked for. The
formulas of the operators are in `formulas`; they see an `InstructionSite` and compute with `TileExpr`, a register with
Python's operators, which choose layouts and insert broadcasts. Each operation is a command, in the order of evaluation;
numbers among the operands become constants of commands.

Invariants: floats are computed in f32; a command runs in f16 only where its one rounding is that of the stored result,
or where it is exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.ir.body import Instruction, PointwiseProgram, ProgramOutput
from superkernel.scheduler.families.aicore.tilecode import (
    Home,
    Register,
    TileCode,
    TileCommand,
    TileLayout,
    TileLoad,
    TileStore,
)

COMMUTATIVE = frozenset({"v_add", "v_mul", "v_max", "v_min", "v_and", "v_or", "v_xor"})


@dataclass
class LoweredValue:
    """What an SSA number is: a constant, or registers by the element type they have it in."""

    dtype: DType
    const: float | None = None
    forms: dict[DType, int] = field(default_factory=dict)


def engine_type(dtype: DType) -> DType:
    """The element type under which the engines know it (8-byte types keep theirs: they are moved as words)."""
    return DType.U8 if dtype is DType.BOOL or dtype.is_small else dtype


def bits_of(value: float, dtype: DType) -> int:
    """The bits of a number in an element type, rounded if need be."""
    with np.errstate(all="ignore"):
        raw = np.asarray(value).astype(dtype.numpy).tobytes()
    return int.from_bytes(raw, "little")


def is_exact(value: float, dtype: DType) -> bool:
    """Whether the number has that type."""
    with np.errstate(all="ignore"):
        there = np.asarray(value).astype(dtype.numpy)
        return bool(there.astype(np.float64) == np.float64(value)) or math.isnan(value)


class ProgramLowering:
    """One program being lowered. `row`, `col`: the dimensions of the program that are the tile's (row -1: one row)."""

    def __init__(
        self, program: PointwiseProgram, row: int, col: int, anchors: Sequence[DType] = (),
        anchor_layout: TileLayout | None = None, staged: bool = False,
    ) -> None:  # fmt: skip
        self.program, self._staged = program, staged
        self.row = row if row >= 0 and program.shape[row] != 1 else -1
        self.col = col
        self.full = TileLayout.ROW if self.row < 0 else TileLayout.MATRIX
        self.registers: list[Register] = []
        self.loads: list[TileLoad] = []
        self.steps: list[TileCommand] = []
        self._expanded: dict[tuple[int, TileLayout], int] = {}
        self._constants: dict[tuple[int, DType, TileLayout], int] = {}
        self._reversing: dict[DType, int] = {}
        self.values = [LoweredValue(i.dtype) for i in program.inputs]
        self._anchors, self._anchor_layout = anchors, anchor_layout or self.full
        self._only_stored = self._find_only_stored()

    def _find_only_stored(self) -> set[int]:
        used = {a for i in self.program.instructions for a in i.args}
        return {o.value for o in self.program.outputs if o.target >= 0} - used

    def only_stored(self, value: int) -> bool:
        """Whether nothing computes with the value."""
        return value in self._only_stored

    # Registers --------------------------------------------------------------------------------------------------------

    def register(self, layout: TileLayout, dtype: DType, home: Home = Home.TEMPORARY, number: int = -1) -> int:
        """Number of a new register; `home` and `number` say what it stands for outside the program."""
        self.registers.append(Register(layout, dtype, home, number))
        return len(self.registers) - 1

    def layout(self, register: int) -> TileLayout:
        """How a register's values lie."""
        return self.registers[register].layout

    def dtype(self, register: int) -> DType:
        """Element type of a register."""
        return self.registers[register].dtype

    def step(
        self, command: str, layout: TileLayout, dtype: DType, types: tuple[DType, ...], operands: dict[str, int],
        **params: int | str,
    ) -> int:  # fmt: skip
        """Adds a command; the register of its result. `operands`: command operand -> register; `params`: its other
        operands."""
        dst = self.register(layout, dtype)
        self.steps.append(TileCommand(command, types, dst, tuple(operands.items()), tuple(params.items())))
        return dst

    def constant(self, value: float, dtype: DType, layout: TileLayout) -> int:
        """A register full of one number, as small as broadcasts to the layout."""
        own = TileLayout.ROW if layout is TileLayout.MATRIX else layout
        if dtype.itemsize == 8:
            raise UnsupportedError("8-byte elements are moved only, not made", location="constant", found=dtype)
        bits = bits_of(value, dtype)
        if (bits, dtype, own) not in self._constants:
            self._constants[bits, dtype, own] = self.step("v_duplicate", own, dtype, (dtype,), {}, value=bits)
        return self._constants[bits, dtype, own]

    def repeats(self, register: int, layout: TileLayout) -> bool:
        """Whether a command reads the register at that layout by strides alone."""
        own = self.layout(register)
        return own is layout or (own is TileLayout.ROW and layout is TileLayout.MATRIX)

    def expand(self, register: int, layout: TileLayout) -> int:
        """A register that a command reads at the layout by strides alone."""
        if self.repeats(register, layout):
            return register
        own = self.layout(register)
        wide = TileLayout.ROW if own is TileLayout.SCALAR and layout is TileLayout.MATRIX else layout
        if (register, wide) not in self._expanded:
            dtype = self.dtype(register)
            self._expanded[register, wide] = self.step(
                "v_broadcast", wide, dtype, (dtype,), {"src": register}, form="column"
            )
        return self._expanded[register, wide]

    # Values -----------------------------------------------------------------------------------------------------------

    def form(self, value: int, dtype: DType) -> int:
        """The register of an SSA value in a type: floats convert into one another; others must have it already."""
        found = self.values[value]
        if found.const is not None:
            return self.constant(found.const, dtype, TileLayout.SCALAR)
        if not found.forms:
            self._load(value)
        if dtype not in found.forms:
            found.forms[dtype] = self._converted(found, dtype)
        return found.forms[dtype]

    def has(self, value: int, dtype: DType) -> bool:
        """Whether the value is there in a type without conversion (a constant: exactly)."""
        found = self.values[value]
        if found.const is not None:
            return is_exact(found.const, dtype)
        if not found.forms:
            self._load(value)
        return dtype in found.forms

    def _converted(self, value: LoweredValue, dtype: DType) -> int:
        if DType.F32 in value.forms:
            return TileExpr(self, value.forms[DType.F32]).cast(dtype).register
        source = TileExpr(self, next(iter(value.forms.values())))
        if dtype is DType.BF16 or (dtype is DType.F16 and source.dtype is not DType.F16):
            source = source.cast(DType.F32)
            value.forms[DType.F32] = source.register
        return source.cast(dtype).register

    # Inputs -----------------------------------------------------------------------------------------------------------

    def _load(self, number: int) -> None:
        item, value = self.program.inputs[number], self.values[number]
        if item.source < 0:
            dtype = self._anchors[-1 - item.source]
            value.forms[dtype] = self.register(self._anchor_layout, dtype, Home.ANCHOR, -1 - item.source)
            return
        dtype = engine_type(item.dtype)
        if dtype.itemsize == 8:
            value.forms[dtype] = self._load_wide(number)
            return
        value.forms[dtype] = self.load(number, dtype, 1, 0)

    def strides(self, strides: Sequence[int]) -> tuple[int, int]:
        """Row and column stride; 0 along what is one long."""
        rows = strides[self.row] if self.row >= 0 else 0
        cols = strides[self.col] if self.col >= 0 and self.program.shape[self.col] != 1 else 0
        return rows, cols

    def load(self, number: int, dtype: DType, scale: int, shift: int) -> int:
        """An input in the layout that its strides make; `scale`, `shift` as in Load."""
        row, col = (s * scale for s in self.strides(self.program.inputs[number].strides))
        if row < 0 or (col < 0 and self.row >= 0):
            raise UnsupportedError(
                "a tile of several rows cannot be read backwards", location=f"input {number}", found=(row, col),
                hint="tiles of one row can",
            )  # fmt: skip

        def fetch(layout: TileLayout, col: int = col) -> int:
            raw = self.register(layout, dtype, Home.INPUT, number)
            self.loads.append(TileLoad(number, raw, row, col, scale, shift))
            return raw

        def turn(raw: int, layout: TileLayout) -> int:
            return self.step("v_transpose", layout, dtype, (dtype,), {"src": raw})

        if row == 0:
            if col in (0, 1):
                return fetch(TileLayout.ROW if col else TileLayout.SCALAR)
            if col == -1:
                return self._reversed(fetch(TileLayout.ROW))
            lined = turn(fetch(TileLayout.SPREAD_ROW), TileLayout.ROW)
            return lined if col > 0 else self._reversed(lined)
        if col == 0:
            return fetch(TileLayout.COLUMN) if row == 1 else turn(fetch(TileLayout.SPREAD_COLUMN), TileLayout.COLUMN)
        if col == 1:
            return fetch(TileLayout.MATRIX)
        return turn(fetch(TileLayout.TURNED if row == 1 else TileLayout.SPREAD), TileLayout.MATRIX)

    def _reversed(self, row: int) -> int:
        """A row in reverse order."""
        dtype = self.dtype(row)
        if dtype not in self._reversing:
            step = -dtype.itemsize & 0xFFFFFFFF
            self._reversing[dtype] = self.step(
                "v_iota", TileLayout.ROW, DType.I32, (DType.I32,), {}, start=f"last{dtype.itemsize}", step=step
            )
        operands = {"src": row, "offsets": self._reversing[dtype]}
        return self.step("v_gather", TileLayout.ROW, dtype, (dtype,), operands)

    def _load_wide(self, number: int) -> int:
        """An 8-byte input that is copied: as rows, or else an element per block."""
        item = self.program.inputs[number]
        outputs = [o for o in self.program.outputs if o.value == number and o.target >= 0]
        walks = [self.strides(item.strides), *(self.strides(o.strides) for o in outputs)]
        row, col = walks[0]
        if any(c != 1 for _, c in walks):
            if self.row >= 0 or any(c < 0 for _, c in walks):
                raise UnsupportedError(
                    "8-byte elements that do not lie side by side are copied row by row", location=f"input {number}"
                )
            layout = TileLayout.SPREAD_ROW
        else:
            layout = TileLayout.MATRIX if row else TileLayout.ROW
        raw = self.register(layout, item.dtype, Home.INPUT, number)
        self.loads.append(TileLoad(number, raw, row, col))
        return raw

    # Outputs ----------------------------------------------------------------------------------------------------------

    def store(self, number: int, output: ProgramOutput, dtype: DType) -> TileStore:
        """The register of an output, as it is to lie in UB, and how it leaves."""
        register = self.form(output.value, engine_type(dtype))
        row, col = self.strides(output.strides)
        if min(row, col) < 0:
            raise UnsupportedError("an output cannot be written backwards", location=f"output {number}")
        single = self.col < 0 or self.program.shape[self.col] == 1
        if self.layout(register) is TileLayout.SPREAD_ROW:
            return self._stored(number, register, TileLayout.SPREAD_ROW, row, 1 if single else col)
        if self.full is TileLayout.ROW:
            register = self._exactly(register, TileLayout.ROW)
            if col in (0, 1):
                return self._stored(number, register, TileLayout.ROW, row, col)
            return self._stored(number, self._turn(register, TileLayout.SPREAD_ROW), TileLayout.SPREAD_ROW, row, col)
        if single and row == 1 and self.layout(register) is not TileLayout.MATRIX:
            return self._stored(number, self._exactly(register, TileLayout.COLUMN), TileLayout.COLUMN, row, col)
        is_wide = self.dtype(register).itemsize == 8
        if (single and (row != 1 or is_wide)) or (col == 1 and not single):
            return self._stored(number, self.expand(register, TileLayout.MATRIX), TileLayout.MATRIX, row, col)
        matrix = self._exactly(register, TileLayout.MATRIX)
        layout = TileLayout.TURNED if row == 1 else TileLayout.SPREAD
        return self._stored(number, self._turn(matrix, layout), layout, row, col)

    def _turn(self, register: int, layout: TileLayout) -> int:
        dtype = self.dtype(register)
        return self.step("v_transpose", layout, dtype, (dtype,), {"src": register})

    def _exactly(self, register: int, layout: TileLayout) -> int:
        """The register in the layout itself, nothing repeated by strides."""
        found = self.expand(register, layout)
        own = self.layout(found)
        if own is layout:
            return found
        dtype = self.dtype(found)
        return self.step("v_copy", layout, dtype, (dtype,), {"src": found})

    def _stored(self, number: int, register: int, layout: TileLayout, row: int, col: int) -> TileStore:
        """A register made by a step is made in the output's memory; others are stored from where they are."""
        found = self.registers[register]
        if self._staged and found.home is Home.INPUT:
            register = self.step("v_copy", found.layout, found.dtype, (found.dtype,), {"src": register})
            found = self.registers[register]
        if found.home is Home.TEMPORARY:
            self.registers[register] = replace(found, home=Home.OUTPUT, number=number)
        return TileStore(number, register, layout, row, col)

    def finish(self, dtypes: Sequence[DType], deliver: DType | None) -> TileCode:
        """Stores and results. `dtypes`: of each output's operand."""
        stores, results = [], []
        for number, output in enumerate(self.program.outputs):
            if output.target >= 0:
                stores.append(self.store(number, output, dtypes[number]))
            else:
                wanted = deliver or engine_type(self.program.dtype_of(output.value))
                register = self._exactly(self.form(output.value, wanted), self.full)
                results.append((number, register))
        return TileCode(tuple(self.registers), tuple(self.loads), tuple(self.steps), tuple(stores), tuple(results))


@dataclass(frozen=True, eq=False)
class TileExpr:
    """A register of a lowering; see the module docstring."""

    e: ProgramLowering
    register: int

    @property
    def layout(self) -> TileLayout:
        """How its values lie."""
        return self.e.layout(self.register)

    @property
    def dtype(self) -> DType:
        """Its element type."""
        return self.e.dtype(self.register)

    def like(self, value: float) -> TileExpr:
        """A number, of the same type and layout."""
        return TileExpr(self.e, self.e.constant(value, self.dtype, self.layout))

    def _step(
        self, command: str, layout: TileLayout, dtype: DType, types: tuple[DType, ...], operands: dict[str, int],
        **params: int | str,
    ) -> TileExpr:  # fmt: skip
        return TileExpr(self.e, self.e.step(command, layout, dtype, types, operands, **params))

    def unary(self, command: str, **params: int | str) -> TileExpr:
        """v_exp and the like, in the operand's type; `params`: further operands of the command."""
        return self._step(command, self.layout, self.dtype, (self.dtype,), {"src": self.register}, **params)

    def scalar(self, command: str, value: float) -> TileExpr:
        """v_adds and the like: with a constant on the right."""
        return self.unary(command, value=bits_of(value, self.dtype))

    def cast(self, dtype: DType, rounding: str = "nearest_even") -> TileExpr:
        """v_cast; to its own type: to whole numbers."""
        types = (self.dtype, dtype)
        return self._step("v_cast", self.layout, dtype, types, {"src": self.register}, rounding=rounding)

    def binary(self, command: str, other: TileExpr) -> TileExpr:
        """v_add and the like; what is broadcast stays as small as the command takes it."""
        e, a, b, layout = self.e, self.register, other.register, self.layout.join(other.layout)
        if not e.repeats(a, layout) and command in COMMUTATIVE and e.repeats(b, layout):
            a, b = b, a
        a = e.expand(a, layout)
        form = "matrix" if e.repeats(b, layout) else "column"
        return self._step(command, layout, e.dtype(a), (e.dtype(a),), {"a": a, "b": b}, b_form=form)

    def either(self, matrix: str, scalar: str, other: Operand) -> TileExpr:
        """A command that has a form for constants."""
        return self.binary(matrix, other) if isinstance(other, TileExpr) else self.scalar(scalar, other)

    def compare(self, predicate: str, other: Operand) -> TileExpr:
        """A byte mask."""
        types = (self.dtype,)
        if not isinstance(other, TileExpr):
            value, src = bits_of(other, self.dtype), {"src": self.register}
            return self._step("v_cmps", self.layout, DType.U8, types, src, predicate=predicate, value=value)
        layout = self.layout.join(other.layout)
        operands = {"a": self.e.expand(self.register, layout), "b": self.e.expand(other.register, layout)}
        return self._step("v_cmp", layout, DType.U8, types, operands, predicate=predicate)

    def __add__(self, other: Operand) -> TileExpr:
        return self.either("v_add", "v_adds", other)

    def __sub__(self, other: Operand) -> TileExpr:
        return self.binary("v_sub", other) if isinstance(other, TileExpr) else self + -other

    def __rsub__(self, number: float) -> TileExpr:
        return self.scalar("v_rsubs", number)

    def __mul__(self, other: Operand) -> TileExpr:
        return self.either("v_mul", "v_muls", other)

    def __truediv__(self, other: Operand) -> TileExpr:
        if isinstance(other, TileExpr):
            return self.binary("v_div", other)
        value = float(other)
        mantissa, exponent = math.frexp(value) if value and math.isfinite(value) else (0.0, 0)
        if abs(mantissa) == 0.5 and abs(exponent) < 14:  # a power of two: its inverse is exact
            return self * (1.0 / value)
        return self / self.like(value)

    def __rtruediv__(self, number: float) -> TileExpr:
        return self.unary("v_reciprocal") if number == 1 else self.like(number) / self

    def __neg__(self) -> TileExpr:
        return self.unary("v_neg")

    def __abs__(self) -> TileExpr:
        return self.unary("v_abs")

    def __lt__(self, other: Operand) -> TileExpr:
        return self.compare("lt", other)

    def __gt__(self, other: Operand) -> TileExpr:
        return self.compare("gt", other)

    __radd__, __rmul__ = __add__, __mul__


Operand = TileExpr | float


def minimum(a: TileExpr, b: Operand) -> TileExpr:
    """The lesser one."""
    return a.either("v_min", "v_mins", b)


def maximum(a: TileExpr, b: Operand) -> TileExpr:
    """The greater one."""
    return a.either("v_max", "v_maxs", b)


def where(mask: TileExpr, a: Operand, b: Operand) -> TileExpr:
    """a where the mask is set, else b; not both numbers."""
    e, given, layout = mask.e, [x for x in (a, b) if isinstance(x, TileExpr)], mask.layout
    dtype = given[0].dtype
    for x in given:
        layout = layout.join(x.layout)
    first = e.expand(a.register if isinstance(a, TileExpr) else e.constant(a, dtype, layout), layout)
    chosen = e.expand(mask.register, layout)
    if isinstance(b, TileExpr):
        operands = {"a": first, "b": e.expand(b.register, layout), "mask": chosen}
        return TileExpr(e, e.step("v_select", layout, dtype, (dtype,), operands))
    operands, bits = {"src": first, "mask": chosen}, bits_of(b, dtype)
    return TileExpr(e, e.step("v_selects", layout, dtype, (dtype,), operands, value=bits))


class InstructionSite:
    """One instruction at its place: what the operators' formulas see, the arguments in the type of the computation."""

    def __init__(self, e: ProgramLowering, instruction: Instruction, number: int) -> None:
        self.e, self.instruction, self.number = e, instruction, number
        self.args = instruction.args
        self.dtype = e.program.dtype_of(self.args[0]) if self.args else instruction.dtype

    def attr(self, name: str) -> float:
        """A numeric attribute of the instruction; KeyError if absent."""
        value = self.instruction.attr(name)
        assert isinstance(value, (int, float))
        return float(value)

    @property
    def short(self) -> bool:
        """Whether a coarse approximation serves: the result is stored as f16 or bf16 and not used otherwise."""
        return self.instruction.dtype in (DType.F16, DType.BF16) and self.e.only_stored(self.number)

    def compute_type(self, exact: bool, args: Sequence[int] | None = None) -> DType:
        """f16 where one command's rounding is the stored result's, or none; else f32; integers are themselves, bytes
        are compared as f16."""
        args = self.args if args is None else args
        dtype = self.e.program.dtype_of(args[0])
        if dtype is DType.BOOL:
            return DType.U8
        if not dtype.is_float:
            return DType.F16 if dtype.itemsize == 1 else dtype
        if dtype is not DType.F16 or not (exact or self.short):
            return DType.F32
        return DType.F16 if all(a < 0 or self.e.has(a, DType.F16) for a in args) else DType.F32

    def has(self, index: int) -> bool:
        """Whether an argument is there at all."""
        return index < len(self.args) and self.args[index] >= 0

    def const(self, index: int) -> float | None:
        """An argument that is a number."""
        return self.e.values[self.args[index]].const

    def form(self, index: int, dtype: DType) -> TileExpr:
        """An argument in a type."""
        return TileExpr(self.e, self.e.form(self.args[index], dtype))

    def operand(self, index: int, dtype: DType = DType.F32) -> Operand:
        """An argument in a type, numbers as such."""
        const = self.const(index)
        return self.form(index, dtype) if const is None else const

    def given(self, exact: bool = False) -> list[Operand]:
        """The arguments, numbers as such."""
        dtype = self.compute_type(exact)
        return [self.operand(k, dtype) for k in range(len(self.args))]

    def x(self, exact: bool = False) -> TileExpr:
        """The only argument that counts."""
        return self.form(0, self.compute_type(exact, self.args[:1]))

    def wide(self, index: int = 0) -> TileExpr:
        """An argument in f32."""
        return self.form(index, DType.F32)


def unsupported(instruction: Instruction, why: str) -> UnsupportedError:
    """The vector engine does not compute it."""
    return UnsupportedError(why, location=f"operator {instruction.op}", found=instruction.dtype.value)
