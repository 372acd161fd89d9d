"""The symbol of a kernel function: its canonical name, made particular by what it computes, and a digest of that.

Model: `sk_f32_gemm_relu_ukernel_8x48__avx512skx_4f1c...`: the name of the registry's row with the element type where
the row serves several, the tile that was cut, the activation that ends the program behind the anchor, and behind the
target's tokens (on an accelerator with the core's role) the digest of kernel, body and tiling. A symbol is a name
itself: `parse_name` reads it. It is what the object, the linked file, traces, profiles, dumps and manifests show.

Invariants: equal kernels, bodies and tilings have equal symbols, in every process and graph; different ones differ in
the digest.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from functools import cache, lru_cache

from superkernel.ir.body import Body, SubOperator
from superkernel.registry.names import (
    NAME_DTYPES,
    OPERATOR_ACTIVATIONS,
    KernelName,
    format_name,
    forms_of,
    make_params,
    parse_name,
)
from superkernel.scheduler.tiling import Tiling

DIGEST_DIGITS = 16
_PROGRAM = "vprogram"
_KNOWN = 1024  # kernels whose text and symbol are remembered: several stages ask for them


def made_from(sub: SubOperator, tiling: Tiling, role: str = "") -> str:
    """The text that determines a kernel function on any one CPU or accelerator."""
    return _text_of(sub.kernel, sub.body, tiling, role)


def symbol_of(sub: SubOperator, tiling: Tiling, role: str = "") -> str:
    """The symbol of a sub-operator's kernel function, cut so; `role`: of the core that runs it, on an accelerator."""
    return _symbol(sub.kernel, sub.kernel_name, sub.body, tiling, role)


@lru_cache(maxsize=_KNOWN)
def _text_of(kernel: str, body: Body, tiling: Tiling, role: str) -> str:
    return "\n".join([kernel, body.text, repr(tiling), *([role] if role else [])])


@lru_cache(maxsize=_KNOWN)
def _symbol(kernel: str, kernel_name: str, body: Body, tiling: Tiling, role: str) -> str:
    digest = hashlib.sha256(_text_of(kernel, body, tiling, role).encode()).hexdigest()[:DIGEST_DIGITS]
    name = _formatted(_particular(_name_of(kernel, kernel_name), body, tiling))
    return "_".join([name, *([role] if role else []), digest])  # further tokens of the target


def _name_of(kernel: str, kernel_name: str) -> KernelName:
    """The name of the sub-operator's row; of its kernel alone where no registry chose it."""
    if kernel_name:
        return _parsed(kernel_name)
    return KernelName("sk", ("xx",), _PROGRAM, tuple(kernel.replace("_", ".").split(".")))


_parsed, _formatted = cache(parse_name), cache(format_name)


def _particular(name: KernelName, body: Body, tiling: Tiling) -> KernelName:
    """The name with what is known of one body and one cut of it."""
    if name.dtypes == ("xx",) and body.operands:
        name = replace(name, dtypes=(NAME_DTYPES[body.operands[0].type.dtype],))
    named = tiling.named(body)
    if named is not None:
        name = _with_tile(name, named[0] or name.op, tuple(named[1].items()))
    if body.op is not None:
        return replace(name, activation=_activation(body) or name.activation)
    steps = [step.op for step in body.epilogue.instructions if step.op != "constant"]
    if name.op == _PROGRAM and len(steps) <= 1:
        return replace(name, op="v" + steps[0].replace("_", "") if steps else "copy")
    return name


@cache
def _with_tile(name: KernelName, op: str, sizes: tuple[tuple[str, int], ...]) -> KernelName:
    """The name with what is known of a cut."""
    return replace(name, op=op, params=make_params(op, dict(sizes))) if forms_of(op) else name


def _activation(body: Body) -> str | None:
    """The activation that an anchor's result goes through last, but for casts; None where there is none."""
    program = body.epilogue
    value = program.outputs[0].value - len(program.inputs) if program.outputs else -1
    while value >= 0 and program.instructions[value].op == "cast":
        value = program.instructions[value].args[0] - len(program.inputs)
    return OPERATOR_ACTIVATIONS.get(program.instructions[value].op) if value >= 0 else None
