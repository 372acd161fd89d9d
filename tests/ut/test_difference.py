"""Differences of measurements: a planted regression is found, repeats are silent, parts count by their size."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import models
import numpy as np
import pytest
from seeds import seeds

import superkernel as sk
from superkernel.backends.host.conditions import Conditions
from superkernel.backends.host.estimates import MedianInterval
from superkernel.backends.host.report import Report, TimePart, Work
from superkernel.cli import main
from superkernel.core.errors import FileFormatError, InputError
from superkernel.display.difference import difference, figures_of
from superkernel.display.spans import SpanKind
from superkernel.display.tracing import side_by_side
from superkernel.frontends.json_form import save_json
from superkernel.target.aicore import load_target

SUBOPS = 40


def measured(rng: np.random.Generator, slower: float = 1.0, subop: int = 0, trusted: bool = True) -> dict[str, Any]:
    """A report of 101 launches of 40 sub-operators of 5 us each, with 1.5 % of noise; one of them can be slower."""
    noise = rng.lognormal(0, 0.015, (101, 1)) * rng.lognormal(0, 0.01, (101, SUBOPS))
    times = 5000 * noise
    times[:, subop] *= slower
    run = MedianInterval.of(times.sum(axis=1))
    rows = []
    for number, column in enumerate(times.T):
        each = MedianInterval.of(column)
        rows.append(Work(number, f"s{number}", "k", 1, each.median_ns, 1.0, 1, "f32", (), each.low_ns, each.high_ns))
    part = TimePart("work", run.median_ns, 1.0, run.low_ns, run.high_ns)
    report = Report(
        "g", "host avx512", 1, SUBOPS, SUBOPS, 1, 0, 0, 0, run.median_ns, (run.median_ns,), 0.0, 0.0, (), (),
        work=tuple(rows), run=run, parts=(part,), conditions=Conditions(101, 0, 0, trusted=trusted),
    )  # fmt: skip
    found: dict[str, Any] = json.loads(report.json())
    return found


@pytest.mark.parametrize("seed", seeds(5))
def test_a_planted_regression_is_found_and_named(seed: int) -> None:
    """5 % of a launch, in one sub-operator: it takes three times as long."""
    rng = np.random.default_rng(seed)
    found = difference(measured(rng), measured(rng, slower=3.0, subop=7))
    assert found.worse
    assert [change.name for change in found.changes][:1] == ["a launch"]
    assert {change.name for change in found.changes} == {"a launch", "work", "s7 (k)"}
    assert found.changes[0].share == pytest.approx(0.05, abs=0.015)
    assert "slower" in found.text()


@pytest.mark.parametrize("seed", seeds(20))
def test_a_repeat_is_silent(seed: int) -> None:
    rng = np.random.default_rng(seed)
    found = difference(measured(rng), measured(rng))
    assert not found.changes
    assert "nothing changed beyond noise" in found.text()


def test_what_became_faster_is_told_and_is_not_worse() -> None:
    rng = np.random.default_rng(0)
    found = difference(measured(rng, slower=3.0), measured(rng))
    assert found.changes
    assert not found.worse


def test_a_small_part_may_double_in_silence() -> None:
    rng = np.random.default_rng(1)
    assert not difference(measured(rng), measured(rng, slower=1.5), limit=0.05).changes


def test_of_a_busy_machine_only_launches_count_and_prove_nothing(tmp_path: Path) -> None:
    """What consists of parts on one side alone is not gone; nor is what takes longer slower."""
    rng = np.random.default_rng(2)
    quiet, busy = measured(rng), measured(rng, slower=3.0, trusted=False)
    for before, after in ((quiet, busy), (busy, quiet), (busy, {**quiet, "conditions": busy["conditions"]})):
        found = difference(before, after, names=("old", "new"))
        assert (found.worse, found.evidence) == (False, "disturbed")
        assert [change.name for change in found.changes] == ["a launch"]
        text = found.text()
        assert "was measured on a busy machine: only whole launches are compared" in text
        assert "this proves nothing" in text
        assert "slower" not in text.splitlines()[0]
        page = compared(tmp_path, before, after, 0)
        assert "s7 (k)" not in page
        assert "beyond noise" not in page


def test_beside_busy_processes_nothing_is_proved(tmp_path: Path) -> None:
    """They slow launches that they do not interrupt; what the hypervisor takes counts alike."""
    rng = np.random.default_rng(2)
    before, after = measured(rng), measured(rng, slower=3.0)
    quiet = difference(before, after)
    assert (quiet.worse, quiet.evidence) == (True, "intervals")
    assert "processes differ by more: measure both again" in quiet.text()
    for key, share, told in (("others_share", 0.83, True), ("stolen_share", 0.83, True), ("others_share", 0.1, False)):
        slowed = {**after, "conditions": {**after["conditions"], key: share}}
        found = difference(before, slowed, names=("old", "new"))
        assert (found.worse, found.evidence == "disturbed") == (not told, told)
        assert f"new: others took {share:.0%} of the CPUs" in found.text()
        assert ("this proves nothing" in found.text()) == told
        assert ("beyond noise" in compared(tmp_path, before, slowed, 1 - told)) != told


def test_what_was_not_written_to_a_file_yet_is_compared_alike() -> None:
    """`to_json` has tuples where the file has lists."""
    report = sk.compile(models.mlp((8, 8)), threads=1).report(rounds=6)
    written = json.loads(report.json())
    assert difference(report.to_json(), report.to_json()) == difference(written, written)


def test_cpus_that_lie_elsewhere_prove_nothing() -> None:
    """A hypervisor put them on one core and on two: the same kernel takes twice as long, in every launch."""
    rng = np.random.default_rng(2)
    before, after = measured(rng), measured(rng, slower=3.0)
    for data, ns in ((before, 50.0), (after, 60.0)):
        data["conditions"]["handover_ns"] = ns
    assert difference(before, after).worse
    after["conditions"]["handover_ns"] = 156.0
    found = difference(before, after)
    assert (found.worse, found.evidence) == (False, "disturbed")
    assert "a flag takes 50 ns from CPU to CPU in A, 156 ns in B: the CPUs lie elsewhere" in found.text()


def simulated(cycles: int) -> dict[str, Any]:
    row = {"name": "m", "kernel": "k", "first": 0, "last": cycles - 10, "pure": 4.0, "imbalance": 2.0}
    us = {"clock_mhz": 1000, "time_us": cycles / 1e3}
    return {"schema": "superkernel.sim_report/2", "graph": "g", **us, "subops": [row]}


def test_simulated_figures_are_exact() -> None:
    assert difference(simulated(10_000), simulated(10_300)).worse
    assert not difference(simulated(10_000), simulated(10_100)).changes
    assert difference(simulated(10_000), simulated(10_100), limit=0.0).worse
    assert not difference(simulated(10_000), simulated(10_000), limit=0.0).changes


def test_ablations_and_traces() -> None:
    ablation = {"schema": "superkernel.ablation/1", "graph": "g", "rows": [{"name": "a", "us": 9.0}]}
    slower = {**ablation, "rows": [{"name": "a", "us": 9.5}]}
    assert difference(ablation, slower).worse
    row = {"name": "a", "us": 9.0, "low_us": 8.9, "high_us": 9.1}
    host = {"schema": "superkernel.host_ablation/1", "graph": "g", "rows": [{**row, "name": "b"}, row]}
    longer = {**host, "rows": [host["rows"][0], {**row, "us": 9.5, "low_us": 9.4, "high_us": 9.6}]}
    assert [change.name for change in difference(host, longer).changes] == ["a launch", "up to a"]
    assert not difference(host, {**host, "rows": [row, {**row, "us": 9.3, "high_us": 9.7}]}).worse
    about: dict[str, Any] = {"otherData": {"title": "g on mini", "times": "simulated"}}
    trace = {**about, "traceEvents": [{"ph": "X", "pid": 0, "ts": 0.0, "dur": 4.0, "cat": "work"}, {"ph": "M"}]}
    assert not difference(trace, trace).changes
    longer = {**about, "traceEvents": [{"ph": "X", "pid": 0, "ts": 0.0, "dur": 5.0, "cat": "work"}]}
    assert difference(trace, longer).worse
    assert difference(trace, longer).text().splitlines()[1:2] == ["a launch: 4.00 us -> 5.00 us, +25.0%"]
    assert [c.name for c in difference(trace, longer).changes] == ["a launch", "work, mean over cores"]
    engine = {"ph": "X", "pid": 0, "ts": 0.0, "dur": 1.0, "cat": "compute"}
    before, after = ({**about, "traceEvents": [*each["traceEvents"], engine]} for each in (trace, longer))
    assert [c.name for c in difference(before, after).changes] == ["a launch"], (
        "waits are inside of what steers engines"
    )


def test_a_traces_kinds_are_told_in_the_words_of_reports() -> None:
    def trace(us: float) -> dict[str, Any]:
        spans = [{"ph": "X", "pid": 0, "ts": 0.0, "dur": us, "cat": kind.value} for kind in SpanKind]
        return {"otherData": {"title": "g on mini", "times": "simulated"}, "traceEvents": spans}

    changes = {change.name: change for change in difference(trace(1.0), trace(2.0)).changes}
    told = {f"{kind.part}, mean over cores" for kind in SpanKind if kind not in (SpanKind.WORK, SpanKind.BETWEEN)}
    assert set(changes) == {"a launch"} | told
    sync = changes["pure sync, mean over cores"]
    assert sync.before is not None
    assert sync.before.us == 2.0, "waiting and signalling"
    form = (Path(__file__).parents[2] / "docs" / "json.md").read_text(encoding="utf-8")
    for kind in SpanKind:
        assert f"| `{kind.value}` | {kind.part}" in form


@pytest.mark.parametrize("about", [{"otherData": {"title": "g on the host, 1 core", "times": "measured"}}, {}])
def test_single_launches_prove_nothing(about: dict[str, Any], tmp_path: Path) -> None:
    """Traces of the host, and those that do not say what they are."""
    before, after = (
        {**about, "traceEvents": [{"ph": "X", "pid": 0, "tid": 0, "name": "m", "ts": 0.0, "dur": us, "cat": "work"}]}
        for us in (4.0, 5.0)
    )
    found = difference(before, after)
    assert (found.worse, found.evidence, found.whole.share) == (False, "single launches", 0.25)
    text = found.text()
    assert "this proves nothing" in text
    assert "a launch: 4.00 us -> 5.00 us, +25.0%" in text
    assert "beyond noise" not in text
    page = compared(tmp_path, before, after, 0)
    assert "A launch took 4.00 us in A, 5.00 us in B" in page
    assert "this proves nothing" in page
    assert "beyond noise" not in page
    assert f"<title>{'g on the host, 1 core' if about else 'trace'}: two runs side by side</title>" in page


def test_a_few_launches_prove_nothing() -> None:
    """Reports with `--rounds 1`, whose medians have their one sample as interval."""
    rng = np.random.default_rng(6)
    before, after = measured(rng), measured(rng, slower=9.0)
    assert difference(before, after).worse
    for data in (before, after):
        data["run"] = {**data["run"], "samples": 5}
    found = difference(before, after)
    assert (found.worse, found.evidence) == (False, "single launches")
    assert "fewer than 6 launches" in found.text()
    assert "beyond noise" not in found.text()
    row = {"name": "a", "us": 9.0, "low_us": 9.0, "high_us": 9.0}
    host = {"schema": "superkernel.host_ablation/1", "graph": "g", "rows": [row], "conditions": {"launches": 1}}
    longer = {**host, "rows": [{**row, "us": 99.0, "low_us": 99.0, "high_us": 99.0}]}
    assert not difference(host, longer).worse
    assert difference({**host, "conditions": {"launches": 60}}, {**longer, "conditions": {"launches": 60}}).worse


def test_a_trace_of_the_host_says_that_it_was_measured() -> None:
    kernel = sk.compile(models.mlp((32, 32, 16), batch=4), threads=1)
    traces = [json.loads(kernel.trace().chrome()) for _ in range(2)]
    figures = figures_of("trace", traces[0], "A")
    whole = figures.pop("a launch")
    assert sum(figure.us for figure in figures.values()) == pytest.approx(whole.us)
    assert figures["rest, mean over cores"].us >= -1e-6
    assert traces[0]["otherData"] == {"title": "mlp on the host, 1 core", "times": "measured"}
    assert not difference(traces[0], traces[1], limit=0.0).worse
    simulated_trace = sk.compile(models.mlp((32, 32, 16), batch=4), target="mini").trace()
    assert json.loads(simulated_trace.chrome())["otherData"]["times"] == "simulated"


def test_a_trace_that_does_not_say_its_run_is_told_so() -> None:
    span = {"ph": "X", "pid": 0, "tid": 0, "name": "m", "ts": 0.0, "dur": 4.0, "cat": "work"}
    about = {"otherData": {"title": "g on the host, 1 core", "times": "measured"}, "traceEvents": [span]}
    for sides in ((about, {"traceEvents": [span]}), ({"traceEvents": [span]}, about)):
        text = difference(*sides).text()
        assert "None" not in text
        assert f"{'AB'[sides.index(about) ^ 1]} does not say its run; the other one is of g on the host, 1 core" in text


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"^B: .*different kinds.*`superkernel report --json` of an acc.*`superkernel tr"
    ):
        difference(simulated(10), {"traceEvents": []})
    with pytest.raises(FileFormatError, match=r"no measurement.*found superkernel.report/1 \(hint: what `superkernel"):
        difference({"schema": "superkernel.report/1"}, {})
    with pytest.raises(
        FileFormatError, match=r"A, run: not of the form superkernel.report/2; expected a value; found none"
    ):
        difference({"schema": "superkernel.report/2"}, {"schema": "superkernel.report/2"})
    with pytest.raises(InputError, match="not a limit"):
        difference(simulated(10), simulated(10), limit=2.0)


def test_a_median_outside_of_its_own_interval_is_refused() -> None:
    data = measured(np.random.default_rng(0))
    data["run"]["median_ns"] = 2 * data["run"]["high_ns"]
    with pytest.raises(
        FileFormatError, match=r"A, run: .*expected a median inside of its interval; found median_ns \d"
    ):
        difference(data, data)
    data = measured(np.random.default_rng(0))
    data["work"][3]["low_ns"] = 2 * data["work"][3]["high_ns"]
    with pytest.raises(FileFormatError, match=r"B, work\[3\]: .*the ends of an interval in their order"):
        difference(measured(np.random.default_rng(0)), data)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a value with each of its keys."""
    for key in list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield value, key
        yield from places(value[key])


FORMS: dict[str, dict[str, Any]] = {
    "report": measured(np.random.default_rng(0)),
    "accelerator": {**simulated(1000), "numpy_us": 0.5, "split": {"NumPy": 0.5, "compute": 0.3}},
    "ablation": {"schema": "superkernel.ablation/1", "rows": [{"name": "a", "us": 9.0, "split": {"compute": 9.0}}]},
    "host ablation": {
        "schema": "superkernel.host_ablation/1",
        "rows": [{"name": "a", "us": 9.0, "low_us": 8.9, "high_us": 9.1}],
        "conditions": {"launches": 60, "trusted": True, "others_share": 0.1},
    },
    "trace": {
        "otherData": {"title": "g", "times": "simulated"},
        "traceEvents": [{"ph": "X", "pid": 0, "tid": 0, "name": "m", "ts": 0.0, "dur": 4.0, "cat": "work"}],
    },
}


@pytest.mark.parametrize("form", FORMS)
def test_whatever_stands_in_a_file_no_error_is_python_s(form: str) -> None:
    """Every value replaced by one of another kind: compared all the same, or refused with the place, in plain words."""
    assert difference(FORMS[form], FORMS[form]).changes == ()
    broken, refused = json.loads(json.dumps(FORMS[form])), []
    for holder, key in places(broken):
        if isinstance(holder, list) and key > 1:
            continue  # as the rows ahead of it
        kept = holder[key]
        for wrong in (None, "x", -1, True, [], {}, [1], 10**400, float("nan")):
            holder[key] = wrong
            try:
                difference(FORMS[form], broken, names=("old.json", "new.json")).text()
            except (FileFormatError, InputError) as error:
                refused.append(str(error))
        holder[key] = kept
    assert len(refused) > 4
    assert all("new.json" in text for text in refused)
    assert not re.search(r"\b[A-Z]\w*Error\b|NoneType|'(str|int|list|dict|float)'", " ".join(refused))


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = str(tmp_path / "a.json"), str(tmp_path / "b.json")
    Path(a).write_text(json.dumps(simulated(1000)))
    Path(b).write_text(json.dumps(simulated(1050)))
    assert main(["diff", a, b]) == 1
    assert "+5.0%" in capsys.readouterr().out
    assert main(["diff", a, b, "--limit", "6", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["worse"] is False
    assert main(["diff", a, a]) == 0
    for content, said in (
        (None, "No such file or directory (hint: what `superkernel report --json`"),
        ("", "not JSON; expected a JSON object; found Expecting value"),
        (json.dumps(simulated(1050))[:-9], "was it cut short?"),
        ("[" * 100_000, "not JSON"),
        ("[1]", "expected a JSON object; found a list"),
        ("{}", "found no schema"),
    ):
        Path(b).unlink() if content is None else Path(b).write_text(content)
        capsys.readouterr()
        assert main(["diff", a, b]) == 2
        told = capsys.readouterr().err
        assert said in told
        assert b in told
        assert "Errno" not in told
    assert main(["diff", a, a, "--limit", "nan"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [("report", "--rounds", "0", "--json"), ("ablate", "--json"), ("trace", "--out", "out.json")],
    ids=lambda c: c[0],
)
def test_a_slower_device_is_found_by_what_the_commands_write(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A launch takes about 5 % longer where the clock is 15 % slower, for most is counted in ns there; and what is
    measured twice is the same."""
    monkeypatch.chdir(tmp_path)
    save_json(models.mlp((32, 32, 16), batch=4), tmp_path / "m.json")
    clock = load_target("mini").device.clock_mhz
    Path("slow.toml").write_text(
        f'schema_version = 1\nname = "mini"\nbase = "mini"\n[device]\nclock_mhz = {round(clock / 1.15)}\n'
    )

    def measure(target: str, file: str) -> None:
        assert main([command[0], "m.json", "--target", target, *command[1:]]) == 0
        printed = capsys.readouterr().out
        Path(file).write_text(Path("out.json").read_text() if "--out" in command else printed)

    for target, file in (("mini", "a.json"), ("mini", "again.json"), ("slow.toml", "b.json")):
        measure(target, file)
    assert main(["diff", "a.json", "again.json", "--limit", "0"]) == 0
    assert "nothing changed by the limit or more" in capsys.readouterr().out
    assert main(["diff", "a.json", "b.json", "--limit", "3", "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["worse"]
    assert found["changes"][0]["name"] == "a launch"
    assert 0.03 <= found["changes"][0]["share"] < 0.15


def compared(folder: Path, before: dict[str, Any], after: dict[str, Any], status: int) -> str:
    """The page of `diff --html`."""
    a, b, page = folder / "a.json", folder / "b.json", folder / "both.html"
    a.write_text(json.dumps(before))
    b.write_text(json.dumps(after))
    assert main(["diff", str(a), str(b), "--html", str(page)]) == status
    return page.read_text(encoding="utf-8") if page.exists() else ""


def test_two_reports_side_by_side(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    page = compared(tmp_path, measured(rng), measured(rng, slower=5.0), 1)
    assert "two runs side by side" in page
    assert re.search(r"A launch takes [\d.]+ us in A, [\d.]+ us in B: \+", page)
    assert '<div class="stack" role="img" aria-label="A: ' in page
    assert "<canvas" not in page, "reports have no timelines"
    stamped = measured(rng)
    stamped["parts"].append({"name": "rest", "ns": -80.0, "share": -0.0004, "low_ns": -90.0, "high_ns": -70.0})
    assert "time stamps" not in page
    assert "its parts are of launches with time stamps, 80 ns longer" in compared(tmp_path, stamped, stamped, 0)
    assert re.search(r"<td>[\d.]+</td><td>[\d.]+</td><td>[\d.]+</td>.*<td>\+[\d.]+</td>", page), "intervals, a sign"
    assert "-0.000" not in page
    assert "beyond noise</button>" in page
    exact = compared(tmp_path, simulated(1000), simulated(1000), 0)
    assert "Nothing changed by the limit or more" in exact
    assert "beyond noise" not in exact
    assert "A from" not in exact, "what is exact has no interval"


def test_what_numpy_computes_is_part_of_an_accelerator_s_launch() -> None:
    """A kernel that went to NumPy is slower, though the device does less; one measurement of NumPy is not another."""
    whole, fallen = simulated(1000), {**simulated(800), "numpy_us": 5.0, "time_us": 5.8, "split": {"NumPy": 5.0}}
    found = difference(whole, fallen)
    assert found.worse
    assert [change.name for change in found.changes][:2] == ["a launch", "NumPy"]
    other = {**fallen, "numpy_us": 7.0, "time_us": 7.8, "split": {**fallen["split"], "NumPy": 7.0}}
    assert not difference(fallen, other).changes


def test_two_reports_of_an_accelerator_side_by_side(tmp_path: Path) -> None:
    """Their bars have the parts that the reports name, which are all of their time."""
    reports = [sk.compile(models.mlp((width, 32, 16), batch=4), target="mini").report() for width in (32, 512)]
    for report in reports:
        assert sum(report.split.values()) == pytest.approx(report.time_us)
        assert min(report.split.values()) >= 0
        assert all(report.split[name] > 0 for name in ("compute", "movement", "pure sync", "launch"))
    page = compared(tmp_path, reports[0].to_json(), reports[1].to_json(), 1)
    for letter, report in zip("AB", reports, strict=True):
        (said,) = re.findall(f'aria-label="({letter}: [^"]*)"', page)
        assert all(name in said for name, us in report.split.items() if us > 0), said


def test_two_traces_side_by_side(tmp_path: Path) -> None:
    """Both timelines on one axis: the cores of A, then those of B; spans, flows and their places are those of each."""
    kernel = sk.compile(models.transformer(layers=1), target="mini")
    one, other = kernel.trace(), sk.compile(models.mlp((32, 64, 32), batch=4), target="mini").trace()
    both = side_by_side((json.loads(one.chrome()), json.loads(other.chrome())), "AB")
    assert list(both.cores.values()) == [
        f"{run}: {c}" for run, t in (("A", one), ("B", other)) for c in t.cores.values()
    ]
    assert len(both.spans) == len(one.spans) + len(other.spans)
    assert len(both.flows) == len(one.flows) + len(other.flows)
    assert both.duration_us == pytest.approx(max(one.duration_us, other.duration_us), abs=1e-3)
    ours = [s for s in both.spans if both.cores[both.tracks[s.track].core].startswith("A: ")]
    assert Counter((s.name, s.activity, s.subop) for s in ours) == Counter(
        (s.name, s.activity, s.subop) for s in one.spans
    )
    assert len({f.number for f in both.flows}) == len({f.number for f in one.flows}) + len(
        {f.number for f in other.flows}
    )
    page = compared(tmp_path, json.loads(one.chrome()), json.loads(other.chrome()), 0)
    assert page.count("<canvas") == 1
    assert "A: AIC 0" in page
    assert "B: AIC 0" in page


def test_a_trace_that_is_not_ours_has_no_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    strange = {"traceEvents": [{"ph": "X", "pid": 0, "tid": 0, "ts": 0.0, "dur": 4.0, "cat": "gc", "name": "n"}]}
    span = {**strange["traceEvents"][0], "cat": "work"}
    for event, said in (
        (strange["traceEvents"][0], "another category than "),
        ({key: span[key] for key in span if key != "tid"}, "an event without 'tid'"),
        ({**span, "args": 3}, "an event with a value of another type"),
    ):
        data = {"traceEvents": [event]}
        capsys.readouterr()
        assert compared(tmp_path, data, data, 2) == ""
        assert f"not a trace of ours; found {said}" in capsys.readouterr().err
