"""Tests run on mutants of Python files, thousands of them: nothing is imported twice.

Model: one process collects the tests and imports the files that mutants change. For each file of tests a fork runs
each test once on the code as it is, but for a call ahead of each statement that some mutant changes, and so notes which
mutants the test comes by, and how long it takes. Then each mutant has a fork of its own, in which the code of the
changed functions is exchanged; it runs the tests that come by the change, those first that killed the most mutants per
second so far, until one fails that passes on the code as it is. A test that takes ten times as long as before and some
seconds more, in CPU time, fails; so does one that needs several GB more memory, and one that hangs: it takes hardly any
CPU time for minutes. How busy the machine is decides nothing.

Where mutants of many files are looked at, the first run has a few cases of each test, and some seconds of each file;
tests that fail on the code as it is are left out, and told.

What is changed outside of functions, or cannot be exchanged, is run by a fork that imports and collects anew, with the
changed file in the place of the original, tests that call some function of the file first. So is a mutant that stayed
alive and that collection came by: what was computed then may hide it.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import gc
import importlib
import importlib.abc
import importlib.machinery
import os
import pickle
import resource
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Protocol

import pytest
from _pytest.runner import runtestprotocol

SLACK_S = 5  # CPU time beyond ten times what a test took before
HANG_S = 180  # of wall time, in which the processes of a mutant take less than a hundredth of CPU time
MEMORY_BYTES_MAX = 6 << 30  # beyond what the process has


_MARK = "__mutants_come_by__"
_KNOWN, _FAILED, _LEFT_OUT = -1, -2, -3  # in the place of a mutant's number: what is known of tests; errors


class Mutant(Protocol):
    """A changed file, a module of that name: `tree()` is its code. The change lies in the statement of the original
    that begins in `line`."""

    line: int

    @property
    def path(self) -> Path: ...

    @property
    def module(self) -> str: ...

    def tree(self) -> Any: ...


@dataclass(frozen=True)
class Result:
    """`killed_by`: the test that failed; empty: none of `tests` did. `ran`: whether an exchange of code was all that
    it takes to see the change."""

    killed_by: str
    tests: int
    seconds: float
    ran: bool = True


@dataclass(frozen=True)
class Few:
    """So many cases of each test, and no more of a file than take so many seconds; further cases of a file as long as
    it has taken less than `quick_s`. `whole`: files of which all cases are run, since each looks at something else,
    also where those of others take all the time that a mutant has."""

    cases: int
    file_s: float
    whole: tuple[str, ...] = ()
    quick_s: float = 0.0


@dataclass
class _Baseline:
    """What is known of a test."""

    seconds: float
    passed: bool
    mutants: set[int]  # by number, that it comes by
    kills: int = 0
    runs: int = 0

    @property
    def promise(self) -> float:
        """Mutants that it may kill per second."""
        return (self.kills + 1) / (self.runs + 2) / (self.seconds + 0.002)


def run(
    root: Path, tests: Mapping[Any, Sequence[str]], *, budget_s: float, few: Few | None = None, jobs: int = 1
) -> Iterator[tuple[Any, Result]]:
    """Run each mutant's tests (paths of files below `root`), `budget_s` seconds of CPU time long, `jobs` mutants at a
    time, and tell how it went. Raises RuntimeError where tests cannot be collected, or one fails on the code as it is
    and not `few` of all are wanted."""
    paths = list(dict.fromkeys(test for mine in tests.values() for test in mine))
    sys.setswitchinterval(0.005)
    with tempfile.TemporaryDirectory() as folder:
        work = _Work(root, Path(folder), tests, paths, budget_s, few, jobs)
        child, results = forked(work.collect_and_run)
        told = 0
        with results:
            while True:
                try:
                    number, result = pickle.load(results)
                except EOFError:
                    break
                if isinstance(result, Exception):
                    raise result
                if number == _KNOWN:
                    work.known |= result
                    continue
                if number == _LEFT_OUT:
                    print(f"left out: {result}", flush=True)
                    continue
                told += 1
                mutant = work.mutants[number]
                if not result.killed_by and not result.ran:
                    result = work.run_anew(number, result)
                yield mutant, result
        os.waitpid(child, 0)
        if told < len(work.mutants):
            raise RuntimeError("the process that runs the tests has died")


_forking = threading.Lock()


def forked(body: Callable[[Callable[[object], None]], None]) -> tuple[int, Any]:
    """Run in a fork. It is given what sends objects to the file that is returned; the fork ends with its body."""
    with _forking:  # else a fork of another thread would keep the end that is written open
        reading, writing = os.pipe()
        child = os.fork()
        if child:
            os.close(writing)
            return child, os.fdopen(reading, "rb")
    status = 1
    try:
        os.close(reading)
        with os.fdopen(writing, "wb") as out:

            def send(thing: object) -> None:
                pickle.dump(thing, out)
                out.flush()

            try:
                body(send)
                status = 0
            except BaseException as error:
                with contextlib.suppress(Exception):
                    send((_FAILED, RuntimeError(f"{type(error).__name__}: {error}")))
    finally:
        os._exit(status)
    raise AssertionError


@dataclass
class _Work:
    root: Path
    folder: Path
    tests: Mapping[Any, Sequence[str]]
    paths: Sequence[str]
    budget_s: float
    few: Few | None
    jobs: int
    mutants: list[Any] = field(init=False)
    known: dict[str, _Baseline] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.mutants = list(self.tests)

    def collect_and_run(self, send: Callable[[object], None]) -> None:
        """In a fork: all mutants."""
        early: set[int] = set()
        setattr(builtins, _MARK, lambda *numbers: early.update(numbers))
        marked = _marked(self.mutants)
        sys.meta_path.insert(0, _Changed({os.path.realpath(path): new for path, (_, new) in marked.items()}))

        def run(items: Sequence[pytest.Item]) -> None:
            for module in dict.fromkeys(mutant.module for mutant in self.mutants):
                importlib.import_module(module)
            self._run_all(items, marked, early, send)

        self._pytest(self.paths, run)

    def _pytest(self, paths: Sequence[str], loop: Callable[[Sequence[pytest.Item]], None]) -> None:
        """Collect, and give the tests to `loop`."""
        os.chdir(self.root)
        os.environ["SK_TEST_SEED"] = "0"
        ran: list[Exception | None] = []

        class Loop:
            @pytest.hookimpl(tryfirst=True)
            def pytest_runtestloop(self, session: pytest.Session) -> bool:
                try:
                    if session.testsfailed:
                        raise RuntimeError("tests cannot be collected")
                    loop(session.items)
                    ran.append(None)
                except Exception as error:
                    ran.append(error)
                return True

        options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-o", "timeout=0", "-m", "not serial", "--tb=line"]
        options += [f"--rootdir={self.root}"]
        with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing), contextlib.redirect_stderr(nothing):
            status = pytest.main([*options, *paths], plugins=[Loop()])
        if not ran:
            raise RuntimeError(f"tests cannot be collected: pytest gives {status} for {' '.join(paths)}")
        if ran[0] is not None:
            raise ran[0]

    def _run_all(
        self,
        items: Sequence[pytest.Item],
        codes: Mapping[Path, tuple[CodeType, CodeType]],
        early: set[int],
        send: Callable[[object], None],
    ) -> None:
        """`codes`: of each file, its code as it is, and with the marks that were imported; `early`: the mutants that
        collection came by."""
        functions = _functions({os.path.realpath(path) for path in codes})
        marked, everywhere = _unmark(self.mutants, codes, functions)
        exchanged = [_exchanged(mutant, functions) for mutant in self.mutants]
        left = {n: Result("", 0, 0, ran=code is not None and n not in early) for n, code in enumerate(exchanged)}
        of_file: dict[str, list[pytest.Item]] = {}
        for item in items:
            of_file.setdefault(_file(item), []).append(item)
        first = partial(self._run_first, marked=marked, everywhere=everywhere, send=send)

        def last(number: int) -> Result:
            code = exchanged[number]
            mine = [i for i in items if i.nodeid in self.known and number in self.known[i.nodeid].mutants]
            mine = [item for item in mine if _file(item) in self.tests[self.mutants[number]]]
            return left[number] if code is None else replace(self._run(mine, code), ran=left[number].ran)

        with ThreadPoolExecutor(self.jobs) as pool:
            for _ in pool.map(first, of_file.values()):
                pass
            send((_KNOWN, self.known))
            running = {pool.submit(last, number): number for number in left}
            for done in as_completed(running):
                send((running[done], done.result()))

    def _run_first(
        self,
        items: Sequence[pytest.Item],
        marked: Mapping[FunctionType, CodeType],
        everywhere: set[int],
        send: Callable[[object], None],
    ) -> None:
        """Run the tests of a file in a fork, on the code as it is."""
        limits_s = [float("inf")] * len(items)
        if self.few is not None and _file(items[0]) not in self.few.whole:
            items, first = _in_turns(items, self.few.cases)
            limits_s = [self.few.file_s if n < first else self.few.quick_s for n in range(len(items))]
        child, results = self._forked(partial(_run_once, items, limits_s, marked, everywhere))
        with results:
            while True:
                try:
                    name, baseline = pickle.load(results)
                except EOFError:
                    break
                if name == _FAILED or not baseline.passed:
                    wrong = baseline if name == _FAILED else RuntimeError(f"{name} fails without any mutant")
                    if self.few is None:
                        raise wrong
                    send((_LEFT_OUT, str(wrong)))
                    continue
                self.known[name] = baseline
        _, status = os.waitpid(child, 0)
        if status:
            died = RuntimeError(f"the process that runs {_file(items[0])} has died")
            if self.few is None:
                raise died
            send((_LEFT_OUT, str(died)))

    def _run(self, items: Sequence[pytest.Item], exchanged: Mapping[FunctionType, CodeType]) -> Result:
        """A mutant, in a fork. A test that fails must pass on the code as it is, in another fork: else it is left out
        from now on, and the mutant goes on with those behind it."""
        items, left_s = self._in_time(sorted(items, key=lambda item: -self.known[item.nodeid].promise))
        found = Result("", 0, 0)
        while True:
            items = [item for item in items if item.nodeid in self.known]
            result = self.outcome(partial(self._run_exchanged, items, exchanged, left_s))
            found = Result(result.killed_by, found.tests + result.tests, found.seconds + result.seconds)
            failed = next((item for item in items if item.nodeid == result.killed_by), None)
            if failed is None or not self.outcome(partial(self._run_exchanged, [failed], {}, left_s)).killed_by:
                return found
            passed, items = items[: items.index(failed)], items[items.index(failed) + 1 :]
            left_s -= sum(known.seconds for item in passed if (known := self.known.get(item.nodeid)))
            self.known.pop(failed.nodeid, None)

    def _in_time(self, items: Sequence[pytest.Item]) -> tuple[Sequence[pytest.Item], float]:
        """Those that the budget is enough for, and those of whole files, which have their time besides; with the time
        for all."""
        whole = self.few.whole if self.few is not None else ()
        chosen, others_s, left_s = [], 0.0, self.budget_s
        for item in items:
            seconds = self.known[item.nodeid].seconds
            if _file(item) in whole:
                left_s += seconds
            elif others_s > self.budget_s:
                continue
            else:
                others_s += seconds
            chosen.append(item)
        return chosen, left_s

    def _run_exchanged(
        self,
        items: Sequence[pytest.Item],
        exchanged: Mapping[FunctionType, CodeType],
        budget_s: float,
        send: Callable[[object], None],
    ) -> None:
        for function, code in exchanged.items():
            function.__code__ = code
        self.run_until_failure(items, budget_s, send)

    def _forked(self, body: Callable[[Callable[[object], None]], None]) -> tuple[int, Any]:
        """`forked`, with a folder of its own for what tests write. What threads write there as the fork ends goes with
        the whole."""

        def within(send: Callable[[object], None]) -> None:
            with tempfile.TemporaryDirectory(dir=self.folder, ignore_cleanup_errors=True) as folder:
                os.environ["PYTEST_DEBUG_TEMPROOT"] = folder
                body(send)

        return forked(within)

    def outcome(self, body: Callable[[Callable[[object], None]], None]) -> Result:
        """Of a fork that tells the name of each test ahead of it, then whether it passed."""
        start = time.monotonic()

        def in_group(send: Callable[[object], None]) -> None:
            os.setpgid(0, 0)
            body(send)

        child, told = self._forked(in_group)
        name, passed, count = "", True, 0
        with told, _watched(child):
            while True:
                try:
                    name, passed = pickle.load(told)
                except EOFError:
                    break
                if name == _FAILED:
                    name, passed = "(collection)", False
                    break
                if passed is None:
                    count += 1
                    if name in self.known:
                        self.known[name].runs += 1
        os.waitpid(child, 0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)  # what it started
        killed = passed is not True
        if name in self.known:
            self.known[name].kills += killed
        return Result(name if killed else "", count, time.monotonic() - start)

    def run_until_failure(self, items: Sequence[pytest.Item], budget_s: float, send: Callable[[object], None]) -> None:
        """In a fork: up to the first test that fails, within the limits of time and memory."""
        spent = time.process_time()
        with open("/proc/self/statm") as statm:
            memory = int(statm.read().split()[0]) * resource.getpagesize() + MEMORY_BYTES_MAX
        with contextlib.suppress(ValueError):
            resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        for item, following in _pairs(items):
            if time.process_time() - spent > budget_s:
                break
            known = self.known.get(item.nodeid)
            limit = time.process_time() + SLACK_S + (10 * known.seconds if known else budget_s)
            resource.setrlimit(resource.RLIMIT_CPU, (int(limit) + 1, hard))
            send((item.nodeid, None))
            passed = _passes(item, following)
            send((item.nodeid, passed))
            if not passed:
                break

    def run_anew(self, number: int, before: Result) -> Result:
        """A mutant in a process that imports the changed file."""
        mutant = self.mutants[number]
        path = os.path.realpath(mutant.path)
        order = {
            name: (number not in known.mutants, -known.promise)
            for name, known in self.known.items()
            if name.split("::")[0] in self.tests[mutant]
        }

        def body(wanted: Collection[str], code: CodeType | None, send: Callable[[object], None]) -> None:
            def loop(items: Sequence[pytest.Item]) -> None:
                mine = [item for item in items if item.nodeid in wanted]
                self.run_until_failure(sorted(mine, key=lambda item: order[item.nodeid]), self.budget_s, send)

            if code is not None:
                sys.meta_path.insert(0, _Changed({path: code}))
            self._pytest(sorted({name.split("::")[0] for name in wanted}), loop)

        code = compile(mutant.tree(), str(mutant.path), "exec", dont_inherit=True)
        wanted = sorted(order, key=order.__getitem__)
        while wanted:
            result = self.outcome(partial(body, {*wanted}, code))
            name = result.killed_by
            if name not in order or not self.outcome(partial(body, {name}, None)).killed_by:
                return result
            del wanted[: wanted.index(name) + 1]  # those ahead have passed
        return before


@contextlib.contextmanager
def _watched(group: int) -> Iterator[None]:
    """Kill a process group that hangs."""
    over = threading.Event()

    def watch() -> None:
        before = -1.0
        while not over.wait(HANG_S):
            now = _cpu_s(group)
            if now - before < HANG_S / 100:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGKILL)
            before = now

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()


def _cpu_s(group: int) -> float:
    """CPU time of the processes of a group, and of those that ended and that they waited for."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            of_group, times = (fields := stat.read_text().rpartition(")")[2].split())[2], fields[11:15]
            ticks += sum(map(int, times)) * (int(of_group) == group)
    return ticks / os.sysconf("SC_CLK_TCK")


def _pairs(items: Sequence[pytest.Item]) -> Iterator[tuple[pytest.Item, pytest.Item | None]]:
    """Each with the one behind it."""
    return zip(items, chain(items[1:], [None]), strict=False)


def _passes(item: pytest.Item, following: pytest.Item | None) -> bool:
    return not any(report.failed for report in runtestprotocol(item, log=False, nextitem=following))


def _file(item: pytest.Item) -> str:
    return item.nodeid.split("::")[0]


def _function(item: pytest.Item) -> str:
    return item.nodeid.split("[")[0]


def _in_turns(items: Sequence[pytest.Item], cases: int) -> tuple[list[pytest.Item], int]:
    """The first test of each function, then the second ones, and so on; the number of those in so many turns."""
    count: Counter[str] = Counter()
    turns = []
    for item in items:
        turns.append(count[_function(item)])
        count[_function(item)] += 1
    in_turns = [items[n] for n in sorted(range(len(items)), key=turns.__getitem__)]
    return in_turns, sum(turn < cases for turn in turns)


def _run_once(
    items: Sequence[pytest.Item],
    limits_s: Sequence[float],
    marked: Mapping[FunctionType, CodeType],
    everywhere: set[int],
    send: Callable[[object], None],
) -> None:
    """In a fork: each test on the code as it is, but for marks, until those ahead have taken longer than its limit;
    marks of `everywhere` count as come by."""
    seen: set[int] = set()
    setattr(builtins, _MARK, lambda *numbers: seen.update(numbers))
    for function, code in marked.items():
        function.__code__ = code
    begin = sum(os.times()[:4])  # that of processes that it started and waited for too
    for (item, following), limit_s in zip(_pairs(items), limits_s, strict=True):
        if sum(os.times()[:4]) - begin > limit_s:
            break
        seen.clear()
        start = time.process_time()
        passed = _passes(item, following)
        send((item.nodeid, _Baseline(time.process_time() - start, passed, seen | everywhere)))


# Exchange of code -----------------------------------------------------------------------------------------------------


def _functions(files: set[str]) -> dict[tuple[str, str, int], list[FunctionType]]:
    """The functions of files, by file, name and first line."""
    found: dict[tuple[str, str, int], list[FunctionType]] = {}
    gc.unfreeze()  # the tests' conftest has frozen what was collected, and what is frozen is not among the objects
    functions = [one for one in gc.get_objects() if type(one) is FunctionType]
    gc.freeze()
    real = {name: os.path.realpath(name) for name in {one.__code__.co_filename for one in functions}}
    for function in functions:
        code = function.__code__
        path = real[code.co_filename]
        if path in files:
            found.setdefault((path, code.co_qualname, code.co_firstlineno), []).append(function)
    return found


def _marked(mutants: Sequence[Mutant]) -> dict[Path, tuple[CodeType, CodeType]]:
    """The code of each file as it is, and with calls of `_MARK` with a mutant's number ahead of the statement that it
    changes and of definitions that this stands in, or in all functions of the file where it stands outside of them."""
    found = {}
    of_file: dict[Path, dict[int, list[int]]] = {}
    for number, mutant in enumerate(mutants):
        of_file.setdefault(mutant.path, {}).setdefault(mutant.line, []).append(number)
    for path, numbers in of_file.items():
        source = path.read_text()
        outside = numbers.keys() - _lines_inside(ast.parse(source))
        marks = _Marks(numbers, [number for line in outside for number in numbers[line]])
        plain, marked = ast.parse(source), marks.visit(ast.parse(source))
        found[path] = (
            compile(plain, str(path), "exec", dont_inherit=True),
            compile(marked, str(path), "exec", dont_inherit=True),
        )
    return found


def _unmark(
    mutants: Sequence[Mutant],
    codes: Mapping[Path, tuple[CodeType, CodeType]],
    functions: Mapping[tuple[str, str, int], Sequence[FunctionType]],
) -> tuple[dict[FunctionType, CodeType], set[int]]:
    """Give functions their code as it is: those that had marks, with that code; the numbers of mutants of files not
    all of whose functions are there."""
    found: dict[FunctionType, CodeType] = {}
    unmarked: set[int] = set()
    for path, (plain, marked) in codes.items():
        real = os.path.realpath(path)
        pairs = _changed_functions(marked, plain)
        if _of_pairs(real, pairs, functions) is None:
            unmarked.update(number for number, mutant in enumerate(mutants) if mutant.path == path)
        for pair in pairs:
            for function, code in (_of_pairs(real, [pair], functions) or {}).items():
                found[function] = function.__code__
                function.__code__ = code
    return found, unmarked


def _lines_inside(tree: ast.Module) -> set[int]:
    """Where statements of functions begin."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    inside = (one for function in functions for statement in function.body for one in ast.walk(statement))
    return {node.lineno for node in inside if isinstance(node, ast.stmt)}


class _Marks(ast.NodeTransformer):
    """Sets them in functions; what stands outside is run when nobody looks. `outside`: the numbers for all of them."""

    def __init__(self, numbers: Mapping[int, Sequence[int]], outside: Sequence[int]) -> None:
        self.numbers, self.outside, self.inside = numbers, outside, False

    def visit(self, node: ast.AST) -> Any:
        before = self.inside
        within = ast.walk(node) if isinstance(node, ast.FunctionDef) else [node]
        lines = {one.lineno for one in within if isinstance(one, ast.stmt)} if before else set()
        mine = [number for line in sorted(lines) for number in self.numbers.get(line, ())]
        self.inside = before or isinstance(node, ast.FunctionDef)
        made = self.generic_visit(node)
        self.inside = before
        if isinstance(node, ast.FunctionDef) and not before and self.outside:
            first = ast.get_docstring(node) is not None
            node.body.insert(first, _mark(self.outside, node))
        if not mine:
            return made
        assert isinstance(node, ast.stmt)
        return [_mark(mine, node), made]


def _mark(numbers: Sequence[int], at: ast.stmt) -> ast.stmt:
    (call,) = ast.parse(f"{_MARK}({', '.join(map(str, numbers))})").body
    for one in ast.walk(call):
        ast.copy_location(one, at)
    return call


def _exchanged(
    mutant: Mutant, functions: Mapping[tuple[str, str, int], Sequence[FunctionType]]
) -> dict[FunctionType, CodeType] | None:
    """The functions whose code is another in the mutant, with that code; None where that is not all."""
    path = os.path.realpath(mutant.path)
    codes = []
    for source in (mutant.path.read_text(), mutant.tree()):
        try:
            codes.append(compile(source, str(mutant.path), "exec", dont_inherit=True))
        except (SyntaxError, ValueError):
            return None
    return _of_pairs(path, _changed_functions(*codes), functions)


def _of_pairs(
    path: str,
    pairs: Sequence[tuple[CodeType, CodeType]],
    functions: Mapping[tuple[str, str, int], Sequence[FunctionType]],
) -> dict[FunctionType, CodeType] | None:
    """The functions that have the first code of some pair, with the second; None where they are not all there."""
    if not pairs:
        return None
    found: dict[FunctionType, CodeType] = {}
    for old, new in pairs:
        mine = [f for f in functions.get((path, old.co_qualname, old.co_firstlineno), ()) if f.__code__ == old]
        if not mine or old.co_freevars != new.co_freevars:
            return None
        found.update(dict.fromkeys(mine, new))
    return found


def _changed_functions(old: CodeType, new: CodeType) -> list[tuple[CodeType, CodeType]]:
    """Of a module or class: its functions that differ; none where something else does."""
    left = [c for c in old.co_consts if isinstance(c, CodeType)]
    right = [c for c in new.co_consts if isinstance(c, CodeType)]
    others = [[c for c in code.co_consts if not isinstance(c, CodeType)] for code in (old, new)]
    same = (old.co_code, old.co_names, others[0]) == (new.co_code, new.co_names, others[1])
    if not same or [type(c) for c in others[0]] != [type(c) for c in others[1]] or len(left) != len(right):
        return []
    pairs = []
    for a, b in zip(left, right, strict=True):
        if a != b:
            is_function = a.co_flags & 2  # it has local variables of its own
            inside = [(a, b)] if is_function else _changed_functions(a, b)
            if not inside:
                return []
            pairs += inside
    return pairs


class _Changed(importlib.abc.MetaPathFinder):
    """Finds the modules of files, with other code."""

    def __init__(self, codes: Mapping[str, CodeType]) -> None:
        self.codes = codes

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        code = self.codes.get(os.path.realpath(spec.origin)) if spec is not None and spec.origin else None
        if spec is None or spec.origin is None or code is None:
            return None

        spec.loader = _Loader(name, spec.origin, code)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, code: CodeType) -> None:
        super().__init__(name, path)
        self.code = code

    def get_code(self, fullname: str) -> CodeType:
        return self.code
