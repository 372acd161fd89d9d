"""One instruction of a program at its place in the lowering: what the operators' formulas see."""

from __future__ import annotations

from collections.abc import Sequence

from superkernel.core.dtypes import DType
from superkernel.ir.body import Instruction
from superkernel.scheduler.families.aicore.lowering import Const, ProgramLowering

F32, F16, U8 = DType.F32, DType.F16, DType.U8
Argument = int | Const


class InstructionSite:
    """One instruction at its place: the arguments in the type that it is computed in."""

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
        return self.instruction.dtype in (F16, DType.BF16) and self.e.only_stored(self.number)

    def compute_type(self, exact: bool, args: Sequence[int] | None = None) -> DType:
        """f16 where one command's rounding is the stored result's, or none; else f32; integers are themselves, bytes
        are compared as f16."""
        args = self.args if args is None else args
        dtype = self.e.program.dtype_of(args[0])
        if dtype is DType.BOOL:
            return U8
        if not dtype.is_float:
            return F16 if dtype.itemsize == 1 else dtype
        if dtype is not F16 or not (exact or self.short):
            return F32
        return F16 if all(a < 0 or self.e.has(a, F16) for a in args) else F32

    def given(self, exact: bool = False, args: Sequence[int] | None = None) -> list[Argument]:
        """The arguments, constants as such."""
        args = self.args if args is None else args
        dtype = self.compute_type(exact, args)
        return [self._given(a, dtype) for a in args]

    def _given(self, number: int, dtype: DType) -> Argument:
        const = self.e.values[number].const
        return Const(const) if const is not None else self.e.form(number, dtype)

    def x(self, exact: bool = False) -> int:
        """The only argument that counts."""
        (found,) = self.given(exact, self.args[:1])
        assert isinstance(found, int)
        return found

    def wide(self, index: int = 0) -> int:
        """An argument in f32."""
        return self.e.form(self.args[index], F32)
