"""Do the simulator's trace and the emulator's log tell of the same events in the same partial order?

Model. Both run the same bytes, so that each hart issues the same commands, and each queue carries the same ones out in
the same order; only what happens first between queues and cores may differ. Held against one another are

- per queue the commands that move or compute, in order; per core the flags that it waits for, in order;
- every pair of commands that share a byte (qemu_order.py): the first has ended when the second begins, in the
  emulator's sequence and in the simulator's cycles;
- every wait of a core: it ends behind each signal that it needs, in the emulator's sequence, and the signal that ended
  it on the simulator is one of those.

Commands of the shared SDMA are left out: who comes first there is decided by time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from superkernel.backends.aicore.qemu_log import ORDERING, Logged
from superkernel.backends.aicore.qemu_order import LaunchOrder
from superkernel.sim.trace import COMMAND, FLOW_IN, FLOW_OUT
from superkernel.target.engines import Engine
from superkernel.target.engines.table import by_opcode

if TYPE_CHECKING:
    from numpy.typing import NDArray

_LEFT_OUT = (*ORDERING, "barrier")


class EventOrder:
    """What one launch of the simulator says, to hold runs of the emulator against. `order` is of any of those."""

    def __init__(self, order: LaunchOrder, records: NDArray[Any]) -> None:
        self.order = order
        self._spans: dict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
        self._waits: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._senders: dict[int, int] = {}
        self._cycles: dict[tuple[int, int], tuple[int, int]] = {}
        for row in records:
            core, kind, detail = int(row["core"]), int(row["kind"]), int(row["detail"])
            if kind == COMMAND and by_opcode()[detail].name not in _LEFT_OUT:
                self._spans[core, int(row["track"])].append((int(row["begin"]), int(row["end"]), detail))
            elif kind == FLOW_IN:
                self._waits[core].append((detail, int(row["extra"])))
            elif kind == FLOW_OUT:
                self._senders[int(row["extra"])] = core

    @property
    def pairs(self) -> int:
        """How many pairs of events are compared."""
        return len(self.order.conflicts) + sum(len(link.edges) for link in self.order.links if link.kind == "cross")

    def disagreements(self, logs: Sequence[Sequence[Logged]]) -> list[str]:
        """What is not the same in a run of the emulator; empty where all is."""
        same = [c.command for log in logs for c in log] == [c.command for c in self.order.commands]
        if not same:
            return ["a hart issues other commands than in another run"]
        run = {(c.hart, c.index): c for log in logs for c in log}
        found = self._of_queues() + self._of_pairs(run) + self._of_waits(run)
        return found[:5]

    def _of_queues(self) -> list[str]:
        queues: dict[tuple[int, int], list[Logged]] = defaultdict(list)
        waits: dict[int, list[int]] = defaultdict(list)
        for c in self.order.commands:
            if c.command.name == "cross_wait":
                waits[c.hart].append(c.command.numbers["flag"])
            elif c.engine not in (Engine.CONTROL, Engine.SDMA) and c.command.name not in _LEFT_OUT:
                queues[c.hart, c.engine.value].append(c)
        found = []
        for (core, engine), row in queues.items():
            if [c.command.spec.opcode for c in row] != [detail for _, _, detail in self._spans[core, engine]]:
                found.append(f"core {core}: other commands on {Engine(engine).title} than on the simulator")
        found += [
            f"core {core}: other cross-core flags waited for than on the simulator"
            for core, flags in waits.items()
            if flags != [flag for flag, _ in self._waits[core]]
        ]
        self._cycles = {
            (c.hart, c.index): (span[0], span[1])
            for key, row in queues.items()
            for c, span in zip(row, self._spans[key], strict=False)
        }
        return found

    def _of_pairs(self, run: dict[tuple[int, int], Logged]) -> list[str]:
        by_node = {self.order.done(c): c for c in self.order.commands}
        found = []
        for a, b in self.order.conflicts:
            first, second = by_node[a], by_node[b]
            mine = run[first.hart, first.index], run[second.hart, second.index]
            place = f"{first.place}: {first.command}, then {second.place}: {second.command}"
            if Engine.SDMA not in (first.engine, second.engine) and mine[1].begin < mine[0].end:
                found.append(f"the other way round on the emulator: {place}")
            cycles = [self._cycles.get((c.hart, c.index)) for c in (first, second)]
            if cycles[0] and cycles[1] and cycles[1][0] < cycles[0][1]:
                found.append(f"the other way round on the simulator: {place}")
        return found

    def _of_waits(self, run: dict[tuple[int, int], Logged]) -> list[str]:
        by_node = {self.order.done(c): c for c in self.order.commands}
        number: dict[int, int] = defaultdict(int)
        found = []
        for link in self.order.links:
            if link.kind != "cross":
                continue
            wait = link.commands[0]
            signals = [by_node[a] for a, _ in link.edges]
            early = [s for s in signals if run[s.hart, s.index].begin > run[wait.hart, wait.index].end]
            found += [f"a wait ends ahead of its signal: {wait.place}; {s.place}" for s in early]
            flows = self._waits[wait.hart]
            if number[wait.hart] < len(flows):
                _, flow = flows[number[wait.hart]]
                if self._senders.get(flow) not in {s.hart for s in signals}:
                    found.append(f"the simulator's wait is ended by another core's signal: {wait.place}")
            number[wait.hart] += 1
        return found
