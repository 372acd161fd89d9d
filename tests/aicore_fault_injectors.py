"""Fault injectors: a program for the accelerator is emitted with one engine flag, one command, one word less or
another. For tests of what the simulator notices.

A fault is a function that patches the emitters through a `FaultInjector`, which knows the places where it could strike
and lets it strike at one.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from aicore_systems import Workbench

from superkernel.backends.aicore.executable import SimExecutable
from superkernel.codegen.aicore import emission, launch
from superkernel.codegen.aicore.commands import Address
from superkernel.codegen.aicore.layer import KernelBuilder
from superkernel.codegen.aicore.rings import Buffer, FlagPlan, Part
from superkernel.target.engines import Engine


@dataclass
class FaultInjector:
    """Alters one thing of many while a program is emitted. First it only notes the places where it could; then it does
    so at one of them, as often as that place is emitted (launches are emitted again until the code's layout settles).
    """

    patch: pytest.MonkeyPatch
    places: dict[str, None] = field(default_factory=dict)
    chosen: str = ""
    _counts: dict[int, int] = field(default_factory=dict)
    _owners: list[object] = field(default_factory=list)

    def here(self, owner: object, what: str) -> bool:
        """Whether this is the place: the n-th thing that an owner (a function, a builder) asks about."""
        number = self._counts.get(id(owner), 0)
        self._counts[id(owner)] = number + 1
        if number == 0:
            self._owners.append(owner)  # alive, so that no other has its id
        place = f"{what} #{number}"
        self.places[place] = None
        return place == self.chosen


Faulty = Callable[[FaultInjector], None]
_places: dict[tuple[int, Faulty], tuple[Workbench, list[str]]] = {}  # which benches stay for


def faulty(bench: Workbench, fault: Faulty, rng: random.Random) -> SimExecutable:
    """The model, emitted with one thing altered."""
    if (id(bench), fault) not in _places:
        noted = _emitted(bench, fault, "")[1]
        assert noted, "the fault has no place in this model"
        _places[id(bench), fault] = bench, noted
    return _emitted(bench, fault, rng.choice(_places[id(bench), fault][1]))[0]


def _emitted(bench: Workbench, fault: Faulty, chosen: str) -> tuple[SimExecutable, list[str]]:
    """The program with the fault at a place ("" = nowhere), and the places where it could strike."""
    with pytest.MonkeyPatch.context() as patch:
        injector = FaultInjector(patch, chosen=chosen)
        fault(injector)
        return bench.build(fresh=True), list(injector.places)


def on_flags(choose: Callable[[FlagPlan], list[tuple[Any, ...]]], drop: Callable[..., None]) -> Faulty:
    """Drops one of a kernel's engine flags."""

    def fault(injector: FaultInjector) -> None:
        plan_flags, kernels = emission.plan_flags, itertools.count()  # type: ignore[attr-defined]

        def planned(*arguments: Any) -> FlagPlan:
            plan, kernel = plan_flags(*arguments), next(kernels)
            for place in choose(plan):
                if injector.here(plan, f"kernel {kernel}"):
                    drop(plan, *place)
            return plan

        injector.patch.setattr(emission, "plan_flags", planned)

    return fault


def ring_waits(plan: FlagPlan) -> list[tuple[Any, ...]]:
    return [(node, use) for node, uses in plan.waits.items() for use in uses]


def ring_sets(plan: FlagPlan) -> list[tuple[Any, ...]]:
    return [(node, use) for node, uses in plan.sets.items() for use in uses]


def forward_flags(plan: FlagPlan) -> list[tuple[Any, ...]]:
    """Flags within a turn; those back to the next turn are credits."""
    return [(use,) for use in {use: None for _, use in ring_waits(plan)} if use not in plan.credits]


def drop_both(plan: FlagPlan, use: Any) -> None:
    for found in (plan.waits, plan.sets):
        for uses in found.values():
            if use in uses:
                uses.remove(use)


def on_commands(names: tuple[str, ...], alter: Callable[[KernelBuilder, dict[str, Any]], bool]) -> Faulty:
    """Alters one command that kernels issue; `alter` says whether it can, and False leaves the command out."""

    def fault(injector: FaultInjector) -> None:
        issue_on = KernelBuilder.issue_on

        def issued(kb: KernelBuilder, engine: Engine, name: str, *types: Any, **given: Any) -> None:
            fits = name in names and all(k in given for k in NEEDED.get(alter.__name__, ()))
            if fits and kb._plan is not None and injector.here(kb, f"{kb.symbol} {name}") and not alter(kb, given):
                with kb._node():  # its flags stay
                    return
            issue_on(kb, engine, name, *types, **given)

        injector.patch.setattr(KernelBuilder, "issue_on", issued)

    return fault


NEEDED = {"halve": ("bytes",), "empty": ("bytes",), "overlap": ("src", "cols")}


def halve(kb: KernelBuilder, given: dict[str, Any]) -> bool:
    given["bytes"] = given["bytes"] // 2
    return True


def empty(kb: KernelBuilder, given: dict[str, Any]) -> bool:
    given["bytes"] = kb.begin - kb.begin
    return True


def leave_out(kb: KernelBuilder, given: dict[str, Any]) -> bool:
    return False


def shift_store(kb: KernelBuilder, given: dict[str, Any]) -> bool:
    assert isinstance(given["dst"], Address)
    given["dst"] = given["dst"].at(64)
    return True


def misalign(kb: KernelBuilder, given: dict[str, Any]) -> bool:
    given["dst"] = _part(given["dst"], 8)
    return True


def outside(kb: KernelBuilder, given: dict[str, Any]) -> bool:
    part = _part(given["dst"], 0)
    given["dst"] = part.at(kb.capacity(part.buffer.memory) - 64)
    return True


def overlap(kb: KernelBuilder, given: dict[str, Any]) -> bool:
    given["dst"] = _part(given["src"], 32)
    return True


def _part(place: Any, offset: int) -> Part:
    return place.at(offset) if isinstance(place, (Part, Buffer)) else pytest.fail(f"not a local address: {place}")


def undefined(injector: FaultInjector) -> None:
    """A doorbell that means nothing."""
    put = KernelBuilder._put

    def stored(kb: KernelBuilder, address: int, word: Any) -> None:
        if kb._plan is not None and address & 0xFF == 0xF8 and injector.here(kb, kb.symbol):
            word = 0xFE
        put(kb, address, word)

    injector.patch.setattr(KernelBuilder, "_put", stored)


def in_launch(name: str, *, fence: bool | None = None, **changed: Any) -> Faulty:
    """One command of the program around the kernels: other operands, or (no `changed`) left out. `fence`: only those of
    the fences of local memory, or none of them."""

    def fault(injector: FaultInjector) -> None:
        issue = launch.issue  # type: ignore[attr-defined]

        def issued(b: Any, target: Any, made: Any) -> None:
            fits = made.name == name and is_fused(b.function)
            if fits and fence is not None:
                fits = fence == (made.operand("flag") == launch.LOCAL_FENCE)  # type: ignore[attr-defined]
            if fits and injector.here(b.function, b.function.name):
                if not changed:
                    return
                operands = {o.name: made.operand(o.name) for o in made.spec.operands}
                engine = changed.get("engine", made.engine)
                others = {k: v for k, v in changed.items() if k != "engine"}
                made = launch.command(name, engine=engine, **{**operands, **others})  # type: ignore[attr-defined]
            issue(b, target, made)

        injector.patch.setattr(launch, "issue", issued)

    return fault


def is_fused(function: Any) -> bool:
    return bool(function.name.startswith("sk_fused"))


def bad_marker(injector: FaultInjector) -> None:
    mark = launch.Launch._mark

    def marked(line: Any, subop: int, phase: int) -> None:
        here = is_fused(line.function) and injector.here(line, line.function.name)
        mark(line, 1 << 32 if here else subop, phase)

    injector.patch.setattr(launch.Launch, "_mark", marked)
