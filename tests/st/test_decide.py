"""`decide="simulate"`: nothing that is left to the compiler makes a program slower than without it, and what was found
is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import models
import pytest
from models_aicore import residual_chain

import superkernel as sk
from superkernel.backends.aicore import decide
from superkernel.backends.aicore.backend import BACKEND
from superkernel.backends.aicore.compiled import AicoreCompiled
from superkernel.codegen.cache import ObjectCache
from superkernel.compilation.compiled import Job
from superkernel.core import settings
from superkernel.core.options import OPTIONS, Options
from superkernel.ir.graph import Graph


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SK_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def simulated(monkeypatch: pytest.MonkeyPatch) -> list[AicoreCompiled]:
    """What is simulated in order to decide."""
    found: list[AicoreCompiled] = []
    honest = decide.launched_cycles

    def counted(compiled: AicoreCompiled) -> int:
        found.append(compiled)
        return honest(compiled)

    monkeypatch.setattr(decide, "launched_cycles", counted)
    return found


def made(graph: Graph, **options: Any) -> AicoreCompiled:
    compiled = sk.compile(graph, target="mini", options=options)._compiled
    assert isinstance(compiled, AicoreCompiled)
    return compiled


@pytest.mark.parametrize("graph", [residual_chain(), models.mlp()], ids=["residual", "mlp"])
def test_the_fastest_of_what_was_tried_is_taken(graph: Graph, simulated: list[AicoreCompiled]) -> None:
    chosen = made(graph, decide="simulate")
    tried = [decide.launched_cycles(c) for c in list(simulated)]
    assert len(tried) == 1 + len(decide.DECISIONS)
    assert decide.launched_cycles(chosen) == min(tried) <= tried[0]
    assert decide.launched_cycles(made(graph)) == tried[0], "the first is what estimates choose"
    for name in decide.DECISIONS:
        assert getattr(chosen.options, name) in (OPTIONS[name].default, OPTIONS[name].off)


def test_a_decision_that_costs_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what the cycles say alone: streams cost a tenth here, preloading gains as much."""
    cost = {("auto", "auto"): 110, ("off", "auto"): 100, ("off", "none"): 120, ("auto", "none"): 130}
    monkeypatch.setattr(decide, "launched_cycles", lambda c: cost[c.options.streams, c.options.preload])
    chosen = made(models.mlp(), decide="simulate").options
    assert (chosen.streams, chosen.preload, chosen.locality) == ("off", "auto", "auto")


def test_what_was_found_is_kept(simulated: list[AicoreCompiled]) -> None:
    graph = models.mlp()
    first = made(graph, decide="simulate")
    count = len(simulated)
    assert made(graph, decide="simulate").options == first.options
    assert len(simulated) == count
    made(graph, decide="simulate", cache=False)
    assert len(simulated) == 2 * count


def test_what_the_user_says_is_not_tried(simulated: list[AicoreCompiled]) -> None:
    fixed = {"locality": "off", "preload": "max", "split": 2, "weight_prefetch": "max"}
    chosen = made(models.mlp(), decide="simulate", **fixed)
    assert {name: getattr(chosen.options, name) for name in fixed} == fixed
    assert [c.options.streams for c in simulated] == ["auto", "off"]


@pytest.mark.parametrize("entry", [b"", b"{}", b"[1]", b'{"locality": "on"}', b"\xff"])
def test_an_entry_that_says_nothing_is_decided_again(entry: bytes, simulated: list[AicoreCompiled]) -> None:
    graph = models.mlp()
    first = made(graph, decide="simulate")
    count = len(simulated)
    key = decide._key(_asked(first), BACKEND.kernels.sources)
    assert key is not None
    cache = ObjectCache(settings.cache_directory())
    assert cache.get(key) is not None
    cache.put(key, entry)
    assert made(graph, decide="simulate").options == first.options
    assert len(simulated) == 2 * count


def _asked(compiled: AicoreCompiled) -> Any:
    """The job as it was before anything was decided."""
    return Job(compiled.source, compiled.target, compiled.cores, Options(decide="simulate"))
