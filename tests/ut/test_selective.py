"""Selective builds: a model compiles under its own manifest to what it was; one that needs more is refused by the key
of what is missing, on host and accelerator, whatever `fallback` says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import superkernel as sk
from superkernel.cli import main
from superkernel.frontends.json_form import save_json
from superkernel.ir.graph import Graph
from superkernel.registry.manifest import Manifest, merge

TARGETS = ("host", "mini")


def _classifier() -> Graph:
    """A convolution, a pool and a product."""
    b = sk.GraphBuilder("classifier")
    rng = np.random.default_rng(0)
    filters = rng.standard_normal((16, 16, 3, 3), dtype=np.float32)
    x = b.relu(b.conv(b.input("x", (1, 16, 12, 12)), b.constant(filters), pads=(1, 1, 1, 1)))
    x = b.reshape(b.global_avg_pool(x), shape=(1, 16))
    b.output(b.matmul(x, b.constant(rng.standard_normal((16, 10), dtype=np.float32))), "y")
    return b.graph()


def _sums() -> Graph:
    b = sk.GraphBuilder("sums")
    b.output(b.softmax(b.add(b.input("x", (4, 32)), b.input("z", (4, 32))), axis=-1), "y")
    return b.graph()


def _elsewhere() -> Graph:
    """`gemm` that is not taken apart runs on NumPy."""
    b = sk.GraphBuilder("elsewhere")
    b.output(b.gemm(b.input("x", (4, 8)), b.input("w", (8, 4))), "y")
    return b.graph()


def _norm() -> Graph:
    b = sk.GraphBuilder("norm")
    ones = b.constant(np.ones(32, np.float32))
    b.output(b.layer_norm(b.input("x", (4, 32)), ones, ones, axis=-1), "y")
    return b.graph()


MODELS = (_classifier, _sums, _elsewhere)
QUIET = {"fallback": "allow", "simplify": False}


@pytest.mark.parametrize("target", TARGETS)
def test_three_models_merge_and_a_fourth_is_refused(target: str, tmp_path: Path) -> None:
    files = []
    for model in MODELS:
        files.append(tmp_path / f"{model.__name__}.json")
        sk.compile(model(), target=target, options=QUIET).manifest().save(files[-1])
    both = tmp_path / "all.json"
    merge(map(Manifest.load, files)).save(both)
    for model, own in zip(MODELS, files, strict=True):
        free = sk.compile(model(), target=target, options=QUIET)
        for given in (own, str(both), files):
            held = sk.compile(model(), target=target, options={**QUIET, "manifest": given})
            assert held.stage_text("subops") == free.stage_text("subops")
            assert held.stage_text("schedule") == free.stage_text("schedule")
            assert held.manifest() == free.manifest()
    for fallback in ("allow", "warn", "forbid"):
        options = {"fallback": fallback, "simplify": False}
        needed = sk.compile(_norm(), target=target, options=options).manifest()
        with pytest.raises(sk.ManifestError) as caught:
            sk.compile(_norm(), target=target, options={**options, "manifest": both})
        text = str(caught.value)
        assert any(f"key {key}" in text for entry in needed.kernels.values() for key in entry.keys)
        assert f"superkernel kernels merge {both} NEW" in text


def test_numpy_computes_only_what_the_listed_models_have_it_compute(tmp_path: Path) -> None:
    file = tmp_path / "m.json"
    sk.compile(_elsewhere(), options=QUIET).manifest().save(file)
    with pytest.raises(sk.ManifestError, match="does not list the kernel"):
        sk.compile(_sums(), options={**QUIET, "manifest": file})


def test_a_generic_kernel_stands_in_for_one_that_is_not_listed(tmp_path: Path) -> None:
    """The closure of what is listed: the generic kernel of the same operator."""
    b = sk.GraphBuilder("constant")
    b.output(b.matmul(b.input("x", (8, 64)), b.constant(np.ones((64, 64), np.float32))), "y")
    file = tmp_path / "m.json"
    sk.compile(b.graph()).manifest().save(file)
    c = sk.GraphBuilder("varying")
    c.output(c.matmul(c.input("x", (8, 64)), c.input("w", (64, 64))), "y")
    held = sk.compile(c.graph(), options={"manifest": file})
    assert [sub.kernel for sub in held._compiled.schedule.subops] == ["host.matmul.generic"]
    assert held.explain("y").selection.fallback is not None
    arrays = np.random.default_rng(0).standard_normal((2, 64, 64), dtype=np.float32)
    np.testing.assert_allclose(held(arrays[0][:8], arrays[1]), arrays[0][:8] @ arrays[1], rtol=1e-4, atol=1e-4)


def test_a_manifest_is_checked_before_it_is_used(tmp_path: Path) -> None:
    file = tmp_path / "m.json"
    sk.compile(_sums()).manifest().save(file)
    with pytest.raises(sk.UserError, match="a manifest for another target"):
        sk.compile(_sums(), target="mini", options={"manifest": file})
    data = json.loads(file.read_text())
    file.write_text(json.dumps({**data, "package": "0.0.1"}))
    with pytest.raises(sk.UserError, match=r"a manifest of another package; expected .*; found 0\.0\.1"):
        sk.compile(_sums(), options={"manifest": file})
    with pytest.raises(sk.InputError, match="no such file"):
        sk.compile(_sums(), options={"manifest": [tmp_path / "gone.json"]})


def test_a_saved_kernel_has_the_manifest_of_what_was_saved(tmp_path: Path) -> None:
    made = sk.compile(_classifier())
    made.save(tmp_path / "k.sk")
    assert sk.load(tmp_path / "k.sk").manifest() == made.manifest()


def test_scopes_are_parts_with_manifests_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    b = sk.GraphBuilder("parts")
    x = b.softmax(b.input("x", (4, 32), "f16"), axis=-1, name="first/softmax")
    b.output(b.matmul(x, b.constant(np.ones((32, 32), np.float16)), name="last/product"), "y")
    save_json(b.graph(), tmp_path / "m.json")
    words = ["compile", str(tmp_path / "m.json"), "--target", "mini", "-o", str(tmp_path / "k")]
    words += ["--option", "scopes=one:first*,two:last*", "--dump-kernels", str(tmp_path / "p.json"), "--json"]
    assert main(words) == 0
    assert len(json.loads(capsys.readouterr().out)["kernels"]) == 3
    whole, one, two = (Manifest.load(tmp_path / f"p{part}.json") for part in ("", ".one", ".two"))
    assert {*one.kernels} | {*two.kernels} == {*whole.kernels}
    assert any("softmax" in kernel for kernel in one.kernels)
    assert not any("softmax" in kernel for kernel in two.kernels)
    assert [sorted(part.models) for part in (one, two)] == [["parts/one"], ["parts/two"]]


def test_the_command_line_builds_from_manifests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for model in (_classifier, _sums, _norm):
        save_json(model(), tmp_path / f"{model.__name__}.json")
    paths = {name: str(tmp_path / f"{name}.json") for name in ("_classifier", "_sums", "_norm", "a", "b", "both")}
    assert main(["compile", paths["_classifier"], "-o", str(tmp_path / "k"), "--dump-kernels", paths["a"]]) == 0
    assert main(["kernels", "dump", paths["_sums"], "-o", paths["b"]]) == 0
    assert main(["kernels", "merge", paths["a"], paths["b"], "-o", paths["both"]]) == 0
    assert main(["compile", paths["_sums"], "-o", str(tmp_path / "k"), "--manifest", paths["both"]]) == 0
    assert main(["inspect", paths["_classifier"], "--manifest", paths["a"], "--manifest", paths["b"]]) == 0
    capsys.readouterr()
    assert main(["compile", paths["_norm"], "-o", str(tmp_path / "k"), "--manifest", paths["both"]]) == 3
    assert "the manifest does not list the kernel that it needs" in capsys.readouterr().err
    assert main(["inspect", str(tmp_path / "k"), "--manifest", paths["both"]]) == 2


@pytest.mark.parametrize("target", TARGETS)
def test_sizes_of_all_kernels_of_those_selected_and_of_each(
    target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = [str(tmp_path / f"{model.__name__}.json") for model in (_classifier, _sums)]
    for model, path in zip((_classifier, _sums), models, strict=True):
        save_json(model(), path)
    manifest = str(tmp_path / "m")
    assert main(["kernels", "dump", models[1], "--target", target, "-o", manifest]) == 0
    capsys.readouterr()
    words = ["kernels", "size", *models, "--target", target, "--selected", manifest]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    own = sk.compile(_sums(), target=target)
    assert found["selected"]["bytes"] == found["models"][models[1]] == sum(own.function_bytes().values()) > 0
    assert 0 < found["selected"]["bytes"] < found["full"]["bytes"] <= sum(found["models"].values())
    assert found["full"]["bytes"] == sum(found["kernels"].values())
    assert found["selected"]["kernels"] == len(own.manifest().kernels)
    assert main(words) == 0
    printed = {line.split()[0]: line.split()[1:] for line in capsys.readouterr().out.splitlines()[1:]}
    for what in ("full", "selected"):
        assert printed[what] == [str(found[what][name]) for name in ("kernels", "functions", "bytes")]
    assert {kernel: int(row[-1]) for kernel, row in printed.items() if kernel in found["kernels"]} == found["kernels"]
    assert main(["kernels", "size", models[0], "--selected", str(tmp_path / "gone")]) == 2


def test_a_firmware_of_some_kernels_holds_their_commands_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Full, selected and of one kernel; there is none of the host."""
    model = str(tmp_path / "sums.json")
    save_json(_sums(), model)
    words = ["kernels", "size", model, "--firmware"]
    assert main([*words, "--target", "mini", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["firmware"]
    assert 0 < max(found["kernels"].values()) <= found["selected"] < 0.6 * found["full"]
    kernel = sk.compile(_sums(), target="mini")
    issued = frozenset[str]().union(*kernel.commands().values())
    assert {"v_exp", "v_sum", "gm_to_ub", "ub_to_gm"} <= issued
    assert not {"mmad", "l0c_to_gm"} & issued
    assert main([*words, "--target", "mini"]) == 0
    assert capsys.readouterr().out.splitlines()[1].split()[-1] == str(found["full"])
    assert main(words) == 3
    assert "engine commands" in capsys.readouterr().err
