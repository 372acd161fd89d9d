"""Are the checkers checked? Mutants of their own code, and whether the tests beside them notice.

    python bench/mutants.py [--sample N] [--seed N] [--only PATTERN] [--list]

A mutant is one checker with one change: a comparison, a sum or a product, `and` for `or`, a constant, a condition that
is dropped or turned round, a statement left out. The tests named beside the checker run on a copy of the tree; a mutant
that they pass is *alive*, and printed: either a test is missing, or the change is one that nobody can see (a shortcut
that is not taken, say). Runs of one seed draw the same mutants.
"""

from __future__ import annotations

import argparse
import ast
import copy
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HOST = ("tests/ut/test_verify.py", "tests/ut/test_verify_pairs.py", "tests/ut/test_sync_planner.py")
AICORE = ("tests/ut/test_aicore_explore.py", "tests/ut/test_aicore_sync.py")
CHECKERS: dict[str, tuple[str, ...]] = {
    "sync/verify.py": HOST,
    "sync/verify_tasks.py": (*HOST, *AICORE),
    "sync/verify_pairs.py": (*HOST, *AICORE),
    "sync/hazards.py": HOST,
    "sync/aicore/verify.py": AICORE,
    "sync/aicore/verify_form.py": AICORE,
    "sync/aicore/verify_replay.py": AICORE,
    "sync/aicore/verify_order.py": AICORE,
    "sync/aicore/verify_service.py": AICORE,
    "sync/aicore/verify_copies.py": AICORE,
    "sync/explore.py": ("tests/ut/test_sync_explore.py",),
    "sync/aicore/explore.py": ("tests/ut/test_aicore_explore.py",),
}
TEST_SECONDS = 120

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
    """A changed checker: `line` of the original, `what` became of it."""

    file: str
    number: int
    line: str
    what: str
    source: str

    def __str__(self) -> str:
        return f"{self.file}:{self.number}: {self.what}    | {self.line}"


def mutants(file: str) -> Iterator[Mutant]:
    """All mutants of one file. Texts, annotations and what is raised as a message stay as they are."""
    source = (ROOT / file).read_text()
    tree = ast.parse(source)
    lines = source.splitlines()
    for index, node in enumerate(ast.walk(tree)):
        for what, changed in _changes(node):
            other = copy.deepcopy(tree)
            _replace(other, index, changed)
            number = node.lineno  # type: ignore[attr-defined]
            yield Mutant(file, number, lines[number - 1].strip(), what, ast.unparse(ast.fix_missing_locations(other)))


def _changes(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    """The node changed in each way."""

    def told(new: ast.AST) -> tuple[str, ast.AST]:
        return f"{ast.unparse(node)} -> {ast.unparse(ast.fix_missing_locations(new))}", new

    if isinstance(node, ast.Compare):
        for n, op in enumerate(node.ops):
            for other in COMPARISONS[type(op)]:
                yield told(ast.Compare(node.left, [*node.ops[:n], other(), *node.ops[n + 1 :]], node.comparators))
    elif isinstance(node, ast.BoolOp):
        yield told(ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values))
        for n in range(len(node.values)):
            left = [*node.values[:n], *node.values[n + 1 :]]
            yield told(left[0] if len(left) == 1 else ast.BoolOp(node.op, left))
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS and not _is_type(node):
        yield told(ast.BinOp(node.left, OPERATORS[type(node.op)](), node.right))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.Invert)):
        yield told(node.operand)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int):
        yield told(ast.Constant(not node.value if isinstance(node.value, bool) else node.value + 1))
    elif isinstance(node, ast.If):
        yield f"if {ast.unparse(node.test)} -> if True", ast.If(ast.Constant(True), node.body, node.orelse)
        yield f"if {ast.unparse(node.test)} -> if False", ast.If(ast.Constant(False), node.body, node.orelse)
    elif isinstance(node, (ast.AugAssign, ast.Continue)) or (
        isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant)
    ):
        yield f"{ast.unparse(node).splitlines()[0]} -> pass", ast.Pass()


def _is_type(node: ast.BinOp) -> bool:
    """`A | B`: a union of types, or of sets that nobody orders."""
    return isinstance(node.op, ast.BitOr) and all(
        isinstance(side, (ast.Name, ast.Constant, ast.Subscript)) for side in (node.left, node.right)
    )


def _replace(tree: ast.AST, index: int, new: ast.AST) -> None:
    """Put a node in the place of the one that comes `index`-th in a walk."""
    old = next(node for n, node in enumerate(ast.walk(tree)) if n == index)
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, name, new)
                return
            if isinstance(value, list) and any(item is old for item in value):
                value[[item is old for item in value].index(True)] = new
                return


def survives(mutant: Mutant, tree: Path) -> bool:
    """Whether all tests beside the checker pass."""
    path = tree / mutant.file
    original = path.read_text()
    path.write_text(mutant.source)
    options = ("-x", "-q", "-p", "no:cacheprovider", "-m", "not serial")
    command = [sys.executable, "-m", "pytest", *options, *CHECKERS[mutant.file]]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1", "SK_TEST_SEED": "0"}
    try:
        done = subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, timeout=TEST_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return False
    finally:
        path.write_text(original)
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, default=40, help="mutants drawn, over all checkers; 0: all")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 31))
    parser.add_argument("--only", default="", help="checkers whose path has this in it")
    parser.add_argument("--list", action="store_true", help="print the mutants and run none")
    arguments = parser.parse_args()
    made = [mutant for file in CHECKERS if arguments.only in file for mutant in mutants(file)]
    number = min(arguments.sample or len(made), len(made))
    drawn = random.Random(arguments.seed).sample(made, number)
    print(f"{len(made)} mutants, {len(drawn)} drawn (--seed {arguments.seed})")
    if arguments.list:
        print("\n".join(map(str, drawn)))
        return 0
    alive = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        shutil.copytree(ROOT, tree, symlinks=True, ignore=shutil.ignore_patterns(".*", "build", "__pycache__"))
        for mutant in drawn:
            if survives(mutant, tree):
                alive += 1
                print(f"alive: {mutant}", flush=True)
    print(f"{len(drawn) - alive} of {len(drawn)} killed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
