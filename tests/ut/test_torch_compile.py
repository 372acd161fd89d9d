"""torch.compile with SuperKernel as its backend: numbers against eager mode, and what is left to it."""

from __future__ import annotations

import copy
import os
import tomllib
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

if os.environ.get("SK_REQUIRE_TORCH") != "1":
    pytest.importorskip("torch", reason="torch is not installed (SK_REQUIRE_TORCH=1 makes this a failure)")

import torch
from torch import nn
from torch.autograd import forward_ad

from superkernel import dynamo
from superkernel.core import arrays
from superkernel.core.errors import InputError, UnsupportedError

ROOT = Path(__file__).parents[2]


pytestmark = pytest.mark.usefixtures("fresh_dynamo")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[dynamo._Variant]:
    """All kernels that are made."""
    kernels: list[dynamo._Variant] = []
    begin = dynamo._Variant.__init__

    def counted(self: dynamo._Variant, *args: Any) -> None:
        kernels.append(self)
        begin(self, *args)

    monkeypatch.setattr(dynamo._Variant, "__init__", counted)
    return kernels


def compiled(module: Any, **options: Any) -> Any:
    return torch.compile(module, backend=dynamo.backend, options={"threads": 2, **options})


def assert_same(found: Any, wanted: Any) -> None:
    torch.testing.assert_close(found, wanted, rtol=2e-5, atol=2e-5)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.last(self.norm(torch.relu(self.first(x))))
        return hidden


def test_a_module() -> None:
    net = Net()
    x = torch.randn(3, 8)
    found = compiled(net)(x)
    assert isinstance(found, torch.Tensor)
    assert_same(found, net(x))


def test_changing_sizes_share_one_graph(made: list[Any]) -> None:
    net = Net()
    fast = compiled(net)
    for batch in (3, 4, 5, 4, 3, 5):
        x = torch.randn(batch, 8)
        assert_same(fast(x), net(x))
    assert len(made) <= 4  # the first size is a graph of its own, sizes are a dimension from then on
    before = len(made)
    for batch in (4, 5):
        fast(torch.randn(batch, 8))
    assert len(made) == before


def test_the_oldest_of_many_sizes_goes(monkeypatch: pytest.MonkeyPatch, made: list[Any]) -> None:
    monkeypatch.setattr(dynamo, "KERNELS_MAX", 2)
    fast = torch.compile(nn.ReLU(), backend=dynamo.backend, dynamic=True)
    for size in (5, 6, 7, 7, 5):
        x = torch.randn(size)
        assert_same(fast(x), torch.relu(x))
    assert len(made) == 4  # 5, 6, 7, and 5 again


def test_marked_dimensions_stay_dynamic(made: list[Any]) -> None:
    """Also where a parameter has as many rows as the first batch: that is no condition on batches."""

    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = nn.Parameter(torch.randn(2, 8))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x * self.rows.sum(0), x

    module = Table()
    fast = compiled(module)
    for batch in (2, 3, 5):
        x = torch.randn(batch, 8)
        torch._dynamo.mark_dynamic(x, 0)  # an error where the graph is of one batch alone
        computed, handed_on = fast(x)
        assert_same(computed, module(x)[0])
        assert handed_on is x
    assert len(made) == 3


def test_graph_breaks() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(x) * 2
        torch._dynamo.graph_break()
        return y.softmax(-1) + x

    x = torch.randn(4, 6)
    assert_same(compiled(broken)(x), broken(x))


def test_parameters_that_are_written_to_or_replaced_are_seen() -> None:
    net, x = Net(), torch.randn(2, 8)
    fast = compiled(net)
    assert_same(fast(x), net(x))
    net.first.weight.mul_(3)
    assert_same(fast(x), net(x))
    net.last.bias = nn.Parameter(torch.full((4,), 7.0))
    assert_same(fast(x), net(x))
    net.load_state_dict(Net().state_dict())
    assert_same(fast(x), net(x))
    net.first.weight.data = torch.full_like(net.first.weight, 0.25)
    assert_same(fast(x), net(x))
    net.half()
    fast(x.half())
    net.float()
    assert_same(fast(x), net(x))


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(3))
        self.count: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += x.sum(0)
        return x * self.count


def test_changing_sizes_share_constants(made: list[Any]) -> None:
    model = nn.Linear(160, 160)
    run = torch.compile(model, backend=dynamo.backend, options={"threads": 2}, dynamic=True)
    for rows in (3, 5):
        x = torch.randn(rows, 160)
        assert_same(run(x), model(x))
    (one,), (other,) = (variant._kernel._compiled.image.constants.shared for variant in made)
    assert one is other
    weights = [max(v._kernel._compiled.source.constants.values(), key=lambda a: a.nbytes) for v in made]
    assert weights[0] is weights[1]


@pytest.mark.parametrize("copied", [True, False])
def test_large_parameters_that_are_written_to_are_packed_anew(copied: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrays, "COPIED_BYTES_MAX", (1 << 28) if copied else 0)
    model = nn.Linear(600, 600)  # more than is always copied
    run = compiled(model)
    x = torch.randn(3, 600)
    assert_same(run(x), model(x))
    model.weight[1, 1] += 1000.0
    assert_same(run(x), model(x))


def test_buffers_that_are_written_to(made: list[Any]) -> None:
    net = Counting()
    plain, fast = copy.deepcopy(net), torch.compile(net, backend=dynamo.backend, dynamic=True)
    for rows in (2, 3, 2, 3):
        x = torch.randn(rows, 3)
        assert_same(fast(x), plain(x))
        assert_same(net.count, plain.count)
    assert len(made) == 2
    net.count.fill_(5)
    plain.count.fill_(5)
    assert_same(fast(x), plain(x))


def test_what_is_no_tensor_and_what_is_handed_on() -> None:
    def mixed(x: torch.Tensor, factor: int) -> tuple[Any, ...]:
        return x * factor, x, None, x.shape[0] + 1

    x = torch.randn(3, 5)
    fast = torch.compile(mixed, backend=dynamo.backend, dynamic=True)
    for factor in (2, 3):
        product, handed, nothing, number = fast(x, factor)
        assert_same(product, x * factor)
        assert handed is x
        assert nothing is None
        assert number == 4


def _row_of_a_result(x: torch.Tensor) -> Any:
    y = x * 2
    row = y[0]
    torch._dynamo.graph_break()
    row += 1
    return y, row


def _row_of_an_input(x: torch.Tensor) -> Any:
    row, more = x[0], x + 3
    torch._dynamo.graph_break()
    row += 1
    return x, row, more


def _result_of_a_view(x: torch.Tensor) -> Any:
    y = x * 2
    flat = y.view(-1)
    torch._dynamo.graph_break()
    y.mul_(2)
    return flat


def _parts_that_were_written_to(x: torch.Tensor) -> Any:
    y = x * 2
    left, right = y.chunk(2, 1)
    right.add_(left)
    turned = right.t()
    torch._dynamo.graph_break()
    turned.mul_(3)
    left.sub_(1)
    return y, left, right


def _rows_by_size(x: torch.Tensor) -> Any:
    y = x.exp()
    last = y[: x.shape[0] - 1]
    torch._dynamo.graph_break()
    last.zero_()
    return y, last


def _rows_by_another_size(x: torch.Tensor) -> Any:
    y = x.exp()
    more = torch.cat([x, x[1:]])
    last = y[: more.size(0) // 2 - 1]
    torch._dynamo.graph_break()
    last.zero_()
    return y, last, more.sum()


@pytest.mark.parametrize(
    "function",
    [
        _row_of_a_result,
        _row_of_an_input,
        _result_of_a_view,
        _parts_that_were_written_to,
        _rows_by_size,
        _rows_by_another_size,
    ],
    ids=lambda f: f.__name__.lstrip("_"),
)
def test_results_that_share_memory(function: Any) -> None:
    warnings.simplefilter("ignore", dynamo.EagerWarning)  # of the graphs that write to them
    fast = compiled(function)
    for rows in (4, 5, 6):
        x = torch.randn(rows, 6)
        own = x.clone()
        assert_same(fast(x), function(own))
        assert_same(x, own)


def test_a_graph_of_views_is_run_by_torch() -> None:
    def turned(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return x.t(), x[: x.shape[0] - 1]

    fast = compiled(turned, fallback="forbid")
    for rows in (3, 4, 5):
        x = torch.randn(rows, 5)
        found, cut = fast(x)
        assert cut.shape == (rows - 1, 5)
        x.zero_()
        assert not found.any()
        assert not cut.any()


def test_results_that_share_memory_by_no_view_are_left_to_eager_mode() -> None:
    def grown(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        z = y.view(-1)
        z.unsqueeze_(0)
        return y, z

    x = torch.randn(3, 5)
    with pytest.warns(dynamo.EagerWarning, match="results of the graph share memory"):
        assert_same(compiled(grown)(x), grown(x))


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool])
def test_element_types(kind: torch.dtype) -> None:
    def moved(x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, x.flip(0)], 0).t()

    x = torch.randint(0, 2, (3, 4)).to(kind)
    found = compiled(moved)(x)
    assert found.dtype is kind
    assert torch.equal(found, moved(x))


def test_inputs_that_are_not_dense() -> None:
    x = torch.randn(6, 8).t()[1::2]
    assert_same(compiled(torch.sigmoid)(x), torch.sigmoid(x))


def test_strides_of_inputs_that_are_not_dense_are_left_to_eager_mode() -> None:
    def strided(x: torch.Tensor) -> torch.Tensor:
        return torch.as_strided(x, (2, 2), (1, 2)) * 2

    fast = compiled(strided)
    for x in (torch.randn(3, 4), torch.randn(5, 6)):
        assert_same(fast(x), strided(x))
    x = torch.randn(8, 12)[::2, ::2]
    with pytest.warns(dynamo.EagerWarning, match="strides of a tensor that is not contiguous"):
        assert_same(fast(x), strided(x))


def test_strides_among_the_results() -> None:
    warnings.simplefilter("ignore", dynamo.EagerWarning)
    fast = compiled(lambda x: (x * 2, x.stride()))
    for x in (torch.randn(4, 6), torch.randn(4, 6).t(), torch.randn(8, 6)[::2], torch.randn(4, 12)[:, ::2]):
        assert fast(x)[1] == x.stride()


def test_inference_mode() -> None:
    net, x = Net(), torch.randn(2, 8)
    with torch.inference_mode():
        fast = compiled(net)
        assert_same(fast(x), net(x))
        assert_same(fast(x + 1), net(x + 1))


def test_several_threads() -> None:
    net = Net()
    fast = compiled(net)
    inputs = [torch.randn(4, 8) for _ in range(16)]
    wanted = [net(x) for x in inputs]

    def call(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = fast(x)
        return found

    call(inputs[0])
    with ThreadPoolExecutor(4) as pool:
        for found, right in zip(pool.map(call, inputs), wanted, strict=True):
            assert_same(found, right)


def test_first_calls_in_several_threads() -> None:
    """Each compiles, while others compile and TorchDynamo looks at functions."""
    nets, untouched = [Net() for _ in range(4)], nn.Module.__call__
    made = [compiled(net, fallback="forbid") for net in nets]

    def call(at: int) -> list[torch.Tensor]:
        with torch.no_grad():
            return [made[at](torch.ones(rows, 8)) for rows in (2, 3, 5)]

    with ThreadPoolExecutor(4) as pool:
        for net, found in zip(nets, pool.map(call, range(4)), strict=True):
            for rows, result in zip((2, 3, 5), found, strict=True):
                assert_same(result, net(torch.ones(rows, 8)))
    assert nn.Module.__call__ is untouched


def test_gradients_are_left_to_eager_mode() -> None:
    net, x = Net(), torch.randn(2, 8)
    fast = compiled(net)
    with torch.enable_grad():
        with pytest.warns(dynamo.EagerWarning, match="gradients are recorded"):
            found = fast(x)
        assert found.grad_fn is not None
        fast(x)  # said once
    assert_same(fast(x), net(x))  # a graph of its own, and compiled


def test_autocast_is_left_to_eager_mode() -> None:
    net, x = Net(), torch.randn(2, 8)
    fast = compiled(net)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.warns(dynamo.EagerWarning, match="autocast"):
        assert torch.equal(fast(x), net(x))
    assert_same(fast(x), net(x))  # a graph of its own, and compiled


def test_forward_mode_derivatives_are_left_to_eager_mode() -> None:
    net, x, tangent = Net(), torch.randn(2, 8), torch.randn(2, 8)
    fast = compiled(net)
    with torch.no_grad():
        assert_same(fast(x), net(x))
        with forward_ad.dual_level():
            dual = forward_ad.make_dual(x, tangent)
            with pytest.warns(dynamo.EagerWarning, match="forward-mode"):
                found = fast(dual)
            torch.testing.assert_close(forward_ad.unpack_dual(found), forward_ad.unpack_dual(net(dual)))
        assert_same(fast(x), net(x))


MASKS = {
    "none": {},
    "queries": {"attn_mask": torch.ones(7, 7, dtype=torch.bool).triu(1)},
    "heads": {"attn_mask": torch.arange(8 * 49).reshape(8, 7, 7) % 3 == 1},
    "floats": {"attn_mask": torch.full((7, 7), -float("inf")).triu(1)},
    "keys": {"key_padding_mask": torch.arange(7) >= torch.tensor([[7], [4]])},
    "both": {
        "attn_mask": torch.ones(7, 7, dtype=torch.bool).triu(1),
        "key_padding_mask": torch.arange(7) >= torch.tensor([[7], [4]]),
    },
}


@pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("averaged", [True, False, None])  # None: no weights
def test_attention_modules(averaged: bool | None, masks: dict[str, torch.Tensor]) -> None:
    net, x = nn.MultiheadAttention(32, 4, batch_first=True).eval(), torch.randn(2, 7, 32)
    options = {**masks, "need_weights": averaged is not None, "average_attn_weights": averaged is True}
    found, wanted = compiled(net)(x, x, x, **options), net(x, x, x, **options)
    assert_same(found[0], wanted[0])
    if averaged is not None:
        assert_same(found[1], wanted[1])


@pytest.mark.parametrize(("activation", "first"), [("relu", False), ("gelu", True)])
def test_encoder_layers(activation: str, first: bool) -> None:
    net = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, activation=activation, norm_first=first).eval()
    fast, x = compiled(net), torch.randn(2, 7, 32)
    for masks in (MASKS["none"], MASKS["keys"], MASKS["both"]):
        given = {f"src_{name.removeprefix('attn_')}": mask for name, mask in masks.items()}
        assert_same(fast(x, **given), net(x, **given))


def inverted(x: torch.Tensor) -> torch.Tensor:
    return torch.linalg.inv(x) + 1


def test_what_has_no_lowering_is_left_to_eager_mode() -> None:
    x = torch.randn(3, 3)
    fast = compiled(inverted)
    with pytest.warns(dynamo.EagerWarning, match="inv"):
        assert_same(fast(x), inverted(x))
    assert_same(fast(x), inverted(x))


@pytest.mark.parametrize(
    "function",
    [torch.positive, lambda x: x.to(torch.float32), lambda x: x.add_(1), lambda x: (x.mul_(2), None)[1]],
    ids=["input", "cast", "in place", "nothing"],
)
def test_what_computes_no_tensor_is_left_to_eager_mode(function: Any) -> None:
    torch._dynamo.reset()
    x = torch.arange(3.0)
    own = x.clone()
    compiled = torch.compile(function, backend="superkernel")
    with torch.no_grad(), pytest.warns(dynamo.EagerWarning, match="the graph computes no tensor"):
        found = compiled(x)
    want = function(own)
    assert torch.equal(x, own)
    assert found is None if want is None else torch.equal(found, want)


@pytest.mark.parametrize(
    "function",
    [lambda x: torch.func.vmap(torch.tanh)(x), lambda x: torch.func.grad(lambda v: (v**3).sum())(x)],
    ids=["vmap", "grad"],
)
def test_functions_that_torch_transforms_are_left_to_eager_mode(function: Any) -> None:
    x = torch.randn(4, 3)
    with pytest.warns(dynamo.EagerWarning, match=r"torch\.func transforms"):
        found = torch.compile(function, backend="superkernel")(x)
    assert torch.equal(found, function(x))


def test_element_types_that_an_operator_does_not_take_are_left_to_eager_mode() -> None:
    def counted(x: torch.Tensor) -> torch.Tensor:
        return x.sum(dtype=torch.bool)

    x = torch.arange(4)
    with pytest.warns(dynamo.EagerWarning, match="element type not accepted"):
        assert compiled(counted)(x)


def test_eager_mode_can_be_forbidden() -> None:
    with pytest.raises(UnsupportedError, match="inv"):
        compiled(inverted, fallback="forbid")(torch.randn(3, 3))


def test_options_reach_the_compilation() -> None:
    with pytest.raises(InputError, match="precisoin"):
        compiled(Net(), precisoin="bf16")(torch.randn(2, 8))


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"thread": 2}, "did you mean 'threads'"),
        ({"precisoin": "bf16"}, "did you mean 'precision'"),
        ({"precision": "f33"}, "f33"),
        ({"threads": "two"}, "'two'"),
    ],
)
def test_options_that_there_are_not_are_refused_at_the_first_call(options: Any, said: str, grad: bool) -> None:
    """Also of a graph that records gradients, which would run in eager mode."""
    fast = torch.compile(Net(), backend=dynamo.backend, options=options)
    with torch.set_grad_enabled(grad), pytest.raises(InputError, match=said):
        fast(torch.randn(2, 8))


def test_the_backend_has_an_entry_point() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["torch_dynamo_backends"]["superkernel"].partition(":")
    assert module == dynamo.__name__
    assert getattr(dynamo, name) is dynamo.backend
