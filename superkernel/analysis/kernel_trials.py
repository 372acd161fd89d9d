"""Kernels tried on problems: does each compute the reference and touch what it declares, and how fast is it?

Model: a problem is an operator with its input types, as `kernels explain` takes it: a kernel's own (`problems` of its
declaration), or those of `PROBLEMS` that it is eligible for. A trial compiles the graph of that one operator with the
kernel pinned, and the precision allowed that it asks for, and runs it: on the host with 1, 2 and 3 threads under option
`debug="races"`, where every load and store is held to the declared accesses, and on an accelerator on the simulator,
which does the same for its commands. Results are compared with the reference, and among the numbers of threads bit for
bit; those of a reduced precision may be off by what their row says of the reference's greatest result for magnitudes.

What it does not do: cut work otherwise than the scheduler does, or try problems that a graph of one operator is not
planned as (images that lie channels last). The package's own tests of its kernels do that too.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel._core import OversubscriptionWarning
from superkernel.api import compile
from superkernel.core.counted import counted
from superkernel.core.dtypes import DType
from superkernel.core.errors import InputError, SuperKernelError, UnsupportedError
from superkernel.core.formats import REDUCED
from superkernel.core.option import HOST
from superkernel.ir.graph import Graph, Node
from superkernel.ops.table import find_op
from superkernel.reference import evaluate
from superkernel.reference.random_inputs import check_seed, random_inputs
from superkernel.registry.eligibility import relative_error
from superkernel.registry.predicates import Reason, matches_any
from superkernel.registry.records import KernelRole, Policy, Requirement
from superkernel.registry.requirement import parse_requirement
from superkernel.runtime.kernel import Kernel
from superkernel.scheduler.kernel_table import KernelTable
from superkernel.scheduler.kerneldef import KernelDef
from superkernel.target.base import Target

PROBLEMS = (
    "matmul({t}[3,5], const {t}[5,37])",
    "matmul({t}[3,5], {t}[5,7])",
    "matmul({t}[64,48], const {t}[48,80])",
    "conv({t}[1,3,9,9], const {t}[5,3,3,3]; pads=(1,1,1,1))",
    "conv({t}[1,6,9,9], const {t}[6,1,3,3]; groups=6, pads=(1,1,1,1))",
    "conv({t}[1,2,4,4,4], {t}[3,2,2,2,2])",
    "conv_transpose({t}[1,2,4,4], {t}[2,3,2,2]; strides=(2,2))",
    "concat({t}[2,3], {t}[2,5]; axis=1)",
    "pad({t}[2,3]; pads=(1,0,0,2))",
    "tile({t}[2,3]; repeats=(2,3))",
    "gather({t}[12,5], i64[3]; axis=0)",
    "reduce_sum({t}[4,37]; axes=(1,))",
    "argmax({t}[4,37]; axis=1)",
    "cumsum({t}[4,37]; axis=1)",
    "softmax({t}[4,37]; axis=-1)",
    "layer_norm({t}[4,37], {t}[37], {t}[37]; axis=-1)",
    "lrn({t}[1,5,3,4]; size=3)",
    "max_pool({t}[1,3,8,8]; kernel=(2,2), strides=(2,2))",
    "attention({t}[1,4,3,16], {t}[1,2,9,16], {t}[1,2,9,16])",
    "rope({t}[1,2,3,8], {t}[3,4], {t}[3,4])",
)
"""Problems for any kernel, {t} standing for an element type."""

TYPES = (DType.F32, DType.F64, DType.F16, DType.BF16, DType.I8, DType.I32)
TOLERANCES = {DType.F64: 1e-11, DType.F32: 2e-5, DType.F16: 4e-3, DType.BF16: 3e-2}
"""Relative and absolute, by the type of the result; others are exact."""

THREADS = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class Trial:
    """One kernel on one problem. `error`: the greatest, of what the tolerance allows (1: all of it). `fault`: what is
    wrong, or ""."""

    kernel: str
    problem: str
    error: float
    fault: str


@dataclass(frozen=True, slots=True)
class TrialTime:
    """One kernel on one problem, and the kernel that the registry takes without it; medians, in ns."""

    kernel: str
    problem: str
    ns: float
    other: str
    other_ns: float


def trials(table: KernelTable[Any], pattern: str, target: Target, seed: int = 0) -> Iterator[Trial]:
    """Every kernel whose id matches, on every problem that it is eligible for. Raises InputError where none matches, or
    there is no problem to try one on, and on a seed that is none."""
    check_seed(seed)
    for kernel, problem in _cases(table, pattern, target):
        try:
            found = _trial(table, kernel, problem, target, seed)
            if found is not None:
                yield found
        except SuperKernelError as error:
            yield Trial(kernel.id, str(problem), float("inf"), str(error))


def timings(
    table: KernelTable[Any], pattern: str, target: Target, rounds: int = 200, seed: int = 0
) -> Iterator[TrialTime]:
    """What `trials` tries, timed, against what is taken where the kernel is denied."""
    for kernel, problem in _cases(table, pattern, target):
        graph = _graph_of(problem)
        inputs = random_inputs(graph.inputs, seed)
        more = {} if target.core_types else {"precision": problem.policy.precision}
        pinned = _compiled(graph, target, None, pin=(kernel.id,), **more)
        other = _compiled(graph, target, None, deny=(kernel.id,), fallback="allow", **more)
        ours, theirs = [], []
        for _ in range(3):  # in turns, so that both meet the same machine
            ours.append(np.median(pinned.time(inputs, rounds=rounds)))
            theirs.append(np.median(other.time(inputs, rounds=rounds)))
        yield TrialTime(kernel.id, str(problem), float(min(ours)), _kernel_of(other), float(min(theirs)))


def _cases(table: KernelTable[Any], pattern: str, target: Target) -> Iterator[tuple[KernelDef[Any], Requirement]]:
    found = [k for name, k in table.kernels.items() if matches_any((pattern,), (name,))]
    if not found:
        raise InputError("no kernel of this name", location=repr(pattern), hint="superkernel kernels list")
    cases = [(k, p) for k in found if k.role is not KernelRole.REFERENCE for p in _problems(table, k, target)]
    if not cases:
        hint = "superkernel kernels explain PROBLEM --pin KERNEL says why"
        raise InputError("no problem that a kernel of this name is eligible for", location=repr(pattern), hint=hint)
    yield from cases


def _problems(table: KernelTable[Any], kernel: KernelDef[Any], target: Target) -> Iterator[Requirement]:
    """Those that a graph of the one operator has the kernel take."""
    texts = kernel.problems or [p.format(t=t.value) for p in PROBLEMS for t in TYPES if _takes(p, t)]
    for text in dict.fromkeys(texts):
        problem = parse_requirement(text, target, Policy(pin=(kernel.id,), precision=_precision_of(kernel)))
        if problem.op not in kernel.ops:
            continue
        try:
            selection = table.registry.select(problem)
        except UnsupportedError:
            continue
        if selection.kernel == kernel.id:
            yield problem


def _precision_of(kernel: KernelDef[Any]) -> str:
    """What the kernel wants to be allowed: "auto" where nothing."""
    asked = [c for row in kernel.rows() for c in row.limits if c.reason is Reason.PRECISION]
    return next(p for p in ("auto", *REDUCED) if all(c.holds({c.field: p}) for c in asked))


def _takes(problem: str, dtype: DType) -> bool:
    definition = find_op(problem.partition("(")[0])
    return definition is not None and dtype in definition.args[0].dtypes


def _trial(
    table: KernelTable[Any], kernel: KernelDef[Any], problem: Requirement, target: Target, seed: int
) -> Trial | None:
    """None where a graph of the one operator is not planned as the problem (it was lowered first, say), and that is no
    fault of the kernel's own problems."""
    graph, host = _graph_of(problem), not target.core_types  # threads on equal cores
    inputs = random_inputs(graph.inputs, seed)
    expected = list(evaluate(graph, inputs).values())
    precision, slack = problem.policy.precision, 0.0
    if precision in REDUCED:
        row = table.registry.select(problem).row
        slack = relative_error(row, DType.F32) * max(np.abs(a).max(initial=0) for a in _magnitudes(graph, inputs))
    first: list[NDArray[Any]] = []
    worst = 0.0
    for threads in THREADS if host else (None,):
        more = {"debug": "races", "precision": precision} if host else {}
        made = _compiled(graph, target, threads, pin=(kernel.id,), **more)
        if _kernel_of(made) != kernel.id:
            taken = Trial(kernel.id, str(problem), 0.0, f"{_kernel_of(made)} was taken instead")
            return taken if kernel.problems else None
        found = list(made.run(inputs).outputs.values())
        first = first or found
        worst = max(worst, *(_error(a, b, slack) for a, b in zip(found, expected, strict=True)))
        if any(a.tobytes() != b.tobytes() for a, b in zip(first, found, strict=True)):
            return Trial(kernel.id, str(problem), worst, f"other bits with {threads} threads than with {THREADS[0]}")
    return Trial(kernel.id, str(problem), worst, "" if worst <= 1 else "off by more than the tolerance")


def _magnitudes(graph: Graph, inputs: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
    """The results for magnitudes of inputs and constants: of a product, what its error is relative to."""
    constants = {name: np.abs(array) for name, array in graph.constants.items()}
    return list(evaluate(replace(graph, constants=constants), {n: np.abs(a) for n, a in inputs.items()}).values())


def _error(found: NDArray[Any], expected: NDArray[Any], slack: float) -> float:
    """The greatest error, of what is tolerated: by the type, and `slack`."""
    allowed = TOLERANCES.get(DType.of(found.dtype), 0.0)
    a, b = (np.asarray(x).astype(np.float64) for x in (found, expected))
    if allowed == 0.0 or a.size == 0:
        return 0.0 if np.array_equal(a, b) else float("inf")
    with np.errstate(all="ignore"):
        off = np.abs(a - b) / (allowed * (1 + np.abs(b)) + slack)
    off = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.where(np.isnan(off), np.inf, off))
    return float(off.max())


def _compiled(graph: Graph, target: Target, threads: int | None, **options: Any) -> Kernel:
    host = not target.core_types
    more: dict[str, Any] = {} if host else {"precision": "f32"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OversubscriptionWarning)  # threads may take turns here
        return compile(graph, HOST if host else target, threads, {**more, **options})


def _kernel_of(made: Kernel) -> str:
    """The kernel of the sub-operator that computes the graph's one node."""
    return made.explain(NODE).kernel


NODE = "tried"


def _graph_of(problem: Requirement) -> Graph:
    """A graph of the one operator; constants are random."""
    names = [None if need is None else f"in{i}" for i, need in enumerate(problem.inputs)]
    given = {n: need for n, need in zip(names, problem.inputs, strict=True) if n is not None and need is not None}
    outputs = [f"out{i}" for i in range(len(problem.outputs))]
    return Graph.build(
        name=problem.op,
        inputs={n: need.type for n, need in given.items() if not need.constant},
        nodes=[Node(NODE, problem.op, tuple(names), tuple(outputs), dict(problem.attrs))],
        outputs=outputs,
        constants=random_inputs({n: need.type for n, need in given.items() if need.constant}, 1),
    )


def text_of(found: Sequence[Trial]) -> str:
    """A line per trial, and how many failed."""
    lines = [
        f"FAIL  {t.kernel}  {t.problem}  {t.fault}"
        if t.fault
        else f"ok    {t.kernel}  {t.problem}  error {t.error:.2g} of the tolerance"
        for t in found
    ]
    return "\n".join([*lines, f"{counted(len(found), 'trial')}, {sum(bool(t.fault) for t in found)} failed"])


def timings_text(found: Sequence[TrialTime]) -> str:
    """A line per timing: the kernel's time, and the one of what is taken without it."""
    return "\n".join(
        f"{t.kernel}  {t.problem}  {t.ns / 1e3:.2f} us; {t.other} {t.other_ns / 1e3:.2f} us ({_times(t)})"
        for t in found
    )


def _times(timing: TrialTime) -> str:
    """On a busy machine a call may take less than the clock's own time, which is taken off: 0."""
    return f"{timing.other_ns / timing.ns:.2f} times" if timing.ns > 0 else "too short to be compared"
