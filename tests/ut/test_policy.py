"""Limits of the policy as options of a compilation: kernels keep to them on host and accelerator, and where none is
left the error's type says which limit it was and its text what came nearest."""

from __future__ import annotations

import pickle
import re
from collections.abc import Sequence

import numpy as np
import pytest

import superkernel as sk
from superkernel.backends import backend_of
from superkernel.cli import main
from superkernel.core.errors import SuperKernelError
from superkernel.ir.body import SubOperator
from superkernel.ir.graph import Graph
from superkernel.reference.random_inputs import random_inputs
from superkernel.scheduler.tiling import Tiling

TARGETS = ("host", "mini")


def _attention() -> Graph:
    """There are cuts of several sizes on either target."""
    b = sk.GraphBuilder("attention")
    q, k, v = (b.input(n, (1, 2, rows, 64), "f16") for n, rows in (("q", 96), ("k", 128), ("v", 128)))
    b.output(b.attention(q, k, v), "y")
    return b.graph()


def _products() -> Graph:
    b = sk.GraphBuilder("products")
    x = b.input("x", (24, 64), "f32")
    b.output(b.matmul(x, b.input("w", (64, 32), "f32")), "y")
    return b.graph()


def _only_numpy() -> Graph:
    """`gemm` that is not taken apart has no kernel."""
    b = sk.GraphBuilder("only_numpy")
    b.output(b.gemm(b.input("x", (4, 8), "f32"), b.input("w", (8, 4), "f32")), "y")
    return b.graph()


def _scratch(kernel: sk.Kernel) -> int:
    """Bytes that the most demanding kernel of a schedule uses on a core."""
    return max(tiling.scratch_bytes for tiling in kernel._compiled.schedule.tilings)


def _cuts(kernel: sk.Kernel, sub: SubOperator) -> Sequence[Tiling]:
    """The tilings that the kernel of a sub-operator offers."""
    job = kernel._compiled
    found: Sequence[Tiling] = (
        backend_of(job.target).kernels.family_of(sub.kernel).tilings(sub.kernel, sub.body, job.target)
    )
    return found


@pytest.mark.parametrize("target", TARGETS)
def test_kernels_are_cut_to_the_workspace_they_may_have(target: str) -> None:
    graph = _attention()
    inputs = random_inputs(graph.inputs, 0)
    free = sk.compile(graph, target=target)
    sizes = sorted({tiling.scratch_bytes for sub in free._compiled.schedule.subops for tiling in _cuts(free, sub)})
    assert len(sizes) > 1
    tight = sk.compile(graph, target=target, options={"max_workspace_bytes": sizes[1] - 1})
    assert 0 < _scratch(tight) <= sizes[0] < sizes[-1]
    np.testing.assert_allclose(tight.run(inputs).outputs["y"], free.run(inputs).outputs["y"], rtol=2e-2, atol=2e-3)
    with pytest.raises(sk.WorkspaceError) as caught:
        sk.compile(graph, target=target, options={"max_workspace_bytes": 0})
    text = str(caught.value.violations[0])
    assert "the options leave no kernel" in text
    assert "policy.max_workspace_bytes must be >= " in text
    assert "attention" in text.partition("the nearest is ")[2]


@pytest.mark.parametrize("target", TARGETS)
def test_the_tolerance_excludes_kernels_that_may_be_further_off(target: str) -> None:
    graph = _products()
    options = {"precision": "f32", "tolerance": 1e-4, "fallback": "forbid"}
    kernel = sk.compile(graph, target=target, options=options)
    assert kernel.summary()["options_without_effect"] == []
    with pytest.raises(sk.ToleranceError, match=r"the nearest is \S+matmul\S* \(tolerance: .* ulp\), is 1e-12"):
        sk.compile(graph, target=target, options={**options, "tolerance": 1e-12})


def test_less_precision_is_not_taken_beyond_the_tolerance() -> None:
    b = sk.GraphBuilder("narrow")
    weights = np.random.default_rng(0).standard_normal((1024, 1024), dtype=np.float32)
    b.output(b.matmul(b.input("x", (1, 1024), "f32"), b.constant(weights)), "y")
    loose = sk.compile(b.graph(), options={"precision": "bf16", "pin": ["*bf16*"]})
    strict = sk.compile(b.graph(), options={"precision": "bf16", "pin": ["*bf16*"], "tolerance": 1e-4})
    assert "bf16" in loose._compiled.schedule.subops[0].kernel
    assert "bf16" not in strict._compiled.schedule.subops[0].kernel


@pytest.mark.parametrize("target", TARGETS)
def test_numpy_promises_no_bits_for_any_number_of_cores(target: str) -> None:
    plain = {"simplify": False, "fallback": "allow"}
    taken = {sub.kernel for sub in sk.compile(_only_numpy(), target=target, options=plain)._compiled.schedule.subops}
    assert "host.reference" in taken
    with pytest.raises(sk.DeterminismError, match=r"policy\.determinism must be none \| run-to-run, is bitwise"):
        sk.compile(_only_numpy(), target=target, options={**plain, "determinism": "bitwise"})
    sk.compile(_products(), target=target, options={"determinism": "bitwise", "fallback": "forbid"})


@pytest.mark.parametrize("target", TARGETS)
def test_kernels_are_chosen_among_those_allowed(target: str) -> None:
    chosen = sk.compile(_products(), target=target)._compiled.schedule.subops[-1].kernel
    allowed = sk.compile(
        _products(), target=target, options={"allow": ["*.reference", "*.pointwise"], "fallback": "allow"}
    )
    assert all(not sub.kernel.endswith("matmul") for sub in allowed._compiled.schedule.subops)
    with pytest.raises(sk.PolicyError, match=r"option 'allow': ") as caught:
        sk.compile(_products(), target=target, options={"allow": ["*.pointwise"]})
    assert type(caught.value) is sk.PolicyError
    assert chosen.split("/")[0] in str(caught.value)
    with pytest.raises(sk.PolicyError, match="without a pattern that matches"):
        sk.compile(_products(), target=target, options={"deny": ["*"]})
    with pytest.raises(sk.InputError, match=r"option 'allow'.*matches no kernel"):
        sk.compile(_products(), target=target, options={"allow": ["nix.*"]})


def test_the_command_line_explains_under_every_limit(capsys: pytest.CaptureFixture[str]) -> None:
    problem = "matmul(f32[128,384], f32[384,384])"
    given = ["--allow", "host.matmul.generic*", "--determinism", "bitwise", "--tolerance", "0.1"]
    assert main(["kernels", "explain", problem, *given, "--max-workspace-bytes", "10000000"]) == 0
    assert "chosen     host.matmul.generic" in capsys.readouterr().out
    assert main(["kernels", "explain", problem, "--max-workspace-bytes", "10"]) == 3
    assert "option 'max_workspace_bytes': >= " in capsys.readouterr().err
    assert main(["kernels", "explain", problem, "--tolerance", "nonsense"]) == 2


def test_errors_of_the_policy_keep_their_type_in_a_pickle() -> None:
    for kind in (
        sk.PolicyError,
        sk.DeadlineError,
        sk.WorkspaceError,
        sk.DeterminismError,
        sk.ToleranceError,
        sk.ManifestError,
    ):
        again = pickle.loads(pickle.dumps(kind("text", hint="hint")))
        assert isinstance(again, SuperKernelError)
        assert (type(again), str(again)) == (kind, "text (hint: hint)")
        assert again.category == "unsupported"


@pytest.mark.parametrize("target", ["host", "mini"])
def test_a_run_that_takes_too_long_by_estimate_is_refused(target: str) -> None:
    """The error says how long it takes, and of what; with that much time it is compiled to what it was."""
    b = sk.GraphBuilder("deadline")
    w = b.constant(np.random.default_rng(0).standard_normal((256, 256), dtype=np.float32))
    b.output(b.softmax(b.input("x", (64, 256)) @ w, axis=-1), "y")
    graph = b.graph()
    with pytest.raises(sk.DeadlineError) as caught:
        sk.compile(graph, target=target, options={"deadline_us": 0.01})
    (violation,) = caught.value.violations
    assert violation.location == "option 'deadline_us'"
    assert violation.expected == "at most 0.01 us"
    found = re.match(r"([\d.]+) us; longest: \S+ [\d.]+ us \((\S+)\), ", violation.found or "")
    assert found is not None, violation.found
    assert found[2].startswith("host.matmul" if target == "host" else "aicore.")
    limit = float(found[1]) + 0.1
    assert limit > 0.2
    kernel = sk.compile(graph, target=target, options={"deadline_us": limit})
    x = np.ones((64, 256), np.float32)
    np.testing.assert_array_equal(
        kernel.run({"x": x}).outputs["y"], sk.compile(graph, target=target).run({"x": x}).outputs["y"]
    )
    with pytest.raises(sk.DeadlineError):
        sk.compile(graph, target=target, options={"deadline_us": limit - 0.3})


@pytest.mark.parametrize(("target", "deny"), [("a3", ()), ("mini", ()), ("host", ("host.cumsum", "host.lrn/*"))])
def test_all_nodes_without_a_kernel_are_named_at_once(target: str, deny: tuple[str, ...]) -> None:
    b = sk.GraphBuilder("three")
    x = b.input("x", (1, 8, 16, 16), "f32")
    first = b.cumsum(x, axis=1, name="first")
    b.output(b.relu(b.cumsum(b.lrn(first, size=3, name="middle"), axis=1, name="last"), name="fine"), name="y")
    with pytest.raises(sk.UnsupportedError) as caught:
        sk.compile(b.graph(), target=target, options={"fallback": "forbid", "deny": deny, "precision": "f32"})
    places = [v.location for v in caught.value.violations]
    assert places[:2] == ["nodes 'first', 'last', operator 'cumsum'", "node 'middle', operator 'lrn'"]
    assert set(places[2:]) == {"operator 'cumsum'", "operator 'lrn'"}  # the candidates of each, once
    assert len(set(caught.value.violations)) == len(places)
