"""What somebody meets who tries things for the first time: true figures, and hints that lead on."""

from __future__ import annotations

from pathlib import Path

import models
import numpy as np
import pytest

import superkernel as sk
from superkernel.cli import main
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
            assert sum(part.ns for part in report.parts) == pytest.approx(report.profiled_ns)
            assert sum(part.share for part in report.parts) == pytest.approx(1.0)


def test_the_critical_path_of_the_host_leads_to_what_there_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_json(models.mlp((8, 8)), tmp_path / "m.json")
    assert main(["report", str(tmp_path / "m.json"), "--random-inputs", "0", "--critical"]) == 3
    said = capsys.readouterr().err
    assert "only an accelerator's runs have a critical path" in said
    assert "`report` says what synchronisation costs here, and `trace` shows who waits for whom" in said


def test_an_unknown_target_is_the_user_s_mistake(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_json(models.mlp((8, 8)), tmp_path / "m.json")
    assert main(["report", str(tmp_path / "m.json"), "--target", "a4", "--random-inputs", "0"]) == 2
    said = capsys.readouterr().err
    assert "expected host, a2, a3, mini" in said
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
