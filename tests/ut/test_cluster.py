"""The order of clusters against a search of all paths, while they are ordered and taken in by one another at random."""

from __future__ import annotations

import random

import pytest
from seeds import seeds

from superkernel.core.dtypes import DType
from superkernel.scheduler.cluster import Cluster, ClusterSet, Load

STEPS = 60


class Paths:
    """Which cluster runs ahead of which, by their numbers, those that were taken in replaced."""

    def __init__(self) -> None:
        self.after: dict[int, set[int]] = {}

    def leads(self, earlier: int, later: int) -> bool:
        """Whether a path of any length does."""
        todo, seen = [earlier], set[int]()
        while todo:
            here = self.after[todo.pop()] - seen
            seen |= here
            todo += here
        return later in seen

    def leads_through_a_third(self, earlier: int, later: int) -> bool:
        others = self.after.keys() - {earlier, later}
        return any(self.leads(earlier, other) and self.leads(other, later) for other in others)

    def absorb(self, into: int, other: int) -> None:
        for found in self.after.values():
            if other in found:
                found.discard(other)
                found.add(into)
        self.after[into] = (self.after[into] | self.after.pop(other)) - {into}


@pytest.mark.parametrize("seed", seeds(8))
def test_clusters_know_who_runs_ahead_of_them(seed: int) -> None:
    rng, clusters, paths = random.Random(seed), ClusterSet(), Paths()
    for _ in range(STEPS):
        alive = clusters.alive()
        assert {c.id for c in alive} == paths.after.keys()
        if len(alive) < 3 or rng.random() < 0.2:
            paths.after[clusters.new(()).id] = set()
            continue
        a, b = rng.sample(alive, 2)
        if rng.random() < 0.6:
            if not paths.leads(a.id, b.id):
                clusters.order_after(a, b)
                paths.after[b.id].add(a.id)
        elif not (paths.leads_through_a_third(a.id, b.id) or paths.leads_through_a_third(b.id, a.id)):
            clusters.absorb(a, b)
            paths.absorb(a.id, b.id)
            assert clusters.find(b.id) is a
        alive = clusters.alive()
        for a in alive:
            for b in alive:
                if a is not b:
                    assert clusters.depends(a, b) == paths.leads(b.id, a.id)
                    assert clusters.has_path_between(b, a) == paths.leads_through_a_third(b.id, a.id)


def test_whoever_takes_in_another_computes_its_nodes_writes_and_reads() -> None:
    clusters = ClusterSet()
    first, second, third = (clusters.new(()) for _ in range(3))
    first.nodes, second.nodes = [0], [1, 2]
    clusters.write(first, "x")
    clusters.write(first, "x")
    clusters.read(second, "x")
    clusters.read(second, "x")
    clusters.write(third, "z")
    clusters.read(third, "z")
    assert third.ancestors == 0  # nobody waits for itself
    assert (clusters.writers, clusters.readers) == ({"x": [0], "z": [2]}, {"x": [1], "z": [2]})
    assert clusters.depends(second, first)
    assert not clusters.depends(first, second)
    clusters.absorb(first, second)
    assert first.nodes == [0, 1, 2]
    assert not clusters.depends(first, second)
    assert clusters.alive() == [first, third]
    assert clusters.clusters_reading("x") == [first]
    clusters.write(second, "y")
    clusters.read(third, "y")
    assert clusters.depends(third, first)
    assert clusters.clusters_writing("y") == [first]
    assert (clusters.clusters_writing("v"), clusters.clusters_reading("v")) == ([], [])


def test_equal_cells_are_shared() -> None:
    cluster = Cluster(0, (2, 3))
    numbers = [cluster.instruct("add", args, DType.F32, ()) for args in ((0, 1), (1, 0), (0, 1))]
    assert (numbers, cluster.instruction_count) == ([0, 1, 0], 2)
    loads = [Load(name, (3, 1), 0, DType.F32) for name in ("x", "y")]
    assert [cluster.add(load) for load in (*loads, loads[0])] == [2, 3, 2]
    assert cluster.instruction_count == 2
    assert cluster.loads_of("x") == loads[:1]
