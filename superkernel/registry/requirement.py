"""Where requirements come from: a body of the scheduler, or a line of text on the command line.

    matmul(f32[128,384], const f32[384,384]; trans_b=true)

Model: a body without an anchor is the pseudo-operator `pointwise`; its program's operators are then what is to be
computed. The reverse, from text, goes through the operator table: shapes are inferred, attributes completed with their
defaults; `layout=channels_last` says so of the images of a convolution or pool.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod

from superkernel.core.dtypes import DType
from superkernel.core.errors import InputError, SuperKernelError
from superkernel.core.tensor import TensorType, broadcast_strides, channels_last_strides
from superkernel.ir.body import (
    AnchorInput,
    Body,
    Instruction,
    Operand,
    PointwiseProgram,
    ProgramInput,
    ProgramOutput,
    Role,
    View,
)
from superkernel.ops.attributes import canonical_attrs
from superkernel.ops.opdef import Family
from superkernel.ops.table import find_op, op_table, suggest_ops, traits_of
from superkernel.registry.records import ALL_CORES, Platform, Policy, Requirement, TensorNeed
from superkernel.target.base import Target

POINTWISE = "pointwise"
"""Operator of a body without an anchor."""

ROW_MAJOR, CHANNELS_LAST = "row_major", "channels_last"
"""Layouts of images."""

IMAGE_OPS = frozenset({"conv", "conv_integer", "max_pool", "avg_pool", "global_avg_pool", "global_max_pool"})
"""Operators whose kernels ask how images lie."""

_ARGUMENT = re.compile(r"(const\s+)?([a-z0-9]+\[[0-9,\s]*\])")


@lru_cache(maxsize=64)
def platform_of(target: Target) -> Platform:
    """The platform of a target, nothing limited."""
    return Platform(target, ALL_CORES if target.core_types else None)


def requirement_of(body: Body, target: Target, policy: Policy) -> Requirement:
    """What a body needs of a kernel on a target under a policy."""
    program = [i for p in _programs(body) for i in p.instructions]
    names = frozenset(i.op for i in program) - {"constant"}
    names |= {name for p in _programs(body) for name in _variables(p)}
    dtypes = frozenset(i.dtype for i in program)
    steps = frozenset(step for p in _programs(body) for step in _steps(p))
    if body.op is None:
        sources = [o for o in body.operands if o.role is not Role.OUTPUT]
        inputs = tuple(_program_need(body, i, o) for i, o in enumerate(sources))
        outputs = tuple(o.type for o in body.operands if o.role is Role.OUTPUT)
        return Requirement(
            POINTWISE,
            inputs,
            outputs,
            (),
            platform_of(target),
            policy,
            names,
            dtypes,
            steps,
            program_body=body,
        )
    slots = zip(body.anchor_inputs, body.anchor_input_types, strict=True)
    needs = tuple(None if kind is None else _need(body, source, kind) for source, kind in slots)
    own, own_steps = _own_step(body.op, needs, body.anchor_outputs)
    return Requirement(
        op=body.op,
        inputs=needs,
        outputs=body.anchor_outputs,
        attrs=body.attrs,
        platform=platform_of(target),
        policy=policy,
        program=names | own,
        program_dtypes=dtypes,
        program_steps=steps | own_steps,
        layout=_layout(body),
    )


def _layout(body: Body) -> str:
    """How the images of a convolution or pool lie: as its first result that is stored with several channels and pixels,
    else as its first input."""
    if body.op not in IMAGE_OPS or len(body.anchor_outputs[0].shape) not in (3, 4, 5):
        return ROW_MAJOR
    kind = body.anchor_input_types[0]
    walks = [(body.epilogue.shape, o.strides) for o in body.epilogue.outputs if o.target >= 0]
    if isinstance(body.anchor_inputs[0], View) and kind is not None:
        walks.append((kind.shape, body.anchor_inputs[0].strides))
    for shape, strides in walks:
        if shape[1] > 1 and prod(shape[2:]) > 1:
            return CHANNELS_LAST if strides[1] == 1 else ROW_MAJOR
    return ROW_MAJOR


def _variables(program: PointwiseProgram) -> Iterator[str]:
    """What a program has besides its operators where exponents or counts are not known when compiling."""
    first = len(program.inputs)
    known = {first + i for i, step in enumerate(program.instructions) if step.op == "constant"}
    for step in program.instructions:
        name = traits_of(step.op).constant
        if name and step.args[-1] not in known:
            yield f"variable_{name}"


def _own_step(
    op: str, needs: Sequence[TensorNeed | None], outputs: Sequence[TensorType]
) -> tuple[frozenset[str], frozenset[tuple[str, DType, DType]]]:
    """What a pointwise operator that stands alone, as an anchor, would be in a program."""
    definition = find_op(op)
    if definition is None or definition.family is not Family.POINTWISE or not needs:
        return frozenset(), frozenset()
    typed = needs[definition.typed_by]
    if typed is None:
        return frozenset(), frozenset()
    last, name = needs[-1], traits_of(op).constant
    computed = name and last is not None and not (last.constant and last.type.size == 1)
    return frozenset({f"variable_{name}"} if computed else ()), frozenset({(op, typed.type.dtype, outputs[0].dtype)})


def _steps(program: PointwiseProgram) -> Iterator[tuple[str, DType, DType]]:
    for step in program.instructions:
        if step.op != "constant":
            yield step.op, program.dtype_of(step.args[op_table()[step.op].typed_by]), step.dtype


def _programs(body: Body) -> list[PointwiseProgram]:
    return [*(s for s in body.anchor_inputs if isinstance(s, PointwiseProgram)), body.epilogue]


def _need(body: Body, source: AnchorInput, kind: TensorType) -> TensorNeed:
    if isinstance(source, View):
        constant = body.operands[source.operand].role is Role.CONSTANT
        if source.is_dense:
            return TensorNeed(kind, constant)
        return TensorNeed(kind, constant, "view", source.strides)
    return TensorNeed(kind, source="program")


def _program_need(body: Body, index: int, operand: Operand) -> TensorNeed:
    """An operand of a pure program: a "view" where it is read other than element by element in order."""
    constant, shape = operand.role is Role.CONSTANT, body.epilogue.shape
    for read in body.epilogue.inputs:
        if read.source == index and not View(index, shape, read.strides, read.offset).is_dense:
            return TensorNeed(operand.type, constant, "view", read.strides)
    return TensorNeed(operand.type, constant)


@lru_cache(maxsize=64)  # asked per kernel that is eligible
def body_of(requirement: Requirement) -> Body | None:
    """The problem alone, as families cut it: an anchor on operands in memory, images in their layout, the results
    stored as they are; or a program. None for an operator that is no work of its own (a view)."""
    if requirement.program_body is not None:
        return requirement.program_body
    definition = find_op(requirement.op)
    if definition is None or definition.family in (Family.VIEW, Family.RESHAPE):
        return None
    needs, outputs = [n for n in requirement.inputs if n is not None], requirement.outputs
    operands = [Operand(Role.CONSTANT if n.constant else Role.INPUT, n.type) for n in needs]
    operands += [Operand(Role.OUTPUT, kind) for kind in outputs]
    if definition.family is Family.POINTWISE:
        return _program_of(requirement, tuple(operands))
    slots: list[View | None] = []
    for slot, need in enumerate(requirement.inputs):
        index = sum(n is not None for n in requirement.inputs[:slot])
        slots.append(None if need is None else View(index, need.type.shape, _strides(requirement, need, slot)))
    results = tuple(ProgramInput(-1 - k, kind.dtype) for k, kind in enumerate(outputs))
    stores = tuple(
        ProgramOutput(k, len(needs) + k, _image_strides(requirement, kind)) for k, kind in enumerate(outputs)
    )
    types = tuple(None if n is None else n.type for n in requirement.inputs)
    epilogue = PointwiseProgram(outputs[0].shape, results, (), stores)
    return Body(requirement.op, requirement.attrs, tuple(operands), tuple(slots), types, outputs, epilogue)


def _program_of(requirement: Requirement, operands: tuple[Operand, ...]) -> Body:
    """A pointwise operator that stands alone."""
    kind, count = requirement.outputs[0], len(operands) - 1
    loads = tuple(
        ProgramInput(i, o.type.dtype, broadcast_strides(o.type.shape, o.type.strides, kind.shape))
        for i, o in enumerate(operands[:-1])
    )
    step = Instruction(requirement.op, tuple(range(count)), kind.dtype, requirement.attrs)
    program = PointwiseProgram(kind.shape, loads, (step,), (ProgramOutput(count, count, kind.strides),))
    return Body(None, (), operands, (), (), (), program)


def _strides(requirement: Requirement, need: TensorNeed, slot: int) -> tuple[int, ...]:
    if need.strides:
        return need.strides
    return _image_strides(requirement, need.type) if slot == 0 else need.type.strides


def _image_strides(requirement: Requirement, kind: TensorType) -> tuple[int, ...]:
    return channels_last_strides(kind.shape) if requirement.layout == CHANNELS_LAST else kind.strides


def parse_requirement(text: str, target: Target, policy: Policy) -> Requirement:
    """A requirement from one line, see the module docstring; `_` stands for an absent optional input. Raises
    InputError."""
    found = re.fullmatch(r"\s*(\w+)\s*\((.*)\)\s*", text, re.DOTALL)
    if found is None:
        raise _ill_formed(text, "OPERATOR(TYPE, const TYPE, ...; attribute=value, ...)")
    name, inside = found[1], found[2]
    definition = find_op(name)
    if definition is None:
        raise InputError("unknown operator", expected=" or ".join(suggest_ops(name)) or "an operator", found=repr(name))
    arguments, _, attributes = inside.partition(";")
    needs = tuple(_argument(text, a.strip()) for a in re.split(r",(?![^\[]*\])", arguments) if a.strip())
    given = dict(_attribute(text, a) for a in re.split(r",(?![^(\[]*[)\]])", attributes) if a.strip())
    layout = given.pop("layout", ROW_MAJOR) if name in IMAGE_OPS else ROW_MAJOR
    if layout not in (ROW_MAJOR, CHANNELS_LAST):
        place, expected = f"operator {name!r}", f"{ROW_MAJOR} or {CHANNELS_LAST}"
        raise InputError("no such layout", location=place, expected=expected, found=repr(layout))
    try:
        attrs = canonical_attrs(definition, given)
        outputs = definition.infer([None if n is None else n.type for n in needs], attrs)
    except SuperKernelError as error:
        raise InputError(violations=error.violations) from error
    except (IndexError, TypeError, ValueError, KeyError) as error:
        expected = ", ".join(a.name for a in definition.args)
        place = f"operator {name!r}"
        raise InputError("the inputs do not fit", location=place, expected=expected, found=arguments) from error
    own, steps = _own_step(name, needs, outputs)
    return Requirement(
        name,
        needs,
        outputs,
        tuple(attrs.items()),
        platform_of(target),
        policy,
        own,
        program_steps=steps,
        layout=str(layout),
    )


def _argument(text: str, word: str) -> TensorNeed | None:
    if word == "_":
        return None
    found = _ARGUMENT.fullmatch(word)
    if found is None:
        raise _ill_formed(text, "an input such as f32[2,3], const f32[3] or _", word)
    try:
        kind = TensorType.parse(found[2].replace(" ", ""))
    except (SuperKernelError, ValueError) as error:
        raise _ill_formed(text, "an element type and sizes, such as f32[2,3]", word) from error
    return TensorNeed(kind, found[1] is not None)


def _attribute(text: str, word: str) -> tuple[str, object]:
    name, separator, value = (part.strip() for part in word.partition("="))
    if not separator or not name or not value:
        raise _ill_formed(text, "name=value", word.strip())
    return name, _value(value)


def _value(text: str) -> object:
    if text.startswith(("(", "[")):
        return tuple(_value(item.strip()) for item in text[1:-1].split(",") if item.strip())
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return DType.of(text) if text in {d.value for d in DType} else text.strip("\"'")


def _ill_formed(text: str, expected: str, found: str = "") -> InputError:
    return InputError("not a requirement", location=repr(text), expected=expected, found=found or text)
