"""The declared access of every operator against what its reference really reads, element by element.

Soundness: with everything outside the declared boxes poisoned (NaN, other indices, other numbers), the output box is
unchanged. Tightness, for the operators whose access is exact: each face of a declared box holds an element that the
output box does depend on.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from operator_cases import Case, cases

from superkernel.core.tensor import Box, TensorType
from superkernel.ir.graph import type_of_array
from superkernel.ops.attributes import canonical_attrs
from superkernel.ops.common import is_float
from superkernel.ops.opdef import OpDef
from superkernel.ops.table import op_table
from superkernel.reference import run_reference

Array = np.ndarray[Any, Any]
# Operators that look at data to decide what to move, and rounding ones, where one poisoned element need not show.
NOT_TIGHT = {
    "reshape", "gather", "gather_elements", "gather_nd", "scatter_elements", "scatter_nd", "one_hot", "topk", "trilu",
    "resize", "kv_update", "where", "clip", "cast", "quantize", "pow", "prelu", "isinf", "isnan", "argmax", "argmin",
    "mod", "sign", "lrn",
}  # fmt: skip


class Run:
    """One case, ready to be evaluated again with changed inputs."""

    def __init__(self, case: Case) -> None:
        self.definition: OpDef = op_table()[case.op]
        self.inputs = case.inputs
        self.types = [None if x is None else type_of_array(x) for x in case.inputs]
        self.attrs = canonical_attrs(self.definition, case.attrs)
        self.outputs: tuple[TensorType, ...] = self.definition.infer(self.types, self.attrs)

    def __call__(self, inputs: list[Array | None]) -> tuple[Array, ...]:
        return run_reference(self.definition, inputs, self.attrs, self.outputs, wide=True)

    def boxes(self, index: int, box: Box) -> tuple[Box | None, ...]:
        return self.definition.access(self.types, self.outputs, self.attrs, index, box)


def slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(start, stop) for start, stop in box)


def random_box(rng: np.random.Generator, shape: tuple[int, ...]) -> Box:
    """A non-empty box inside a shape without zero extents; often thin."""
    spans = []
    for extent in shape:
        start = int(rng.integers(0, extent))
        width = 1 if rng.random() < 0.5 else int(rng.integers(1, extent - start + 1))
        spans.append((start, start + width))
    return tuple(spans)


def poisoned(rng: np.random.Generator, values: Array, box: Box | None) -> Array:
    """`values` with everything outside `box` replaced."""
    other = rng.permutation(values.reshape(-1)).reshape(values.shape)
    if values.dtype == np.bool_:
        other = np.asarray(~values)
    elif is_float(values):
        other = np.full_like(values, np.nan)
    if box is not None:
        other[slices(box)] = values[slices(box)]
    return other


def check_box(box: Box, kind: TensorType, case: Case) -> None:
    assert len(box) == kind.rank, case
    assert all(0 <= start < stop <= extent for (start, stop), extent in zip(box, kind.shape, strict=True)), (box, case)


@pytest.mark.parametrize("op", op_table())
def test_nothing_outside_the_declared_boxes_is_read(op: str) -> None:
    rng = np.random.default_rng(11)
    checked = 0
    for case in cases(op, seed=1):
        run = Run(case)
        truth = run(case.inputs)
        for index, kind in enumerate(run.outputs):
            if kind.size == 0:
                continue
            for _ in range(3):
                box = random_box(rng, kind.shape)
                declared = run.boxes(index, box)
                assert len(declared) == len(case.inputs), case
                changed: list[Any] = []
                for values, source, read in zip(case.inputs, run.types, declared, strict=True):
                    if values is None or source is None:
                        assert read is None, case
                        changed.append(None)
                        continue
                    if read is not None and values.size:
                        check_box(read, source, case)
                    changed.append(poisoned(rng, values, read))
                found = run(changed)[index][slices(box)]
                wanted = truth[index][slices(box)]
                np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-300, err_msg=f"{case} box {box}")
                checked += 1
    assert checked > 0


def depends_on_face(run: Run, index: int, box: Box, slot: int, read: Box, axis: int, last: bool) -> bool:
    """Whether the output box changes where one face of the declared input box is poisoned."""
    start, stop = read[axis]
    edge = (stop - 1, stop) if last else (start, start + 1)
    face = tuple(edge if i == axis else span for i, span in enumerate(read))
    values = run.inputs[slot]
    assert values is not None
    touched = values.astype(np.float64)
    touched[slices(face)] = np.nan
    inputs = list(run.inputs)
    inputs[slot] = touched
    before, after = run(list(run.inputs))[index][slices(box)], run(inputs)[index][slices(box)]
    return not np.array_equal(before, after, equal_nan=True)


@pytest.mark.parametrize("op", [name for name in op_table() if name not in NOT_TIGHT])
def test_declared_boxes_are_tight(op: str) -> None:
    rng = np.random.default_rng(12)
    for case in cases(op, seed=2)[:12]:
        run = Run(case)
        if not all(x is None or (is_float(x) and x.size) for x in case.inputs) or any(k.size == 0 for k in run.outputs):
            continue
        if case.attrs.get("causal"):
            continue  # the keys it hides are declared, because kernels load whole blocks of keys
        truth = run(case.inputs)
        for index, kind in enumerate(run.outputs):
            if np.isnan(truth[index].astype(np.float64)).any() or kind.dtype.value == "bool":
                continue
            box = random_box(rng, kind.shape)
            for slot, read in enumerate(run.boxes(index, box)):
                if slot == 1 and op.startswith("conv"):
                    continue  # weights are declared whole, though a tap may meet padding only
                for axis in range(len(read) if read else 0):
                    assert read is not None
                    for last in (False, True):
                        assert depends_on_face(run, index, box, slot, read, axis, last), f"{case} {box} {slot} {read}"


def test_a_wrong_declaration_is_caught() -> None:
    """The check itself: a box one element short changes the result."""
    run = Run(cases("reduce_sum")[3])
    values = run.inputs[0]
    assert values is not None
    short = tuple((start, stop - 1) for start, stop in run.boxes(0, ((0, 4), (0, 1)))[0] or ())
    changed = poisoned(np.random.default_rng(0), values, short)
    assert not np.array_equal(run([changed])[0], run(run.inputs)[0])
