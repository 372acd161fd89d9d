"""torch modules and programs with dynamic shapes in one kernel object: against torch, in buckets too, and what is
refused."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if os.environ.get("SK_REQUIRE_TORCH") != "1":
    pytest.importorskip("torch", reason="torch is not installed (SK_REQUIRE_TORCH=1 makes this a failure)")

import torch
from torch import nn
from torch_models import MobileNet

import superkernel as sk
from superkernel.core.errors import InputError, UnsupportedError

IDS = torch.tensor([[3, 7, 1, 0, 4], [9, 2, 2, 8, 0]])
TOKENS = {"batch": (1, 4), "seq": (2, 24)}
TOKEN_AXES = {0: "batch", 1: "seq"}


def ids(batch: int, seq: int) -> torch.Tensor:
    return torch.randint(1, 10, (batch, seq), generator=torch.Generator().manual_seed(100 * batch + seq))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(4000, 16), nn.Embedding(24, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        x = self.layer(x, src_key_padding_mask=None if mask is None else mask == 0)
        return x[:, -1] + x[:, :1].sum(1)


def encoder() -> nn.Module:
    torch.manual_seed(3)
    return Encoder().eval()


def hold(kernel: sk.DynamicKernel, module: nn.Module, *given: Any) -> None:
    with torch.no_grad():
        want = module(*given)
    found = kernel(*given)
    pairs = zip(found, want, strict=True) if isinstance(found, tuple) else [(found, want)]
    for mine, theirs in pairs:
        np.testing.assert_allclose(mine, theirs.numpy(), rtol=1e-4, atol=1e-5)


def test_a_module_for_lengths_and_batches() -> None:
    module = encoder()
    kernel = sk.compile_dynamic(module, TOKENS, threads=2, example_inputs=(IDS,), dynamic_shapes={"ids": TOKEN_AXES})
    assert {name: str(kind) for name, kind in kernel.inputs.items()} == {"ids": "i64[batch, seq]"}
    for batch, seq in ((2, 5), (1, 2), (4, 24), (3, 11)):
        hold(kernel, module, ids(batch, seq))
    assert kernel.compiled[0] == {"batch": 2, "seq": 5}
    alone = [sk.compile(module, example_inputs=(ids(batch, seq),), threads=2) for batch, seq in ((1, 2), (4, 24))]
    for one, sizes in zip(alone, ((1, 2), (4, 24)), strict=True):
        np.testing.assert_array_equal(one(ids(*sizes)), kernel(ids(*sizes)))
    with pytest.raises(InputError, match="dimension 'seq' out of its range"):
        kernel(ids(1, 25))


def test_weights_are_read_once() -> None:
    module = encoder()
    kernel = sk.compile_dynamic(module, TOKENS, threads=1, example_inputs=(IDS,), dynamic_shapes={"ids": TOKEN_AXES})
    kernel.prepare({"batch": 1, "seq": 7})
    held = kernel.held_bytes
    with torch.no_grad():
        want = module(ids(1, 9))
        for parameter in module.parameters():
            parameter.zero_()
    np.testing.assert_allclose(kernel(ids(1, 9)), want.numpy(), rtol=1e-4, atol=1e-5)
    assert kernel.held_bytes < 1.7 * held


def test_buckets() -> None:
    """A mask that the module makes of its ids, and one row of the result."""
    module = encoder()
    kernel = sk.compile_dynamic(
        module, TOKENS, threads=1, example_inputs=(IDS, (IDS != 0).long()),
        dynamic_shapes={"ids": TOKEN_AXES, "mask": TOKEN_AXES}, buckets={"seq": (8, 24)},
    )  # fmt: skip
    for batch, seq in ((1, 5), (1, 8), (1, 19)):
        given = ids(batch, seq)
        hold(kernel, module, given, (given > 2).long())
    assert kernel.compiled == [{"batch": 1, "seq": 8}, {"batch": 1, "seq": 24}]


def exported(module: nn.Module, *given: torch.Tensor, **dynamic: Any) -> torch.export.ExportedProgram:
    return torch.export.export(module.eval(), given, dynamic_shapes=dynamic, strict=False)


class Framed(nn.Module):
    """Frames of ten samples."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.conv, self.out = nn.Conv1d(1, 4, 10, stride=10), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.relu(self.conv(x)).transpose(1, 2)) + x.shape[-1]


@pytest.mark.parametrize("as_file", [False, True])
def test_an_exported_program(as_file: bool, tmp_path: Path) -> None:
    module = MobileNet().eval()
    program = exported(module, torch.randn(2, 8, 10, 10), x={0: torch.export.Dim("n", min=1, max=6)})
    source: Any = program
    if as_file:
        source = tmp_path / "mobile.pt2"
        torch.export.save(program, source)
    kernel = sk.compile_dynamic(source, {"n": (1, 6)}, threads=1, dynamic_shapes={"x": {0: "n"}}, buckets={"n": (4,)})
    for n in (1, 3, 4, 6):
        hold(kernel, module, torch.randn(n, 8, 10, 10))
    assert kernel.compiled == [{"n": 4}, {"n": 6}]


def test_extents_that_are_sums_of_dimensions() -> None:
    frames = torch.export.Dim("frames", min=2, max=50)
    program = exported(Framed(), torch.randn(1, 1, 40), x={2: 10 * frames})
    named = {"x": {2: 10 * frames}}
    kernel = sk.compile_dynamic(program, {"frames": (2, 50)}, threads=1, dynamic_shapes=named)
    assert str(kernel.inputs["x"]) == "f32[1, 1, 10*frames]"
    for n in (2, 9, 30):
        hold(kernel, Framed().eval(), torch.randn(1, 1, 10 * n))
    with pytest.raises(InputError, match="not an extent of this form"):
        kernel(torch.randn(1, 1, 41))


class Nested(nn.Module):
    def forward(self, parts: dict[str, Any], scale: torch.Tensor) -> torch.Tensor:
        return (parts["a"] + parts["more"][0] @ parts["more"][1]) * scale


def test_nested_inputs() -> None:
    def inputs(rows: int) -> list[torch.Tensor]:
        return [torch.randn(rows, 4), torch.randn(rows, 3), torch.randn(3, 4), torch.randn(4)]

    module, (a, b, c, scale) = Nested().eval(), inputs(5)
    nested = ({"a": {0: "rows"}, "more": ({0: "rows"}, None)}, None)
    examples = ({"a": a, "more": (b, c)}, scale)

    def made(axes: Any) -> sk.DynamicKernel:
        return sk.compile_dynamic(module, {"rows": (2, 9)}, threads=1, example_inputs=examples, dynamic_shapes=axes)

    kernel = made(dict(zip(("parts", "scale"), nested, strict=True)))
    for rows in (2, 7):
        given = inputs(rows)
        want = module({"a": given[0], "more": given[1:3]}, given[3])
        np.testing.assert_allclose(kernel(*given), want, rtol=1e-5, atol=1e-5)
    with pytest.raises(InputError, match=r"not an axis.*by the names of the arguments"):
        made(nested)


def test_a_number_that_hangs_on_a_size_is_no_padding() -> None:
    program = exported(Framed(), torch.randn(1, 1, 40), x={2: 10 * torch.export.Dim("frames", min=2, max=50)})
    named = {"x": {2: "frames"}}
    with pytest.raises(UnsupportedError, match="a constant that changes with the sizes"):
        sk.compile_dynamic(program, {"frames": (2, 50)}, dynamic_shapes=named, buckets={"frames": (16,)})


class Counted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x * self.calls


def test_states_stay_over_sizes() -> None:
    module = Counted().eval()
    program = exported(Counted(), torch.ones(3), x={0: torch.export.Dim("n", min=2, max=9)})
    kernel = sk.compile_dynamic(program, {"n": (2, 9)}, threads=1, dynamic_shapes={"x": {0: "n"}})
    for n in (3, 5, 3):
        hold(kernel, module, torch.ones(n))


@cache
def reader() -> torch.export.ExportedProgram:
    batch, seq = torch.export.Dim("batch", min=1, max=4), torch.export.Dim("seq", min=2, max=24)
    return exported(encoder(), IDS, ids={0: batch, 1: seq})


def counted_out(x: torch.Tensor) -> torch.Tensor:
    """As many zeros as a sum says."""
    count = (x > 0).sum().item()
    torch._check(count >= 0)
    return torch.zeros(count)


class Picked(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return counted_out(x)


@pytest.mark.parametrize(
    ("dims", "named", "said"),
    [
        ({"seq": (2, 24), "rows": (1, 4)}, {"ids": TOKEN_AXES}, "no dimension 'rows'"),
        ({"seq": (2, 24)}, {"ids": TOKEN_AXES}, "'batch': a dimension without a range"),
        ({"batch": (1, 9), "seq": (2, 24)}, {"ids": TOKEN_AXES}, "not for all of these sizes.*expected 1 to 4"),
        (TOKENS, {"idss": TOKEN_AXES}, r"no input .idss.*did you mean .ids."),
        (TOKENS, "seq", "not dynamic shapes"),
        (TOKENS, ({1: "seq"}, {}, {}, {}), "not dynamic shapes"),
        (TOKENS, None, "no dimension 'batch'"),
    ],
)
def test_names_that_are_not_those_of_the_program(dims: Any, named: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        sk.compile_dynamic(reader(), dims, dynamic_shapes=named)


def test_what_only_torch_sources_take() -> None:
    with pytest.raises(InputError, match="example_inputs only apply to torch"):
        sk.compile_dynamic(lambda n: sk.GraphBuilder(), {"n": (1, 2)}, example_inputs=())
    with pytest.raises(InputError, match="dynamic_shapes only apply to torch"):
        sk.compile_dynamic(lambda n: sk.GraphBuilder(), {"n": (1, 2)}, dynamic_shapes={})
    with pytest.raises(InputError, match="constants only apply to ONNX models"):
        sk.compile_dynamic(encoder(), TOKENS, example_inputs=(IDS,), constants={"ids": IDS.numpy()})


def test_shapes_that_depend_on_data_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="depends on data"):
        sk.compile_dynamic(Picked(), {"n": (2, 9)}, example_inputs=(torch.ones(4),), dynamic_shapes={"x": {0: "n"}})(
            torch.ones(3)
        )


def test_a_module_that_is_not_for_all_sizes() -> None:
    """torch says so, with what it found."""

    class Even(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(-1, 2) * 2

    class Fixed(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.arange(4)

    for module, said in ((Even(), "n"), (Fixed(), "specialized it to be a constant")):
        with pytest.raises((InputError, UnsupportedError), match=said):
            sk.compile_dynamic(module, {"n": (2, 9)}, example_inputs=(torch.ones(4),), dynamic_shapes={"x": {0: "n"}})
