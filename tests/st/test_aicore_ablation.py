"""No optimisation changes a bit: outputs and states of small models are the same under all options, free of races, and
those of the sub-operators launched one by one.

A run draws half of the models and targets; a soak run has all. `pytest --combinations N` runs N combinations of the
options per model (default 12; 64 and more on `a3` as well as on `mini`, fewer there otherwise).
`bench/ablation.py --combinations N` does the same for models of full size.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
import soak
from models_aicore import branching, residual_chain
from models_small import decoder, encoder, experts, mixed
from option_sets import ALL_PAIRS, AXES, GRID, Variants, ordered_rows, pairs

import superkernel as sk
from superkernel.backends.aicore.backend import AicoreBackend
from superkernel.backends.aicore.compiled import AicoreCompiled
from superkernel.backends.aicore.variants import with_other_code
from superkernel.compilation.pipeline import compile_graph
from superkernel.core.options import Options

MODELS = {make.__name__: make for make in (encoder, decoder, residual_chain, branching, mixed, experts)}
CASES = [(name, target) for name in MODELS for target in ("mini", "a3")]


@pytest.mark.parametrize("count", [12, ALL_PAIRS])
def test_combinations_hold_what_is_promised(count: int) -> None:
    rows = ordered_rows(count)
    assert len({tuple(row.items()) for row in rows}) == count
    assert rows[:12] == ordered_rows(12)
    met = set().union(*map(pairs, rows))
    wanted = {(a, x, b, y) for a, b in combinations(AXES, 2) for x in AXES[a] for y in AXES[b]}
    left = {(a, b) for a, _, b, _ in wanted - met}
    assert GRID not in left
    assert {row[axis] for row in rows for axis in AXES} == {value for axis in AXES for value in AXES[axis]}
    assert len(met) >= (len(wanted) if count >= ALL_PAIRS else 0.8 * len(wanted)), left


@pytest.mark.parametrize(("name", "target"), soak.drawn(CASES, 6))
def test_every_option_gives_the_same_bits(name: str, target: str, request: pytest.FixtureRequest) -> None:
    count = int(request.config.getoption("--combinations"))
    rows = ordered_rows(count if target == "mini" or count >= ALL_PAIRS else count // 6)
    bench = Variants(MODELS[name](), target)
    expected = bench.results(bench.made({}), single=True)
    assert any(np.frombuffer(raw, np.uint8).any() for raw in expected.values())
    plans = set()
    for row in ({}, {"debug_sync_all": True}, *rows):
        other = bench.made(row)
        plans.add(str(other.plan))
        assert bench.results(other) == expected, row
    assert len(plans) >= min(4, len(rows))  # the options do something


def test_what_is_rebuilt_is_what_is_compiled() -> None:
    """The shortcut that the test above takes makes the same program."""
    graph = encoder()
    options = Options(sync="full", early_start=False, preload="none", split=3)
    base = sk.compile(graph, target="mini")._compiled
    assert isinstance(base, AicoreCompiled)
    whole = sk.compile(graph, target="mini", options=options)._compiled
    assert isinstance(whole, AicoreCompiled)
    assert with_other_code(base, options).image.elf == whole.image.elf


def test_what_shares_work_is_what_is_compiled() -> None:
    """Programs that share kernels, conflicts and schedules are those compiled by themselves; what one row of options
    takes back of `locality` the next one has."""
    variants = Variants(decoder(), "mini")
    for launches in ("single", "fused"):
        made = variants.made({"launches": launches, "sync": "type-range", "preload": "none"})
        alone = compile_graph(variants.graph, variants.target, made.options, AicoreBackend())
        assert made.image.elf == alone.image.elf
        assert str(made.plan) == str(alone.plan)
        assert bool(made.schedule.rematerialised) is (launches == "fused")
