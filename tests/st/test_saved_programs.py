"""Saved programs are whole: a file runs all launches of its kernel, on the simulator and on the emulator, with the
instructions that the kernel itself executes; what a file cannot hold is refused."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile
from firmware_bench import needs_qemu
from models import moe_layer

import superkernel as sk
from superkernel.backends.aicore.compatibility import launches_of
from superkernel.backends.aicore.qemu import firmware_of
from superkernel.backends.aicore.qemu_counts import Counting, HartCounts, plugin_path, simulated_counts
from superkernel.backends.aicore.qemu_machine import Emulator
from superkernel.cli import main
from superkernel.codegen.aicore.linking import ElfSegment, Image, Symbol
from superkernel.codegen.aicore.memory_map import MemoryMap
from superkernel.frontends.json_form import save_json
from superkernel.sim.accelerator import AcceleratorResult, run_launches
from superkernel.sync.aicore.verify import AicoreCertificate
from superkernel.target import certificate_note, launch_note
from superkernel.target.aicore import load_target
from superkernel.target.certificate_note import checked_certificate
from superkernel.target.launch_note import LaunchNote, noted_launches

MINI = load_target("mini")
FLAGS = {4: "r--", 5: "r-x", 6: "rw-"}


def layer() -> sk.Graph:
    """Two scopes, and something in neither."""
    b = sk.GraphBuilder("layer")
    x = b.input("x", (32, 64))
    w = b.constant(np.eye(64, dtype=np.float32))
    with b.scope("first"):
        h = b.gelu(x @ w)
    with b.scope("second"):
        h = b.softmax(h @ w) + x
    b.output(b.exp(h), "y")
    return b.graph()


def experts() -> sk.Graph:
    return moe_layer(tokens=16, width=32, inner=32, experts=4)


CASES: dict[str, tuple[Any, dict[str, Any], int]] = {
    "scopes": (layer, {}, 3),
    "single": (layer, {"launches": "single"}, 5),
    "sunk tilings": (experts, {"launches": "single"}, 0),
}


@pytest.fixture(scope="module", params=CASES)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[sk.Kernel, bytes]:
    make, options, launches = CASES[request.param]
    kernel = sk.compile(make(), target="mini", options=options)
    path: Path = tmp_path_factory.mktemp("saved") / "program.elf"
    kernel.save(path)
    assert kernel.summary()["launches"] == (launches or kernel.summary()["launches"]) > 1
    return kernel, path.read_bytes()


def zeros(kernel: sk.Kernel) -> dict[str, Any]:
    """What the memory of a file that is run holds for inputs."""
    return {name: np.zeros(kind.shape, kind.dtype.numpy) for name, kind in kernel.inputs.items()}


def run_file(data: bytes) -> AcceleratorResult:
    return run_launches(data, MINI, launches_of(data, "program"))


def test_a_file_executes_what_its_kernel_executes(saved: tuple[sk.Kernel, bytes]) -> None:
    kernel, data = saved
    ran = run_file(data)
    assert ran.succeeded, ran.problem
    assert len(ran.launches) == kernel.summary()["launches"]
    assert ran.instructions == kernel.run(zeros(kernel)).report.instructions
    executable, io_table = kernel.emulation(zeros(kernel))  # type: ignore[attr-defined]
    for own, of_file in zip(executable.program.simulate(io_table).launches, ran.launches, strict=True):
        assert [c.instructions for c in own.cores] == [c.instructions for c in of_file.cores]
        assert own.sub_operators == of_file.sub_operators


@needs_qemu
def test_the_emulator_executes_it_as_well(saved: tuple[sk.Kernel, bytes]) -> None:
    """Both the kernel and the file alone, with nothing beside it but the firmware."""
    kernel, data = saved
    if (plugin := plugin_path()) is None:
        pytest.skip("the emulator does not load the plugin")
    image = read_image(data)
    want = [simulated_counts(launch, image) for launch in run_file(data).launches]
    _, run = kernel.emulate(zeros(kernel), count=True)
    assert [*run.counts] == want
    assert emulated(image, len(want), plugin) == want


def read_image(data: bytes) -> Image:
    """A file as the emulator's machine takes it."""
    file = ELFFile(io.BytesIO(data))
    segments = [
        ElfSegment(s["p_paddr"], s.data(), FLAGS[s["p_flags"]], s["p_memsz"]) for s in file.iter_segments("PT_LOAD")
    ]
    symbols = [
        Symbol(s.name, s["st_value"], s["st_size"], s["st_info"]["type"], False, "", 0)
        for s in file.get_section_by_name(".symtab").iter_symbols()
    ]
    return Image(tuple(segments), tuple(symbols), (), file["e_entry"])


def emulated(image: Image, launches: int, plugin: Path) -> list[tuple[HartCounts, ...]]:
    counts = []
    harts = MemoryMap.of(MINI).harts
    with (
        Counting(image, MINI, harts, plugin) as counting,
        Emulator(MINI, image, firmware_of(MINI), arguments=counting.arguments, files=(counting.file,)) as machine,
    ):
        for number in range(launches):
            machine.launch(number)
            counts.append(counting.take())
    return counts


def test_the_command_line_tells_each_launch(
    saved: tuple[sk.Kernel, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel, data = saved
    (path := tmp_path / "program.elf").write_bytes(data)
    count = kernel.summary()["launches"]
    assert main(["sim", "run", str(path)]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.startswith(f"PASS: {count} launches, ")
    assert [line.split()[1] for line in lines[:count]] == [str(n) for n in range(count)]
    assert len(lines) == count + MINI.cores + MINI.device.aicpu_harts
    assert main(["sim", "run", str(path), "--json"]) == 0
    shown: Mapping[str, Any] = json.loads(capsys.readouterr().out)
    assert len(shown["launches"]) == count
    assert shown["cycles"] == sum(each["cycles"] for each in shown["launches"])


def test_numpy_between_launches_cannot_be_saved(tmp_path: Path) -> None:
    kernel = sk.compile(experts(), target="mini", options={"tiling": "host"})
    with pytest.raises(sk.UnsupportedError, match=r"NumPy.*'tile_groups'") as caught:
        kernel.save(tmp_path / "program.elf")
    assert len(caught.value.violations) == len(kernel.summary()["fallbacks"]) == 1
    assert kernel.summary()["fallbacks"][0] in caught.value.violations[0].location
    assert not [*tmp_path.iterdir()]
    command = ["compile", "--target", "mini", "-o", str(tmp_path / "program.elf")]
    save_json(experts(), tmp_path / "experts.json")
    assert main([*command, str(tmp_path / "experts.json"), "--option", "tiling=host"]) == 3


def test_the_certificate_travels_with_the_program(
    saved: tuple[sk.Kernel, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernel, data = saved
    note, certificate = checked_certificate(data), kernel.certificate
    assert isinstance(certificate, AicoreCertificate)
    assert note.text == str(certificate)
    assert note.figures == asdict(certificate)
    (path := tmp_path / "program.elf").write_bytes(data)
    assert main(["verify", str(path)]) == 0
    assert capsys.readouterr().out == f"{note.text}\nthe file is the one it was saved as: {note.sha256}\n"
    assert main(["verify", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == asdict(note)


def test_compiling_the_model_again_gives_the_certificate_of_the_file(tmp_path: Path) -> None:
    kernels = [sk.compile(layer(), target="mini") for _ in range(2)]
    kernels[0].save(tmp_path / "program.elf")
    note = checked_certificate((tmp_path / "program.elf").read_bytes())
    assert note.text == str(kernels[1].certificate)


def changes(data: bytes) -> dict[str, bytes]:
    """A file with something changed: in each part, a byte of it."""
    file = ELFFile(io.BytesIO(data))
    named = {section.name: section["sh_offset"] for section in file.iter_sections()}
    places = {name: named[name] + 40 for name in (launch_note.SECTION, ".symtab")}
    places |= {f"segment {n}": segment["p_offset"] for n, segment in enumerate(file.iter_segments("PT_LOAD"))}
    places |= {"flags": 48, "last byte": len(data) - 1}
    changed = {name: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :] for name, at in places.items()}
    note = checked_certificate(data)
    digest = note.sha256.encode()
    assert data.count(digest) == 1
    changed["digest"] = data.replace(digest, digest[::-1])
    changed["what was proved"] = data.replace(b"no deadlock", b"of deadlock")
    changed["cut"], changed["longer"] = data[:-8], data + b"\0"
    return changed


def test_a_program_whose_bytes_differ_is_refused(
    saved: tuple[sk.Kernel, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, data = saved
    for what, changed in changes(data).items():
        if what != "cut":  # of what has lost its sections nothing can be read
            with pytest.raises(sk.FileFormatError, match="not the program of its certificate"):
                checked_certificate(changed)
        (path := tmp_path / "program.elf").write_bytes(changed)
        for command in (["verify"], ["sim", "run"]):
            assert main([*command, str(path)]) == 2, (what, command)
            assert capsys.readouterr().out == ""


def test_a_certificate_that_cannot_be_read_is_refused(saved: tuple[sk.Kernel, bytes], tmp_path: Path) -> None:
    _, data = saved
    for old, new in ((b'"sha256": "', b'"sha265": "'), (b'{"sha256"', b'["sha256"'), (b'"sha256": "', b'"sha256" :"')):
        assert data.count(old) == 1
        with pytest.raises(sk.FileFormatError, match="certificate"):
            checked_certificate(data.replace(old, new))


def test_a_program_that_lost_its_certificate_is_refused(
    saved: tuple[sk.Kernel, bytes], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, data = saved
    without = data.replace(certificate_note.SECTION.encode(), b".note.superkernel.certificat_")
    (path := tmp_path / "program.elf").write_bytes(without)
    for command in (["verify"], ["sim", "run"]):
        assert main([*command, str(path)]) == 2
        assert "a program without a certificate" in capsys.readouterr().err


def test_a_table_that_is_not_the_functions_is_refused(saved: tuple[sk.Kernel, bytes]) -> None:
    """Otherwise a part of a program would pass for the whole."""
    _, data = saved
    table = noted_launches(data)
    assert table is not None
    without = data.replace(launch_note.SECTION.encode(), b".note.superkernel.nobodies")
    with pytest.raises(sk.FileFormatError, match="without the table of its launches"):
        launches_of(without, "program")
    assert launches_of(data, "program") == table
    own = table.note_bytes()
    assert data.count(own) == 1
    for launches, names in ((table.launches[:-1], table.names), (table.launches, table.names[:1]), ((), table.names)):
        other = LaunchNote(launches, names).note_bytes()
        padded = other[:4] + own[4:8] + other[8:].rstrip(b"\0")  # as long as before: spaces behind its text
        padded = padded.ljust(len(own))
        with pytest.raises(sk.FileFormatError, match="launches"):
            launches_of(data.replace(own, padded), "program")


def test_a_launch_that_does_nothing_does_not_pass(saved: tuple[sk.Kernel, bytes]) -> None:
    _, data = saved
    table = launches_of(data, "program")
    wrong = LaunchNote(table.launches[:-1], table.names)
    ran = run_launches(data, MINI, LaunchNote((*wrong.launches, (*table.launches[-1], 0)), table.names))
    assert not ran.succeeded
    assert f"launch {len(table.launches) - 1} of {len(table.launches)}" in ran.head()
    assert repr(table.names[0]) in ran.head()
