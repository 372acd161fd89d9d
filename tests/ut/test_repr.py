"""What an interactive session shows of public objects: one line each, however large they are."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import superkernel as sk

X = {"x": np.ones((4, 8), np.float32)}


@pytest.fixture(scope="module")
def shown() -> dict[str, Any]:
    b = sk.GraphBuilder("layer")
    x = b.input("x", (4, 8))
    b.output(b.relu(x @ b.constant(np.full((8, 300), 0.125, np.float32))), "y")
    graph = b.graph()
    host, mini = sk.compile(graph, threads=2), sk.compile(graph, "mini")
    return {
        "builder": b, "tensor": x, "graph": graph, "options": sk.Options(sync="full", split=3), "host": host,
        "mini": mini, "result": host.run(X), "simulated": mini.run(X), "report": host.report(rounds=0),
        "target": sk.load_target("mini"), "why": host.explain("y"), "why_mini": mini.explain("y"),
        "bound": host.bind(X["x"]),
    }  # fmt: skip


EXPECTED = {
    "builder": "<superkernel.GraphBuilder 'layer': 1 inputs, 2 nodes, 1 outputs>",
    "tensor": "Tensor('x': f32[4,8])",
    "graph": "<superkernel.Graph 'layer' (x: f32[4,8]) -> (y: f32[4,300]), 2 nodes>",
    "options": "Options(sync='full', split=3)",
    "mini": "<superkernel.Kernel 'layer' (x: f32[4,8]) -> (y: f32[4,300]), mini, 6 cores>",
    "result": "<superkernel.RunResult y: f32[4,300]>",
    "target": "<superkernel target 'mini': 2 cube and 4 vector cores, for tests>",
    "bound": "<superkernel.BoundKernel 'layer'>",
}
BEGINS = {
    "host": "<superkernel.Kernel 'layer' (x: f32[4,8]) -> (y: f32[4,300]), host ",
    "simulated": "<superkernel.RunResult y: f32[4,300]; <superkernel.SimReport 'layer' on mini: ",
    "report": "<superkernel.Report 'layer' on host ",
    "why": "<superkernel.Explanation of sub-operator 0 ",
    "why_mini": "<superkernel.AicoreExplanation of sub-operator ",
}


@pytest.mark.parametrize("name", EXPECTED)
def test_it_says_what_it_is(name: str, shown: dict[str, Any]) -> None:
    assert repr(shown[name]) == EXPECTED[name]


@pytest.mark.parametrize("name", BEGINS)
def test_it_begins_with_what_it_is(name: str, shown: dict[str, Any]) -> None:
    text = repr(shown[name])
    assert text.startswith(BEGINS[name])
    assert "\n" not in text
    assert len(text) < 160


def test_options_are_evaluable() -> None:
    for options in (sk.Options(), sk.Options(fuse=False, scopes=("a:b",), watchdog_ms=5.0)):
        assert eval(repr(options), {"Options": sk.Options}) == options


def test_every_public_name_has_help_and_loads_without_a_warning() -> None:
    """`import superkernel` is light, and everything behind it loads with warnings as errors."""
    code = "import superkernel as sk; assert all(getattr(sk, n).__doc__ for n in sk.__all__ if n != '__version__')"
    done = subprocess.run([sys.executable, "-W", "error", "-X", "dev", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("kind", [sk.Kernel, sk.GraphBuilder, sk.Graph, sk.Options, sk.Report, sk.SimReport])
def test_every_public_method_says_what_it_does(kind: type) -> None:
    members = {n: m for n, m in vars(kind).items() if not n.startswith("_") and (callable(m) or hasattr(m, "fget"))}
    assert members
    assert not [n for n, m in members.items() if not m.__doc__]
