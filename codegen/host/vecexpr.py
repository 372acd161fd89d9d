"""Formulas over explicit vectors: an arithmetic wrapper so that kernels' mathematics reads as mathematics.

Model: an `Expr` is an llvmlite value (float, integer or i1; scalar or vector) plus the builder that extends it.
Python numbers in a formula become splat constants of the other operand's type. `outlined` puts a formula into a
function of the module, once per operand type, so that a module with many kernels states `exp` once; LLVM inlines it.

Invariants: no fast-math flags; `clamp_high/low`, comparisons and `choose` keep NaN in the operand that is clamped;
`fma` is one rounding where the CPU has it, two otherwise; nothing here needs a library function at run time (see
`rounded`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from llvmlite import ir

from superkernel.codegen.host.builder import I1, I32, I64, KernelBuilder, mangle, vector_type
from superkernel.core.errors import InternalError

F32, F64 = ir.FloatType(), ir.DoubleType()
Number = int | float


def _instruction(floats: str, integers: str = "") -> Callable[[Expr, Expr | Number], Expr]:
    """An operator that is one instruction: the builder's for floats, the builder's for integers."""

    def operator(self: Expr, o: Expr | Number) -> Expr:
        name = floats if self.is_float else integers or floats
        return self.new(getattr(self.kb.b, name)(self.v, self.lift(o)))

    return operator


def _comparison(op: str) -> Callable[[Expr, Expr | Number], Expr]:
    return lambda self, o: self.compare(op, o)


@dataclass(slots=True, eq=False)
class Expr:
    """One value in a formula. `whole`: of codes that were rounded from f32, the same numbers as f32 and what is to be
    added to them (see `requantise`)."""

    kb: KernelBuilder
    v: ir.Value
    whole: tuple[Expr, int] | None = None

    @property
    def lanes(self) -> int:
        """Elements of the vector; 1 for a scalar."""
        return self.v.type.count if isinstance(self.v.type, ir.VectorType) else 1

    @property
    def element(self) -> ir.Type:
        """LLVM's type of one element."""
        return self.v.type.element if isinstance(self.v.type, ir.VectorType) else self.v.type

    @property
    def is_float(self) -> bool:
        """Whether elements are floats of any width."""
        return not isinstance(self.element, ir.IntType)

    @property
    def is_double(self) -> bool:
        """Whether elements are f64."""
        return isinstance(self.element, ir.DoubleType)

    def const(self, number: Number) -> Expr:
        """The number in all lanes, of this value's type."""
        return Expr(self.kb, ir.Constant(self.v.type, float(number) if self.is_float else int(number)))

    def lift(self, other: Expr | Number) -> ir.Value:
        """LLVM's value of an operand; a number becomes a constant of this type and lanes."""
        return other.v if isinstance(other, Expr) else self.const(other).v

    def new(self, value: ir.Value) -> Expr:
        """Another value of the same function."""
        return Expr(self.kb, value)

    __add__, __sub__, __mul__ = _instruction("fadd", "add"), _instruction("fsub", "sub"), _instruction("fmul", "mul")
    __and__, __or__, __xor__ = _instruction("and_"), _instruction("or_"), _instruction("xor")
    __truediv__, __lshift__ = _instruction("fdiv"), _instruction("shl")
    __lt__, __gt__, __le__, __ge__ = _comparison("<"), _comparison(">"), _comparison("<="), _comparison(">=")
    sar, shr = _instruction("ashr"), _instruction("lshr")
    """Shifts right: arithmetic, logical."""

    def __radd__(self, o: Number) -> Expr:
        return self.const(o) + self

    def __rsub__(self, o: Number) -> Expr:
        return self.const(o) - self

    def __rmul__(self, o: Number) -> Expr:
        return self * o

    def __rtruediv__(self, o: Number) -> Expr:
        return self.const(o) / self

    def __neg__(self) -> Expr:
        return self.new(self.kb.b.fneg(self.v) if self.is_float else self.kb.b.neg(self.v))

    def invert(self) -> Expr:
        """All bits flipped (of a mask: logical not)."""
        return self.new(self.kb.b.not_(self.v))

    def fma(self, a: Expr | Number, c: Expr | Number) -> Expr:
        """self*a + c."""
        return self.new(self.kb.fma(self.v, self.lift(a), self.lift(c)))

    def compare(self, op: str, o: Expr | Number, signed: bool = True) -> Expr:
        """Mask of `self op o`; on floats false where either is NaN, except `!=`."""
        b, other = self.kb.b, self.lift(o)
        if self.is_float:
            return self.new(b.fcmp_unordered(op, self.v, other) if op == "!=" else b.fcmp_ordered(op, self.v, other))
        return self.new((b.icmp_signed if signed else b.icmp_unsigned)(op, self.v, other))

    def equals(self, o: Expr | Number) -> Expr:
        """Lanes of i1; NaN equals nothing."""
        return self.compare("==", o)

    def is_nan(self) -> Expr:
        """Lanes of i1."""
        return self.new(self.kb.b.fcmp_unordered("uno", self.v, self.v))

    def choose(self, yes: Expr | Number, no: Expr | Number) -> Expr:
        """Of a mask: lane-wise `yes if self else no`. At least one of the two is an Expr."""
        model = yes if isinstance(yes, Expr) else no
        if not isinstance(model, Expr):
            raise InternalError("choose between two plain numbers")
        return self.new(self.kb.b.select(self.v, model.lift(yes), model.lift(no)))

    def extreme(self, op: str, o: Expr, signed: bool = True) -> Expr:
        """The greater (`op` ">") or lesser ("<") of two; NaN if either is."""
        best = self.compare(op, o, signed).choose(self, o)
        return self.is_nan().choose(self, best) if self.is_float else best

    def clamp_high(self, limit: Expr | Number) -> Expr:
        """min(self, limit); NaN stays."""
        return (self > limit).choose(self.new(self.lift(limit)), self)

    def clamp_low(self, limit: Expr | Number) -> Expr:
        """max(self, limit); NaN stays."""
        return (self < limit).choose(self.new(self.lift(limit)), self)

    def call(self, name: str, *args: Expr | Number) -> Expr:
        """A floating-point intrinsic."""
        return self.new(self.kb.call_float(name, self.v, *(self.lift(a) for a in args)))

    def abs(self) -> Expr:
        """The magnitude; of floats the sign bit alone is cleared, the least integer stays as it is."""
        if self.is_float:
            return self.call("llvm.fabs")
        return (self < 0).choose(-self, self)

    def copysign(self, sign: Expr) -> Expr:
        """This magnitude with the sign bit of `sign`."""
        return self.call("llvm.copysign", sign)

    @property
    def has_scale(self) -> bool:
        """Whether there is an instruction for `scale`."""
        return self.kb.cpu.tier == "avx512" and self.lanes * (64 if self.is_double else 32) in (128, 256, 512)

    def scale(self, n: Expr) -> Expr:
        """self * 2^n for whole n, rounded once: gradual underflow and overflow to infinity included."""
        bits = self.lanes * (64 if self.is_double else 32)
        mask = ir.IntType(max(8, self.lanes))
        args = [self.v, n.v, ir.Constant(self.v.type, ir.Undefined), ir.Constant(mask, -1)]
        if bits == 512:
            args.append(ir.Constant(I32, 4))  # rounds as the thread does
        name = f"llvm.x86.avx512.mask.scalef.{'pd' if self.is_double else 'ps'}.{bits}"
        function = self.kb.intrinsic(name, self.v.type, [a.type for a in args])
        return self.new(self.kb.b.call(function, args))

    def sqrt(self) -> Expr:
        """Correctly rounded; NaN below zero."""
        return self.call("llvm.sqrt")

    def bits(self) -> Expr:
        """The float's bits as integers."""
        return self.new(self.kb.b.bitcast(self.v, vector_type(I64 if self.is_double else I32, self.lanes)))

    def as_float(self) -> Expr:
        """32- or 64-bit integers as the float with these bits."""
        kind = F64 if self.element.width == 64 else F32
        return self.new(self.kb.b.bitcast(self.v, vector_type(kind, self.lanes)))

    def to_int(self, width: int, signed: bool = True) -> Expr:
        """Integer of another width, or a float truncated (the caller keeps it in range)."""
        b, kind = self.kb.b, vector_type(ir.IntType(width), self.lanes)
        if self.is_float:
            return self.new(b.fptosi(self.v, kind) if signed else b.fptoui(self.v, kind))
        if self.element.width == width:
            return self
        if self.element.width > width:
            return self.new(b.trunc(self.v, kind))
        return self.new(b.sext(self.v, kind) if signed and self.element != I1 else b.zext(self.v, kind))

    def to_float(self, double: bool, signed: bool = True) -> Expr:
        """Integer, mask or float as f64 or f32."""
        b, kind = self.kb.b, vector_type(F64 if double else F32, self.lanes)
        if self.is_float:
            if self.is_double == double:
                return self
            return self.new(b.fpext(self.v, kind) if double else b.fptrunc(self.v, kind))
        if signed and self.element != I1:
            return self.new(b.sitofp(self.v, kind))
        return self.new(b.uitofp(self.v, kind))


def lane_numbers(kb: KernelBuilder, lanes: int, kind: ir.Type, step: int = 1) -> Expr:
    """0, step, 2*step, ... as integers of a type."""
    return Expr(kb, ir.Constant(vector_type(kind, lanes), [i * step for i in range(lanes)] if lanes > 1 else 0))


def polynomial(x: Expr, coefficients: tuple[float, ...]) -> Expr:
    """Lowest coefficient first: short ones by Horner's rule, long ones by Estrin's, with a few products more. A step
    waits for the one before it, so that by Horner's rule the processor runs out of vectors to work on meanwhile."""
    terms = [x.const(c) for c in coefficients]
    if len(terms) <= _HORNER_MAX:
        value = terms[-1]
        for term in reversed(terms[:-1]):
            value = value.fma(x, term)
        return value
    power = x
    while len(terms) > 1:
        pairs = [high.fma(power, low) for low, high in zip(terms[::2], terms[1::2], strict=False)]
        terms = pairs + terms[2 * len(pairs) :]
        power = power * power
    return terms[0]


_HORNER_MAX = 8  # coefficients; fewer gain nothing


def rounded(x: Expr, mode: str) -> Expr:
    """floor, ceil, trunc or roundeven. LLVM turns these into library calls on x86 without SSE4.1, which an image has
    none of: there, add and subtract 2^(mantissa bits) to round to nearest even, then correct by one towards the
    wanted side."""
    if x.kb.cpu.tier != "plain" or "x86" not in x.kb.cpu.triple:
        return x.call(f"llvm.{mode}")
    big = x.const(2.0**52 if x.is_double else 2.0**23)
    size = x.abs()
    nearest = ((size + big) - big).copysign(x)
    if mode == "floor":
        nearest = (nearest > x).choose(nearest - 1.0, nearest)
    elif mode == "ceil":
        nearest = (nearest < x).choose(nearest + 1.0, nearest)
    elif mode == "trunc":
        nearest = (nearest.abs() > size).choose(nearest - x.const(1.0).copysign(x), nearest)
    return (size < big).choose(nearest.copysign(x), x)


def outlined(kb: KernelBuilder, name: str, build: Callable[..., Expr], *args: ir.Value) -> ir.Value:
    """Call `build(*args)` through a function of the module named by `name` and the operand types, made on first use."""
    symbol = ".".join(["vm", name, *(mangle(a.type) for a in args)])
    function = kb.module.globals.get(symbol)
    if function is None:
        function = _outline(kb, symbol, build, args)
    return kb.b.call(function, list(args))


def _outline(kb: KernelBuilder, symbol: str, build: Callable[..., Expr], args: tuple[ir.Value, ...]) -> ir.Function:
    """The function's result has the type of its first operand."""
    kind = ir.FunctionType(args[0].type, [a.type for a in args])
    function = ir.Function(kb.module, kind, symbol)
    function.linkage = "internal"
    for attribute in ("alwaysinline", "nounwind"):
        function.attributes.add(attribute)
    outer = kb.b
    kb.b = ir.IRBuilder(function.append_basic_block("entry"))
    try:
        result = build(*(Expr(kb, a) for a in function.args))
        if result.v.type != kind.return_type:
            raise InternalError("an outlined formula must keep its first operand's type", location=symbol)
        kb.b.ret(result.v)
    finally:
        kb.b = outer
    return function
