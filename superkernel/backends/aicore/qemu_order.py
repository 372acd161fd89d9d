"""What the commands of an emulated run have to do with one another: happens-before over the log, edge by edge.

Model. Every logged command is a node; one that goes into a queue is two, its doorbell and its execution. Edges:

- program: a doorbell to the hart's next, a doorbell to its execution;
- queue: an execution to the next of the same queue (SDMA's: in the order of the log); one to the doorbell that needs
  its place in the queue;
- drain: the last execution of each drained queue to the drain;
- flag: the k-th set of a flag between two engines to its k-th wait;
- cross: the k-th signal, of each core that the count is made of, to the k-th wait of a core for a flag.

`conflicts` are the pairs of executions that touch a byte which one of them writes; where all edges stand, every such
pair is ordered, or the program has a race. `room` are the pairs of a wait and the set of the same flag that needs it to
make room. `LaunchOrder.without` says which pairs lose their order when links go: none means that other edges imply what
these say. This is written from the words of the command table alone, apart from the planner, the verifier and the
simulator.

Not seen: plain loads and stores of control units; words that notify and wait_memory share.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias

from superkernel.backends.aicore.qemu_log import Logged
from superkernel.backends.aicore.qemu_memory import group_peers, paired
from superkernel.core.errors import SimulationError, UnsupportedError
from superkernel.target.aicore import AicoreTarget
from superkernel.target.engines import Engine, footprint
from superkernel.target.engines.checking import TouchedBytes

Edge: TypeAlias = tuple[int, int]
Pair: TypeAlias = tuple[int, int]
FlagKey: TypeAlias = tuple[int, int, int]  # setter, waiter, number


@dataclass(frozen=True, slots=True)
class OrderLink:
    """What a pair of commands, or a wait and all its signals, adds to the order: its kind and its edges."""

    kind: str
    edges: tuple[Edge, ...]
    commands: tuple[Logged, ...]


class LaunchOrder:
    """The order of one launch."""

    def __init__(self, logs: Sequence[Sequence[Logged]], target: AicoreTarget) -> None:
        self.target = target
        self.commands = [c for log in logs for c in log]
        self._doorbell: dict[tuple[int, int], int] = {}
        self._execution: dict[tuple[int, int], int] = {}
        for c in self.commands:
            self._doorbell[c.hart, c.index] = len(self._doorbell) + len(self._execution)
            if c.engine is not Engine.CONTROL:
                self._execution[c.hart, c.index] = len(self._doorbell) + len(self._execution)
        self.nodes = len(self._doorbell) + len(self._execution)
        self._flags: list[tuple[list[Logged], list[Logged]]] = []
        self._edges: list[Edge] = [e for log in logs for e in self._of_program(log)]
        self._edges += self._of_sdma()
        self.links = [link for log in logs for link in self._links_of(log)] + list(self._crossings(logs))

    def done(self, c: Logged) -> int:
        """The node of a command's execution."""
        return self._execution.get((c.hart, c.index), self._doorbell[c.hart, c.index])

    def doorbell(self, c: Logged) -> int:
        """The node of its doorbell."""
        return self._doorbell[c.hart, c.index]

    # Edges ------------------------------------------------------------------------------------------------------------

    def _of_program(self, log: Sequence[Logged]) -> Iterator[Edge]:
        queues: dict[Engine, list[Logged]] = defaultdict(list)
        depth = self.target.queue.depth_commands
        for n, c in enumerate(log):
            if n:
                yield self.doorbell(log[n - 1]), self.doorbell(c)
            if c.engine is Engine.CONTROL:
                continue
            yield self.doorbell(c), self.done(c)
            if c.engine is Engine.SDMA:
                continue
            queue = queues[c.engine]
            if queue:
                yield self.done(queue[-1]), self.done(c)
            if len(queue) >= depth:
                yield self.done(queue[-depth]), self.doorbell(c)
            queue.append(c)

    def _of_sdma(self) -> Iterator[Edge]:
        """Commands that were never carried out (prefetches at the end) come last."""
        shared = sorted(
            (c for c in self.commands if c.engine is Engine.SDMA),
            key=lambda c: (c.begin == 0, c.begin, c.hart, c.index),
        )
        for one, other in pairwise(shared):
            yield self.done(one), self.done(other)

    def _links_of(self, log: Sequence[Logged]) -> Iterator[OrderLink]:
        """Drains, and flags between engines."""
        last: dict[int, Logged] = {}
        sets: dict[FlagKey, list[Logged]] = defaultdict(list)
        waits: dict[FlagKey, list[Logged]] = defaultdict(list)
        for c in log:
            numbers = c.command.numbers
            if c.command.name == "drain":
                drained = [one for engine, one in last.items() if numbers["engines"] >> engine & 1]
                yield OrderLink("drain", tuple((self.done(one), self.done(c)) for one in drained), (c,))
            elif c.command.name == "set_flag":
                sets[c.engine.value, numbers["peer"], numbers["flag"]].append(c)
            elif c.command.name == "wait_flag":
                waits[numbers["peer"], c.engine.value, numbers["flag"]].append(c)
            if c.engine not in (Engine.CONTROL, Engine.SDMA):
                last[c.engine.value] = c
        for key, takers in waits.items():
            self._flags.append((sets[key], takers))
            for one, other in zip(sets[key], takers, strict=False):
                yield OrderLink("flag", ((self.done(one), self.done(other)),), (one, other))

    def _crossings(self, logs: Sequence[Sequence[Logged]]) -> Iterator[OrderLink]:
        """Waits for other cores, each with the signals that it needs."""
        signals: dict[tuple[int, str, int], list[Logged]] = defaultdict(list)
        for c in self.commands:
            if c.command.name == "cross_set":
                mode, flag = str(c.command.operand("mode")), c.command.numbers["flag"]
                for who in self._signalled(c) if mode == "mask" else (c.hart,):
                    signals[who, mode, flag].append(c)
        for log in logs:
            taken: dict[int, int] = defaultdict(int)
            for c in log:
                if c.command.name == "cross_wait":
                    flag = c.command.numbers["flag"]
                    needed = self._needed(signals, c.hart, flag, taken[flag])
                    taken[flag] += 1
                    yield OrderLink("cross", tuple((self.done(s), self.done(c)) for s in needed), (c,))

    def _signalled(self, c: Logged) -> Iterator[int]:
        numbers = c.command.numbers
        return (numbers["first_core"] + bit for bit in range(32) if numbers["mask"] >> bit & 1)

    def _needed(
        self, signals: dict[tuple[int, str, int], list[Logged]], core: int, flag: int, taken: int
    ) -> list[Logged]:
        """The signals that a core's wait number `taken` for a flag certainly comes behind."""
        device, cubes = self.target.device, self.target.device.cube_cores
        sources = {
            "type": range(cubes) if core < cubes else range(cubes, self.target.cores),
            "across": range(cubes, self.target.cores) if core < cubes else range(cubes),
            "all": range(self.target.cores),
            "mask": range(core, core + 1),
            "group": group_peers(self.target, core),
            "pair": paired(self.target, core),
        }
        used = [m for m, cores in sources.items() if any(signals.get((s, m, flag)) for s in cores)]
        alone = len(used) == 1 and not (used == ["group"] and core >= cubes and device.cube_cores_per_group > 1)
        if not alone:
            raise UnsupportedError(
                "which signals a wait takes cannot be told from the program alone",
                location=f"core {core}, flag {flag}", expected="one mode per flag", found=", ".join(used),
            )  # fmt: skip
        (mode,) = used
        rows = [signals[s, mode, flag] for s in sources[mode]]
        if any(len(row) <= taken for row in rows):
            raise SimulationError("a wait without its signal", kind="deadlock", location=f"core {core}, flag {flag}")
        return [row[taken] for row in rows]

    # Closure ----------------------------------------------------------------------------------------------------------

    @cached_property
    def conflicts(self) -> tuple[Pair, ...]:
        """Pairs of nodes that touch a common byte, and one writes; not those of one queue. The first comes first in the
        order of all edges; raises SimulationError (`race`) where that says nothing."""
        before = self._closure(())
        pairs = []
        for a, b in _overlapping(self._touching()):
            first, second = self.done(a), self.done(b)
            if not before[second] >> first & 1:
                first, second = second, first
            pairs.append((first, second))
            if not before[second] >> first & 1:
                raise SimulationError(
                    "two conflicting commands that nothing orders", kind="race", location=f"{a.place}; {b.place}",
                    found=f"`{a.command}`; `{b.command}`",
                )  # fmt: skip
        return tuple(dict.fromkeys(pairs))

    def _touching(self) -> dict[object, list[tuple[TouchedBytes, Logged]]]:
        """Accesses by memory: global, or a local one of a core."""
        found: dict[object, list[tuple[TouchedBytes, Logged]]] = defaultdict(list)
        for c in self.commands:
            if c.command.name in ("notify", "wait_memory", "sdma_prefetch"):
                continue
            for touched in footprint(c.command, self.target):
                found[touched.memory and (c.hart, touched.memory)].append((touched, c))
        return found

    def room(self, gone: frozenset[int] = frozenset()) -> Iterator[Pair]:
        """Per flag between engines the n-th wait and the set that needs its place, where some commands are missing."""
        for sets, waits in self._flags:
            nodes = [[n for c in row if (n := self.done(c)) not in gone] for row in (waits, sets)]
            yield from zip(nodes[0], nodes[1][self.target.queue.flag_count_max :], strict=False)

    def without(self, links: Sequence[OrderLink]) -> list[Pair]:
        """The conflicting pairs, and those of flags, that are not ordered where these links, and where they are flags
        their commands, are missing."""
        after = self._closure({edge for link in links for edge in link.edges})
        gone = frozenset(self.done(c) for link in links if link.kind == "flag" for c in link.commands)
        return [(a, b) for a, b in (*self.conflicts, *self.room(gone)) if not after[b] >> a & 1]

    def implied(self, link: OrderLink) -> bool:
        """Whether other edges order all that the link orders, commands that share no byte included."""
        after = self._closure(link.edges)
        return all(after[b] >> a & 1 for a, b in link.edges)

    def _closure(self, gone: Iterable[Edge]) -> list[int]:
        """Per node the bit set of what comes before it."""
        left = set(gone)
        edges = [*self._edges, *(e for link in self.links for e in link.edges if e not in left)]
        behind: list[list[int]] = [[] for _ in range(self.nodes)]
        missing = [0] * self.nodes
        for a, b in edges:
            behind[a].append(b)
            missing[b] += 1
        before = [0] * self.nodes
        ready = [n for n, count in enumerate(missing) if not count]
        seen = 0
        while ready:
            node = ready.pop()
            seen += 1
            reach = before[node] | 1 << node
            for other in behind[node]:
                before[other] |= reach
                missing[other] -= 1
                if not missing[other]:
                    ready.append(other)
        if seen != self.nodes:
            raise SimulationError("commands that wait for one another in a circle", kind="deadlock")
        return before


def _overlapping(touching: dict[object, list[tuple[TouchedBytes, Logged]]]) -> Iterator[tuple[Logged, Logged]]:
    """Pairs of commands of different queues whose accesses conflict."""
    for rows in touching.values():
        rows.sort(key=lambda row: row[0].start)
        live: list[tuple[TouchedBytes, Logged]] = []
        for touched, c in rows:
            live = [row for row in live if row[0].end > touched.start]
            for other, d in live:
                other_queue = (c.hart, c.engine) != (d.hart, d.engine)
                if other_queue and (touched.writes or other.writes) and touched.meets(other):
                    yield d, c
            live.append((touched, c))
