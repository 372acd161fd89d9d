"""Mutants of the checkers' own code: each differs from the checker in one place, and tests notice."""

from __future__ import annotations

import argparse
import ast
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mutant_runs
import mutants
import pytest

CHECKER = """\
LIMIT = 3


def count_up_to(limit):
    number = 0
    while number < limit:
        number += 1
    return number


def is_few(number):
    return number < LIMIT or number < 0
"""
SOME = mutant_runs.Few(cases=9, file_s=60)
TESTS = """\
import checker


def test_counting():
    assert checker.count_up_to(2) == 2


def test_few():
    assert checker.is_few(2)
    assert not checker.is_few(3)
"""

_CHILD = """\
import pickle, sys
sys.path.insert(0, sys.argv[2])
import mutant_runs
root, tests, settings, limits = pickle.load(sys.stdin.buffer)
for name, value in settings.items():
    setattr(mutant_runs, name, value)
found = list(mutant_runs.run(root, tests, **limits))
with open(sys.argv[1], "wb") as file:
    pickle.dump(found, file)
"""
Results = list[tuple[mutants.Mutant, mutant_runs.Result]]


def ran(
    root: Path, tests: dict[mutants.Mutant, list[str]], settings: dict[str, float] | None = None, **limits: Any
) -> Results:
    """`mutant_runs.run` with other `settings` of its module, in a process of its own: it forks for each mutant, and
    forks of a process that has thousands of tests are slow."""
    out, bench = root / "results", str(mutants.ROOT / "bench")
    asked = pickle.dumps((root, tests, settings or {}, limits))
    done = subprocess.run([sys.executable, "-c", _CHILD, str(out), bench], input=asked, capture_output=True)
    print(done.stdout.decode(), end="")
    if done.returncode:
        raise RuntimeError(done.stderr.decode().strip().splitlines()[-1])
    found: Results = pickle.loads(out.read_bytes())
    return found


def test_each_mutant_is_another_program_with_a_name_of_its_own() -> None:
    file = "sync/verify_tasks.py"
    original = ast.unparse(ast.parse((mutants.ROOT / file).read_text()))
    made = mutants.mutants(mutants.ROOT, file)
    assert len(made) > 50
    assert len({mutant.key for mutant in made}) == len(made)
    sources = [ast.unparse(mutant.tree()) for mutant in made]
    assert original not in sources
    assert len({*sources}) > 0.9 * len(sources)
    assert any(
        mutant.was == "if task.begin >= task.end:"
        and mutant.now == "if task.begin > task.end:"
        and mutant.function == "check_tasks"
        for mutant in made
    )


def test_what_is_drawn_is_the_same_where_other_mutants_come_and_go() -> None:
    made = mutants.mutants(mutants.ROOT, "sync/verify_tasks.py")
    drawn = mutants._draw(made, 20, 1)
    assert len({*drawn}) == 20
    assert drawn not in (made[:20], mutants._draw(made, 20, 2))
    assert mutants._draw([mutant for mutant in made if mutant is not drawn[3]], 19, 1) == drawn[:3] + drawn[4:]


def test_declarations_are_left_alone(tmp_path: Path) -> None:
    source = "import a.b\n@d(1 < 2)\ndef f(x: 1 < 2 = 3) -> 1 < 2:\n    zip(x, strict=True)\n"
    (tmp_path / "one.py").write_text(source)
    made = mutants.mutants(tmp_path, "one.py")
    assert {(m.was, m.now) for m in made} == {
        ("def f(x: 1 < 2=3) -> 1 < 2:", "def f(x: 1 < 2=4) -> 1 < 2:"),
        ("zip(x, strict=True)", "pass"),
    }


@pytest.mark.parametrize("file", mutants.CHECKERS)
def test_checkers_and_the_tests_beside_them_are_there(file: str) -> None:
    assert (mutants.ROOT / file).is_file()
    assert all((mutants.ROOT / test).is_file() for test in mutants.tests_of(mutants.ROOT, file))


def test_all_checkers_are_looked_at() -> None:
    paths = [*(mutants.ROOT / "sync").rglob("verify*.py"), *(mutants.ROOT / "sync").rglob("explore.py")]
    paths += (mutants.ROOT / "scheduler").rglob("*_check.py")
    paths += (mutants.ROOT / "superkernel" / "padding").glob("proof.py")
    assert {path.relative_to(mutants.ROOT).as_posix() for path in paths} <= set(mutants.CHECKERS)


def test_the_rest_is_all_that_is_no_checker_with_all_tests() -> None:
    rest = mutants.rest(mutants.ROOT)
    assert {"scheduler/memory.py", "codegen/host/pool.py"} <= {*rest}
    assert not {*rest} & {*mutants.CHECKERS}
    tests = {*mutants.tests_of(mutants.ROOT, "scheduler/memory.py")}
    assert {"tests/ut/test_memory.py", "tests/st/test_random_graphs.py"} <= tests


def test_equivalent_mutants_have_reasons_and_are_of_files_that_are_looked_at() -> None:
    entries = mutants.equivalent()
    assert all(reason for reason in entries.values())
    assert {key[0] for key in entries} <= {*mutants.CHECKERS, *mutants.rest(mutants.ROOT)}


@pytest.mark.parametrize("few", [None, SOME])
def test_a_mutant_that_tests_pass_is_alive_and_one_that_they_fail_is_not(
    few: mutant_runs.Few | None, tmp_path: Path
) -> None:
    (tmp_path / "checker.py").write_text(CHECKER)
    (tmp_path / "test_checker.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\nmarkers = serial\n")
    made = {(mutant.was, mutant.now): mutant for mutant in mutants.mutants(tmp_path, "checker.py")}
    is_few, counting = "test_checker.py::test_few", "test_checker.py::test_counting"
    right = "return number < LIMIT or number < 0"
    expected = {
        ("LIMIT = 3", "LIMIT = 4"): is_few,  # outside of functions
        ("while number < limit:", "while number <= limit:"): counting,
        ("number += 1", "pass"): counting,  # it would never end
        (right, "return number >= LIMIT or number < 0"): is_few,
        (right, "return number < LIMIT"): "",
        (right, "return number < LIMIT or number <= 0"): "",
    }
    drawn = {made[key]: ["test_checker.py"] for key in expected}
    results = ran(tmp_path, drawn, {"SLACK_S": 0}, budget_s=60, few=few)
    found = {(m.was, m.now): result.killed_by for m, result in results}
    assert found == expected
    assert (tmp_path / "checker.py").read_text() == CHECKER


def test_a_test_that_fails_without_a_mutant_later_on_kills_none(tmp_path: Path) -> None:
    """It passes once, whatever the code; inside of functions and outside."""
    (tmp_path / "checker.py").write_text(CHECKER)
    once = "import checker\nfrom pathlib import Path\n\n\ndef test_once(request):\n    checker.is_few(2)\n"
    once += f"    with open({str(tmp_path)!r} + '/met', 'a+') as met:\n        met.seek(0)\n"
    once += "        assert not met.read()\n        met.write('met')\n\n\n"
    (tmp_path / "test_checker.py").write_text(once + TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\nmarkers = serial\n")
    made = mutants.mutants(tmp_path, "checker.py")
    wanted = {"LIMIT = 4": "test_few", "return number >= LIMIT or number < 0": "test_few", "return number < LIMIT": ""}
    drawn = {m: ["test_checker.py"] for m in made if m.now in wanted}
    found = {m.now: r.killed_by.rpartition("::")[2] for m, r in ran(tmp_path, drawn, budget_s=60)}
    assert found == wanted


def test_functions_are_exchanged_in_what_was_collected_and_frozen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process of its own, which imports everything anew, is for mutants outside of functions alone."""
    (tmp_path / "checker.py").write_text(CHECKER)
    (tmp_path / "test_checker.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\nmarkers = serial\n")
    (tmp_path / "conftest.py").write_text("import gc\n\ndef pytest_collection_finish():\n    gc.freeze()\n")
    monkeypatch.setattr(mutant_runs, "SLACK_S", 0)
    anew = []

    def run_anew(work: mutant_runs._Work, number: int, before: mutant_runs.Result) -> mutant_runs.Result:
        anew.append((work.mutants[number].was, before))
        return before

    monkeypatch.setattr(mutant_runs._Work, "run_anew", run_anew)
    drawn = {mutant: ["test_checker.py"] for mutant in mutants.mutants(tmp_path, "checker.py")}
    found = list(mutant_runs.run(tmp_path, drawn, budget_s=60))
    assert anew == [("LIMIT = 3", mutant_runs.Result("", 0, 0, ran=False))]
    assert {m.function for m, result in found if result.killed_by} == {"count_up_to", "is_few"}


@pytest.mark.parametrize("few", [None, SOME])
def test_what_was_computed_when_tests_were_collected_is_computed_anew(
    few: mutant_runs.Few | None, tmp_path: Path
) -> None:
    """By a function or by what one defines; not so in functions that are called by tests alone."""
    late = "\n\ndef least(limit):\n    def fits(n):\n        return n >= limit\n    return fits\n\n\nMANY = least(3)\n"
    early = "FEW = [n for n in range(9) if is_few(n)]\n"
    (tmp_path / "checker.py").write_text(CHECKER + late + early)
    tests = "import checker\n\n\ndef test_both():\n    assert checker.FEW == [0, 1, 2]\n    assert checker.MANY(3)\n"
    (tmp_path / "test_checker.py").write_text(tests)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\nmarkers = serial\n")
    expected = {
        "return number <= LIMIT or number < 0": True,
        "return number < LIMIT": False,
        "return n > limit": True,
        "while number <= limit:": False,
    }
    drawn = {m: ["test_checker.py"] for m in mutants.mutants(tmp_path, "checker.py") if m.now in expected}
    found = ran(tmp_path, drawn, budget_s=60, few=few)
    assert {mutant.now: (bool(result.killed_by), result.ran) for mutant, result in found if result.killed_by} == {
        now: (True, True) for now, killed in expected.items() if killed
    }
    assert len(drawn) == len(expected)


def test_a_test_that_waits_for_ever_is_ended(tmp_path: Path) -> None:
    tests = (
        "import time\nimport checker\n\n\ndef test_hang():\n    if not checker.is_few(2):\n        time.sleep(1e6)\n"
    )
    (tmp_path / "checker.py").write_text(CHECKER)
    (tmp_path / "test_checker.py").write_text(tests)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\nmarkers = serial\n")
    made = [m for m in mutants.mutants(tmp_path, "checker.py") if m.now == "return number >= LIMIT or number < 0"]
    ((_, result),) = ran(tmp_path, {m: ["test_checker.py"] for m in made}, {"HANG_S": 1}, budget_s=60)
    assert (result.killed_by, result.tests) == ("test_checker.py::test_hang", 1)


def test_who_works_does_not_hang_nor_who_waits_for_a_child_that_does() -> None:
    """CPU time of a process group: that of children counts while they run, and when they have ended."""
    work = "import time; until = {}; exec('while time.process_time() < until: pass'); input()"
    both = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {work.format(0.4)!r}]); input()"
    with subprocess.Popen([sys.executable, "-c", both], stdin=subprocess.PIPE, start_new_session=True) as one:
        while mutant_runs._cpu_s(one.pid) < 0.3:
            assert one.poll() is None
        assert one.stdin is not None
        one.stdin.write(b"\n")
        one.stdin.flush()
        while len(Path(f"/proc/{one.pid}/task/{one.pid}/children").read_text().split()) > 0:
            pass
        assert mutant_runs._cpu_s(one.pid) >= 0.3
        one.stdin.write(b"\n")
        one.stdin.close()
    assert mutant_runs._cpu_s(one.pid) == 0


def test_what_no_test_comes_by_is_alive(tmp_path: Path) -> None:
    """In a function that nobody calls, in a branch that is not taken, and where there is no time for the tests."""
    source = CHECKER + "\n\ndef unused(number):\n    if number:\n        return 1 < number\n    return None\n"
    (tmp_path / "checker.py").write_text(source)
    (tmp_path / "test_checker.py").write_text(TESTS + "    checker.unused(0)\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\nmarkers = serial\n")
    made = {m: ["test_checker.py"] for m in mutants.mutants(tmp_path, "checker.py") if m.line > 14}
    found = {m.was: result for m, result in ran(tmp_path, made, budget_s=60)}
    assert found["return 1 < number"] == mutant_runs.Result("", 0, found["return 1 < number"].seconds)
    assert found["if number:"].tests == 1
    late = [result for _, result in ran(tmp_path, made, budget_s=60, few=mutant_runs.Few(9, -1))]
    assert late
    assert all((result.killed_by, result.tests) == ("", 0) for result in late)


def test_what_stands_outside_of_functions_is_first_for_tests_that_call_the_file(tmp_path: Path) -> None:
    """Others may notice it as well."""
    other = "import checker\n\n\ndef test_other():\n    assert checker.LIMIT == 3\n\n\n"
    (tmp_path / "checker.py").write_text(CHECKER)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\nmarkers = serial\n")
    limit = [m for m in mutants.mutants(tmp_path, "checker.py") if m.function == "(module)"]
    for text, first in ((other + TESTS, "test_few"), (other + TESTS.partition("\n\n\ndef test_few")[0], "test_other")):
        (tmp_path / "test_checker.py").write_text(text)
        for few in (None, SOME):
            found = ran(tmp_path, {m: ["test_checker.py"] for m in limit}, budget_s=60, few=few)
            assert [result.killed_by for _, result in found] == [f"test_checker.py::{first}"]


SLOW = """\
import time

import pytest

import checker


@pytest.mark.parametrize("n", range(30))
def test_slow(n):
    end = time.process_time() + 0.1
    while time.process_time() < end:
        checker.is_few(0)


def test_late():
    checker.count_up_to(1)
"""


def test_a_file_of_slow_tests_has_its_share(tmp_path: Path) -> None:
    """Of the first run; of its functions each has a turn before one has a second."""
    (tmp_path / "checker.py").write_text(CHECKER)
    (tmp_path / "test_slow.py").write_text(SLOW)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\nmarkers = serial\n")
    wanted = {"while number <= limit:", "return number < LIMIT or number <= 0"}
    made = {m: ["test_slow.py"] for m in mutants.mutants(tmp_path, "checker.py") if m.now in wanted}

    def tests(few: mutant_runs.Few) -> dict[str, int]:
        return {m.now: r.tests for m, r in ran(tmp_path, made, budget_s=60, few=few)}

    slow = tests(mutant_runs.Few(30, 0.5))
    assert slow["while number <= limit:"] == 1
    assert 1 <= slow["return number < LIMIT or number <= 0"] <= 6
    assert tests(mutant_runs.Few(2, 60)) == {"while number <= limit:": 1, "return number < LIMIT or number <= 0": 2}
    whole = tests(mutant_runs.Few(2, 0.25, whole=("test_slow.py",)))
    assert whole == {"while number <= limit:": 1, "return number < LIMIT or number <= 0": 30}
    more = tests(mutant_runs.Few(2, 60, quick_s=0.5))
    assert 3 <= more["return number < LIMIT or number <= 0"] <= 8


def test_a_file_that_is_run_whole_has_its_turn_where_others_take_all_the_time(tmp_path: Path) -> None:
    (tmp_path / "checker.py").write_text(CHECKER)
    (tmp_path / "test_slow.py").write_text(SLOW)
    (tmp_path / "test_whole.py").write_text(SLOW.replace("0.1", "0.15").replace("30", "10"))
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\nmarkers = serial\n")
    changed = "return number < LIMIT or number <= 0"
    made = {m: ["test_slow.py", "test_whole.py"] for m in mutants.mutants(tmp_path, "checker.py") if m.now == changed}

    def count(**few: Any) -> int:
        ((_, result),) = ran(tmp_path, made, budget_s=0.25, few=mutant_runs.Few(9, 60, **few))
        return result.tests

    assert count() < 5
    assert count(whole=("test_whole.py",)) > 10


def test_tests_that_fail_without_a_mutant_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "checker.py").write_text(CHECKER)
    (tmp_path / "test_checker.py").write_text(TESTS + "    assert checker.is_few(3)\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\nmarkers = serial\n")
    made = mutants.mutants(tmp_path, "checker.py")[:1]
    with pytest.raises(RuntimeError, match="test_few fails without any mutant"):
        list(ran(tmp_path, {m: ["test_checker.py"] for m in made}, budget_s=60))


def test_tests_that_fail_without_a_mutant_are_left_out_where_time_is_short(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And told: the others run."""
    (tmp_path / "checker.py").write_text(CHECKER)
    bad = "\n\ndef test_bad():\n    assert not checker.is_few(2)\n"
    (tmp_path / "test_checker.py").write_text(TESTS.replace("\n\ndef test_few", bad + "\n\ndef test_few"))
    (tmp_path / "test_dies.py").write_text("import os\n\n\ndef test_dies():\n    os._exit(1)\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\nmarkers = serial\n")
    few = [m for m in mutants.mutants(tmp_path, "checker.py") if m.now == "return number >= LIMIT or number < 0"]
    near = {m: ["test_dies.py", "test_checker.py"] for m in few}
    ((_, result),) = ran(tmp_path, near, budget_s=60, few=SOME)
    assert result.killed_by == "test_checker.py::test_few"
    assert capsys.readouterr().out.splitlines() == [
        "left out: the process that runs test_dies.py has died",
        "left out: test_checker.py::test_bad fails without any mutant",
    ]


def test_files_run_side_by_side_and_results_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept is not run again, until the file or its tests change; tests that cannot be run are told, once per
    mutant."""
    for name in ("one", "two", "bad"):
        (tmp_path / f"{name}.py").write_text(CHECKER)
        text = TESTS.replace("checker", name)
        (tmp_path / f"test_{name}.py").write_text(text if name != "bad" else text + "    assert 1 > 2\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\nmarkers = serial\n")
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.setattr(mutants, "tests_of", lambda root, file: [f"test_{file}"])
    made = [m for f in ("one.py", "two.py", "bad.py") for m in mutants.mutants(tmp_path, f) if m.function == "is_few"]
    arguments = argparse.Namespace(json=tmp_path / "kept.json", jobs=2)
    first = list(mutants._results(made, arguments, {"budget_s": 60}))
    assert {m for m, _ in first} == {*made}
    assert len(first) == len(made)
    for mutant, result in first:
        assert isinstance(result, str) == (mutant.file == "bad.py")
    good = {m: result for m, result in first if not isinstance(result, str)}
    assert {bool(result.killed_by) for result in good.values()} == {True, False}
    monkeypatch.setattr(mutants, "_run", lambda left, jobs, **limits: ((m, "again") for m in left))
    again = dict(mutants._results(made, arguments, {}))
    assert again == {m: good.get(m, "again") for m in made}
    (tmp_path / "test_one.py").write_text(TESTS.replace("checker", "one") + "\n")
    mutants._Kept._digest.cache_clear()
    again = dict(mutants._results(made, arguments, {}))
    assert again == {m: good.get(m, "again") if m.file == "two.py" else "again" for m in made}


def test_what_is_alive_or_listed_wrongly_is_an_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "checker.py").write_text(CHECKER)
    first, second, *_ = mutants.mutants(tmp_path, "checker.py")
    killed, alive = mutant_runs.Result("test_few", 1, 0), mutant_runs.Result("", 1, 0)
    assert mutants.report([(first, killed), (second, alive)], set()) == 1
    assert "alive after 1 tests" in capsys.readouterr().out
    assert mutants.report([(first, killed), (second, "its tests fail")], set()) == 1
    assert "1 of 1 killed, 100.0 %; 1 were not run" in capsys.readouterr().out
    assert mutants.report([(first, killed), (second, alive)], {second.key}) == 0
    assert "1 of 1 killed, 100.0 %; 1 are listed" in capsys.readouterr().out
    assert mutants.report([(first, killed), (second, alive)], {first.key, second.key}) == 1
    assert "listed as equivalent, but killed by test_few" in capsys.readouterr().out


def test_what_is_listed_are_mutants() -> None:
    """Code that has changed leaves nothing behind in the list."""
    listed = set(mutants.equivalent())
    made = {mutant.key for file in {key[0] for key in listed} for mutant in mutants.mutants(mutants.ROOT, file)}
    assert listed <= made


def test_an_interrupt_leaves_the_score_of_the_first_mutants(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Those that are killed are known sooner than others, so that all that is known has a score too good."""
    (tmp_path / "checker.py").write_text(CHECKER)
    drawn = mutants.mutants(tmp_path, "checker.py")[:5]

    def results() -> Iterator[tuple[mutants.Mutant, mutant_runs.Result]]:
        for number, killed_by in ((4, "test_few"), (0, "test_few"), (1, ""), (3, "test_few")):
            yield drawn[number], mutant_runs.Result(killed_by, 1, 0)
        raise KeyboardInterrupt

    assert mutants.report(results(), set(), drawn) == 2  # one alive, one not run
    said = capsys.readouterr().out
    assert "interrupted; of the first 2 drawn 1 are killed" in said
    assert "3 of 4 killed, 75.0 %; 1 were not run" in said


def test_several_mutants_at_a_time_are_told_as_they_come(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\nmarkers = serial\n")
    (tmp_path / "checker.py").write_text(CHECKER)
    (tmp_path / "test_a.py").write_text(TESTS)
    (tmp_path / "test_b.py").write_text(TESTS.replace("assert", "assert True or"))
    drawn = {m: ["test_b.py", "test_a.py"] for m in mutants.mutants(tmp_path, "checker.py") if m.function != "(module)"}
    one, three = (dict(ran(tmp_path, drawn, budget_s=60, few=SOME, jobs=n)) for n in (1, 3))
    assert one.keys() == three.keys() == drawn.keys()
    assert {m: bool(r.killed_by) for m, r in three.items()} == {m: bool(r.killed_by) for m, r in one.items()}
