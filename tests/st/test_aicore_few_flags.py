"""Programs with more events than a target has flags: wider ranges, then words in memory; the same bits, verified."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from firmware_bench import needs_qemu
from numpy.typing import NDArray

import superkernel as sk
from superkernel.backends.aicore.compiled import AicoreCompiled
from superkernel.core.errors import UnsupportedError
from superkernel.runtime.kernel import Kernel
from superkernel.sync.aicore.plan import CoreKind, Form, Mode, Run, Signal, awaited
from superkernel.sync.aicore.verify import check_aicore_plan
from superkernel.target.aicore import AicoreTarget, load_target

MINI = load_target("mini")
X = {"x": np.random.default_rng(0).standard_normal((64, 128)).astype(np.float32)}


def target_of(flags: int, count_max: int = 15) -> AicoreTarget:
    return MINI.replaced({"sync.flags_per_core": flags, "sync.flag_count_max": count_max})


def both_types(steps: int = 8) -> sk.Graph:
    """Products on cube cores and softmaxes along both axes on vector cores: no kernel of a group, many events."""
    rng = np.random.default_rng(1)
    b = sk.GraphBuilder("both")
    x = b.input("x", (64, 128))
    for step in range(steps):
        x = b.softmax(x, axis=step % 2)
        x = x @ b.constant(rng.standard_normal((128, 128)).astype(np.float32) / 16)
    b.output(x, "y")
    return b.graph()


def compiled(graph: sk.Graph, target: AicoreTarget, **options: Any) -> tuple[Kernel, AicoreCompiled]:
    kernel = sk.compile(graph, target=target, options={"launches": "fused", **options})
    assert isinstance(kernel._compiled, AicoreCompiled)
    return kernel, kernel._compiled


def modes(made: AicoreCompiled) -> set[Mode]:
    return {event.mode for event in made.plan.events}


@cache
def want(mixed: bool) -> NDArray[Any]:
    """With all flags."""
    return compiled(graph_with_mix() if mixed else both_types(), MINI)[0].run(X).outputs["y"]


@pytest.mark.parametrize(
    ("flags", "count_max", "expected"),
    [
        (16, 15, {Mode.ALL, Mode.TYPE}),
        (7, 2, {Mode.ALL, Mode.TYPE}),
        (3, 1, {Mode.ALL, Mode.TYPE}),
        (2, 15, {Mode.ALL}),
        (1, 1, {Mode.ALL}),
    ],
)
def test_ranges_get_wider(flags: int, count_max: int, expected: set[Mode]) -> None:
    kernel, made = compiled(both_types(), target_of(flags, count_max))
    assert modes(made) - {Mode.GROUP, Mode.NOTIFY} <= expected
    assert len(made.plan.events) > made.plan.flags
    short = "too few for narrower ranges"
    assert any(short in b.reason for b in made.plan.boundaries) == (expected == {Mode.ALL})
    assert np.array_equal(kernel.run(X).outputs["y"], want(False))


@pytest.mark.parametrize("sync", ["minimal", "type-range", "full"])
def test_words_in_memory_where_no_flag_is_left(sync: str) -> None:
    """Four flags: the channels of a MIX kernel have them all."""
    kernel, made = compiled(graph_with_mix(), target_of(4), sync=sync)
    assert made.plan.flags == 0
    assert modes(made) == {Mode.NOTIFY}
    assert any(b.form is Form.NOTIFY for b in made.plan.boundaries)
    for _ in range(2):  # words are never set back
        assert np.array_equal(kernel.run(X).outputs["y"], want(True))
    boundary = next(b for b in made.plan.boundaries if b.form is Form.NOTIFY)
    text = kernel.explain(boundary.subop).text()
    assert "no cross-core flag is free" in text
    assert f"{MINI.sync.memory_flag_ns + MINI.sync.atomic_ns:.0f} ns" in text


def graph_with_mix() -> sk.Graph:
    rng = np.random.default_rng(2)
    b = sk.GraphBuilder("mix")
    x = b.input("x", (64, 128))
    for step in range(2):
        weight = b.constant(rng.standard_normal((128, 128)).astype(np.float32) / 16)
        x = b.softmax(b.gelu(x @ weight), axis=step % 2)
    b.output(x, "y")
    return b.graph()


@pytest.mark.parametrize(("flags", "count_max"), [(5, 1), (6, 2), (7, 1)])
def test_few_flags_that_hold_little(flags: int, count_max: int) -> None:
    kernel, made = compiled(graph_with_mix(), target_of(flags, count_max))
    assert made.plan.flags == flags - 4
    assert np.array_equal(kernel.run(X).outputs["y"], want(True))


@pytest.mark.parametrize("flags", [1, 3])
def test_kernels_that_exchange_tiles_need_their_own(flags: int) -> None:
    with pytest.raises(UnsupportedError, match=r"sync\.flags_per_core.*at least 4"):
        sk.compile(graph_with_mix(), target=target_of(flags))


def test_a_word_less_is_refused() -> None:
    """Each word's signal, each wait: left out, the plan is not proved."""
    _, made = compiled(graph_with_mix(), target_of(4))
    rng = random.Random(0)
    for kind in CoreKind:
        program = made.plan.programs[kind]
        signals = [i for i, s in enumerate(program) if isinstance(s, Signal)]
        waits = [i for i, s in enumerate(program) if not isinstance(s, Run) and awaited(s)]
        for at in (rng.choice(signals), rng.choice(waits)):
            faulty = {**made.plan.programs, kind: (*program[:at], *program[at + 1 :])}
            wrong, certificate = check_aicore_plan(replace(made.plan, programs=faulty))
            assert certificate is None
            assert wrong


@needs_qemu
def test_words_on_the_emulator() -> None:
    kernel, _ = compiled(graph_with_mix(), target_of(4))
    assert np.allclose(kernel.emulate(X)[0]["y"], want(True), rtol=1e-2, atol=1e-4)
