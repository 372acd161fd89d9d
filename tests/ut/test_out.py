"""`kernel(x, out=y)`: results in memory of the caller's own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import superkernel as sk
from superkernel.core.errors import InputError

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2


def kernel(entry: str = "x", outputs: int = 1, state: bool = False) -> Any:
    b = sk.GraphBuilder("g")
    x = b.input(entry, (2, 3))
    for i in range(outputs):
        b.output(x * (i + 2), name=f"y{i}")
    if state:
        kept = b.state("kept", np.zeros((2, 3), np.float32))
        b.update(kept, kept + x)
    return sk.compile(b.graph(), threads=1)


def test_an_array_several_and_by_name() -> None:
    one, two = kernel(), kernel(outputs=2)
    y, z = np.zeros_like(X), np.zeros_like(X)
    for _ in range(2):
        assert one(X, out=y) is y
        np.testing.assert_array_equal(y, X * 2)
    given = [y, z]
    assert two(x=X, out=given) is given
    np.testing.assert_array_equal(y, X * 2)
    np.testing.assert_array_equal(z, X * 3)
    z[:] = 0
    two(X, out={"y1": z})
    np.testing.assert_array_equal(z, X * 3)
    np.testing.assert_array_equal(one(X), X * 2)


def test_other_targets_and_states() -> None:
    b = sk.GraphBuilder("g")
    b.output(b.relu(b.input("x", (2, 3))), name="y")
    y = np.zeros_like(X)
    sk.compile(b.graph(), target="mini")(X, out=y)
    np.testing.assert_array_equal(y, np.maximum(X, 0))
    counting = kernel(state=True)
    counting(X, out=y)
    counting(counting.states["kept"], out=y)
    np.testing.assert_array_equal(y, X * 2)
    np.testing.assert_array_equal(counting.states["kept"], X * 2)
    with pytest.raises(InputError, match="shares memory"):
        counting(X, out=counting.states["kept"])


def test_an_input_of_that_name_is_the_input() -> None:
    np.testing.assert_array_equal(kernel("out")(out=X), X * 2)


def test_refusals() -> None:
    locked = np.zeros_like(X)
    locked.flags.writeable = False
    both = np.zeros((2, 2, 3), np.float32)
    for out, said in (
        (X, "shares memory with what a launch writes"),
        (np.zeros((2, 3)), "wrong type"),
        (np.zeros((3, 2), np.float32).T, "not dense"),
        (locked, "read-only"),
        ([0.0], "no memory to bind"),
        ((both[0], both[1]), r"not an array per output; expected 1 \(y0\); found 2"),
        ({"y": both[0]}, "unknown output 'y'"),
    ):
        with pytest.raises(InputError, match=said):
            kernel()(X, out=out)
    with pytest.raises(InputError, match="shares memory"):
        kernel(outputs=2)(X, out=(both[0], both[0]))


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_tensors_of_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    b = sk.GraphBuilder("g")
    b.output(b.relu(b.input("x", (2, 3), {"float32": "f32", "bfloat16": "bf16"}[name])), name="y")
    made = sk.compile(b.graph(), threads=1)
    x = torch.from_numpy(X).to(getattr(torch, name))
    y = torch.zeros_like(x)
    assert made(x, out=y) is y
    assert torch.equal(y, torch.relu(x))
    with pytest.raises(InputError):
        made(x, out=torch.zeros(3, 2, dtype=x.dtype).t())
    with pytest.raises(InputError, match=r"call \.detach\(\)"):
        made(x, out=torch.zeros(2, 3, dtype=x.dtype, requires_grad=True))


def scaled(rows: int) -> sk.Graph:
    b = sk.GraphBuilder("g")
    b.output(b.input("x", (rows, 3)) * 2, name="y")
    return b.graph()


@pytest.mark.parametrize("buckets", [None, {"rows": [4, 8]}])
def test_kernels_of_several_sizes(buckets: Any) -> None:
    several = sk.compile_dynamic(scaled, {"rows": (1, 8)}, threads=1, buckets=buckets)
    for x in (X, np.concatenate([X, X, X])):
        y = np.zeros_like(x)
        assert several(x, out=y) is y
        np.testing.assert_array_equal(y, x * 2)
        several(x=x, out={"y": y})
        np.testing.assert_array_equal(several(x), y)
    with pytest.raises(InputError, match="wrong type"):
        several(X, out=np.zeros((6, 3), np.float32))
    with pytest.raises(InputError, match="not an array per output"):
        several(X, out=(y, y))


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_derivatives_are_refused_and_not_dropped(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    forward_ad = torch.autograd.forward_ad
    b = sk.GraphBuilder("square")
    b.output(b.square(b.input("x", (3,), dtype)), name="y")
    kernel, x = (
        sk.compile(b.graph(), threads=1),
        torch.ones(3, dtype=getattr(torch, {"f32": "float32"}.get(dtype, "bfloat16"))),
    )
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.ones_like(x))
        with pytest.raises(InputError, match="tangent"):
            kernel(dual)
        with pytest.raises(InputError, match="tangent"):
            kernel(x, out=dual)
        assert kernel(forward_ad.unpack_dual(dual).primal).tolist() == [1, 1, 1]
        assert kernel(x).tolist() == [1, 1, 1]
    with pytest.raises(InputError, match=r"gradients .*\.detach\(\)"):
        kernel(x.clone().requires_grad_())
