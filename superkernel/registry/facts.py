"""A requirement flattened to facts: the vocabulary of clauses.

Names (an absent fact reads as None)
- `in0.dtype in0.rank in0.constant in0.source in0.elements` (and in1, ...), `out0.dtype`
- `rank elements bytes program program.dtypes`, `attr.NAME` per attribute
- `cpu.tier cpu.features` of a CPU, `aicore.*` of an accelerator; `device core_type`, `policy.*`
- `layout` of images: row_major or channels_last
- `program.steps`: pointwise operators, each with the element types of its operand and its result
- matrix products: `batch m n k` as the kernels see them (leading dimensions that only the left factor has are rows, a
  matrix times a column is turned round); `weight.constant`: whether the factor that is reused over rows is
- convolutions: `spatial groups channels multiplier taps depthwise bias.constant`, the implicit product per group as
  above; of the last two dimensions `stride_rows stride_columns window_rows window_columns`
- pure pointwise work: `copy` (one input, no arithmetic), `inner_stride` (of its first input along the last dimension)
- pooling: `spatial taps`; attention: `batch heads queries keys depth`

Figures of a kernel on the problem, its time and its workspace, are no facts but estimates (`Problem.estimate_of`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod

from superkernel.core.tensor import TensorType
from superkernel.ops.common import get
from superkernel.ops.conv import conv_windows, transpose_windows
from superkernel.ops.matmul import matmul_form
from superkernel.ops.opdef import AttrValue
from superkernel.ops.windows import ONE
from superkernel.registry.predicates import FactValue
from superkernel.registry.records import Estimate, Estimator, Platform, Policy, Requirement

MAX_SLOTS = 6
"""Slots that have facts of their own; variadic operators have more inputs, all of one dtype."""

_Adder = Callable[[Requirement, dict[str, FactValue], dict[str, AttrValue]], None]
_SLOT_FIELDS = tuple(
    tuple(f"in{slot}.{name}" for name in ("dtype", "rank", "constant", "source", "elements"))
    for slot in range(MAX_SLOTS)
)


class Problem(dict[str, FactValue]):
    """The facts of a requirement, and what kernels take for it: asked of `estimator` where somebody wants to know."""

    def __init__(self, requirement: Requirement, estimator: Estimator | None = None) -> None:
        super().__init__(_platform_facts(requirement.platform))
        self._requirement, self._estimator = requirement, estimator
        self._estimates: dict[str, Estimate | None] = {}

    def estimate_of(self, kernel: str) -> Estimate | None:
        """What a kernel takes, None where nobody can say."""
        if self._estimator is None:
            return None
        if kernel not in self._estimates:
            self._estimates[kernel] = self._estimator(kernel, self._requirement)
        return self._estimates[kernel]


def facts_of(requirement: Requirement, estimator: Estimator | None = None) -> Problem:
    """All facts of a requirement."""
    facts = Problem(requirement, estimator)
    facts.update(_policy_facts(requirement.policy))
    total = 0
    for fields, need in zip(_SLOT_FIELDS, requirement.inputs, strict=False):
        if need is None:
            continue
        kind = need.type
        facts.update(zip(fields, (kind.dtype, kind.rank, need.constant, need.source, kind.size), strict=True))
    for need in requirement.inputs:
        total += 0 if need is None else need.type.nbytes
    output = requirement.outputs[0] if requirement.outputs else None
    elements = max((t.size for t in requirement.outputs), default=0)
    first = next((n.type for n in requirement.inputs if n is not None), output)
    facts["op"] = requirement.op
    facts["out0.dtype"] = None if output is None else output.dtype
    facts["rank"] = 0 if first is None else first.rank
    facts["elements"] = max(elements, 0 if first is None else first.size)
    facts["bytes"] = total + sum(t.nbytes for t in requirement.outputs)
    facts["program"] = requirement.program
    facts["program.dtypes"] = requirement.program_dtypes
    facts["layout"] = requirement.layout
    facts["program.steps"] = requirement.program_steps
    depths = facts.get("aicore.cube_depths")
    if depths is not None and first is not None:
        facts["aicore.cube_depth"] = dict(depths).get(first.dtype)
    attrs = dict(requirement.attrs)
    for name, value in attrs.items():
        facts["attr." + name] = value
    adder = _ADDERS.get(requirement.op)
    if adder is not None:
        adder(requirement, facts, attrs)
    return facts


@lru_cache(maxsize=64)
def _platform_facts(platform: Platform) -> dict[str, FactValue]:
    return {"device": platform.device, "core_type": platform.core_type, **platform.target.facts()}


@lru_cache(maxsize=64)
def _policy_facts(policy: Policy) -> dict[str, FactValue]:
    return {
        "policy.objective": policy.objective,
        "policy.determinism": policy.determinism.value,
        "policy.max_workspace_bytes": policy.max_workspace_bytes,
        "region.tcm": policy.tcm_bytes,
        "region.flash": policy.flash_bytes,
        "policy.tolerance": policy.tolerance,
        "policy.fallback": policy.fallback,
        "policy.precision": policy.precision,
    }


def _type(requirement: Requirement, slot: int) -> TensorType | None:
    need = requirement.inputs[slot] if slot < len(requirement.inputs) else None
    return None if need is None else need.type


def _pointwise(requirement: Requirement, facts: dict[str, FactValue], attrs: dict[str, AttrValue]) -> None:
    needs = [n for n in requirement.inputs if n is not None]
    facts["copy"] = len(needs) == 1 and not requirement.program
    facts["inner_stride"] = abs(needs[0].strides[-1]) if needs and needs[0].strides else 1


def _transpose(requirement: Requirement, facts: dict[str, FactValue], attrs: dict[str, AttrValue]) -> None:
    x, perm = _type(requirement, 0), attrs.get("perm")
    if x is None or not x.rank:
        return
    last = perm[-1] if isinstance(perm, tuple) and perm else 0
    facts["copy"] = True
    facts["inner_stride"] = x.strides[int(last)] if -x.rank <= last < x.rank else 1


def _weight_facts(requirement: Requirement, facts: dict[str, FactValue], slot: int) -> None:
    """The factor that is reused over rows: whether it is known when compiling."""
    need = requirement.inputs[slot]
    facts["weight.constant"] = need is not None and need.constant


def _matmul(requirement: Requirement, facts: dict[str, FactValue], attrs: dict[str, AttrValue]) -> None:
    a, b = _type(requirement, 0), _type(requirement, 1)
    if a is None or b is None or not a.rank or not b.rank:
        return
    form = matmul_form(a, b, attrs)
    m, n, batch, weight = form.m, form.n, prod(form.batch), 1
    if form.turned:
        m, n, weight = 1, m, 0
    if prod((a, b)[weight].shape[:-2]) == 1 and batch > 1:
        m, batch = m * batch, 1
    facts.update(m=m, n=n, k=form.k, batch=batch)
    _weight_facts(requirement, facts, weight)


def _grouped(requirement: Requirement, facts: dict[str, FactValue], attrs: dict[str, AttrValue]) -> None:
    """Every row has one expert."""
    x, w = _type(requirement, 0), _type(requirement, 1)
    if x is None or w is None or x.rank != 2 or w.rank != 3:
        return
    facts.update(m=x.shape[0], n=w.shape[2], k=x.shape[1], batch=1)
    _weight_facts(requirement, facts, 1)


def _blocks(requirement: Requirement, facts: dict[str, FactValue], attrs: dict[str, AttrValue]) -> None:
    """Codes, scales and offsets are one factor."""
    x, codes = _type(requirement, 0), _type(requirement, 1)
    if x is None or codes is None or not x.rank:
        return
    facts.update(m=prod(x.shape[:-1]), n=codes.shape[0], k=x.shape[-1], batch=1)
    facts["weight.constant"] = all(need is None or need.constant for need in requirement.inputs[1:])
    allowed = attrs.get("x_bits") == 8 and facts["policy.precision"] != "f32"
    facts["x.precision"] = "int8" if allowed else facts["policy.precision"]


def _conv(requirement: Requirement, facts: dict[str, FactValue], attrs: dict[str, AttrValue]) -> None:
    x, w = _type(requirement, 0), _type(requirement, 1)
    if x is None or w is None:
        return
    output, groups = requirement.outputs[0], get(attrs, "groups", int)
    taps, channels, filters = prod(w.shape[2:]), x.shape[1], output.shape[1]
    facts.update(spatial=x.rank - 2, groups=groups, channels=channels, taps=taps, multiplier=filters // groups)
    facts["depthwise"] = groups == channels and groups > 1
    bias = requirement.inputs[2] if len(requirement.inputs) > 2 else None
    facts["bias.constant"] = bias is None or bias.constant
    pixels = prod(output.shape[2:])
    facts.update(batch=x.shape[0] * groups, m=filters // groups, n=pixels, k=channels // groups * taps)
    axes = (transpose_windows if requirement.op == "conv_transpose" else conv_windows)(x, w, attrs)
    for name, window in zip(("columns", "rows"), (*reversed(axes), ONE), strict=False):
        facts.update({f"stride_{name}": window.stride, f"window_{name}": window.reach})
    _weight_facts(requirement, facts, 1)


def _pool(requirement: Requirement, facts: dict[str, FactValue], attrs: dict[str, AttrValue]) -> None:
    x, kernel = _type(requirement, 0), attrs.get("kernel")
    if x is None or x.rank < 3:
        return
    facts["spatial"] = x.rank - 2
    facts["taps"] = prod(kernel) if isinstance(kernel, tuple) else prod(x.shape[2:])


def _attention(requirement: Requirement, facts: dict[str, FactValue], attrs: dict[str, AttrValue]) -> None:
    q, k = _type(requirement, 0), _type(requirement, 1)
    if q is None or k is None or q.rank != 4 or k.rank != 4:
        return
    batch, heads, queries, depth = q.shape
    facts.update(batch=batch, heads=heads, queries=queries, keys=k.shape[2], depth=depth)


_ADDERS: dict[str, _Adder] = {
    "pointwise": _pointwise,
    "transpose": _transpose,
    **dict.fromkeys(("matmul", "matmul_integer"), _matmul),
    "grouped_matmul": _grouped,
    "block_matmul": _blocks,
    **dict.fromkeys(("conv", "conv_integer", "conv_transpose"), _conv),
    **dict.fromkeys(("max_pool", "avg_pool", "lp_pool", "global_avg_pool", "global_max_pool"), _pool),
    "attention": _attention,
}
