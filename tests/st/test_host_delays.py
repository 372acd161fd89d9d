"""Cores of the host that are late where a seed says so: a right program minds no seed, one that lacks a wait is found
out within some, and a seed gives the same run again."""

from __future__ import annotations

import random
from typing import Any

import models
import numpy as np
import pytest
from host_changes import X, chain, image_of, without
from numpy.typing import NDArray
from random_models import random_graph
from seeds import seeds

import superkernel as sk
from superkernel.backends.host.compiled import HostCompiled
from superkernel.backends.host.executable import HostExecutable
from superkernel.backends.host.races import RaceExecutable
from superkernel.backends.host.turns import Delays
from superkernel.core.errors import DataError, RaceError
from superkernel.reference.random_inputs import random_inputs
from superkernel.sync.plan import Hazard

SEEDS = range(1, 61)  # each shows a missing wait with a chance of about a quarter
pytestmark = pytest.mark.filterwarnings("ignore::superkernel._core.OversubscriptionWarning")


@pytest.fixture(scope="module")
def compiled() -> HostCompiled:
    kernel = sk.compile(chain(), threads=3, options={"cost_placement": False})
    assert isinstance(kernel._compiled, HostCompiled)
    return kernel._compiled


def outputs(executable: HostExecutable, seeds: range) -> list[bytes]:
    found = []
    for seed in seeds:
        y = np.zeros_like(X)
        executable.run_late([X, y], seed)
        found.append(y.tobytes())
    return found


def test_a_right_program_minds_no_seed_and_one_without_a_wait_is_found_out(compiled: HostCompiled) -> None:
    y = np.zeros_like(X)
    compiled.executable.run([X, y])
    assert set(outputs(compiled.executable, SEEDS)) == {y.tobytes()}
    assert compiled.plan.waits >= 3
    assert any(r.witness is not None and r.witness.hazard is Hazard.RAW for r in compiled.plan.reasons)
    for reason in compiled.plan.reasons:
        broken = image_of(compiled, without(compiled.plan, reason.wait.index))
        executable = HostExecutable(broken, compiled.schedule, compiled.plan)
        first = next((s for s in SEEDS if outputs(executable, range(s, s + 1)) != [y.tobytes()]), None)
        assert first is not None, str(reason)
        wrong = outputs(executable, range(first, first + 1))
        assert outputs(executable, range(first, first + 1)) == wrong


def test_a_watched_run_finds_the_same_with_every_seed(compiled: HostCompiled) -> None:
    """Races are found by happens-before and not by luck; delays only change in which order."""
    index = compiled.plan.reasons[-1].wait.index
    right, broken = (image_of(compiled, plan) for plan in (compiled.plan, without(compiled.plan, index)))
    for seed in range(1, 4):
        for image, races in ((right, False), (broken, True)):
            executable = RaceExecutable(image, compiled.schedule, compiled.plan, compiled.target, 0.0)
            y = np.zeros_like(X)
            if not races:
                executable.run_late([X, y], seed)
                continue
            with pytest.raises(RaceError, match="race, "):
                executable.run_late([X, y], seed)


@pytest.mark.parametrize("seed", seeds(2))
def test_graphs_of_all_kinds_mind_no_delays(seed: int) -> None:
    graphs = [random_graph(random.Random(seed)), models.decode_step(layers=1)]
    for graph in graphs:
        kernel = sk.compile(graph, threads=3)
        inputs = random_inputs(graph.inputs, 1)
        results: list[dict[str, NDArray[Any]]] = []
        for delays in (0, 1 + seed % 1_000_000_007, 2 + seed % 1_000_000_007):
            kernel.reset_states()
            results.append(kernel.run(inputs, delays=delays).outputs | dict(kernel.states))
            results[-1] = {name: np.array(array) for name, array in results[-1].items()}
        for later in results[1:]:
            assert {n: a.tobytes() for n, a in later.items()} == {n: a.tobytes() for n, a in results[0].items()}


def test_fallbacks_take_part_and_what_data_do_wrong_is_told() -> None:
    kernel = sk.compile(chain(), threads=2, options={"deny": ("host.softmax",), "fallback": "allow"})
    assert kernel.summary()["fallbacks"]
    want = kernel(X)
    for seed in range(1, 6):
        np.testing.assert_array_equal(kernel.run([X], delays=seed).outputs["y"], want)
    graph = models.ragged_attention(batch=2, tokens=8, width=32)
    inputs = random_inputs(graph.inputs, 1)
    (lengths,) = (name for name, array in inputs.items() if array.dtype.kind == "i")
    inputs[lengths][...] = 99
    with pytest.raises(DataError, match="length out of range"):
        sk.compile(graph, threads=3).run(inputs, delays=1)


def test_delays_are_drawn_by_seed_core_and_step() -> None:
    def times(seed: int) -> list[int]:
        delays = Delays(seed, 8)
        for _ in range(50):
            for core in range(8):
                delays.pause(core)
        return delays.times

    assert times(0) == [50] * 8
    drawn = [times(seed) for seed in range(1, 40)]
    assert drawn[0] == times(1) != drawn[1]
    assert min(map(min, drawn)) < 100
    assert max(map(max, drawn)) > 10_000


@pytest.mark.parametrize("wrong", [-1, 1 << 32, 1.5, True])
def test_a_seed_is_a_number(wrong: Any) -> None:
    kernel = sk.compile(chain(), threads=1)
    with pytest.raises(sk.InputError, match="argument 'delays'"):
        kernel.run([X], delays=wrong)
    with pytest.raises(sk.InputError, match="nothing can be late"):
        kernel.run([X], executor="reference", delays=1)
