"""Kernels from outside: registered, listed, explained, tried, kept and recorded like those of the package; what is
wrong with one is found and told with its name."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import superkernel as sk
from superkernel import kernels
from superkernel.analysis import kernel_trials
from superkernel.analysis.kernel_trials import TrialTime, timings, timings_text, trials
from superkernel.cli import main
from superkernel.codegen.host.features import detect_cpu
from superkernel.core.errors import InputError, UserError
from superkernel.registry.eligibility import relative_error
from superkernel.scheduler.families import HOST_KERNELS
from superkernel.scheduler.families.aicore import AICORE_KERNELS
from superkernel.target.aicore import load_target

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_kernel.py"
ID = "example.row_sum"


def _forget() -> None:
    for name in {k for t in (HOST_KERNELS, AICORE_KERNELS) for k, d in t.kernels.items() if d.sources}:
        kernels.unregister(name)


@pytest.fixture
def example() -> Iterator[ModuleType]:
    """The example, loaded as a user's file."""
    kernels.load_file(EXAMPLE)
    yield sys.modules["own_kernel"]
    _forget()
    del sys.modules["own_kernel"]


@pytest.fixture
def clean() -> Iterator[None]:
    yield
    _forget()


def _graph() -> sk.Graph:
    b = sk.GraphBuilder("row sums")
    b.output(b.reduce_sum(b.input("x", (9, 40)), axes=(1,)))
    return b.graph()


def _write(folder: Path, changes: tuple[str, str], name: str) -> Path:
    """The example's file with one change."""
    text = EXAMPLE.read_text()
    assert changes[0] in text
    file = folder / f"{name}.py"
    file.write_text(text.replace(*changes))
    return file


def test_the_example_runs(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    example.main()
    assert capsys.readouterr().out.count(ID) == 2


def test_it_is_listed_explained_and_recorded(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["kernels", "list", "--op", "reduce_sum"]) == 0
    assert f"{ID}/f32/avx2" in capsys.readouterr().out
    assert main(["kernels", "explain", "reduce_sum(f32[5,37]; axes=(1,))", "--pin", ID, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["chosen"]["id"].startswith(ID)
    made = sk.compile(_graph(), options={"pin": (ID,)}, threads=1)
    assert made.explain(0).kernel == ID
    entries = made.manifest().to_json()["kernels"]
    (entry,) = [e for name, e in entries.items() if name.startswith(ID)]
    assert entry["functions"] == list(made.explain(0).symbols)


@pytest.mark.parametrize("target", ["host", "mini"])
def test_it_passes_its_trials_and_is_timed(example: ModuleType, target: str) -> None:
    table: Any = HOST_KERNELS if target == "host" else AICORE_KERNELS
    on = detect_cpu() if target == "host" else load_target("mini")
    found = list(trials(table, ID, on))
    assert [t.fault for t in found] == ["", ""]
    (first, _) = timings(table, ID, on, rounds=5)
    assert first.ns > 0
    assert first.other_ns > 0
    assert first.other != ID


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (
            ('kb.loop(kb.begin, kb.end, name="row")', 'kb.loop(kb.begin, kb.add(kb.end, 1), name="row")'),
            "undeclared|race",
        ),
        (("tiling.columns, lanes, add)", "tiling.columns - 1, lanes, add)"), "off by more"),
        (("    lanes = kb.cpu.vector_bytes // 4\n", "    lanes = 1 // 0\n"), "its emitter failed"),
    ],
    ids=["beyond its range", "wrong sums", "an emitter that raises"],
)
def test_what_is_wrong_with_one_is_found(
    change: tuple[str, str], fault: str, tmp_path: Path, clean: None, request: pytest.FixtureRequest
) -> None:
    name = f"wrong_{abs(hash(fault))}"
    kernels.load_file(_write(tmp_path, change, name))
    request.addfinalizer(lambda: sys.modules.pop(name))
    found = list(trials(HOST_KERNELS, ID, detect_cpu()))
    assert found
    assert all(t.fault for t in found)
    text = " ".join(t.fault for t in found)
    assert any(word in text for word in fault.split("|")), text


@pytest.mark.parametrize("kernel", ["host.matmul.bf16", "host.matmul.gemv_int8", "host.matmul.tf32"])
def test_kernels_of_reduced_precision_are_tried_where_it_is_allowed(
    kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And held to what they promise: a row that promised a hundredth would not keep it."""
    found = list(trials(HOST_KERNELS, kernel, detect_cpu()))
    assert found
    assert all(not t.fault and t.error > 0 for t in found)
    monkeypatch.setattr(kernel_trials, "relative_error", lambda row, dtype: relative_error(row, dtype) / 100)
    assert any("off by more" in t.fault for t in trials(HOST_KERNELS, kernel, detect_cpu()))


def test_a_trial_that_fails_is_an_exit_status(
    tmp_path: Path, clean: None, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    file = _write(tmp_path, ("tiling.columns, lanes, add)", "tiling.columns - 1, lanes, add)"), "wrong_status")
    request.addfinalizer(lambda: sys.modules.pop("wrong_status"))
    assert main(["--kernels", str(file), "kernels", "test", ID]) == 1
    assert "2 trials, 2 failed" in capsys.readouterr().out


def test_sources_are_part_of_keys_and_saved_plans(tmp_path: Path, clean: None, request: pytest.FixtureRequest) -> None:
    """A changed file is another kernel: neither plan nor code of the first one is taken."""
    options = {"pin": (ID,)}
    x = np.ones((9, 40), np.float32)
    digests, results = [], []
    for number, factor in enumerate(("tiling.columns", "tiling.columns // 2")):
        name = f"version_{number}"
        file = _write(tmp_path, ("vector_loop(kb, tiling.columns, lanes", f"vector_loop(kb, {factor}, lanes"), name)
        kernels.load_file(file)
        request.addfinalizer(partial(sys.modules.pop, name))
        digests.append(HOST_KERNELS.sources)
        results.append(float(sk.compile(_graph(), options=options, threads=1)(x).reshape(-1)[0]))
        kernels.unregister(ID)
    assert HOST_KERNELS.sources == ""
    assert digests[0] != digests[1]
    assert results == [40.0, 20.0]


def test_a_saved_kernel_runs_where_it_is_not_registered(
    tmp_path: Path, clean: None, request: pytest.FixtureRequest
) -> None:
    """Its plan is not believed there: the graph is planned with the kernels that there are."""
    file = _write(tmp_path, ("return (end - begin) * (2.0 +", "return 1e-6 * (2.0 +"), "fast_sums")
    kernels.load_file(file)
    request.addfinalizer(lambda: sys.modules.pop("fast_sums"))
    made = sk.compile(_graph(), threads=1)
    assert made.explain(0).kernel == ID
    made.save(tmp_path / "net.skm")
    assert sk.load(tmp_path / "net.skm").explain(0).kernel == ID
    _forget()
    again = sk.load(tmp_path / "net.skm", threads=1)
    assert again.explain(0).kernel == "host.reduce"
    x = np.ones((9, 40), np.float32)
    np.testing.assert_array_equal(again(x), made(x))


def test_a_manifest_that_lists_it_asks_for_it(example: ModuleType, tmp_path: Path) -> None:
    file = tmp_path / "kernels.json"
    sk.compile(_graph(), options={"pin": (ID,)}, threads=1).manifest().save(file)
    assert sk.compile(_graph(), options={"manifest": str(file)}, threads=1).explain(0).kernel == ID
    _forget()
    with pytest.raises(UserError, match=ID):
        sk.compile(_graph(), options={"manifest": str(file)}, threads=1)


def test_a_variant_reuses_family_and_emitter(clean: None) -> None:
    variant = replace(
        kernels.declared("host.softmax"), id="mine.softmax", modifier="mine", problems=("softmax(f32[4,37]; axis=-1)",)
    )
    kernels.register(variant)
    (found,) = trials(HOST_KERNELS, "mine.softmax", detect_cpu())
    assert found.fault == ""
    assert kernels.declared("mine.softmax").sources


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": "host.mine"}, "not an id"),
        ({"id": "mine"}, "not an id"),
        ({"id": "mine.softmax", "problems": ()}, "no problems"),
        ({"id": "mine.softmax", "modifier": ""}, "share a canonical name"),
    ],
)
def test_bad_declarations_are_refused(change: dict[str, Any], said: str, clean: None) -> None:
    base = {"problems": ("softmax(f32[4,37]; axis=-1)",), "modifier": "mine"}
    with pytest.raises(InputError, match=said):
        kernels.register(replace(kernels.declared("host.softmax"), **{**base, **change}))
    with pytest.raises(InputError, match="not a whole declaration"):
        kernels.kernel(id="mine.other")(lambda kb, body, tiling: None)
    with pytest.raises(InputError, match="no kernels of such a target"):
        kernels.kernel(on="gpu")
    with pytest.raises(InputError, match="no such kernel"):
        kernels.unregister("mine.other")


def test_an_id_is_registered_once(example: ModuleType) -> None:
    with pytest.raises(InputError, match="of this id is there"):
        kernels.register(HOST_KERNELS[ID])


def test_files_that_cannot_be_loaded(tmp_path: Path) -> None:
    bad = tmp_path / "bad_kernels.py"
    bad.write_text("1 / 0")
    with pytest.raises(UserError, match="does not run"):
        kernels.load_file(bad)
    with pytest.raises(UserError, match="no such file"):
        kernels.load_file(tmp_path / "absent.py")
    assert main(["--kernels", str(bad), "kernels", "list"]) == 2


def test_installed_packages_bring_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clean: None, request: pytest.FixtureRequest
) -> None:
    from superkernel.scheduler.installed import KernelWarning, load_installed

    (tmp_path / "brought.py").write_text(EXAMPLE.read_text())
    info = tmp_path / "brought-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    points = """
        [superkernel.kernels]
        brought = brought
        broken = no_such_module
    """
    (info / "entry_points.txt").write_text(textwrap.dedent(points))
    monkeypatch.syspath_prepend(tmp_path)
    request.addfinalizer(lambda: sys.modules.pop("brought", None))
    load_installed.cache_clear()
    with pytest.warns(KernelWarning, match="no_such_module"):
        load_installed()
    assert ID in HOST_KERNELS.kernels
    assert ID in AICORE_KERNELS.kernels


@pytest.mark.parametrize(("ns", "said"), [(500.0, "2.00 times"), (0.0, "too short to be compared")])
def test_a_kernel_s_time_may_be_less_than_the_clock_s(ns: float, said: str) -> None:
    text = timings_text([TrialTime("host.cumsum", "cumsum(f32[4,4]; axis=1)", ns, "host.reference", 1000.0)])
    assert text == f"host.cumsum  cumsum(f32[4,4]; axis=1)  {ns / 1e3:.2f} us; host.reference 1.00 us ({said})"
