"""Random graphs equal the NumPy reference at 1, 2 and 4 threads, bit for bit alike at every thread count, fused or not.

`pytest --graphs N` runs N examples (default 300), new ones every time; a failing one is shrunk by hypothesis and
printed with the seed that repeats it.
"""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_models import random_graph
from seeds import seeds

import superkernel as sk
from superkernel.codegen.host.features import detect_cpu
from superkernel.reference import evaluate
from superkernel.reference.random_inputs import random_inputs

SHARDS = 4
TOLERANCE = 1e-4


def check_graph(graph: sk.Graph, threads: tuple[int, ...] = (1, 2, 4)) -> None:
    """Outputs within TOLERANCE of the float64 reference, relative to the output's largest value; equal for all
    threads."""
    inputs = random_inputs(graph.inputs, 1)
    expected = evaluate(graph, inputs, wide=True)
    first: dict[str, np.ndarray] = {}
    for count in threads:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # more threads than CPUs is meant here
            outputs = sk.compile(graph, threads=count, options={"fallback": "forbid"}).run(inputs).outputs
        for name, got in outputs.items():
            want = expected[name]
            scale = max(1.0, float(np.abs(want).max(initial=0)))
            error = float(np.abs(got.astype(np.float64) - want).max(initial=0))
            assert error <= TOLERANCE * scale, f"{name} at {count} threads: {error} of {scale}\n{graph}"
            assert np.array_equal(first.setdefault(name, got), got, equal_nan=True), (
                f"{name} differs at {count} threads\n{graph}"
            )


@pytest.mark.parametrize("shard", range(SHARDS))
def test_random_graphs(shard: int, request: pytest.FixtureRequest) -> None:
    count = int(request.config.getoption("--graphs"))

    @settings(
        max_examples=max(1, count // SHARDS),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.randoms(use_true_random=False), st.just(shard))
    def run(rng: random.Random, number: int) -> None:
        for _ in range(number):  # shards draw different graphs
            rng.getrandbits(32)
        check_graph(random_graph(rng))

    run()


def test_short_rows_keep_their_bits() -> None:
    """Four cores find rows walked along faster, one core finds them walked across: either is taken for all."""
    noise = np.random.default_rng(3)
    b = sk.GraphBuilder("rows")
    weight, scale, bias = (b.constant(noise.standard_normal(s, np.float32)) for s in ((16, 1), 16, 16))
    product = b.matmul(b.input("x", (3, 33, 1)), weight, trans_b=True)
    b.output(b.layer_norm(product, scale, bias, axis=-1, epsilon=0.1), "y")
    check_graph(b.graph())


@pytest.mark.parametrize("seed", seeds(12))
def test_options_change_nothing(seed: int) -> None:
    """Fused equals unfused, minimal sync equals full, whatever the thread count: bit for bit."""
    graph = random_graph(random.Random(1000 + seed))
    inputs = random_inputs(graph.inputs, 2)
    plain = sk.compile(graph, threads=1).run(inputs).outputs
    for options in ({"sync": "full"}, {"early_start": False}, {"cost_placement": False}):
        for threads in (1, 2):
            got = sk.compile(graph, threads=threads, options=options).run(inputs).outputs
            for name, want in plain.items():
                assert np.array_equal(got[name], want), (name, options, threads)


@pytest.mark.parametrize("tier", ["avx512", "avx2", "plain"])
def test_every_tier(tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every instruction set that this machine can run gives right results."""
    monkeypatch.setenv("SK_CPU", tier)
    try:
        detect_cpu()
    except sk.MachineError:
        pytest.skip(f"this CPU has no {tier}")
    for seed in range(20):
        check_graph(random_graph(random.Random(5000 + seed)), threads=(2,))
