"""Memories that are no larger than they are: kernels give way to smaller ones until a model fits a microcontroller's
tightly coupled memory and flash, and what cannot fit is refused by region, bytes needed, bytes there."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from models import quantised_classifier

import superkernel as sk
from superkernel.backends.host.regions import constants_bytes, tcm_bytes
from superkernel.cli import main
from superkernel.frontends.json_form import save_json
from superkernel.ir.graph import Graph
from superkernel.reference import evaluate
from superkernel.reference.random_inputs import random_inputs
from superkernel.target.machine import load_profile

MICROCONTROLLER = Path(__file__).parents[1] / "machines" / "microcontroller.json"
ROOM = 1 << 30


def _images() -> Graph:
    """3 x 3 convolutions, of which Winograd's pack most."""
    b = sk.GraphBuilder("images")
    rng = np.random.default_rng(0)
    x = b.input("x", (1, 32, 32, 32))
    for i in range(3):
        filters = b.constant(rng.standard_normal((32, 32, 3, 3), dtype=np.float32) / 17)
        x = b.relu(b.conv(x, filters, pads=(1, 1, 1, 1), name=f"conv{i}"))
    b.output(b.global_avg_pool(x), "y")
    return b.graph()


def _target(folder: Path, tcm: int | None, flash: int | None) -> str:
    path = folder / f"{tcm}-{flash}.json"
    path.write_text(replace(load_profile(MICROCONTROLLER), tcm_bytes=tcm, flash_bytes=flash).text())
    return str(path)


def _compiled(graph: Graph, target: str, **options: object) -> sk.Kernel:
    return sk.compile(graph, target=target, threads=1, options={"cache": False, **options})


def _kernels(kernel: sk.Kernel) -> list[str]:
    return [sub.kernel for sub in kernel._compiled.schedule.subops]


def _right(kernel: sk.Kernel, graph: Graph) -> None:
    inputs = random_inputs(graph.inputs, 0)
    want = evaluate(graph, inputs)[graph.outputs[0]]
    np.testing.assert_allclose(kernel.run(inputs).outputs["y"], want, rtol=1e-4, atol=1e-4)


def test_packed_constants_give_way_to_smaller_ones(tmp_path: Path) -> None:
    graph = _images()
    seen, limit = [], ROOM
    while True:
        try:
            kernel = _compiled(graph, _target(tmp_path, ROOM, limit))
        except sk.WorkspaceError as error:
            last = str(error)
            break
        used = kernel.summary()["regions"]["flash"]["used_bytes"]
        assert constants_bytes(kernel._compiled.schedule) < used <= limit
        _right(kernel, graph)
        seen.append((_kernels(kernel), used))
        limit = constants_bytes(kernel._compiled.schedule) - 1
    assert len(seen) > 2, "nothing gave way"
    assert any("winograd4" in name for name in seen[0][0])
    assert not any("winograd" in name for name in seen[-1][0])
    assert [used for _, used in seen] == sorted({used for _, used in seen}, reverse=True)
    found = re.search(rf"region 'flash'.* at most {limit} bytes; found (\d+) bytes .*conv0 \(host\.conv\.", last)
    assert found is not None, last
    assert int(found[1]) > limit


def test_who_had_to_give_way_is_told(tmp_path: Path) -> None:
    graph = _images()
    free = _compiled(graph, _target(tmp_path, ROOM, ROOM))
    tight = _compiled(graph, _target(tmp_path, ROOM, constants_bytes(free._compiled.schedule) - 1))
    rejected = {c.row.id: [str(f) for f in c.failures] for c in tight.explain("conv1").selection.rejected}
    (was,) = (sub.kernel for sub in free._compiled.schedule.subops if sub.name == "conv1")
    reasons = [reason for row, rows in rejected.items() if row.startswith(was + "/") for reason in rows]
    assert any(re.match(r"workspace: region\.flash must be >= \d+ bytes, is \d+", reason) for reason in reasons)


def test_one_kernel_is_explained_within_them(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    problem = "conv(f32[1,64,28,28], const f32[64,64,3,3]; pads=(1,1,1,1), layout=channels_last)"
    chosen = {}
    for name, target in (("free", _target(tmp_path, None, None)), ("tight", str(MICROCONTROLLER))):
        assert main(["kernels", "explain", problem, "--target", target, "--json"]) == 0
        chosen[name] = json.loads(capsys.readouterr().out)["chosen"]["kernel"]
    assert "winograd4" in chosen["free"]
    assert "winograd4" not in chosen["tight"]
    assert main(["kernels", "explain", problem, "--target", str(MICROCONTROLLER)]) == 0
    assert "workspace: region.tcm must be >= " in capsys.readouterr().out


def test_working_memory_gives_way_to_values(tmp_path: Path) -> None:
    graph = _images()
    limit, scratch = ROOM, []
    for _ in range(3):
        kernel = _compiled(graph, _target(tmp_path, limit, ROOM))
        schedule = kernel._compiled.schedule
        assert tcm_bytes(schedule) <= limit
        assert kernel.summary()["regions"]["tcm"] == {"used_bytes": tcm_bytes(schedule), "bytes": limit}
        _right(kernel, graph)
        scratch.append(schedule.scratch_bytes)
        limit = tcm_bytes(schedule) - 1
    assert scratch[0] > scratch[1] > scratch[2]


@pytest.mark.parametrize(
    ("tcm", "flash", "says"),
    [
        (
            200_000,
            ROOM,
            r"region 'tcm'.* at most 200000 bytes; found \d+ bytes \(values 262144, counters 128\);",
        ),
        (ROOM, 100_000, r"region 'flash'.* at most 100000 bytes; found \d+ bytes \(constants \d+\); the largest: conv"),
        (263_000, ROOM, r"no kernel|nearest|region\.tcm must be >= \d+ bytes, is \d+"),
    ],
)
def test_what_cannot_fit_is_refused_by_region(tcm: int, flash: int, says: str, tmp_path: Path) -> None:
    with pytest.raises(sk.WorkspaceError, match=says):
        _compiled(_images(), _target(tmp_path, tcm, flash), deny=["host.conv.generic"])


def test_code_counts(tmp_path: Path) -> None:
    graph = _images()
    free = _compiled(graph, _target(tmp_path, None, ROOM))
    constants = constants_bytes(free._compiled.schedule)
    code = free.summary()["regions"]["flash"]["used_bytes"] - constants
    assert sum(free.function_bytes().values()) < code < free.summary()["code_bytes"]
    _compiled(graph, _target(tmp_path, None, constants + code))
    with pytest.raises(
        sk.WorkspaceError, match=rf"found {constants + code} bytes \(constants {constants}, code {code}\)"
    ):
        _compiled(graph, _target(tmp_path, None, constants + code - 1))


def test_numpy_is_in_no_flash(tmp_path: Path) -> None:
    b = sk.GraphBuilder("only_numpy")
    b.output(b.gemm(b.input("x", (4, 8), "f32"), b.input("w", (8, 4), "f32")), "y")
    options = {"simplify": False, "fallback": "allow"}
    assert _kernels(_compiled(b.graph(), _target(tmp_path, ROOM, None), **options)) == ["host.reference"]
    with pytest.raises(sk.UnsupportedError, match=r"host\.reference is not eligible \(device: region\.flash\)"):
        _compiled(b.graph(), _target(tmp_path, ROOM, ROOM), **options)


def test_a_quantised_network_fits_a_microcontroller(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The same integers as with all the memory there is, from the command line, proved as ever."""
    graph = quantised_classifier()
    save_json(graph, tmp_path / "m.json")
    words = ["compile", str(tmp_path / "m.json"), "--target", str(MICROCONTROLLER), "--threads", "1"]
    assert main([*words, "-o", str(tmp_path / "k"), "--json"]) == 0
    regions = json.loads(capsys.readouterr().out)["regions"]
    profile = load_profile(MICROCONTROLLER)
    assert {name: row["bytes"] for name, row in regions.items()} == profile.regions()
    assert all(row["bytes"] / 3 < row["used_bytes"] <= row["bytes"] for row in regions.values())
    kernel = sk.load(tmp_path / "k")
    assert [k for k in _kernels(kernel) if ".bytes" in k]
    inputs = random_inputs(graph.inputs, 0)
    free = sk.compile(graph, threads=1).run(inputs).outputs["y"]
    np.testing.assert_array_equal(kernel.run(inputs).outputs["y"], free)
    with pytest.raises(sk.WorkspaceError, match="region 'flash'"):
        _compiled(graph, _target(tmp_path, ROOM, 90_000))
