"""Det of ONNX models, and det of torch modules, against NumPy's in f64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx_models import f32, model, node

import superkernel as sk
from superkernel.core.errors import FileFormatError, SuperKernelError, UnsupportedError
from superkernel.frontends import load_graph
from superkernel.reference import evaluate

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("stack", [(), (4,), (2, 3), (0,)])
@pytest.mark.parametrize("size", [0, 1, 2, 3, 5, 8])
def test_matrices_that_need_pivots_and_singular_ones(size: int, stack: tuple[int, ...]) -> None:
    x = f32(*stack, size, size)
    if size > 1:
        x[..., 0, 0] = 0
    if size > 2 and 0 not in stack and stack:
        x[0, ..., 2, :] = 2 * x[0, ..., 1, :]
    graph = load_graph(model([node("Det", "x")], {"x": x}))
    want = np.linalg.det(x.astype(np.float64))
    for found in (evaluate(graph, {"x": x})["y"], sk.compile(graph, threads=2).run({"x": x}).outputs["y"]):
        assert found.dtype == np.float32
        assert found.shape == stack
        np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-5 * 4**size)


def test_triangles_permutations_and_zeros() -> None:
    """What elimination leaves as it is has exact determinants."""
    kernel = sk.compile(load_graph(model([node("Det", "x")], {"x": f32(6, 5, 5)})), threads=1)
    triangle = np.triu(np.arange(1, 26, dtype=np.float32).reshape(5, 5))
    x = np.stack([np.eye(5)[[1, 0, 2, 3, 4]], np.eye(5)[[1, 2, 3, 4, 0]], np.eye(5)[::-1], triangle, triangle.T * 0,
                  np.full((5, 5), np.nan)]).astype(np.float32)  # fmt: skip
    np.testing.assert_array_equal(kernel(x), [-1, 1, 1, np.diag(triangle).prod(), 0, np.nan])


def test_narrow_and_wide_floats() -> None:
    for kind, close in ((np.float16, 1e-2), (np.float64, 1e-12)):
        x = f32(3, 4, 4).astype(kind)
        found = sk.compile(load_graph(model([node("Det", "x")], {"x": x})), threads=1).run({"x": x}).outputs["y"]
        assert found.dtype == kind
        np.testing.assert_allclose(found, np.linalg.det(x.astype(np.float64)), rtol=close, atol=close)


def test_torch() -> None:
    class Module(torch.nn.Module):  # type: ignore[name-defined]
        def forward(self, x: Any) -> Any:
            return torch.linalg.det(x), torch.det(x[0])

    for kind in (torch.float32, torch.float64):
        x = torch.rand(3, 4, 4, dtype=kind, generator=torch.Generator().manual_seed(1))
        found = sk.compile(Module().eval(), threads=1, example_inputs=(x,))(x)
        for one, other in zip(found, Module()(x), strict=True):
            torch.testing.assert_close(one, other)


def test_what_is_refused() -> None:
    cases: list[tuple[Any, type[SuperKernelError], str]] = [
        (f32(3), FileFormatError, "another number of axes"),
        (f32(2, 3), FileFormatError, "not square matrices"),
        (f32(40, 40), UnsupportedError, "a determinant of a large matrix"),
    ]
    for x, error, message in cases:
        with pytest.raises(error, match=message) as caught:
            load_graph(model([node("Det", "x")], {"x": x}))
        assert caught.value.violations[0].location.startswith("node 'y' (Det)")
