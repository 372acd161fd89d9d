"""Canonical names are the symbols: of objects, saved programs, reports, traces, explanations and manifests."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

import superkernel
from superkernel.codegen.host.features import detect_cpu
from superkernel.registry.names import parse_name

SHORT = 16


def _graph(width: int = 64) -> superkernel.Graph:
    """A small network: a convolution, a depthwise one, a pool, a product, each with another activation."""
    b = superkernel.GraphBuilder(f"net{width}")
    x = b.input("x", (1, 8, 8, 8))
    rng = np.random.default_rng(0)

    def weights(*shape: int) -> superkernel.Tensor:
        return b.constant(rng.standard_normal(shape).astype(np.float32))

    y = b.relu(b.conv(x, weights(16, 8, 3, 3), pads=(1, 1, 1, 1)))
    y = b.clip(b.conv(y, weights(16, 1, 3, 3), pads=(1, 1, 1, 1), groups=16), 0.0, 6.0)
    y = b.reshape(b.max_pool(y, (2, 2), strides=(2, 2)), (4, 64))
    b.output(b.softmax(b.gelu(b.matmul(y, weights(64, width)))))
    return b.graph()


def _functions(data: bytes) -> set[str]:
    """The functions and undefined names in an ELF file's symbol table."""
    tables = [s for s in ELFFile(io.BytesIO(data)).iter_sections() if isinstance(s, SymbolTableSection)]
    kinds = ("STT_FUNC", "STT_NOTYPE")
    return {s.name for table in tables for s in table.iter_symbols() if s["st_info"]["type"] in kinds}


def _read(symbols: Iterable[str]) -> None:
    """Every symbol is a name with a digest as its last token."""
    for symbol in symbols:
        name = parse_name(symbol)
        assert name.prefix == "sk"
        assert len(name.target[-1]) == SHORT
        assert int(name.target[-1], 16) >= 0


@pytest.fixture(scope="module")
def host() -> superkernel.Kernel:
    return superkernel.compile(_graph(), target="host", threads=2)


@pytest.fixture(scope="module")
def mini() -> superkernel.Kernel:
    return superkernel.compile(_graph(), target="mini")


def test_objects_of_the_host_have_the_names(host: superkernel.Kernel) -> None:
    compiled = host._compiled
    symbols = {s for row in compiled.symbols for s in row}
    _read(symbols)
    defined = set().union(*map(_functions, compiled.objects.values()))
    assert symbols <= defined
    assert {s for s in defined if s.startswith("sk_") and "__" in s} == symbols
    tier = {"avx512": "avx512skx", "avx2": "avx2", "plain": "scalar"}[detect_cpu().tier]
    assert all(tier in parse_name(s).target for s in symbols)


def test_activations_and_windows_are_in_the_names(host: superkernel.Kernel) -> None:
    parsed = [parse_name(s) for row in host._compiled.symbols for s in row]
    fused = {(name.op, name.activation) for name in parsed}
    assert {"relu", "minmax", "gelu"} <= {name.activation for name in parsed}
    assert any(op in ("conv", "igemm") and act == "relu" for op, act in fused)
    assert all(name.dtypes[0] == "f32" for name in parsed)
    depthwise = [name for name in parsed if name.op == "dwconv"]
    for name in depthwise:
        assert name.params is not None
        assert str(name.params.get("primary")) == "9"


def test_a_saved_program_of_the_accelerator_has_the_names(mini: superkernel.Kernel, tmp_path: Path) -> None:
    mini.save(tmp_path / "net.elf")
    symbols = {s for row in mini._compiled.symbols for s in row}
    _read(symbols)
    assert symbols <= _functions((tmp_path / "net.elf").read_bytes())
    roles = {parse_name(s).target[-2] for s in symbols}
    assert roles <= {"cube", "vector0", "vector1", "aicpu"}
    assert "cube" in roles


@pytest.mark.parametrize("on", ["host", "mini"])
def test_reports_traces_explanations_and_manifests_show_them(on: str, request: pytest.FixtureRequest) -> None:
    kernel: superkernel.Kernel = request.getfixturevalue(on)
    data = {"x": np.ones((1, 8, 8, 8), np.float32)}
    rows = kernel._compiled.symbols
    everything = {s for row in rows for s in row}
    report = kernel.report(data).to_json()
    told = report["work"] if on == "host" else report["subops"]
    assert {s for row in told for s in row["symbols"]} == everything
    traced = json.loads(kernel.trace(data).chrome())["traceEvents"]
    assert {s for e in traced for s in e.get("args", {}).get("symbols", ())} == everything
    assert kernel.explain(0).symbols == rows[0]
    assert rows[0][0] in kernel.explain(0).text()
    manifest = kernel.manifest().to_json()
    assert {s for entry in manifest["kernels"].values() for s in entry["functions"]} == everything


def test_graphs_that_share_code_share_its_name(host: superkernel.Kernel) -> None:
    other = superkernel.compile(_graph(32), target="host", threads=2)
    ours, theirs = ({s for row in k._compiled.symbols for s in row} for k in (host, other))
    assert ours & theirs, "the convolutions are the same"
    assert ours != theirs, "the products are not"


def test_dumped_ir_is_of_the_names(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("SK_DUMP", "ir")
    kernel = superkernel.compile(_graph(16), target="host", threads=1)
    said = capfd.readouterr()
    assert all(
        f"@{s}(" in said.out + said.err or f'@"{s}"(' in said.out + said.err for s in kernel._compiled.symbols[0]
    )
