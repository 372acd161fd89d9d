"""What one boundary costs where cores truly have to wait for one another.

    python bench/boundary.py [--json]

A chain of 65 products [1, 128] x [128, 128]: each core computes half of a vector and needs all of it for the next
product, so each of the 64 boundaries is an exchange that no plan can avoid on two cores. Placement by cost is off: it
would, rightly, run so small a chain on one core.

    cost per boundary = (time on two cores - half the time on one core) / 64

is everything that the second core does not save: hand-over, uneven halves, lines of data that move. It is compared with
the round trip of a cache line between the two cores, measured in turn with it.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

import numpy as np
from stats import estimate

import superkernel as sk
from superkernel import _core

BOUNDARIES = 64
WIDTH = 128


def chain() -> sk.Graph:
    """See the module docstring."""
    rng = np.random.default_rng(0)
    b = sk.GraphBuilder("boundaries")
    x = b.input("x", (1, WIDTH))
    w = b.constant(rng.standard_normal((WIDTH, WIDTH), dtype=np.float32) / np.float32(np.sqrt(WIDTH)))
    for _ in range(BOUNDARIES + 1):
        x = x @ w
    b.output(x, name="y")
    return b.graph()


def measure(rounds: int = 15, launches: int = 200) -> dict[str, Any]:
    """Figures in ns. Empty where the process may use one CPU only."""
    if _core.available_cpus() < 2:
        return {}
    graph, options = chain(), {"cost_placement": False}
    one, two = (sk.compile(graph, threads=n, options=options) for n in (1, 2))
    waits = two.summary()["waits"]
    if waits < BOUNDARIES:
        raise RuntimeError(f"the chain was meant to need {BOUNDARIES} exchanges, the plan has {waits} waits")
    samples = []
    for _ in range(rounds):
        trip = 2 * _core.measure_core_to_core_ns()
        alone, both = (float(np.median(k.time(rounds=launches))) for k in (one, two))
        samples.append((trip, alone, both, (both - alone / 2) / BOUNDARIES))
    trips, alone_ns, both_ns, costs = (np.array(column) for column in zip(*samples, strict=True))
    cost, share = estimate(costs.tolist()), estimate((costs / trips).tolist())
    return {
        "boundaries": BOUNDARIES,
        "waits": waits,
        "one_core_ns": float(np.median(alone_ns)),
        "two_cores_ns": float(np.median(both_ns)),
        "cost_ns": [cost.median, cost.low, cost.high],
        "round_trip_ns": float(np.median(trips)),
        "cost_per_round_trip": [share.median, share.low, share.high],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    figures = measure()
    if args.json or not figures:
        print(json.dumps(figures, indent=2))
        return 0
    cost, share = figures["cost_ns"], figures["cost_per_round_trip"]
    print(f"64 boundaries: one core {figures['one_core_ns']:.0f} ns, two cores {figures['two_cores_ns']:.0f} ns")
    print(f"cost per boundary: {cost[0]:.0f} ns [{cost[1]:.0f}, {cost[2]:.0f}]")
    print(f"round trip: {figures['round_trip_ns']:.0f} ns; cost per round trip: {share[0]:.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
