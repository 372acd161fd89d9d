"""What FIX does to a convolution's sums on their way to global memory: scale, bias, activation, conversion.

Model: an epilogue that FIX can do is a chain of instructions on the anchor's result with one store at its end, in the
order of the command: a factor per channel (or one for all), a summand per channel, then relu, leaky relu or clip. The
convolution's own bias is such a summand. Everything in between is f32; the operators' own roundings to the element
type are left out, as everywhere inside a fused kernel.

Invariant: `fix_form` gives None for whatever is not exactly that; then the vector cores do the whole epilogue.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isnan

from superkernel.core.dtypes import DType
from superkernel.ir.body import Body, Instruction, PointwiseProgram, ProgramInput, Role, View

CHANNEL = 1  # dimension of a convolution's result that counts channels
STORED = frozenset({DType.F32, DType.F16, DType.BF16})


@dataclass(frozen=True)
class ChannelVector:
    """A constant per output channel: element c of an operand at offset + c x stride."""

    operand: int
    offset: int
    stride: int


@dataclass(frozen=True)
class FixForm:
    """Operands of `l0c_to_gm`, and where it stores: strides over the epilogue's space."""

    target: int
    strides: tuple[int, ...]
    offset: int
    factor: float = 1.0
    scale: ChannelVector | None = None
    bias: ChannelVector | None = None
    activation: str = "none"
    low: float = 0.0
    high: float = 0.0

    @property
    def vectors(self) -> tuple[ChannelVector, ...]:
        """What lies in L1 for it."""
        return tuple(v for v in (self.scale, self.bias) if v is not None)


def slot_bias(body: Body) -> ChannelVector | None:
    """The convolution's own bias."""
    bias = body.anchor_inputs[2] if len(body.anchor_inputs) > 2 else None
    return ChannelVector(bias.operand, bias.offset, bias.strides[0]) if isinstance(bias, View) else None


def fix_form(body: Body, epilogue: PointwiseProgram) -> FixForm | None:
    """How FIX does the epilogue, or None. `epilogue` is the body's, perhaps with merged dimensions."""
    if len(epilogue.outputs) != 1:
        return None
    out = epilogue.outputs[0]
    kind = body.operands[out.target].type.dtype
    if body.anchor_outputs[0].dtype is DType.I32:  # a copy is all that FIX does with whole sums
        plain = epilogue.is_store_only and kind is DType.I32 and out.strides[CHANNEL] == 1
        return FixForm(out.target, out.strides, out.offset) if plain else None
    channels_inside = out.strides[CHANNEL] == 1 or epilogue.shape[CHANNEL] == 1
    if kind not in STORED or epilogue.dtype_of(out.value) is not kind or not channels_inside:
        return None
    form = FixForm(out.target, out.strides, out.offset, bias=slot_bias(body))
    return _Chain(body, epilogue, form).run()


class _Chain:
    def __init__(self, body: Body, program: PointwiseProgram, form: FixForm) -> None:
        self.body, self.program, self.form = body, program, form
        self.used = {v.operand for v in form.vectors}

    def run(self) -> FixForm | None:
        count = len(self.program.inputs)
        value = next((i for i, p in enumerate(self.program.inputs) if p.source < 0), None)
        if value is None:
            return None
        for number, step in enumerate(self.program.instructions):
            if step.op == "constant":
                continue
            if step.args.count(value) != 1 or not self._take(step, value):
                return None
            value = count + number
        return self.form if value == self.program.outputs[0].value else None

    def _take(self, step: Instruction, value: int) -> bool:
        """Whether the instruction continues the chain; `form` grows by it."""
        others = [a for a in step.args if a != value]
        if step.op in ("cast", "identity"):
            return step.dtype in STORED
        if step.dtype not in STORED or self.form.activation != "none":
            return False
        if step.op in ("add", "mul"):
            return self._combine(step.op, others[0])
        return self._activate(step, value)

    def _combine(self, op: str, other: int) -> bool:
        form, number, vector = self.form, self._number(other), self._vector(other)
        if op == "add" and vector is not None and form.bias is None:
            self.form = replace(form, bias=vector)
            return True
        if op != "mul" or form.bias is not None or form.scale is not None:
            return False
        if number is not None and form.factor == 1.0:
            self.form = replace(form, factor=number)
            return True
        if vector is not None and form.factor == 1.0:
            self.form = replace(form, scale=vector)
            return True
        return False

    def _activate(self, step: Instruction, value: int) -> bool:
        if step.args[0] != value:
            return False
        if step.op == "relu":
            self.form = replace(self.form, activation="relu")
            return True
        if step.op == "leaky_relu":
            alpha = dict(step.attrs).get("alpha", 0.01)
            assert isinstance(alpha, (int, float))
            self.form = replace(self.form, activation="leaky", low=float(alpha))
            return True
        if step.op == "clip":
            bounds = [self._number(a) if a >= 0 else None for a in step.args[1:]]
            low, high = (*bounds, None, None)[:2]
            if low is not None and high is not None and low <= high:
                self.form = replace(self.form, activation="clip", low=low, high=high)
                return True
        return False

    def _number(self, value: int) -> float | None:
        """A constant of the program."""
        count = len(self.program.inputs)
        if value < count:
            return None
        step = self.program.instructions[value - count]
        if step.op != "constant":
            return None
        number = step.attr("value")
        known = isinstance(number, (int, float)) and not isnan(number)
        return float(number) if known and isinstance(number, (int, float)) else None

    def _vector(self, value: int) -> ChannelVector | None:
        """A constant operand that varies with the channel only."""
        if value >= len(self.program.inputs):
            return None
        source: ProgramInput = self.program.inputs[value]
        if source.source < 0 or self.body.operands[source.source].role is not Role.CONSTANT:
            return None
        if source.source in self.used or source.dtype not in STORED:
            return None
        shape = self.program.shape
        if any(s for d, s in enumerate(source.strides) if d != CHANNEL and shape[d] > 1):
            return None
        self.used.add(source.source)
        return ChannelVector(source.source, source.offset, source.strides[CHANNEL])
