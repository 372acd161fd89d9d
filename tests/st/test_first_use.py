"""What somebody meets who tries things for the first time: true figures, and hints that lead on."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import models
import numpy as np
import pytest

import superkernel as sk
from superkernel.cli import main
from superkernel.codegen.host.features import detect_cpu
from superkernel.frontends.json_form import save_json


@pytest.mark.serial
def test_the_profiled_launch_is_the_plain_one() -> None:
    """As warm and as fast, but for its stamps. Of several reports the least ratio counts: what else the machine does
    makes some of them larger."""
    kernel = sk.compile(models.decode_step(layers=1), threads=1)
    reports = [kernel.report(rounds=100) for _ in range(5)]
    assert min(report.profiled_ns / report.run_ns for report in reports) < 1.15
    for report in reports:
        assert report.stamps is not None
        if report.parts:
            assert sum(part.ns for part in report.parts[:-1]) == pytest.approx(report.profiled_ns)
            assert sum(part.ns for part in report.parts) == pytest.approx(report.run_ns)
            assert sum(part.share for part in report.parts) == pytest.approx(1.0)


def test_the_critical_path_of_the_host_leads_to_what_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_json(models.mlp((8, 8)), tmp_path / "m.json")
    assert main(["report", str(tmp_path / "m.json"), "--random-inputs", "0", "--critical"]) == 3
    said = capsys.readouterr().err
    assert "only an accelerator's runs have a critical path" in said
    assert "`report` says what synchronisation costs here, and `trace` shows who waits for whom" in said


def test_a_warm_report_of_the_host_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_json(models.mlp((8, 8)), tmp_path / "m.json")
    assert main(["report", str(tmp_path / "m.json"), "--random-inputs", "0", "--warm"]) == 3
    said = capsys.readouterr().err
    assert "only an accelerator's reports are of a first or a second run" in said
    assert "leave it out: launches of the host are warm" in said


def test_an_unknown_target_is_the_user_s_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_json(models.mlp((8, 8)), tmp_path / "m.json")
    assert main(["report", str(tmp_path / "m.json"), "--target", "a4", "--random-inputs", "0"]) == 2
    said = capsys.readouterr().err
    assert "expected host, cortex-m55, cortex-m85, cortex-m33, cortex-m7, cortex-m4, a2, a3, mini" in said
    assert "found 'a4'" in said


def test_half_a_saved_kernel_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "k.skm"
    sk.compile(models.mlp((8, 8)), threads=1).save(file)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert main(["run", str(file), "--random-inputs", "0"]) == 2
    assert (
        "the saved kernel is cut short (hint: copy the file again, or save the kernel again)" in capsys.readouterr().err
    )


def test_a_dimension_that_nothing_has_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_json(models.mlp((8, 8)), tmp_path / "m.json")
    assert main(["run", str(tmp_path / "m.json"), "--dim", "N=3", "--random-inputs", "0"]) == 2
    assert "dims only apply to ONNX models" in capsys.readouterr().err


def test_tensors_that_require_gradients_are_told_apart() -> None:
    torch = pytest.importorskip("torch")
    kernel = sk.compile(models.mlp((8, 8)), threads=1)
    with pytest.raises(sk.InputError, match=r"call \.detach\(\) on it"):
        kernel(torch.ones(1, 8, requires_grad=True))


def test_warnings_that_are_documented_are_exported() -> None:
    assert issubclass(sk.CacheWarning, Warning)
    assert issubclass(sk.OversubscriptionWarning, Warning)


def test_a_shape_may_be_given_as_one_tuple() -> None:
    b = sk.GraphBuilder("g")
    x = b.input("x", (2, 8))
    b.output(b.reshape(x, (4, 4)), "y")
    out = sk.compile(b.graph(), threads=1)(np.arange(16, dtype=np.float32).reshape(2, 8))
    assert out.shape == (4, 4)


ROOT = Path(__file__).parents[2]


def test_hints_to_install_name_this_project_and_are_quoted() -> None:
    """The package's name on the index, not the module's, which is somebody else's there; brackets are for the shell to
    take as they are; every extra exists."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("examples/*")]
    files += [path for path in (ROOT / "superkernel").rglob("*") if path.suffix in (".py", ".html", ".js")]
    lines = [line for path in files if path.is_file() for line in path.read_text(encoding="utf-8").splitlines()]
    asked = [line.split("pip install", 1)[1] for line in lines if "pip install" in line]
    with_extra = [line for line in asked if re.search(r"[\w.]\[\w", line)]
    assert len(with_extra) >= 6
    for line in with_extra:
        found = re.search(r"""(['"])(\S+)\[(\w+)\]\1""", line)
        assert found is not None, f"not quoted: {line}"
        assert found[2] in (project["name"], "."), line
        assert found[3] in project["optional-dependencies"], line
    assert not [line for line in asked if re.search(r"\bsuperkernel(\s|$|')", line)], "that is another project"


def test_hints_on_the_command_line_are_of_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    for name, shape in {"dim": ["N", 4], "shape": [None, 4], "rank": None}.items():
        graph = helper.make_graph(
            [helper.make_node("Relu", ["x"], ["y"])], "g",
            [helper.make_tensor_value_info("x", kind, shape)], [helper.make_tensor_value_info("y", kind, shape)],
        )  # fmt: skip
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), str(tmp_path / name))
        (tmp_path / name).rename(tmp_path / f"{name}.onnx")
    run = ["--random-inputs", "0"]
    for name, hint, given in (
        ("dim", "--dim N=n", ["--dim", "N=2"]),
        ("shape", "--shape x=...", ["--shape", "x=2,4"]),
        ("rank", "--shape x=...", ["--shape", "x=2,4"]),
    ):
        model = str(tmp_path / f"{name}.onnx")
        assert main(["run", model, *run]) == 3
        assert f"command line: {hint})" in capsys.readouterr().err
        assert main(["run", model, *given, *run]) == 0
        capsys.readouterr()
    b = sk.GraphBuilder("g")
    b.output(b.lrn(b.input("x", (1, 8, 4, 4)), size=3), "y")
    save_json(b.graph(), tmp_path / "lrn.json")
    forbidding = ["run", str(tmp_path / "lrn.json"), "--target", "mini", *run, "--option"]
    assert main([*forbidding, "fallback=forbid"]) != 0
    assert "command line: --option fallback=warn)" in capsys.readouterr().err
    assert main([*forbidding, "fallback=warn"]) == 0
    assert "--option fallback=allow on the command line)" in capsys.readouterr().err


MINILM = """
import json, runpy, sys
import numpy as np
import superkernel as sk

class Weights(dict):  # of MiniLM's shapes; what they hold does not decide where cores wait
    def __missing__(self, name):
        width, wide = 384, 1536
        inner = name.endswith(".output.dense.weight") and "attention" not in name
        sizes = {"word_embeddings": (64, width), "position": (512, width), "token_type": (2, width)}
        shape = next((size for part, size in sizes.items() if part in name), None)
        if shape is None and "intermediate" in name:
            shape = (wide, width) if name.endswith("weight") else (wide,)
        if shape is None:
            shape = (width, wide) if inner else (width,)
            if name.endswith("weight") and "LayerNorm" not in name and not inner:
                shape = (width, width)
        return np.zeros(shape, np.float32)

graph = runpy.run_path(sys.argv[1])["build_encoder"](Weights(), 16)
kernel = sk.compile(graph, threads=2, target=sys.argv[2])
plan = kernel._compiled.plan
print(json.dumps([plan.waits, sum(map(bool, plan.waits_ahead().values())), len(plan.boundaries)]))
"""


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="instruction sets of x86-64")
@pytest.mark.parametrize("tier", ["plain", "avx2"])
def test_the_sync_points_that_the_documentation_names_are_those_that_are_planned(tier: str) -> None:
    """For the described machine that the tests use, wherever they run."""
    try:
        detect_cpu(tier)
    except sk.MachineError:
        pytest.skip(f"this CPU has no {tier}")
    machine = ROOT / "tests" / "machines" / "two-cores.json"
    words = [sys.executable, "-c", MINILM, str(ROOT / "examples" / "minilm.py"), str(machine)]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ, "SK_CPU": tier})
    waits, waiting, boundaries = json.loads(done.stdout)
    said = f"{waits} waits in {waiting} of {boundaries} boundaries (SSE2)"
    if tier == "avx2":
        said = f"to {waits} in {waiting} (AVX2, two cores that share nothing)"
    for name in ("README.md", "docs/features.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert f"{boundaries - 1} full barriers before" in text
        assert said in text, name


# A busy machine -------------------------------------------------------------------------------------------------------


@contextmanager
def busy_loops() -> Iterator[None]:
    """Two processes per CPU that this one may use, which do nothing but run there."""
    cpus = sorted(os.sched_getaffinity(0)) * 2
    loop = "import os, sys\nos.sched_setaffinity(0, {int(sys.argv[1])})\nprint(flush=True)\nwhile True: pass"
    loops = [subprocess.Popen([sys.executable, "-c", loop, str(cpu)], stdout=subprocess.PIPE) for cpu in cpus]
    try:
        for process in loops:
            assert process.stdout is not None
            process.stdout.readline()  # it runs
        yield
    finally:
        for process in loops:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


@pytest.mark.serial
def test_a_report_beside_busy_loops_says_so_and_adds_up_or_withholds_its_shares() -> None:
    """That its shares are those of a quiet one is held where launches are recorded ones (tests/ut/test_report.py): here
    two quiet ones differ by as much as others disturb them."""
    kernel = sk.compile(models.transformer(layers=2), threads=min(2, len(os.sched_getaffinity(0))))
    with busy_loops():
        report = kernel.report(kernel._random(), rounds=60)
    conditions = report.conditions
    assert conditions is not None
    said = report.text()
    if conditions.others_share is not None:  # /proc/stat tells
        assert "other processes took" in said
        assert conditions.others_share > 0.2
    if conditions.left_out:
        assert f"{conditions.left_out} of {conditions.launches} launches" in said
    assert report.trusted == bool(report.parts)
    if report.trusted:
        assert sum(part.ns for part in report.parts) == pytest.approx(report.run_ns)
        assert sum(part.share for part in report.parts) == pytest.approx(1.0)
    else:
        assert "the machine was busy" in said
        assert "pure sync" not in said
