"""The proofs behind the tables of `ablation.py`: combinations of the options, and plans with a step left out.

Model: a *combination* is a value for every option that decides how an accelerator's program synchronises, places and
prefetches (`tests/option_sets.py` lists them). Its program is compiled and simulated with race detection, and all
outputs and states must have the bits of the default's sub-operators launched one by one. Of its plan, every single step
of synchronisation is left out in turn, and the verifier must refuse what remains; in a plan of level `minimal` so is
every event as a whole, as if it had never been.

Combinations with the same schedule are done by one process, which keeps what they share. Each writes one line when it
is done; with a directory, also one line of JSON to a file per model and target. Lines of an earlier run of the same
sources are not done again.
"""

from __future__ import annotations

import functools
import hashlib
import json
import multiprocessing
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from option_sets import Row, Variants, ordered_rows, schedule_key

import superkernel
from superkernel import _core
from superkernel.backends.aicore.compiled import AicoreCompiled
from superkernel.sync.aicore.mutate import edits, without_event
from superkernel.sync.aicore.verify import check_aicore_plan
from superkernel.sync.verify_pairs import Accesses

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Asked:
    """Combinations of one schedule: their numbers and values. `bits`: compare results; `mutants`: plans with faults."""

    model: str
    target: str
    rows: tuple[tuple[int, Row], ...]
    bits: bool
    mutants: bool
    out: Path | None


@dataclass(frozen=True)
class Told:
    """What became of one combination. `same`: None where bits were not asked for. `accepted`: what the verifier took
    although something was missing; `mutants`: -1 where not asked for; 0 where done with
    another combination of equal plan."""

    sources: str
    model: str
    target: str
    number: int
    options: Row
    same: bool | None
    plan: str
    mutants: int
    accepted: tuple[str, ...]
    seconds: float

    def __str__(self) -> str:
        bits = {None: "", True: "same bits", False: "OTHER BITS"}[self.same]
        left_out = (
            f"{self.mutants} plans with something left out, {len(self.accepted)} accepted" if self.mutants > 0 else ""
        )
        values = " ".join(f"{name}={value}" for name, value in self.options.items())
        parts = [bits, left_out, f"{self.seconds:.1f} s", values, *self.accepted]
        return f"{self.model} on {self.target} {self.number}: " + "; ".join(part for part in parts if part)

    @property
    def wrong(self) -> bool:
        return self.same is False or bool(self.accepted)


def prove(
    models: Sequence[str], targets: Sequence[str], count: int, *, bits: bool, mutants: bool, jobs: int, out: Path | None
) -> int:
    """`count` combinations of each model on each target; returns how many are wrong."""
    wrong = 0
    with _pool(jobs) as pool:
        todo: list[Asked] = []
        known: list[Told] = []
        for model in models:
            for target in targets:
                before = _told(model, target, out)
                known += [
                    t for n, row in enumerate(ordered_rows(count)) for t in before if _answers(t, n, row, bits, mutants)
                ]
                done = {(t.model, t.target, t.number) for t in known}
                rows = [(n, row) for n, row in enumerate(ordered_rows(count)) if (model, target, n) not in done]
                todo += [Asked(model, target, part, bits, mutants, out) for part in _by_schedule(rows)]
        work = map(_work, todo) if pool is None else pool.map(_work, todo)
        found = [*known, *(told for group in work for told in group)]
    for model in models:
        for target in targets:
            mine = [t for t in found if (t.model, t.target) == (model, target)]
            wrong += sum(t.wrong for t in mine)
            print(_summary(model, target, mine, bits=bits, mutants=mutants), flush=True)
    return wrong


def _summary(model: str, target: str, mine: Sequence[Told], *, bits: bool, mutants: bool) -> str:
    parts = [f"{model} on {target}: {len(mine)} combinations of options"]
    if bits:
        parts.append(f"{sum(t.same is False for t in mine)} with other bits than one by one")
    if mutants:
        plans, tried = len({t.plan for t in mine}), sum(t.mutants for t in mine)
        accepted = sum(len(t.accepted) for t in mine)
        parts.append(f"{tried} ways to leave something out of {plans} plans, {accepted} not refused")
    return ", ".join(parts)


def _answers(told: Told, number: int, row: Row, bits: bool, mutants: bool) -> bool:
    """Whether an earlier line is what is asked for now."""
    asked = told.number == number and told.options == row
    return asked and (told.same is not None or not bits) and (told.mutants >= 0 or not mutants)


class _InProcess:
    """Stands for a pool where there is one process."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_: object) -> None:
        return None


def _pool(jobs: int) -> Any:
    if jobs == 1:
        return _InProcess()
    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))


def _by_schedule(rows: Iterable[tuple[int, Row]]) -> Iterator[tuple[tuple[int, Row], ...]]:
    groups: dict[tuple[Any, ...], list[tuple[int, Row]]] = {}
    for number, row in rows:
        groups.setdefault(schedule_key(row), []).append((number, row))
    yield from map(tuple, groups.values())


# In a process ---------------------------------------------------------------------------------------------------------


def _work(asked: Asked) -> list[Told]:
    """All combinations of one schedule, one line each as they come."""
    variants, expected = _model(asked.model, asked.target, asked.bits)
    found: list[Told] = []
    seen: set[str] = set()
    for number, row in asked.rows:
        begin = time.perf_counter()
        made = variants.made(row)
        same = variants.results(made) == expected if asked.bits else None
        plan = hashlib.sha256(str(made.plan).encode()).hexdigest()[:16]
        tried, accepted = -1, []
        if asked.mutants:
            tried, accepted = inject_faults(made) if plan not in seen else (0, [])
            seen.add(plan)
        seconds = time.perf_counter() - begin
        told = Told(
            _sources(), asked.model, asked.target, number, row, same, plan, tried, tuple(accepted), round(seconds, 1)
        )
        print(told, flush=True)
        if asked.out is not None:
            with _file(asked.model, asked.target, asked.out).open("a") as lines:
                lines.write(json.dumps(asdict(told)) + "\n")
        found.append(told)
    return found


@functools.lru_cache(maxsize=1)
def _model(name: str, target: str, run: bool) -> tuple[Variants, dict[str, bytes]]:
    """A model, and its results one by one."""
    from ablation_models import MODELS

    variants = Variants(MODELS[name](), target)
    return variants, variants.results(variants.made({}), single=True) if run else {}


def inject_faults(made: AicoreCompiled) -> tuple[int, list[str]]:
    """Leave each step of synchronisation out of a plan in turn: how many ways, and those that the verifier accepts."""
    plan, options = made.plan, made.options
    units = {s.index: t.units for s, t in zip(made.schedule.subops, made.schedule.tilings, strict=True)}
    accesses = Accesses(plan.tasks)
    wrong, certificate = check_aicore_plan(plan, units, accesses)
    assert certificate is not None, wrong
    ways = list(edits(plan))
    if options.sync_level == "minimal":  # the others keep events wider than bytes need: that is what they are for
        ways += [(f"{event}: all of it", without_event(plan, event.index)) for event in plan.events]
    return len(ways), [name for name, faulty in ways if check_aicore_plan(faulty, units, accesses)[1] is not None]


# Earlier runs ---------------------------------------------------------------------------------------------------------


def _file(model: str, target: str, out: Path) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    return out / f"combinations-{model}-{target}.jsonl"


def _told(model: str, target: str, out: Path | None) -> list[Told]:
    """What earlier runs of these sources have done."""
    if out is None or not (path := _file(model, target, out)).exists():
        return []
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    found = [Told(**{**row, "accepted": tuple(row["accepted"])}) for row in rows]
    return [told for told in found if told.sources == _sources()]


@functools.cache
def _sources() -> str:
    """A digest of everything that results may depend on."""
    home = Path(superkernel.__file__).resolve().parent
    folders = [home, *(entry.resolve() for entry in home.iterdir() if entry.is_symlink() and entry.is_dir())]
    files = [Path(_core.__file__)]
    files += [path for folder in folders for pattern in ("*.py", "*.toml") for path in folder.rglob(pattern)]
    files += [HERE / name for name in ("ablation_models.py", "combinations.py")]
    files += [HERE.parent / "tests" / name for name in ("option_sets.py",)]
    files += (HERE.parent / "tests").glob("models*.py")
    digest = hashlib.sha256()
    for path in sorted(set(files)):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
