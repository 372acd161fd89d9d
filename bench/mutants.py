"""Are the checkers checked? Mutants of their own code, and whether the tests beside them notice.

    python bench/mutants.py [--sample N] [--seed N] [--only PATTERN] [--rest] [--quick] [--list]
                            [--budget SECONDS] [--jobs N] [--json FILE]

A mutant is one checker with one change: a comparison, a sum or a product, `and` for `or`, a constant, a condition that
is dropped or turned round, a statement left out. The tests named beside the checker run on it, up to two minutes of
CPU time; a mutant that they pass is *alive*. Those that no test can see stand in `mutants_equivalent.toml` with the
reason. Any other one that is alive, and any entry that fits no mutant or one that tests kill, is an error: the exit
status is 1. Without `--sample` all mutants run, those of the list included; a sample leaves them out.

Files go `--jobs` at a time. `--json` is written as results come; what it has of the same file, tests and mutants is
not run again.

`--rest` draws from the rest of scheduler/ and codegen/ instead, and only the score counts: below `REST_SCORE` the exit
status is 1. There, the tests nearest to a mutant are those that come by the change, the cheapest first, for
`REST_SECONDS` of CPU time: of all tests `FEW.cases` cases, of each file of tests no more than take `FEW.file_s`
seconds, and more cases where these take less than `FEW.quick_s`; but all of `FEW.whole`: code and plans, as they were
last looked at. Runs of one seed draw the same mutants as long as there are the same.
"""

from __future__ import annotations

import argparse
import ast
import copy
import hashlib
import json
import multiprocessing
import random
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import takewhile
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import mutant_runs

ROOT = Path(__file__).resolve().parents[1]
EQUIVALENT = Path(__file__).with_name("mutants_equivalent.toml")
HOST = ("test_verify", "test_verify_pairs")
CHECKERS: dict[str, tuple[str, ...]] = {
    "sync/verify.py": HOST,
    "sync/verify_tasks.py": ("test_verify_tasks",),
    "sync/verify_pairs.py": HOST,
    "sync/verify_program.py": ("test_verify_program",),
    "sync/hazards.py": ("test_hazards", "test_sync_planner"),
    "sync/aicore/verify.py": ("test_aicore_verify",),
    "sync/aicore/verify_form.py": ("test_aicore_verify_form",),
    "sync/aicore/verify_replay.py": ("test_aicore_verify_replay", "test_aicore_verify_order"),
    "sync/aicore/verify_order.py": ("test_aicore_verify_order",),
    "sync/aicore/verify_service.py": ("test_aicore_verify_service",),
    "sync/aicore/verify_copies.py": ("test_aicore_verify_copies",),
    "sync/aicore/verify_seen.py": ("test_aicore_verify_program",),
    "sync/aicore/verify_inside.py": ("test_aicore_verify_inside",),
    "sync/aicore/verify_fences.py": ("test_aicore_verify_fences",),
    "sync/aicore/verify_program.py": (
        "test_aicore_verify_program",
        "test_aicore_verify_inside",
        "test_aicore_verify_fences",
    ),
    "sync/explore.py": ("test_sync_explore",),
    "sync/aicore/explore.py": ("test_aicore_explore",),
    "scheduler/memory_check.py": ("test_memory_check",),
    "superkernel/padding/proof.py": ("test_padding", "test_counted", "test_found_sizes"),
    "superkernel/padding/finding.py": ("test_padding_rules",),
    "superkernel/padding/counted.py": ("test_counted", "test_found_sizes"),
}
"""The tests beside each checker, in tests/ut."""
REST_SCORE = 0.85
SECONDS, REST_SECONDS = 120, 60  # CPU time of the tests of one mutant
FEW = mutant_runs.Few(cases=2, file_s=20, whole=("tests/ut/test_plans.py",), quick_s=3)

COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}


@dataclass(frozen=True)
class Mutant:
    """A file with one change. `was` and `now`: the first line of `function` that differs, as Python prints it; the
    `nth` of those that look the same. `node`, `change`: the place of the changed node in a walk over the file, and
    which of its changes."""

    root: Path
    file: str
    function: str
    was: str
    now: str
    nth: int
    line: int  # of the statement
    node: int
    change: int

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        """What tells it from the others of all files, without regard to where in the file it is."""
        return self.file, self.function, self.was, self.now, self.nth

    @property
    def path(self) -> Path:
        """Of the changed file."""
        return self.root / self.file

    @property
    def module(self) -> str:
        """Its name where it is imported."""
        name = self.file.removesuffix(".py").replace("/", ".")
        is_outside = (self.root / "superkernel").is_dir() and not name.startswith("superkernel.")
        return f"superkernel.{name}" if is_outside else name

    def tree(self) -> ast.Module:
        """The file's code with the change."""
        tree = ast.parse(self.path.read_text())
        nodes = list(ast.walk(tree))
        changed = list(_changes(nodes[self.node]))[self.change]
        _Places(tree).replace(nodes[self.node], changed)
        return tree

    def __str__(self) -> str:
        again = f" ({self.nth})" if self.nth > 1 else ""
        return f"{self.file}:{self.line} in {self.function}{again}\n    {self.was}\n    {self.now}"


def mutants(root: Path, file: str) -> list[Mutant]:
    """All mutants of one file. Texts, annotations, decorators and `strict=` of zip, which is an assertion, stay as they
    are."""
    tree = ast.parse((root / file).read_text())
    places = _Places(tree)
    seen: Counter[tuple[str, str, str]] = Counter()
    texts: dict[ast.stmt, list[str]] = {}
    made = []
    for index, node in enumerate(ast.walk(tree)):
        if places.is_declaration(node):
            continue
        for number, changed in enumerate(_changes(node)):
            statement, shown, function = places.around(node)
            if shown not in texts:
                texts[shown] = _text(shown)
            before = texts[shown]
            places.replace(node, changed)
            after = _text(shown if shown is not node else changed)
            places.replace(changed, node)
            different = (pair for pair in zip(before, after, strict=False) if pair[0] != pair[1])
            was, now = next(different, (before[-1], "(left out)"))
            seen[function, was, now] += 1
            key = (function, was, now)
            made.append(Mutant(root, file, *key, seen[key], statement.lineno, index, number))
    return made


def _text(node: ast.AST) -> list[str]:
    return [line.strip() for line in ast.unparse(node).splitlines()]


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    """The node changed in each way."""
    for changed in _changed(node):
        yield ast.fix_missing_locations(ast.copy_location(changed, node))


def _changed(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.Compare):
        for n, op in enumerate(node.ops):
            for other in COMPARISONS[type(op)]:
                yield ast.Compare(node.left, [*node.ops[:n], other(), *node.ops[n + 1 :]], node.comparators)
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        for n in range(len(node.values)):
            left = [*node.values[:n], *node.values[n + 1 :]]
            yield ast.BoolOp(node.op, left) if len(left) > 1 else copy.deepcopy(left[0])
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS and not _is_type(node):
        yield ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.Invert)):
        yield copy.deepcopy(node.operand)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield ast.Constant(not node.value if isinstance(node.value, bool) else node.value + 1)
    elif isinstance(node, ast.If):
        yield ast.If(ast.Constant(True), node.body, node.orelse)
        yield ast.If(ast.Constant(False), node.body, node.orelse)
    elif isinstance(node, (ast.AugAssign, ast.Continue)) or (
        isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant)
    ):
        yield ast.Pass()


def _is_type(node: ast.BinOp) -> bool:
    """`A | B`: a union of types, or of sets that nobody orders."""
    return isinstance(node.op, ast.BitOr) and all(
        isinstance(side, (ast.Name, ast.Constant, ast.Subscript)) for side in (node.left, node.right)
    )


class _Places:
    """Where the nodes of a tree stand."""

    def __init__(self, tree: ast.Module) -> None:
        self._of: dict[ast.AST, tuple[ast.AST, str, int | None]] = {}
        for parent in ast.walk(tree):
            for name, value in ast.iter_fields(parent):
                for n, item in enumerate(value) if isinstance(value, list) else ((None, value),):
                    if isinstance(item, ast.AST):
                        self._of[item] = (parent, name, n)

    def replace(self, old: ast.AST, new: ast.AST) -> None:
        """Put a node in the place of another."""
        parent, name, n = self._of[new] = self._of[old]
        if n is None:
            setattr(parent, name, new)
        else:
            getattr(parent, name)[n] = new

    def _above(self, node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
        """The node and what it stands in, each with the field's name."""
        while node in self._of:
            parent, name, _ = self._of[node]
            yield node, name
            node = parent

    def is_declaration(self, node: ast.AST) -> bool:
        """Whether it stands where nothing is computed."""
        return any(
            name in ("annotation", "returns", "decorator_list")
            or (isinstance(one, ast.keyword) and one.arg == "strict")
            or isinstance(one, (ast.Import, ast.ImportFrom))
            for one, name in self._above(node)
        )

    def around(self, node: ast.AST) -> tuple[ast.stmt, ast.stmt, str]:
        """The statement that it stands in, the one that is printed to show it, which has its own `elif`, and the name
        of the function."""
        above = list(self._above(node))
        statement = next(one for one, _ in above if isinstance(one, ast.stmt))
        named = [one for one, _ in above if isinstance(one, (ast.FunctionDef, ast.ClassDef))]
        return statement, self._whole_if(statement), ".".join(one.name for one in reversed(named)) or "(module)"

    def _whole_if(self, statement: ast.stmt) -> ast.stmt:
        parent, name, _ = self._of[statement]
        if not (isinstance(statement, ast.If) and isinstance(parent, ast.If) and name == "orelse"):
            return statement
        return self._whole_if(parent) if len(parent.orelse) == 1 else statement


def equivalent() -> dict[tuple[str, str, str, str, int], str]:
    """Mutants that no test can tell from the original, each with the reason."""
    entries = tomllib.loads(EQUIVALENT.read_text())["equivalent"]
    return {
        (entry["file"], entry["function"], was, now, *(nth or [1])): entry["reason"]
        for entry in entries
        for was, now, *nth in entry["changes"]
    }


def tests_of(root: Path, file: str) -> list[str]:
    """The tests beside a checker; of another file all there are: which of them come by a change is seen."""
    if file in CHECKERS:
        return [f"tests/ut/{name}.py" for name in CHECKERS[file]]
    return [path.relative_to(root).as_posix() for path in sorted((root / "tests").glob("[us]t/test_*.py"))]


def rest(root: Path) -> list[str]:
    """The files of scheduler/ and codegen/ that are no checkers."""
    paths = sorted([*(root / "scheduler").rglob("*.py"), *(root / "codegen").rglob("*.py")])
    return [file for path in paths if (file := path.relative_to(root).as_posix()) not in CHECKERS]


def _draw(made: Sequence[Mutant], number: int | None, seed: int) -> list[Mutant]:
    """By a hash of each: where the code changes a little, most of those drawn are the same."""
    if number is None:
        return list(made)
    return sorted(made, key=lambda mutant: hashlib.sha256(f"{seed} {mutant.key}".encode()).digest())[:number]


# Runs of many files ---------------------------------------------------------------------------------------------------


def _run(drawn: Sequence[Mutant], jobs: int, **limits: Any) -> Iterator[tuple[Mutant, mutant_runs.Result | str]]:
    """How it went with each mutant, as results come; of a file whose tests cannot be run, why. Each file has a process;
    where few of the tests are wanted, one process has all, so that tests run once. `limits`: as of
    `mutant_runs.run`."""
    of_file: dict[str, list[Mutant]] = {}
    for mutant in drawn:
        of_file.setdefault(mutant.file, []).append(mutant)
    waiting = list(of_file.values())
    if "few" in limits:
        waiting, limits = [list(drawn)], {**limits, "jobs": jobs}
    running: dict[Connection, tuple[Any, list[Mutant]]] = {}
    context = multiprocessing.get_context("fork")
    while waiting or running:
        while waiting and len(running) < jobs:
            mine = waiting.pop(0)
            reader, writer = context.Pipe(duplex=False)
            child = context.Process(target=_run_together, args=(mine, writer, limits), daemon=True)
            child.start()
            writer.close()
            running[reader] = child, list(mine)
        for ready in wait(list(running)):
            assert isinstance(ready, Connection)
            child, left = running[ready]
            try:
                key, found = ready.recv()
            except EOFError:
                child.join()
                del running[ready]
                yield from ((mutant, "the process that runs the tests has died") for mutant in left)
                continue
            told = left if isinstance(found, str) else [mutant for mutant in left if mutant.key == key]
            running[ready] = child, [mutant for mutant in left if mutant not in told]
            yield from ((mutant, found) for mutant in told)


def _run_together(mine: Sequence[Mutant], told: Connection, limits: Mapping[str, Any]) -> None:
    """In a process of its own: results by key."""
    try:
        for mutant, result in mutant_runs.run(ROOT, {m: tests_of(ROOT, m.file) for m in mine}, **limits):
            told.send((mutant.key, result))
    except RuntimeError as error:
        told.send((None, str(error)))


class _Kept:
    """Results in a JSON file, which is written anew with each of them. One counts as long as the file and its tests are
    as they were."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = json.loads(path.read_text()) if path and path.exists() else []

    @staticmethod
    @cache
    def _digest(file: str) -> str:
        paths = [ROOT / name for name in (file, *tests_of(ROOT, file))]
        return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]

    def _row(self, mutant: Mutant) -> dict[str, Any]:
        return {"mutant": list(mutant.key), "digest": self._digest(mutant.file)}

    def find(self, mutant: Mutant) -> mutant_runs.Result | None:
        """Of this mutant."""
        row = self._row(mutant)
        found = (each["result"] for each in self.rows if row == {name: each[name] for name in row})
        return next((mutant_runs.Result(**result) for result in found), None)

    def add(self, mutant: Mutant, result: mutant_runs.Result) -> None:
        """One more, instead of an older one."""
        row = self._row(mutant)
        self.rows = [each for each in self.rows if each["mutant"] != row["mutant"]]
        self.rows.append({**row, "line": mutant.line, "result": asdict(result)})
        if self.path:
            new = self.path.with_suffix(".new")
            new.write_text(json.dumps(self.rows, indent=1) + "\n")
            new.replace(self.path)


def report(
    results: Iterable[tuple[Mutant, mutant_runs.Result | str]],
    listed: set[tuple[str, str, str, str, int]],
    drawn: Sequence[Mutant] = (),
) -> int:
    """Print the score by file and what is wrong: the number of mutants that are alive and not listed, or listed and
    killed, or could not be run. `drawn`: all of them, for a line each, and the score of the first ones, of which all is
    known, where an interrupt ends the run."""
    total: Counter[str] = Counter()
    killed: Counter[str] = Counter()
    found: dict[tuple[str, str, str, str, int], bool] = {}
    wrong = missing = 0
    try:
        for number, (mutant, result) in enumerate(results, 1):
            if isinstance(result, str):
                wrong, missing = wrong + 1, missing + 1
                print(f"not run, {result}: {mutant}", flush=True)
                continue
            found[mutant.key] = bool(result.killed_by)
            if drawn:
                line = f"{number:5} of {len(drawn)} {result.seconds:5.0f} s {mutant.file}:{mutant.line}"
                print(line, result.killed_by or "alive", flush=True)
            if mutant.key in listed:
                if result.killed_by:
                    wrong += 1
                    print(f"listed as equivalent, but killed by {result.killed_by}: {mutant}", flush=True)
                continue
            total[mutant.file] += 1
            killed[mutant.file] += bool(result.killed_by)
            if not result.killed_by:
                wrong += 1
                print(f"alive after {result.tests} tests, {result.seconds:.0f} s: {mutant}", flush=True)
    except KeyboardInterrupt:
        first = list(takewhile(lambda mutant: mutant.key in found, drawn))
        wrong, missing = wrong + len(drawn) - len(found) - missing, len(drawn) - len(found)
        print(f"interrupted; of the first {len(first)} drawn {sum(found[m.key] for m in first)} are killed")
    for file in total:
        print(f"{killed[file]:5} of {total[file]:5} killed  {file}")
    score = killed.total() / max(1, total.total())
    rest = f"; {missing} were not run" * bool(missing) + f"; {len(listed)} are listed as equivalent"
    print(f"{killed.total()} of {total.total()} killed, {100 * score:.1f} %{rest}")
    return wrong


def _results(
    drawn: Sequence[Mutant], arguments: argparse.Namespace, limits: Mapping[str, Any]
) -> Iterator[tuple[Mutant, mutant_runs.Result | str]]:
    """Those that are kept, then those of what is run."""
    kept = _Kept(arguments.json)
    known = {mutant: kept.find(mutant) for mutant in drawn}
    yield from ((mutant, result) for mutant, result in known.items() if result is not None)
    for mutant, result in _run([m for m in drawn if known[m] is None], arguments.jobs, **limits):
        if not isinstance(result, str):
            kept.add(mutant, result)
        yield mutant, result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, help="mutants drawn, over all files (default: all; with --rest, 100)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    parser.add_argument("--only", default="", help="files whose path has this in it")
    parser.add_argument("--rest", action="store_true", help="the rest of scheduler/ and codegen/")
    parser.add_argument("--list", action="store_true", help="print the mutants and run none")
    parser.add_argument("--quick", action="store_true", help="no more than 10 s of tests per mutant")
    parser.add_argument("--budget", type=float, help=f"seconds per mutant (default {SECONDS}; --rest {REST_SECONDS})")
    parser.add_argument("--jobs", type=int, default=1, help="files whose mutants run at the same time")
    parser.add_argument("--json", type=Path, help="results, to be read as well")
    arguments = parser.parse_args()
    files = [file for file in (rest(ROOT) if arguments.rest else CHECKERS) if arguments.only in file]
    made = [mutant for file in files for mutant in mutants(ROOT, file)]
    listed = {key: why for key, why in equivalent().items() if key[0] in files}
    stale = set(listed) - {mutant.key for mutant in made}
    for key in sorted(stale):
        print(f"listed as equivalent, but there is no such mutant: {key}")
    number = arguments.sample or (100 if arguments.rest else None)
    drawn = _draw([m for m in made if number is None or m.key not in listed], number, arguments.seed)
    print(f"{len(made)} mutants, {len(drawn)} drawn" + (f" (--seed {arguments.seed})" if number else ""), flush=True)
    if arguments.list:
        print("\n".join(map(str, drawn)))
        return bool(stale)
    limits: dict[str, Any] = {"budget_s": REST_SECONDS, "few": FEW} if arguments.rest else {"budget_s": SECONDS}
    if arguments.quick:
        limits["budget_s"] = 10
    if arguments.budget:
        limits["budget_s"] = arguments.budget
    wrong = report(_results(drawn, arguments, limits), {m.key for m in drawn} & set(listed), drawn)
    if arguments.rest:
        return wrong > (1 - REST_SCORE) * len(drawn)
    return bool(wrong or stale)


if __name__ == "__main__":
    sys.exit(main())
