"""`superkernel verify --rates`: a slice of it, what it finds where a verifier is broken, and how it says so."""

from __future__ import annotations

import json
import random
import re
import shlex
from dataclasses import replace
from io import StringIO
from typing import Any

import pytest
import soak
from seeds import run_seed

from superkernel import cli
from superkernel.analysis import rates_aicore, rates_host
from superkernel.analysis.rates import RateRow, RatesInterrupted, TargetRates, rates
from superkernel.analysis.subjects import SUBJECTS, subject_of
from superkernel.cli.analysis import WRONG
from superkernel.core.errors import InputError, InternalError, Violation
from superkernel.sync.aicore.plan import AicorePlan, Run, Step, awaited
from superkernel.sync.aicore.verify import check_aicore_plan
from superkernel.sync.plan import Plan, parse_plan
from superkernel.sync.verify import check

PLANS = 10_000 if soak.enabled else 150


@pytest.mark.parametrize("target", SUBJECTS)
@pytest.mark.timeout(3600)
def test_nothing_broken_is_accepted_and_little_that_is_harmless_refused(target: str) -> None:
    found = rates(SUBJECTS[target], PLANS, run_seed())
    whole = found.whole
    assert found.ok, found.text()
    assert whole.plans == PLANS
    assert whole.broken == whole.caught > PLANS
    assert whole.harmless > PLANS
    for row in found.rows:
        assert 0 < row.broken < row.plans + row.mutants, row


def test_plans_that_once_were_broken() -> None:
    """One in ten thousand: a stretch was taken for written anew whose writes overlap."""
    (family,) = (family for family in SUBJECTS["host"].families if family.name == "any bytes")
    plan = family.make(random.Random("35987763 host any bytes 1222"))
    assert SUBJECTS["host"].refusal(plan) == ""


def test_a_seed_gives_the_same_plans() -> None:
    one, other = (rates(SUBJECTS["host"], 20, 7) for _ in range(2))
    figures = [[replace(row, seconds=0.0) for row in found.rows] for found in (one, other)]
    assert figures[0] == figures[1]
    third = rates(SUBJECTS["host"], 20, 8)
    assert [row.broken for row in third.rows] != [row.broken for row in one.rows]


def counts(*found: TargetRates) -> list[RateRow]:
    """The rows of some runs together, but for the time they took."""
    rows = zip(*(one.rows for one in found), strict=True)
    return [replace(sum(some[1:], start=some[0]), seconds=0.0) for some in rows]


@pytest.mark.parametrize(("jobs", "chunk"), [(1, 1), (2, 2)])
def test_counts_do_not_depend_on_rounds_and_processes(jobs: int, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = rates(SUBJECTS["host"], 23, 7)
    monkeypatch.setattr("superkernel.analysis.rates.ROUND", 3)
    monkeypatch.setattr("superkernel.analysis.rates.CHUNK", chunk)
    told: list[tuple[int, int]] = []
    found = rates(SUBJECTS["host"], 23, 7, jobs=jobs, progress=lambda *numbers: told.append(numbers))
    assert counts(found) == counts(whole)
    assert [row.plans for row in found.rows] == [5, 5, 5, 4, 4]
    assert told == sorted(told)
    assert told[-1] == (23, 23)


def test_processes_find_what_a_broken_verifier_overlooks_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures come back from processes, and each kind of them is shown once in a family, whoever found it."""
    monkeypatch.setattr("superkernel.analysis.rates.CHUNK", 1)
    blind = replace(SUBJECTS["host"], refusal=accepts)
    found = rates(blind, 4, 0, family="rows", jobs=2)
    assert not found.ok
    assert [f.kind for f in found.failures] == ["false accept"]
    assert found.whole.false_accepts == found.whole.broken > 4


def accepts(plan: Plan) -> str:
    """A verifier that refuses nothing."""
    return ""


def test_an_interrupt_leaves_whole_rounds_and_says_what_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("superkernel.analysis.rates.ROUND", 2)
    judged: list[Plan] = []

    def interrupted(plan: Plan) -> Any:
        judged.append(plan)
        if len(judged) > 150:  # 5 families, rounds of 2 plans, up to 9 verdicts on each
            raise KeyboardInterrupt
        return check(plan)

    words = ["verify", "--rates", "--plans", "23", "--seed", "7", "--json"]
    with monkeypatch.context() as patch:
        patch.setattr(rates_host, "check", interrupted)
        assert cli.main(words) == cli.INTERRUPTED
    said = capsys.readouterr()
    assert "interrupted" in said.err
    host, aicore = json.loads(said.out)
    assert host["whole"]["plans"] == 10
    assert host["rest"] == "superkernel verify --rates --target host --seed 7 --first 2 --plans 13"
    assert aicore["whole"]["plans"] == 0
    assert aicore["rest"] == "superkernel verify --rates --target aicore --seed 7 --first 0 --plans 23"
    assert cli.main([*shlex.split(host["rest"])[1:], "--json"]) == 0
    (rest,) = json.loads(capsys.readouterr().out)
    assert rest["rest"] is None
    whole = rates(SUBJECTS["host"], 23, 7)
    for name in ("plans", "mutants", "broken", "caught", "harmless", "refused"):
        assert host["whole"][name] + rest["whole"][name] == getattr(whole.whole, name)
    with pytest.raises(RatesInterrupted) as caught:
        rates(SUBJECTS["host"], 23, 7, family="rows", progress=interrupt)
    assert caught.value.found.whole.plans == 0
    assert "interrupted; what is left: superkernel verify --rates --target host --family 'rows'" in str(
        caught.value.found.text()
    )


def interrupt(done: int, total: int) -> None:
    """What Ctrl-C does while somebody looks on."""
    raise KeyboardInterrupt


class Terminal(StringIO):
    """An error output that somebody looks at."""

    def isatty(self) -> bool:
        return True


def test_progress(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["verify", "--rates", "--target", "host", "--family", "rows", "--plans", "7"]
    assert cli.main(words) == 0
    assert capsys.readouterr().err == ""  # it was soon over, and nobody looked on
    monkeypatch.setattr("superkernel.cli.analysis.RateProgress.LINES_APART_S", 0.0)
    assert cli.main(words) == 0
    assert [line.split(",")[0] for line in capsys.readouterr().err.splitlines()] == [
        "host: 5 of 7 plans", "host: 7 of 7 plans",
    ]  # fmt: skip
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    assert cli.main(words) == 0
    assert re.fullmatch(r"\rhost: 5 of 7 plans, \d+ s\rhost: 7 of 7 plans, \d+ s\n", terminal.getvalue())


def test_a_broken_verifier_of_the_host_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It overlooks all races between a write and an earlier read."""

    def blind(plan: Plan) -> Any:
        only = [replace(t, accesses=tuple(a for a in t.accesses if a.write or t.index % 2)) for t in plan.tasks]
        return check(replace(plan, tasks=tuple(only)))

    monkeypatch.setattr(rates_host, "check", blind)
    found = rates(SUBJECTS["host"], 50, 0)
    assert not found.ok
    failure = next(f for f in found.failures if f.kind == "false accept")
    small = parse_plan(failure.shrunk)
    assert len(small.tasks) <= 4
    assert small.cores <= 2
    assert failure.truth
    assert failure.verdict == ""
    assert "false accept" in found.text()
    assert failure.replay in found.text()
    assert cli.main(shlex.split(failure.replay)[1:]) == WRONG


def test_a_broken_verifier_of_the_accelerator_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It believes the names of events: whatever operand of a kernel waits for one, all operands have it."""

    def blind(plan: AicorePlan) -> Any:
        programs = {kind: tuple(map(everywhere, program)) for kind, program in plan.programs.items()}
        return check_aicore_plan(replace(plan, programs=programs))

    def everywhere(step: Step) -> Step:
        if not isinstance(step, Run):
            return step
        events = tuple(dict.fromkeys(awaited(step)))
        return replace(step, waits=tuple(replace(wait, events=events) for wait in step.waits))

    monkeypatch.setattr(rates_aicore, "check_aicore_plan", blind)
    found = rates(SUBJECTS["aicore"], 60, 0, family="one flag twice")
    assert not found.ok
    failure = next(f for f in found.failures if f.kind == "false accept")
    assert failure.shrunk.count("task ") <= 4
    assert "loads" in failure.truth
    assert cli.main(shlex.split(failure.replay)[1:]) == WRONG


def test_a_verifier_that_refuses_everything_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rates_host, "check", lambda plan: ([Violation("no")], None))
    found = rates(SUBJECTS["host"], 10, 0)
    assert not found.ok
    assert found.whole.refused == found.whole.harmless > 0
    assert found.whole.plans_wrong == 10
    assert found.whole.reasons["no"] == found.whole.refused
    assert {f.kind for f in found.failures} == {"false reject"}


def test_searches_that_differ_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("superkernel.analysis.rates.all_states", lambda system: "something")
    with pytest.raises(InternalError, match="the two searches"):
        rates(SUBJECTS["host"], 5, 0)


def test_bounds() -> None:
    right = RateRow("rows", "", plans=10, mutants=90, broken=50, caught=50, harmless=50, refused=1)
    assert TargetRates("host", 0, (right,), ()).ok
    for wrong in (replace(right, caught=49), replace(right, refused=2), replace(right, plans_wrong=1)):
        assert not TargetRates("host", 0, (wrong,), ()).ok
    assert replace(right, caught=49).false_accepts == 1


def test_by_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["verify", "--rates", "--target", "host", "--plans", "10", "--seed", "3"]
    assert cli.main(words) == 0
    text = capsys.readouterr().out
    assert "target host, seed 3" in text
    assert text.count("100.00 %") >= 4
    assert cli.main([*words, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["ok"] is True
    assert found["whole"]["plans"] == 10
    assert [row["family"] for row in found["families"]] == [f.name for f in SUBJECTS["host"].families]
    assert cli.main([*words, "--family", "streams", "--first", "4"]) == 0
    assert "streams" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["verify"], "no model"),
        (["verify", "m.onnx", "--rates"], "model with --rates"),
        (["verify", "--rates", "--target", "gpu"], "no such target"),
        (["verify", "--rates", "--target", "host", "--family", "x"], "no such family"),
        (["verify", "--rates", "--target", "host", "--plans", "0"], "not a number of plans"),
        (["verify", "--rates", "--target", "host", "--jobs", "0"], "not a number of processes"),
    ],
)
def test_wrong_words(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 2
    assert says in capsys.readouterr().err


def test_a_target_that_there_is_not() -> None:
    with pytest.raises(InputError, match="no such target"):
        subject_of("gpu")
