"""The command line, as a shell sees it (subprocesses) and as a program calls it (`main`): exit statuses, what is on
stdout and what on stderr, files in and out."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from firmware_bench import needs_qemu

import superkernel as sk
from superkernel.backends.saved import load_source
from superkernel.cli import main
from superkernel.cli.npz import write_npz
from superkernel.frontends.json_form import load_json, save_json
from superkernel.reference import evaluate

Run = tuple[int, str, str]


def model() -> sk.Graph:
    """Names that archives might stumble over; one output that is NaN; one of a type that NumPy does not know."""
    b = sk.GraphBuilder("model")
    x = b.input("file", (2, 8), "f32")
    z = b.input("scope/z", (2, 8), "bf16")
    h = b.relu(b.matmul(x, b.constant(np.eye(8, dtype=np.float32) * 2)) + b.cast(z, dtype="f32"))
    b.output(h, name="scope/h")
    b.output(b.cast(h, dtype="bf16"), name="allow_pickle")
    b.output(b.log(b.neg(b.exp(h))), name="nan")
    return b.graph()


def arrays() -> dict[str, Any]:
    rng = np.random.default_rng(4)
    x, z = rng.standard_normal((2, 2, 8), dtype=np.float32)
    return {"file": x, "scope/z": z.astype(ml_dtypes.bfloat16)}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """m.json and m.onnx (a symbolic dimension), m.skm, in.npz."""
    import onnx
    import onnx.helper as oh

    path = tmp_path_factory.mktemp("cli")
    save_json(model(), path / "m.json")
    sk.compile(path / "m.json", threads=1).save(path / "m.skm")
    write_npz(path / "in.npz", arrays())
    for name in ("empty.skm", "empty.txt"):
        (path / name).touch()
    shape: list[Any] = ["batch", 4]
    infos = [oh.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name in ("x", "y")]
    graph = oh.make_graph([oh.make_node("Relu", ["x"], ["y"], name="act")], "dynamic", infos[:1], infos[1:])
    onnx.save(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 17)]), str(path / "m.onnx"))
    return path


@pytest.fixture
def call(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs `main` in the folder; gives status, stdout, stderr."""
    monkeypatch.chdir(folder)

    def run(*words: str) -> Run:
        capsys.readouterr()
        status = main(words)
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def shell(folder: Path, words: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "superkernel", *words]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False, **options)


def strict(text: str) -> Any:
    """JSON as the standard has it: no NaN, nothing behind the value."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    return json.loads(text, parse_constant=refuse)


# Results --------------------------------------------------------------------------------------------------------------


def test_run_round_trip_of_named_arrays(folder: Path, call: Any) -> None:
    status, out, err = call("run", "m.json", "--inputs", "in.npz", "--outputs", "out.npz", "--threads", "2", "--json")
    assert (status, err) == (0, "")
    data = strict(out)
    assert data["threads"] == 2
    assert data["outputs"]["nan"] == {"dtype": "f32", "shape": [2, 8], "not_finite": 16}
    expected = evaluate(model(), arrays(), wide=True)
    with np.load(folder / "out.npz", allow_pickle=False) as file:
        assert sorted(file.files) == ["allow_pickle", "nan", "scope/h"]
        np.testing.assert_allclose(file["scope/h"], expected["scope/h"], rtol=1e-5, atol=1e-6)
        narrow = file["allow_pickle"].view(ml_dtypes.bfloat16).astype(np.float32)
        np.testing.assert_allclose(narrow, expected["scope/h"], rtol=1e-2, atol=1e-6)
        assert data["outputs"]["scope/h"]["max"] == pytest.approx(float(file["scope/h"].max()))


def test_executors_agree_and_text_names_outputs(folder: Path, call: Any) -> None:
    for executor in ("host", "reference"):
        words = ("run", "m.skm", "--inputs", "in.npz", "--outputs", f"{executor}.npz", "--executor", executor)
        status, out, _ = call(*words)
        assert status == 0
        assert out.splitlines()[0].startswith("scope/h: f32[2,8]  min 0, max ")
        assert out.splitlines()[2] == "nan: f32[2,8]  not_finite 16"
    with np.load(folder / "host.npz") as host, np.load(folder / "reference.npz") as reference:
        np.testing.assert_allclose(host["scope/h"], reference["scope/h"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "words",
    [
        ("ablate", "--target", "mini"),
        ("bisect", "--option", "fuse=off"),
        pytest.param(("crosscheck",), marks=needs_qemu),
        ("explore", "--seeds", "1"),
        ("sweep", "--target", "mini"),
        ("tune", "--budget", "0"),  # status 4 under the profile that all tests go by, which is of no machine
    ],
)
def test_what_compiles_in_many_ways_takes_the_graph_of_a_saved_kernel(words: Any, folder: Path, call: Any) -> None:
    b = sk.GraphBuilder("small")
    b.output(b.relu(b.input("x", (2, 8), "f32") + 1.0), name="y")
    kernel = sk.compile(b.graph(), threads=1)
    kernel.save(folder / "kernel")
    save_json(b.graph(), folder / "small.json")
    from_saved, from_model = (call(words[0], name, *words[1:], "--json") for name in ("kernel", "small.json"))
    assert from_saved[0] == from_model[0] == (4 if words[0] == "tune" else 0)
    assert strict(from_saved[1]).keys() == strict(from_model[1]).keys()
    if words[0] == "bisect":  # all of it is exact, and the graph is that ahead of all passes
        assert from_saved[1] == from_model[1]
        assert load_source(folder / "kernel") == load_json(folder / "small.json")


def test_random_inputs_are_the_seed_s(call: Any) -> None:
    texts = [call("run", "m.skm", "--random-inputs", seed)[1] for seed in ("3", "3", "4")]
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("given", [["--dim", "batch=3"], ["--shape", "x=3,4"]])
def test_dynamic_dimensions(call: Any, given: list[str]) -> None:
    status, out, _ = call("run", "m.onnx", "--random-inputs", "0", "--json", *given)
    assert status == 0
    assert strict(out)["outputs"]["y"]["shape"] == [3, 4]


def test_options_reach_the_compiler(call: Any) -> None:
    words = ("inspect", "m.json", "--threads", "2", "--option", "fuse=off", "--option", "simplify=false", "--json")
    status, out, _ = call(*words)
    assert status == 0
    summary = strict(out)
    assert summary["sub_operators"] == summary["nodes"] == len(model().nodes)
    assert summary["threads"] == 2
    status, out, _ = call("inspect", "m.json", "--option", "deny=host.matmul*", "--option", "fallback=allow", "--json")
    assert status == 0
    assert strict(out)["fallbacks"]


def test_compile_then_load(folder: Path, call: Any) -> None:
    words = ("compile", "m.json", "-o", "made.skm", "--threads", "2", "--option", "sync=full", "--json")
    status, out, err = call(*words)
    assert (status, err) == (0, "")
    assert strict(out)["output"] == "made.skm"
    assert sk.load(folder / "made.skm").threads == 2
    status, out, _ = call("inspect", "made.skm", "--threads", "1", "--json")
    assert status == 0
    assert strict(out)["threads"] == 1


def test_report_and_inspect(call: Any) -> None:
    status, out, _ = call("report", "m.skm", "--random-inputs", "0", "--rounds", "5", "--json")
    assert status == 0
    report = strict(out)
    assert 1 <= report["fused"]["samples"] <= 5, "without disturbed launches"
    assert report["subops"] == len(report["boundaries"])
    for stage in ("graph", "simplified", "subops", "schedule", "plan", "certificate"):
        status, out, _ = call("inspect", "m.skm", "--stage", stage)
        assert status == 0
        assert out.strip() == sk.load("m.skm").stage_text(stage)
    status, out, _ = call("inspect", "m.skm", "--explain", "matmul_0")
    assert status == 0
    assert "host.matmul" in out
    assert strict(call("inspect", "m.skm", "--explain", "0", "--json")[1])["subop"] == 0


# The registry ---------------------------------------------------------------------------------------------------------


def test_kernels_list_and_explain(call: Any) -> None:
    rows = strict(call("kernels", "list", "--op", "matmul", "--dtype", "f32", "--tier", "avx2", "--json")[1])
    assert rows
    assert all(row["id"].startswith("host.") for row in rows)
    assert len(call("kernels", "list")[1].splitlines()) > len(rows) + 2
    problem = "matmul(f32[8,64], const f32[64,64])"
    chosen = strict(call("kernels", "explain", problem, "--tier", "avx2", "--json")[1])["chosen"]["id"]
    assert chosen.endswith("/avx2")
    denied = strict(call("kernels", "explain", problem, "--tier", "avx2", "--deny", chosen, "--json")[1])
    assert denied["chosen"]["id"] != chosen
    problem = "matmul(f32[1,4096], const f32[4096,4096])"
    for precision, kernel in (("auto", "host.matmul.gemv/"), ("int8", "host.matmul.gemv_int8/")):
        words = ("kernels", "explain", problem, "--tier", "avx2", "--precision", precision, "--json")
        assert strict(call(*words)[1])["chosen"]["id"].startswith(kernel)
    assert "serves" in call("kernels", "explain", "softmax")[1]


def test_kernels_dump_and_merge(folder: Path, call: Any) -> None:
    for name, source in (("a", "m.json"), ("b", "m.skm")):
        status, out, _ = call("kernels", "dump", source, "-o", f"{name}.manifest")
        assert status == 0
        assert strict(out) == strict((folder / f"{name}.manifest").read_text())
    status, out, _ = call("kernels", "merge", "a.manifest", "b.manifest", "-o", "both.manifest")
    assert status == 0
    assert out.startswith("both.manifest: ")
    merged = strict(call("kernels", "merge", "a.manifest", "b.manifest", "-o", "both.manifest", "--json")[1])
    assert merged["kernels"].keys() == strict((folder / "a.manifest").read_text())["kernels"].keys()


# What goes wrong ------------------------------------------------------------------------------------------------------

RANDOM = ("--random-inputs", "0")


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (("nonsense",), 2, "invalid choice"),
        (("run",), 2, "required: model"),
        (("run", "none.json"), 2, "no such file"),
        (("run", "m.json"), 2, "--random-inputs SEED"),
        (("run", "."), 2, "a directory"),
        (("run", "m.json", *RANDOM, "--inputs", "in.npz"), 2, "not allowed with"),
        (("run", "m.json", "--random-inputs", "x"), 2, "invalid int"),
        (("run", "m.json", "--random-inputs", "-1"), 2, "bad seed"),
        (("run", "m.json", "--inputs", "none.npz"), 2, "no such file"),
        (("run", "m.json", "--inputs", "m.json"), 2, "not an .npz file"),
        (("run", "m.json", "--inputs", "broken.npz"), 2, "not an .npz file"),
        (("run", "m.json", "--inputs", "pickled.npz"), 2, "not an .npz file"),
        (("run", "m.json", "--inputs", "other.npz"), 2, "unknown input 'wrong'"),
        (("run", "m.json", "--inputs", "."), 2, "cannot be read"),
        (("run", "m.json", *RANDOM, "--executor", "gpu"), 2, "invalid choice: 'gpu'"),
        (("run", "m.json", *RANDOM, "--threads", "0"), 2, "bad number of threads"),
        (("run", "m.json", *RANDOM, "--threads", "two"), 2, "invalid int"),
        (("run", "m.json", *RANDOM, "--option", "fuse"), 2, "NAME=VALUE"),
        (("run", "m.json", *RANDOM, "--option", "fuse=maybe"), 2, "not a truth value"),
        (("run", "m.json", *RANDOM, "--option", "fuze=on"), 2, "unknown option"),
        (("run", "m.json", *RANDOM, "--option", "watchdog_ms=soon"), 2, "not a number"),
        (("run", "m.json", *RANDOM, "--option", "split=" + "9" * 5000), 2, "not a number in range"),
        (("run", "m.json", *RANDOM, "--dim", "batch=2"), 2, "only apply to ONNX"),
        (("run", "m.onnx", *RANDOM, "--dim", "batch=two"), 2, "not an integer"),
        (("run", "m.onnx", *RANDOM, "--dim", "batch=-2"), 2, "not a size"),
        (("run", "m.onnx", *RANDOM, "--dim", "batch=2", "--dim", "bach=3"), 2, "no dimension 'bach'"),
        (("run", "m.onnx", *RANDOM, "--dim", "bach=3"), 2, "did you mean 'batch'?"),
        (("run", "m.onnx", *RANDOM), 3, "dynamic dimension"),
        (("run", "m.json", *RANDOM, "--target", "gpu"), 2, "unknown target"),
        (("run", "m.json", *RANDOM, "--target", "hst"), 2, "did you mean 'host'?"),
        (("run", "m.json", *RANDOM, "--target", ""), 2, "unknown target"),
        (("ablate", "m.json", "--target", ""), 2, "unknown target"),
        (("bisect", "m.json", "--target", ""), 2, "unknown target"),
        (("crosscheck", "m.json", "--target", ""), 2, "unknown target"),
        (("run", "m.skm", *RANDOM, "--option", "fuse=on"), 2, "--option with a saved kernel"),
        (("bisect", "m.skm", "--dim", "batch=2"), 2, "--dim with a saved kernel"),
        (("sweep", "m.skm", "--shape", "x=2"), 2, "--shape with a saved kernel"),
        (("quantise", "m.skm", "-o", "q.onnx", "--data", "in.npz"), 2, "give the model it was made of"),
        (("run", "empty.skm", *RANDOM), 2, "an empty file"),
        (("ablate", "empty.skm"), 2, "an empty file"),
        (("run", "none.skm", *RANDOM), 2, "no such file"),
        (("tune", "none.skm"), 2, "no such file"),
        (("explore", "empty.txt"), 2, "are known by their contents; this is none"),
        (("run", "m.json", *RANDOM, "--outputs", "none/out.npz"), 4, "cannot write the arrays"),
        (("compile", "m.json"), 2, "required: -o/--output"),
        (("compile", "m.json", "-o", "none/m.skm"), 4, "cannot write the kernel"),
        (("compile", "m.json", "-o", "."), 4, "cannot write the kernel"),
        (("report", "m.skm", *RANDOM, "--rounds", "-1"), 2, "bad count"),
        (("inspect", "m.skm", "--stage", "dreams"), 2, "invalid choice"),
        (("inspect", "m.skm", "--explain", "nobody"), 2, "no node or value"),
        (("kernels",), 2, "required: VERB"),
        (("kernels", "list", "--op", "rellu"), 2, "did you mean"),
        (("kernels", "list", "--dtype", "f99"), 2, "not an element type"),
        (("kernels", "test", "host.softmax", "--seed", "-5"), 2, "bad seed"),
        (("kernels", "explain", "host.nothing"), 2, "no kernel or operator"),
        (("kernels", "explain", "matmul(f32[8]"), 2, "not a requirement"),
        (("kernels", "explain", "softmax", "--precision", "f16"), 2, "invalid choice: 'f16'"),
        (("kernels", "explain", "softmax", "--target", "a3", "--precision", "bf16"), 2, "--precision is of the host"),
        (("kernels", "merge", "none", "-o", "x.json"), 2, "no such file"),
        (("kernels", "merge", "m.json", "-o", "x.json"), 2, "not a kernel manifest"),
    ],
)
def test_errors_have_a_status_and_a_message(
    folder: Path, call: Any, words: tuple[str, ...], status: int, text: str
) -> None:
    (folder / "broken.npz").write_bytes((folder / "in.npz").read_bytes()[:200])
    with (folder / "pickled.npz").open("wb") as file:
        np.savez(file, x=np.array([{}], object))
    with (folder / "other.npz").open("wb") as file:
        np.savez(file, wrong=np.zeros(3))
    found, out, err = call(*words)
    assert (found, out) == (status, "")
    assert err.startswith("superkernel: ")
    assert text in err
    assert "Traceback" not in err
    found, out, err = call(*words, "--json")
    assert (found, err) == (status, "")
    assert any(text in " ".join(v.values()) for v in strict(out)["violations"])


def test_a_fault_of_ours_is_told_apart(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("superkernel.compilation.pipeline.compile_graph", broken)
    status, out, err = call("inspect", "m.json", "--json")
    assert status == 1
    assert strict(out)["category"] == "internal"
    assert "ZeroDivisionError: oops" in err


def test_main_leaves_the_caller_s_warnings_alone(call: Any) -> None:
    before = warnings.showwarning
    call("inspect", "m.json", "--option", "deny=host.matmul*")
    assert warnings.showwarning is before


def test_warnings_go_to_stderr(call: Any) -> None:
    status, out, err = call("run", "m.json", *RANDOM, "--option", "deny=host.matmul*", "--json")
    assert status == 0
    assert "superkernel: warning: no kernel for" in err
    assert strict(out)["outputs"]


@pytest.mark.parametrize("words", [(), ("compile",), ("run",), ("report",), ("inspect",), ("kernels",)])
def test_help(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([*words, "--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert text.startswith(f"usage: {' '.join(('superkernel', *words))}")
    assert len(text.splitlines()) > 5


def test_no_words_show_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    shown = capsys.readouterr()
    assert (shown.out, shown.err.partition(" [")[0]) == ("", "usage: superkernel")
    assert "compile" in shown.err


# As a process ---------------------------------------------------------------------------------------------------------


def test_process_statuses(folder: Path) -> None:
    done = shell(folder, ["run", "m.skm", "--random-inputs", "0", "--json"])
    assert (done.returncode, done.stderr) == (0, "")
    assert strict(done.stdout)["outputs"]
    done = shell(folder, ["run", "none.onnx", "--json"])
    assert (done.returncode, done.stderr) == (2, "")
    assert strict(done.stdout)["error"] == "InputError"
    assert shell(folder, ["--version"]).stdout.strip() == f"superkernel {sk.__version__}"


def test_dumps_stay_out_of_stdout(folder: Path) -> None:
    done = shell(folder, ["inspect", "m.json", "--json"], env={**os.environ, "SK_DUMP": "all"})
    assert done.returncode == 0
    assert "--- plan ---" in done.stderr
    assert strict(done.stdout)["name"] == "model"


def test_broken_pipe_is_silent(folder: Path) -> None:
    """The reader goes away before anything is written."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "superkernel", "kernels", "list", "--json"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, cwd=folder, timeout=120, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("words", [["kernels", "list"], ["kernels", "list", "--json"], ["run", "none.onnx", "--json"]])
def test_a_full_disk_behind_stdout_is_the_machines_fault(words: list[str], folder: Path) -> None:
    command = [sys.executable, "-m", "superkernel", *words]
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, cwd=folder, timeout=120, check=False)
    assert done.returncode == 4
    assert done.stderr.startswith(b"superkernel: environment error: the results cannot be written; found")
    assert done.stderr.count(b"\n") == 1


def test_a_closed_stdout_ends_no_command(folder: Path) -> None:
    line = f"exec {shlex.quote(sys.executable)} -m superkernel kernels list >&-"
    done = subprocess.run(["sh", "-c", line], stderr=subprocess.PIPE, cwd=folder, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def test_documented_arguments_exist(folder: Path) -> None:
    """docs/command-line.md names every argument of the parser."""
    import argparse

    from superkernel.cli import _parser

    text = (Path(__file__).parents[2] / "docs/command-line.md").read_text()
    missing: list[str] = []

    def visit(parser: argparse.ArgumentParser) -> None:
        for action in parser._actions:
            missing.extend(o for o in action.option_strings if o.startswith("--") and o not in text)
            if isinstance(action, argparse._SubParsersAction):
                for name, sub in action.choices.items():
                    if name not in text:
                        missing.append(name)
                    visit(sub)

    visit(_parser())
    assert not missing
