"""Whole torch modules: compiled and run against torch, states over several runs, names, files, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if os.environ.get("SK_REQUIRE_TORCH") != "1":
    pytest.importorskip("torch", reason="torch is not installed (SK_REQUIRE_TORCH=1 makes this a failure)")

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree
from torch_models import Counter, Decoder, Encoder, MobileNet, Recurrent, ResNet

import superkernel as sk
from superkernel.cli import main
from superkernel.core.errors import FileFormatError, InputError, MachineError, SuperKernelError, UnsupportedError
from superkernel.frontends import load_graph
from superkernel.frontends.torch import capture
from superkernel.transforms import simplify

IDS = torch.tensor([[3, 7, 1, 0, 4], [9, 2, 2, 8, 0]])


def trained(module: nn.Module) -> nn.Module:
    """The module in inference mode with statistics and scales that are not the trivial ones."""
    torch.manual_seed(1)
    for name, buffer in module.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            buffer.uniform_(0.3, 1.2)
    for name, parameter in module.named_parameters():
        if "norm" in name or "bn" in name:
            parameter.data.uniform_(0.5, 1.5)
    return module.eval()


def arrays(outputs: Any) -> list[Any]:
    return [t.detach().numpy() for t in pytree.tree_leaves(outputs) if t is not None]


def results(kernel: sk.Kernel, *inputs: Any, **named: Any) -> list[Any]:
    found = kernel(*inputs, **named)
    return list(found) if isinstance(found, tuple) else [found]


MODULES: dict[str, tuple[Any, tuple[torch.Tensor, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(7, 16), nn.GELU(), nn.Linear(16, 3), nn.Softmax(-1)), (torch.randn(4, 7),)),
    "resnet": (ResNet, (torch.randn(2, 3, 32, 32),)),
    "mobilenet": (MobileNet, (torch.randn(1, 8, 10, 10),)),
    "encoder": (Encoder, (IDS,)),
    "encoder_masked": (Encoder, (IDS, (IDS != 0).long())),
    "recurrent": (Recurrent, (torch.randn(2, 4, 6),)),
}


@pytest.mark.parametrize(("make", "inputs"), MODULES.values(), ids=MODULES.keys())
def test_modules_compute_what_torch_computes(make: Any, inputs: tuple[torch.Tensor, ...]) -> None:
    module = trained(make())
    kernel = sk.compile(module, example_inputs=inputs, threads=2)
    assert not kernel.summary()["fallbacks"]
    with torch.no_grad():
        want = arrays(module(*inputs))
    for got, expected in zip(results(kernel, *inputs), want, strict=True):
        assert got.numpy().dtype == expected.dtype
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=2e-5)


def test_patterns_stay_whole() -> None:
    """What the operator table has is not taken apart on the way."""
    graph = load_graph(trained(Encoder()), example_inputs=(IDS,))
    kinds = [n.op for n in graph.nodes]
    assert (kinds.count("attention"), kinds.count("layer_norm"), kinds.count("gelu")) == (2, 4, 2)
    block = [n.op for n in load_graph(trained(MobileNet()), example_inputs=(torch.randn(1, 8, 4, 4),)).nodes]
    assert {"conv", "batch_norm", "hard_swish", "hard_sigmoid", "clip", "global_avg_pool"} <= set(block)


def test_a_convolution_takes_the_zeros_around_its_image() -> None:
    class Padded(nn.Module):
        def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return F.conv2d(F.pad(x, (0, 1, 2, 0)), w, padding=1)

    inputs = (torch.randn(1, 2, 5, 6), torch.randn(3, 2, 3, 3))
    graph = load_graph(Padded(), example_inputs=inputs)
    assert [(n.op, n.attrs["pads"]) for n in graph.nodes] == [("conv", (3, 1, 1, 2))]
    got = sk.compile(graph, threads=1)(*inputs)
    np.testing.assert_allclose(got, Padded()(*inputs).numpy(), rtol=1e-5, atol=1e-5)


# -- operators that write in place


class _Writing(nn.Module):
    """A product, and what is written into it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)


class ReadLater(_Writing):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x)
        twice = h * 2
        h.relu_().add_(twice)
        h *= x
        return h + h.sigmoid()


class ThroughAView(_Writing):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x)
        flat = h.view(-1)
        return h.relu_() * flat.view(h.shape)


class HandedOn(_Writing):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x)
        F.dropout(h, 0.5, training=False).relu_()
        return h + 1


class IntoAView(_Writing):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x)
        h.view(-1).relu_()
        return h + 1


class OfAnotherType(_Writing):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).add_(x.double())


class Returned(_Writing):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.linear(x)
        h.relu_()
        return h


@pytest.mark.parametrize("kind", [ReadLater, ThroughAView, HandedOn, IntoAView, OfAnotherType, Returned])
def test_what_is_written_in_place_is_read_as_torch_reads_it(kind: type[nn.Module]) -> None:
    module, x = kind().eval(), torch.randn(3, 4)
    with torch.no_grad():
        want = module(x)
        assert (module.linear(x) < 0).any()
    got = sk.compile(module, example_inputs=(x,), threads=1)(x)
    assert got.dtype is want.dtype
    np.testing.assert_allclose(got, want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("module", "inputs", "left"),
    [
        (ResNet(), torch.randn(1, 3, 32, 32), False),
        (ReadLater(), torch.randn(3, 4), False),
        (ThroughAView(), torch.randn(3, 4), True),
        (HandedOn(), torch.randn(3, 4), False),
        (OfAnotherType(), torch.randn(3, 4), True),
    ],
)
def test_nothing_is_decomposed_for_what_is_written_in_memory_of_its_own(
    module: nn.Module, inputs: torch.Tensor, left: bool
) -> None:
    program = capture.captured(trained(module), (inputs,))
    assert any(map(capture._writes, program.graph.nodes)) == left


# -- states


def test_a_cache_is_a_state() -> None:
    """Step by step as torch's module, whose buffers the kernel leaves alone."""
    module = trained(Decoder())
    x = torch.randn(6, 1, 1, 32)
    graph = load_graph(module, example_inputs=(x[0], torch.tensor([0])))
    assert [n.op for n in graph.nodes].count("kv_update") == 2
    assert [n.op for n in simplify(graph).nodes].count("rope") == 2  # of queries and keys, written out in the module
    kernel = sk.compile(graph, threads=2)
    assert set(kernel.states) == {"k_cache", "v_cache"}
    assert not module.k_cache.any()
    for step in range(6):
        position = torch.tensor([step])
        got = kernel(x[step], position)
        with torch.no_grad():
            want = module(x[step], position)
        np.testing.assert_allclose(got, want.numpy(), rtol=3e-5, atol=3e-5)
        np.testing.assert_allclose(kernel.states["k_cache"], module.k_cache.numpy(), rtol=3e-5, atol=3e-5)
    kernel.reset_states()
    assert not kernel.states["v_cache"].any()


def test_prefill_of_several_rows() -> None:
    module = trained(Decoder())
    x, position = torch.randn(1, 3, 32), torch.tensor([2, 3, 5])
    kernel = sk.compile(module, example_inputs=(x, position), threads=1)
    with torch.no_grad():
        want = module(x, position)
    np.testing.assert_allclose(kernel(x, position), want.numpy(), rtol=3e-5, atol=3e-5)
    np.testing.assert_allclose(kernel.states["v_cache"], module.v_cache.numpy(), rtol=3e-5, atol=3e-5)


def test_rows_that_follow_one_another_are_written_in_place() -> None:
    class Cache(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("rows", torch.zeros(2, 6, 4))

        def forward(self, new: torch.Tensor, start: torch.Tensor) -> torch.Tensor:
            self.rows.index_copy_(1, start + torch.arange(2), new)
            return self.rows * 2

    new, start = torch.randn(2, 2, 4), torch.tensor([3])
    graph = load_graph(Cache(), example_inputs=(new, start))
    assert "kv_update" in [n.op for n in graph.nodes]
    kernel = sk.compile(graph, threads=1)
    module = Cache()
    np.testing.assert_array_equal(kernel(new, start), module(new, start).numpy())
    np.testing.assert_array_equal(kernel.states["rows"], module.rows.numpy())


@pytest.mark.parametrize("position", [0, 3, -1, -4])
def test_a_row_counted_from_the_end(position: int) -> None:
    class Row(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("rows", torch.ones(4, 3))

        def forward(self, new: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            self.rows[at] = new
            return self.rows.sum()

    new, at = torch.randn(1, 3), torch.tensor([position])
    kernel = sk.compile(Row(), example_inputs=(new, at), threads=1)
    kernel(new, at)
    module = Row()
    module(new, at)
    np.testing.assert_array_equal(kernel.states["rows"], module.rows.numpy())


def test_buffers_written_in_every_way() -> None:
    module = Counter()
    kernel = sk.compile(module, example_inputs=(torch.zeros(3),), threads=1)
    for x in torch.randn(3, 3):
        np.testing.assert_allclose(kernel(x), module(x).numpy(), rtol=1e-5, atol=1e-6)
    for name, buffer in module.named_buffers():
        np.testing.assert_allclose(kernel.states[name], buffer.numpy(), rtol=1e-5, atol=1e-6, err_msg=name)


# -- names, types, forms


def test_inputs_and_outputs_keep_their_names() -> None:
    masked = {"input_ids": IDS, "attention_mask": (IDS != 0).long()}
    graph = load_graph(trained(Encoder()), example_inputs=masked)
    assert "encoder.layers.1.linear2.bias" in graph.constants
    kernel = sk.compile(graph, threads=1)
    assert list(kernel.inputs) == ["input_ids", "attention_mask"]
    assert list(kernel.outputs) == ["logits", "pooled_0", "pooled_1"]
    assert kernel.explain("encoder.layers.1.self_attn/scaled_dot_product_attention_1").text()


def test_nested_inputs_and_outputs() -> None:
    class Nested(nn.Module):
        def forward(self, pair: tuple[torch.Tensor, torch.Tensor], more: dict[str, torch.Tensor], scale: float) -> Any:
            same = pair[0] * scale
            return [same, (pair[1] + more["bias"], same, None), 7, pair[1]]

    inputs = ((torch.ones(2), torch.zeros(3)), {"bias": torch.full((3,), 2.0)}, 3.0)
    kernel = sk.compile(Nested(), example_inputs=inputs, threads=1)
    assert list(kernel.inputs) == ["pair_0", "pair_1", "more_bias"]
    assert list(kernel.outputs) == ["output_0", "output_1_0", "output_1_1", "output_2", "output_3"]
    got = kernel(torch.ones(2), torch.zeros(3), torch.full((3,), 2.0))
    assert [g.tolist() for g in got] == [[3, 3], [2, 2, 2], [3, 3], 7, [0, 0, 0]]


def test_tied_weights_are_one_constant() -> None:
    graph = load_graph(trained(Encoder()), example_inputs=(IDS,))
    (name,) = (n for n, a in graph.constants.items() if a.shape == (50, 32))
    assert name in ("words.weight", "head.weight")


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_element_types(kind: torch.dtype) -> None:
    torch.manual_seed(2)
    module = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).to(kind)
    x = torch.randn(3, 8).to(kind)
    kernel = sk.compile(module, example_inputs=(x,), threads=1)
    got = kernel(x)
    assert got.dtype is kind
    want = module.double()(x.double()).detach().numpy()
    tolerance = {torch.float16: 3e-3, torch.bfloat16: 2e-2, torch.float64: 1e-12}[kind]
    np.testing.assert_allclose(got.double(), want, rtol=tolerance, atol=tolerance)


def test_the_module_is_left_as_it_is() -> None:
    """A module that is being trained is compiled as it infers, and goes on training."""
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4))
    module[2].eval()
    flags = [m.training for m in module.modules()]
    before = {k: v.clone() for k, v in module.state_dict().items()}
    x = torch.randn(3, 4)
    kernel = sk.compile(module, example_inputs=(x,), threads=1)
    assert [m.training for m in module.modules()] == flags
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())
    with torch.no_grad():
        np.testing.assert_allclose(kernel(x), module.eval()(x).numpy(), rtol=1e-5, atol=1e-6)
        got = kernel(x)
        module[0].weight.mul_(2)  # the kernel holds weights of its own
    np.testing.assert_array_equal(kernel(x), got)


def test_exported_programs_and_their_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module, x = trained(ResNet()), torch.randn(1, 3, 16, 16)
    program = torch.export.export(module, (x,))
    path = tmp_path / "resnet.pt2"
    torch.export.save(program, path)
    with torch.no_grad():
        want = module(x).numpy()
    for source in (program, path, str(path)):
        kernel = sk.compile(source, threads=1)
        np.testing.assert_allclose(kernel(x), want, rtol=2e-5, atol=2e-5)
    assert kernel.summary()["name"] == "resnet"
    assert main(["compile", str(path), "-o", str(tmp_path / "resnet.skm"), "--threads", "1"]) == 0
    assert main(["run", str(tmp_path / "resnet.skm"), "--random-inputs", "1"]) == 0
    assert "output: f32[1,5]" in capsys.readouterr().out


def test_array_examples_stand_for_tensors() -> None:
    x = np.ones((2, 4), np.float32)
    module = nn.Linear(4, 3)
    ways: list[Any] = [x, (x,), [torch.from_numpy(x)], {"input": x}]
    for examples in ways:
        kernel = sk.compile(module, example_inputs=examples, threads=1)
        assert list(kernel.inputs) == ["input"]
    np.testing.assert_allclose(kernel(x), module(torch.from_numpy(x)).detach().numpy(), rtol=1e-5)


# -- refusals


class Several(nn.Module):
    """Operators without a lowering, one of them twice, in a part of the network."""

    class Part(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.special.bessel_j0(x) + torch.special.bessel_j0(x + 1) * torch.linalg.inv(x)

    def __init__(self) -> None:
        super().__init__()
        self.part = Several.Part()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x) + torch.rand(3, 3)


def refused(kind: type[SuperKernelError], source: Any, **options: Any) -> SuperKernelError:
    with pytest.raises(kind) as caught:
        load_graph(source, **options)
    return caught.value


def test_unknown_operators_are_listed_at_once() -> None:
    error = refused(UnsupportedError, Several(), example_inputs=(torch.randn(3, 3),))
    found = {v.message.rpartition(" ")[2]: v for v in error.violations}
    assert {"aten.special_bessel_j0.default", "aten.rand.default"} <= set(found)
    bessel = found["aten.special_bessel_j0.default"]
    assert bessel.location.startswith("2 nodes: ")
    assert "module 'part', test_torch_modules.py:" in bessel.location
    assert "make the sample an input" in found["aten.rand.default"].hint


class SeveralRefused(nn.Module):
    """Four nodes that lowerings refuse: two that read others of them, one of constants, one whose type is lost."""

    ones: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ones", torch.ones(1, 1, 4, 4))

    def forward(self, x: torch.Tensor) -> Any:
        bits = x.view(torch.int16)[..., ::2]
        largest, where = F.adaptive_max_pool1d(bits.float() + x, 2, return_indices=True)
        mean = F.avg_pool2d(self.ones, 2, ceil_mode=True, divisor_override=3).flatten()
        follows = mean.view(torch.int32)  # would be known, did the mean have a lowering
        return largest, where, follows + 1, x * mean, torch.fft.fft(x, n=5000).abs()


def test_what_lowerings_refuse_is_listed_at_once() -> None:
    error = refused(UnsupportedError, SeveralRefused(), example_inputs=(torch.randn(3, 4),))
    found = [(v.location.partition("(")[2].partition(")")[0], v.message) for v in error.violations]
    assert found == [
        ("aten.view.dtype", "no kernel views run-time values as elements of another size"),
        ("aten.adaptive_max_pool1d.default", "the indices of an adaptive max pool are not supported"),
        ("aten.avg_pool2d.default", "divisor_override together with ceil_mode is not supported"),
        ("aten._fft_r2c.default", "the Fourier transform is too long"),
    ]
    assert all(", test_torch_modules.py:" in v.location for v in error.violations)


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum() > 0 else x - 1


class Selecting(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.masked_select(x, x[0, 0] > 0)


class Writing(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.add_(1)


class Dropping(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x)


class Complex(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.view_as_complex(x) * 2


class Training(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.weight.add_(1)
        return x + self.weight


class TwoNames(nn.Module):
    one: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("one", torch.zeros(2))
        self.part = nn.Module()
        self.part.register_buffer("other", self.one)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.one.add_(1)
        return x + self.part.other


class Indexing(nn.Module):
    cache: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(1, 2, 6, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache[:, :, x.sum().long() % 6] = x[0, :, 0]
        return self.cache.sum(2)


class KeepingStatistics(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(2))
        self.register_buffer("variance", torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x, self.mean, self.variance, training=True)


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (KeepingStatistics(), "statistics that are kept up to date"),
        (Training(), "'weight': the module writes to a parameter"),
        (TwoNames(), "registered under one name"),
        (Indexing(), "shape (1,), not ()"),
        (Branching(), "torch.export cannot capture it"),
        (Selecting(), "depends on data"),
        (Writing(), "writes to its inputs"),
        (Dropping(), "training mode draws random numbers"),
        (Complex(), "output 'output': an output is complex"),
        (nn.AdaptiveMaxPool2d(2, return_indices=True), "indices of an adaptive max pool"),
    ],
)
def test_what_cannot_be_compiled_is_refused(module: nn.Module, words: str) -> None:
    error = refused(UnsupportedError, module, example_inputs=(torch.randn(1, 2, 4, 2),))
    assert words in str(error)


def test_a_refusal_names_module_and_line() -> None:
    error = refused(UnsupportedError, nn.Sequential(nn.ReLU(), Dropping()), example_inputs=(torch.randn(3),))
    assert "module '1', test_torch_modules.py:" in error.violations[0].location


def test_dynamic_shapes_are_refused_with_their_axes() -> None:
    dim = torch.export.Dim("batch", min=2, max=8)
    program = torch.export.export(nn.Linear(4, 3), (torch.randn(3, 4),), dynamic_shapes={"input": {0: dim}})
    (violation,) = refused(UnsupportedError, program).violations
    assert violation.location == "input 'input', axis 0"
    assert "dynamic_shapes" in violation.hint


def test_examples_are_demanded_and_checked(tmp_path: Path) -> None:
    linear, x = nn.Linear(4, 3), torch.randn(2, 4)
    assert "example_inputs=" in refused(InputError, linear).violations[0].hint
    assert "not run" in str(refused(InputError, linear, example_inputs=(torch.randn(2, 5),)))
    assert "not run" in str(refused(InputError, linear, example_inputs={"wrong": x}))
    refused(InputError, linear, example_inputs=3)
    program = torch.export.export(linear, (x,))
    refused(InputError, program, example_inputs=(x,))
    graph = load_graph(program)
    assert "only apply to torch modules" in str(refused(InputError, graph, example_inputs=(x,)))
    refused(InputError, "model.onnx", example_inputs=(x,))
    assert "only apply to ONNX" in str(refused(InputError, linear, example_inputs=(x,), dims={"n": 1}))
    refused(InputError, tmp_path / "absent.pt2")
    (tmp_path / "broken.pt2").write_bytes(b"not an archive")
    refused(FileFormatError, tmp_path / "broken.pt2")
    refused(UnsupportedError, torch.jit.trace(linear, x), example_inputs=(x,))


def test_a_module_that_cannot_be_copied_can_be_compiled_after_eval() -> None:
    module = nn.Sequential(nn.Linear(2, 2))
    module.generator = (i for i in range(3))
    assert ".eval()" in refused(InputError, module, example_inputs=(torch.ones(1, 2),)).violations[0].hint
    assert load_graph(module.eval(), example_inputs=(torch.ones(1, 2),)).nodes


def test_an_old_torch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.1.0+cpu")
    assert "2.1.0" in str(refused(MachineError, nn.Linear(2, 2), example_inputs=(torch.ones(1, 2),)))


def test_an_absent_torch_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file can be there without the package that reads it."""
    monkeypatch.setitem(sys.modules, "torch", None)
    with zipfile.ZipFile(tmp_path / "model.pt2", "w") as archive:
        archive.writestr("a", "b")
    assert "superkernel-compiler[torch]" in refused(MachineError, tmp_path / "model.pt2").violations[0].hint


def test_torch_is_not_imported_unasked() -> None:
    """Neither by the package nor by compiling something else."""
    code = (
        "import sys, superkernel as sk, numpy as np; b = sk.GraphBuilder('g'); "
        "b.output(b.relu(b.input('x', (2,)))); sk.compile(b.graph(), threads=1)(np.ones(2, np.float32)); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


class _WritesAndFails(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        raise ValueError("behind the write")


def test_examples_of_a_module_that_does_not_run_are_left_as_they_were() -> None:
    x = torch.zeros(3)
    with pytest.raises(InputError, match="behind the write"):
        sk.compile(_WritesAndFails(), example_inputs=(x,))
    assert torch.equal(x, torch.zeros(3))


def test_modules_are_compiled_in_several_threads() -> None:
    """torch replaces methods of all modules while it traces one."""
    x, untouched = torch.ones(2, 8), nn.Module.__call__
    nets = [nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        kernels = list(pool.map(lambda net: sk.compile(net, example_inputs=(x,), threads=1), nets))
    for net, kernel in zip(nets, kernels, strict=True):
        np.testing.assert_allclose(kernel(x), net(x).detach().numpy(), rtol=1e-5, atol=1e-6)
    assert nn.Module.__call__ is untouched


class _Masked(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[torch.tensor([True, False, True])] * 2


def test_a_mask_of_constants_as_an_index() -> None:
    """torch does not look into it: it exports a shape that depends on data."""
    kernel = sk.compile(_Masked().eval(), example_inputs=(torch.ones(3, 2),))
    assert str(kernel.outputs["output"]) == "f32[2,2]"
    assert kernel(torch.tensor([[1.0, 2], [3, 4], [5, 6]])).tolist() == [[2, 4], [10, 12]]
