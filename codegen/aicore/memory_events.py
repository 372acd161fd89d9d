"""Events between cores and the aicpu hart, as code: words in global memory (`Mode.NOTIFY`).

Model: each event has a word on a line of L2 of its own (`sk_events`). A setter adds one to it, queued on the engine
that stores, behind its stores; an aicpu hart, which stores by itself, behind a fence. A receiver waits until the word
has reached runs x setters: words are never set back, so each hart counts in its private memory (RUNS_WORD) how often
the program has run to its end.

Invariant: all harts of a plan with such events count, whether they wait or not; the parts of a program run once per
run.
"""

from __future__ import annotations

from llvmlite import ir

from superkernel.codegen.aicore.memory_map import RUNS_WORD
from superkernel.codegen.aicore.scalar import I64, Scalar, load_volatile, store_volatile
from superkernel.codegen.aicore.statements import issue, line_address, word
from superkernel.sync.aicore.plan import AicorePlan, Event, Mode
from superkernel.target.aicore import AicoreTarget
from superkernel.target.engines import Engine, command

WORDS = "sk_events"


def has_words(plan: AicorePlan) -> bool:
    """Whether harts must count runs."""
    return any(event.mode is Mode.NOTIFY for event in plan.events)


class MemoryEvents:
    """Signals and waits in one launch function."""

    def __init__(self, module: ir.Module, b: ir.IRBuilder, plan: AicorePlan, private: ir.Value, target: AicoreTarget):
        self.module, self.b, self.plan, self.private, self.target = module, b, plan, private, target
        self._runs: ir.Value | None = None

    def signal(self, event: Event, engine: Engine) -> None:
        """One more setter is done."""
        made = command("notify", engine=engine, address=0, value=1, mode="add")
        issue(self.b, self.target, made, {"address": self._address(event)})

    def wait(self, event: Event) -> None:
        """Stand still until all setters are."""
        assert event.setters is not None
        setters = len(self.plan.cores(event.setters))
        value = self.b.mul(self._run(), word(setters))
        made = command("wait_memory", address=0, value=0)
        issue(self.b, self.target, made, {"address": self._address(event), "value": value})

    def end_run(self) -> None:
        """The program's last part is done."""
        if has_words(self.plan):
            store_volatile(self.b, Scalar(self.b, self._run()), Scalar(self.b, self._counter()))

    def _counter(self) -> ir.Value:
        return self.b.add(self.private, word(8 * RUNS_WORD))

    def _run(self) -> ir.Value:
        """The number of this run, from 1."""
        if self._runs is None:
            with self.b.goto_entry_block():
                before = load_volatile(self.b, Scalar(self.b, self._counter()), I64)
                self._runs = self.b.add(before, word(1))
        return self._runs

    def _address(self, event: Event) -> ir.Value:
        count = 1 + max(e.flag for e in self.plan.events if e.mode is Mode.NOTIFY)
        return line_address(self.module, self.b, WORDS, count, event.flag)
