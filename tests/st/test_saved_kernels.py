"""Saved kernels are bound as they lie in their file: constants mapped, nothing planned or packed; and what a file says
is checked and proved all the same."""

from __future__ import annotations

import dataclasses
import errno
import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import superkernel as sk
from superkernel.backends import saved
from superkernel.backends.host.backend import BACKEND
from superkernel.codegen.host import features
from superkernel.codegen.host.features import detect_cpu
from superkernel.compilation.planned import PlanForm
from superkernel.core.typed_form import ALIGNMENT
from superkernel.scheduler.schedule import MADE

X = np.random.default_rng(0).standard_normal((1, 8, 12, 12), dtype=np.float32)


def network() -> sk.Graph:
    """Filters that a normalisation is folded into, a factor that is packed, a table that is used as it is, a state."""
    rng = np.random.default_rng(1)
    b = sk.GraphBuilder("network")

    def weight(*shape: int) -> Any:
        return b.constant(rng.standard_normal(shape, dtype=np.float32))

    y = b.conv(b.input("x", X.shape, "f32"), weight(32, 8, 3, 3))
    y = b.relu(b.add(b.mul(y, weight(1, 32, 1, 1)), weight(1, 32, 1, 1)))
    y = b.matmul(b.reshape(y, shape=(32, 100)), weight(100, 512))
    y = b.softmax(b.matmul(y, weight(512, 64)), axis=-1)
    state = b.state("sum", np.full((32, 64), 0.5, np.float32))
    total = b.add(state, y)
    b.update(state, total)
    b.output(total)
    return b.graph()


@pytest.fixture(scope="module")
def kernel() -> sk.HostKernel:
    return sk.compile(network(), threads=2, options={"cost_placement": False})  # all of it on both cores


@pytest.fixture
def path(kernel: sk.HostKernel, tmp_path: Path) -> Path:
    kernel.save(tmp_path / "k.skm")
    return tmp_path / "k.skm"


@pytest.fixture
def no_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("planned, or packed, again")

    monkeypatch.setattr("superkernel.compilation.planning.plan_graph", refuse)
    monkeypatch.setattr("superkernel.codegen.host.constants.pack_bytes", refuse)


def mapped_files() -> str:
    return Path("/proc/self/maps").read_text()


@pytest.mark.usefixtures("no_planning")
def test_constants_are_mapped_and_nothing_is_made_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SK_CACHE_DIR", "off")
    loaded = sk.load(path)
    shared = loaded._compiled.image.constants.shared  # type: ignore[attr-defined]
    assert len(shared) == 2
    assert sum(block.nbytes for block in shared) >= (100 * 512 + 512 * 64) * 4
    for block in shared:
        assert block.ctypes.data % ALIGNMENT == 0
        assert not block.flags.owndata
        assert not block.flags.writeable
    assert str(path) in mapped_files()
    assert loaded.summary()["from_cache"]
    assert str(loaded.certificate) == loaded.stage_text("certificate")


def test_it_is_the_same_kernel(kernel: sk.HostKernel, path: Path, tmp_path: Path) -> None:
    loaded = sk.load(path)
    fresh = sk.compile(network(), threads=2, options={"cost_placement": False})
    assert all(np.array_equal(loaded(X), fresh(X)) for _ in range(2)), "states begin anew and go on"
    for stage in ("graph", "simplified", "subops", "schedule", "plan", "certificate"):
        assert loaded.stage_text(stage) == kernel.stage_text(stage)
    assert str(loaded.explain(0)) == str(kernel.explain(0))
    reference = sk.load(path).run({"x": X}, executor="reference").outputs
    np.testing.assert_allclose(next(iter(reference.values())), sk.load(path)(X), rtol=1e-3, atol=1e-3)
    loaded.save(tmp_path / "again.skm")
    assert (tmp_path / "again.skm").read_bytes() == path.read_bytes()


def test_constants_that_planning_made_are_made_again_when_asked_for(kernel: sk.HostKernel, path: Path) -> None:
    constants, loaded = kernel._compiled.graph.constants, sk.load(path)._compiled.graph.constants
    own = {id(a) for a in kernel._compiled.source.constants.values()}
    assert any(id(a) not in own for a in constants.values()), "nothing was folded"
    assert list(loaded) == list(constants)
    assert all(np.array_equal(loaded[name], constants[name]) for name in constants)
    assert not any(a is MADE for a in loaded.values())


def test_a_file_that_takes_its_place_leaves_the_kernel_alone(kernel: sk.HostKernel, path: Path) -> None:
    loaded = sk.load(path)
    expected = sk.load(path)(X)
    kernel.save(path)
    path.unlink()
    np.testing.assert_array_equal(loaded(X), expected)


def test_a_file_that_others_may_write_to_is_copied(path: Path) -> None:
    expected = sk.load(path)(X)
    other = path.with_name("shared.skm")
    shutil.copyfile(path, other)
    other.chmod(0o666)
    loaded = sk.load(other)
    assert str(other) not in mapped_files()
    os.truncate(other, 0)
    np.testing.assert_array_equal(loaded(X), expected)


def rewritten(path: Path, change: Callable[[dict[str, bytes], dict[str, Any]], None]) -> None:
    """Other members or another header, with checksums that fit."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    header = json.loads(members.pop("superkernel.json"))
    change(members, header)
    for name in header["sha256"]:
        header["sha256"][name] = hashlib.sha256(members[name]).hexdigest()
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("superkernel.json", json.dumps(header))
        for name, data in members.items():
            archive.writestr(name, data)


def test_a_forged_plan_is_refused(path: Path) -> None:
    """One wait fewer, in a file whose checksums fit."""

    def forge(members: dict[str, bytes], header: dict[str, Any]) -> None:
        form = PlanForm(BACKEND)
        arrays = {**network().constants, **network().states, "": MADE}
        found = form.read(members["plan"], arrays)
        step = next(s for p in found.plan.programs for s in p if type(s).__name__ == "Wait")
        programs = tuple(tuple(s for s in p if s != step) for p in found.plan.programs)
        plan = dataclasses.replace(found.plan, programs=programs)
        members["plan"] = form.written(dataclasses.replace(found, plan=plan), arrays)

    rewritten(path, lambda members, header: None)
    sk.load(path)
    rewritten(path, forge)
    with pytest.raises(sk.VerificationError):
        sk.load(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda members, header: header.update(plan_key="another machine"),
        lambda members, header: [(members.pop(name), header["sha256"].pop(name)) for name in ("plan", "source")],
    ],
    ids=["machine", "without a plan"],
)
def test_what_does_not_fit_is_compiled_anew(
    kernel: sk.HostKernel, path: Path, change: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = sk.load(path)(X)
    rewritten(path, change)
    monkeypatch.setattr(saved, "complete", None)
    np.testing.assert_array_equal(sk.load(path)(X), expected)


def test_the_like_of_a_cpu_is_recalled_without_llvm(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = sk.load(path)(X)
    code = f"import sys, superkernel as sk; sk.load({str(path)!r}); print('llvmlite.binding' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    cpu = detect_cpu()
    assert features.recalled(features.told(cpu)) == cpu
    assert features.told(dataclasses.replace(cpu, features="+another")) == {}, "no CPU but the one at hand is told"
    assert features.recalled({**features.told(cpu), "mark": "another"}) is None
    monkeypatch.setattr(features, "_mark", lambda: "")
    assert features.recalled({"mark": ""}) is None
    np.testing.assert_array_equal(sk.load(path)(X), expected)


@pytest.mark.parametrize("member", ["constants", "graph.safetensors", "plan", "source"])
def test_damage_in_any_member_is_found(path: Path, member: str) -> None:
    with zipfile.ZipFile(path) as archive:
        data = archive.read(member)
    whole = bytearray(path.read_bytes())
    whole[whole.index(data) + len(data) // 2] ^= 4
    path.write_bytes(whole)
    with pytest.raises(sk.FileFormatError, match=f"checksums differ; found {member}"):
        sk.load(path)


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (MemoryError(), sk.MachineError),
        (OSError(errno.EMFILE, "Too many open files"), sk.MachineError),
        (TimeoutError("alarm"), TimeoutError),
    ],
    ids=["memory", "descriptors", "signal"],
)
def test_what_is_no_fault_of_the_file_is_not_called_so(
    error: Exception, raised: type[Exception], path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: object) -> memoryview:
        raise error

    monkeypatch.setattr(saved, "mapped", refused)
    with pytest.raises(raised):
        sk.load(path)


def test_a_header_that_is_longer_than_its_file(path: Path) -> None:
    """Its size is what reading it would ask memory for."""
    data = bytearray(path.read_bytes())
    entry = data.index(b"PK\1\2")  # of the archive's directory, whose first member is the header
    struct.pack_into("<II", data, entry + 20, 0xFFFFFFF0, 0xFFFFFFF0)
    path.write_bytes(data)
    with pytest.raises(sk.FileFormatError, match="longer than the file"):
        sk.load(path)


def test_nobody_reads_on_in_a_file_that_was_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever then wrote another kernel into it would end the process (SIGBUS)."""
    read: list[int] = []

    def crc32(data: memoryview) -> int:
        time.sleep(0.2)
        read.append(zlib.crc32(data))
        return read[-1]

    rewritten(path, lambda members, header: header.update(cores="many"))
    monkeypatch.setattr(saved, "zlib", SimpleNamespace(crc32=crc32, error=zlib.error))
    with pytest.raises(sk.FileFormatError, match="not a whole saved kernel"):
        sk.load(path)
    assert len(read) == len(saved._LARGE)
