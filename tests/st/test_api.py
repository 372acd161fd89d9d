"""The public interface: compile, call, run, report, explain, save and load, as a user would try them."""

from __future__ import annotations

import copy
import pickle
import re
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any, get_overloads

import networkx as nx
import numpy as np
import pytest

import superkernel as sk
from superkernel.reference import evaluate
from superkernel.target.aicore import preset_names


def mlp_graph(rows: int = 8) -> sk.Graph:
    rng = np.random.default_rng(7)
    b = sk.GraphBuilder("mlp")
    x = b.input("x", (rows, 64), "f32")
    bias = b.input("bias", (48,), "f32")
    h = b.gelu(b.matmul(x, b.constant(rng.standard_normal((64, 48), dtype=np.float32) / 8)) + bias)
    b.output(h, name="hidden")
    b.output(b.softmax(b.matmul(h, b.constant(rng.standard_normal((48, 10), dtype=np.float32)))), name="p")
    return b.graph()


def mlp_inputs(rows: int = 8) -> dict[str, Any]:
    rng = np.random.default_rng(8)
    return {
        "x": rng.standard_normal((rows, 64), dtype=np.float32),
        "bias": rng.standard_normal(48, dtype=np.float32),
    }


@pytest.fixture(scope="module")
def kernel() -> sk.HostKernel:
    return sk.compile(mlp_graph(), threads=2)


def test_call_by_position_and_name(kernel: sk.HostKernel) -> None:
    inputs = mlp_inputs()
    expected = evaluate(mlp_graph(), inputs, wide=True)
    hidden, p = kernel(inputs["x"], inputs["bias"])
    np.testing.assert_allclose(hidden, expected["hidden"], atol=1e-5)
    np.testing.assert_allclose(p, expected["p"], atol=1e-5)
    for again in (kernel(bias=inputs["bias"], x=inputs["x"]), kernel(inputs["x"], bias=inputs["bias"])):
        np.testing.assert_array_equal(again[0], hidden)
        np.testing.assert_array_equal(again[1], p)
    assert list(kernel.run(inputs).outputs) == ["hidden", "p"]
    np.testing.assert_array_equal(kernel.run([inputs["x"], inputs["bias"]]).outputs["p"], p)


def test_whatever_runs_takes_inputs_by_name(kernel: sk.HostKernel) -> None:
    inputs = mlp_inputs()
    np.testing.assert_array_equal(kernel.run(**inputs).outputs["p"], kernel(**inputs)[1])
    assert kernel.trace(**inputs).spans
    assert kernel.report(rounds=0, **inputs).run_ns > 0
    assert len(kernel.time(rounds=2, **inputs)) == 2
    for method in (kernel.run, kernel.trace, kernel.report, kernel.time):
        with pytest.raises(sk.InputError, match=r"input 'bias': missing"):
            method(x=inputs["x"])
        with pytest.raises(sk.InputError, match=r"unknown input 'round'"):
            method(**inputs, round=3)
        with pytest.raises(sk.InputError, match=r"given twice.*found x, bias"):
            method(inputs, **inputs)
    on_mini = sk.compile(mlp_graph(), target="mini")
    assert on_mini.critical(**inputs, confirm=0).text() == on_mini.critical(inputs, confirm=0).text()


def test_inputs_stay_untouched_and_may_be_read_only(kernel: sk.HostKernel) -> None:
    inputs = mlp_inputs()
    before = copy.deepcopy(inputs)
    for array in inputs.values():
        array.flags.writeable = False
    strided = np.asfortranarray(inputs["x"])
    np.testing.assert_array_equal(kernel(inputs["x"], inputs["bias"])[1], kernel(strided, inputs["bias"])[1])
    for name, array in inputs.items():
        np.testing.assert_array_equal(array, before[name])


def test_outputs_are_new_every_time(kernel: sk.HostKernel) -> None:
    inputs = mlp_inputs()
    first = kernel(**inputs)[1]
    kept = first.copy()
    kernel(inputs["x"] * 2, inputs["bias"])
    np.testing.assert_array_equal(first, kept)


def test_profile_report_and_explanations(kernel: sk.HostKernel) -> None:
    result = kernel.run(mlp_inputs(), profile=True)
    assert result.report is not None
    assert result.report.fused is None
    report = kernel.report(mlp_inputs(), rounds=9)
    assert report.fused is not None
    assert report.one_by_one is not None
    assert report.fused.low_ns <= report.fused.median_ns <= report.fused.high_ns
    assert report.run_ns > 0
    assert 0 <= report.pure_ns <= report.run_ns
    assert len(report.boundaries) == report.subops
    assert sum(b.arrivals for b in report.boundaries) == report.waits == kernel.summary()["waits"]
    data = report.to_json()
    assert data["boundaries"][0]["form"] in ("none", "point-to-point", "subset", "full")
    assert "one by one" in report.text()
    text = str(kernel.explain("matmul_0"))
    assert "host.matmul" in text
    assert "boundary" in text
    assert kernel.explain(0).to_json()["subop"] == 0
    with pytest.raises(sk.InputError, match="no node"):
        kernel.explain("nonsense")


def test_plan_and_certificate(kernel: sk.HostKernel) -> None:
    from superkernel.sync.plan import parse_plan
    from superkernel.sync.verify import verify

    assert kernel.certificate.tasks >= 2
    again = parse_plan(kernel.plan)
    assert verify(again).conflicting_pairs == kernel.certificate.conflicting_pairs


def test_reference_executor_agrees(kernel: sk.HostKernel) -> None:
    inputs = mlp_inputs()
    host, reference = kernel.run(inputs).outputs, kernel.run(inputs, executor="reference").outputs
    np.testing.assert_allclose(host["p"], reference["p"], atol=1e-5)
    with pytest.raises(sk.UnsupportedError, match="unknown executor"):
        kernel.run(inputs, executor="gpu")


def state_graph() -> sk.Graph:
    b = sk.GraphBuilder("decode")
    new = b.input("new", (1, 2, 1, 4), "f32")
    position = b.input("position", (), "i64")
    cache = b.state("cache", np.zeros((1, 2, 6, 4), np.float32))
    after = b.kv_update(cache, new, position)
    b.update(cache, after)
    b.output(b.reduce_sum(after, axes=(2,), keepdims=False), name="sum")
    return b.graph()


def test_states_persist_and_reset() -> None:
    kernel = sk.compile(state_graph(), threads=2)
    total = np.zeros((1, 2, 4), np.float32)
    for i in range(4):
        new = np.full((1, 2, 1, 4), float(i + 1), np.float32)
        total += new[:, :, 0]
        np.testing.assert_array_equal(kernel(new, i), total)
    np.testing.assert_array_equal(kernel.states["cache"][0, 0, :4, 0], [1, 2, 3, 4])
    kernel.report({"new": new, "position": 5}, rounds=3)
    np.testing.assert_array_equal(kernel.states["cache"][0, 0, 4:, 0], [0, 0])
    kernel.reset_states()
    assert not kernel.states["cache"].any()
    for i in range(2):
        kernel.run({"new": new, "position": i}, executor="reference")
    np.testing.assert_array_equal(kernel.states["cache"][0, 0, :, 0], [4, 4, 0, 0, 0, 0])


def test_networkx_graph() -> None:
    g = nx.MultiDiGraph()
    g.add_node("x", op="input", dtype="f32", shape=(4,))
    g.add_node("y", op="mul")
    g.add_edge("x", "y", input_index=0)
    g.add_edge("x", "y", input_index=1)
    np.testing.assert_array_equal(sk.compile(g, threads=1)(np.arange(4, dtype=np.float32)), [0, 1, 4, 9])


def test_save_and_load(tmp_path: Path, kernel: sk.HostKernel, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mlp.skm"
    kernel.save(path)
    monkeypatch.setenv("SK_CACHE_DIR", "off")
    loaded = sk.load(path)
    assert loaded.summary()["from_cache"]
    inputs = mlp_inputs()
    np.testing.assert_array_equal(loaded(**inputs)[1], kernel(**inputs)[1])
    other = sk.load(path, threads=1)
    assert other.threads == 1
    np.testing.assert_array_equal(other(**inputs)[1], kernel(**inputs)[1])


@pytest.mark.parametrize("damage", ["truncate", "flip", "nonsense", "absent"])
def test_damaged_saved_kernel(tmp_path: Path, kernel: sk.HostKernel, damage: str) -> None:
    path = tmp_path / "mlp.skm"
    kernel.save(path)
    data = bytearray(path.read_bytes())
    if damage == "truncate":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "flip":
        data[len(data) // 3] ^= 0x40
        path.write_bytes(data)
    elif damage == "nonsense":
        path.write_bytes(b"not a kernel")
    else:
        path.unlink()
    with pytest.raises(sk.UserError):
        sk.load(path)


def test_cache_is_used_and_a_corrupt_entry_is_recompiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SK_CACHE_DIR", str(tmp_path))
    inputs = mlp_inputs()
    first = sk.compile(mlp_graph(), threads=2)
    assert not first.summary()["from_cache"]
    assert sk.compile(mlp_graph(), threads=2).summary()["from_cache"]
    for file in tmp_path.rglob("*.o"):
        data = bytearray(file.read_bytes())
        data[-20] ^= 1
        file.write_bytes(data)
    again = sk.compile(mlp_graph(), threads=2)
    assert not again.summary()["from_cache"]
    np.testing.assert_array_equal(again(**inputs)[1], first(**inputs)[1])


def test_unwritable_cache_warns_and_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SK_CACHE_DIR", str(tmp_path / "file" / "cache"))
    with pytest.warns(UserWarning, match="not cached"):
        kernel = sk.compile(mlp_graph(), threads=1)
    assert kernel(**mlp_inputs())[1].shape == (8, 10)


def test_many_threads_call_many_kernels() -> None:
    kernels = [sk.compile(mlp_graph(rows), threads=2) for rows in (4, 8)]
    expected = [kernel(**mlp_inputs(rows))[1] for kernel, rows in zip(kernels, (4, 8), strict=True)]
    wrong: list[int] = []

    def work(which: int) -> None:
        inputs = mlp_inputs((4, 8)[which])
        for _ in range(200):
            if not np.array_equal(kernels[which](**inputs)[1], expected[which]):
                wrong.append(which)

    threads = [threading.Thread(target=work, args=(i % 2,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong


def test_more_threads_than_cpus_makes_progress() -> None:
    code = (
        "import warnings, numpy as np, superkernel as sk\n"
        "from models import mlp\n"
        "x = np.ones((3, 64), np.float32)\n"
        "with warnings.catch_warnings(record=True) as seen:\n"
        "    warnings.simplefilter('always')\n"
        "    k = sk.compile(mlp(batch=3), threads=9, options={'cost_placement': False})\n"
        "    for _ in range(20): k(x)\n"
        "print(sum('threads' in str(w.message) for w in seen))\n"
    )
    helpers = Path(__file__).resolve().parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=helpers, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "1"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_full_barriers_of_many_cores() -> None:
    """Runs of waits are a table and a loop: same results, every wait profiled, no code that grows with the square."""
    inputs = mlp_inputs(64)
    expected = sk.compile(mlp_graph(64), threads=1)(**inputs)
    kernel = sk.compile(mlp_graph(64), threads=6, options={"sync": "full", "cost_placement": False})
    for _ in range(5):
        for got, want in zip(kernel(**inputs), expected, strict=True):
            np.testing.assert_array_equal(got, want)
    report = kernel.report(inputs, rounds=1)
    assert kernel.threads == 6
    assert [b.arrivals for b in report.boundaries][1:] == [30] * (report.subops - 1)
    assert all(ns > 0 for ns in report.busy_ns)
    assert report.pure_ns + report.imbalance_ns > 0
    sizes = [
        sk.compile(mlp_graph(64), threads=n, options={"sync": "full", "cost_placement": False}).summary()["code_bytes"]
        for n in (16, 32)
    ]
    assert sizes[1] < 3 * sizes[0]


def test_watchdog_is_quiet_on_a_good_kernel() -> None:
    kernel = sk.compile(mlp_graph(), threads=2, options={"watchdog_ms": 60_000})
    assert kernel(**mlp_inputs())[1].shape == (8, 10)


def test_watchdog_names_the_boundary() -> None:
    """A set that never happens: the plan's entry is compiled with one set left out behind the verifier's back."""
    from dataclasses import replace

    from superkernel.backends.host.executable import HostExecutable
    from superkernel.codegen.host.entry import emit_entries
    from superkernel.codegen.host.entry_spec import SetCount
    from superkernel.codegen.host.loader import LoadedCode
    from superkernel.codegen.host.lower import compile_ir

    compiled = sk.compile(mlp_graph(64), threads=2, options={"sync": "full"})._compiled
    spec = compiled.image.spec
    broken = replace(
        spec, programs=(spec.programs[0], tuple(s for s in spec.programs[1] if not isinstance(s, SetCount)))
    )
    objects = [
        *list(compiled.image.objects.values())[:-1],
        compile_ir(emit_entries(broken, compiled.target), compiled.target),
    ]
    image = replace(compiled.image, code=LoadedCode(objects))
    executable = HostExecutable(image, compiled.schedule, compiled.plan, watchdog_ms=100)
    inputs = mlp_inputs(64)
    io = [inputs["x"], inputs["bias"], np.empty((64, 48), np.float32), np.empty((64, 10), np.float32)]
    with pytest.raises(sk.WatchdogError, match=r"boundary \d+ \('matmul_1'\)|boundary"):
        executable.run(io)


def test_fallback_policies() -> None:
    """An operator that kernel selection is forbidden to serve: refused, warned of, or silently computed by NumPy."""
    rng = np.random.default_rng(3)
    x = rng.standard_normal((4, 6), dtype=np.float32)
    b = sk.GraphBuilder("g")
    b.output(b.tanh(b.softmax(b.relu(b.input("x", (4, 6), "f32")))), name="y")
    graph = b.graph()
    expected = evaluate(graph, {"x": x}, wide=True)["y"]
    deny = ("host.softmax*",)
    with pytest.raises(sk.UnsupportedError, match="softmax"):
        sk.compile(graph, threads=2, options={"fallback": "forbid", "deny": deny})
    with pytest.warns(UserWarning, match="NumPy"):
        kernel = sk.compile(graph, threads=2, options={"deny": deny})
    np.testing.assert_allclose(kernel(x), expected, atol=1e-6)
    assert kernel.summary()["fallbacks"]
    assert "fallback" in kernel.report({"x": x}, rounds=3).text()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sk.compile(graph, threads=2, options={"fallback": "allow", "deny": deny})(x)


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    with pytest.raises(sk.InputError, match=r"host\.sofmax.*matches no kernel"):
        sk.compile(mlp_graph(), threads=1, options={"deny": ("host.sofmax*",)})


def test_kernel_shows_itself(kernel: sk.HostKernel) -> None:
    assert "f32[8,64]" in repr(kernel)
    assert kernel.name == "mlp"
    assert [str(t) for t in kernel.inputs.values()] == ["f32[8,64]", "f32[48]"]


def test_type_checkers_know_the_presets() -> None:
    """The overload for accelerators names every preset, so that `compile` gives a checker their kind of kernel."""
    _, accelerators, _ = get_overloads(sk.compile)
    named = re.findall(r"'(\w+)'", accelerators.__annotations__["target"])
    assert sorted(named) == sorted(preset_names())


def test_the_kind_of_a_kernel_says_what_it_reports(kernel: sk.HostKernel, tmp_path: Path) -> None:
    b = sk.GraphBuilder("small")
    b.output(b.relu(b.input("x", (4,))), name="y")
    device = sk.compile(b.graph(), "mini")
    kernel.save(tmp_path / "k.skm")
    for host in (kernel, copy.copy(kernel), sk.load(tmp_path / "k.skm")):
        assert type(host) is sk.HostKernel
        assert isinstance(host.report(rounds=0), sk.Report)
    for other in (device, copy.copy(device), pickle.loads(pickle.dumps(device))):
        assert type(other) is sk.AicoreKernel
        assert isinstance(other.report(rounds=0), sk.SimReport)


@pytest.mark.parametrize("take", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_binding_is_neither_copied_nor_pickled(take: Any) -> None:
    b = sk.GraphBuilder("small")
    b.output(b.relu(b.input("x", (4,))), name="y")
    with pytest.raises(sk.UnsupportedError, match="a binding cannot be copied or pickled"):
        take(sk.compile(b.graph(), threads=1).bind(np.zeros(4, np.float32)))


def test_dump_switch(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SK_DUMP", "subops,plan,ir")
    monkeypatch.setenv("SK_TRACE", str(tmp_path / "trace.json"))
    sk.compile(mlp_graph(), threads=2)
    text = capsys.readouterr().err
    assert "--- plan ---" in text
    assert "define i32 @sk_entry" in text
    assert "traceEvents" in (tmp_path / "trace.json").read_text()
