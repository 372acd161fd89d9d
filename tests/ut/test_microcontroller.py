"""Targets of microcontrollers, without an emulator: what they are, what is compiled and exported for them, what is
refused, and that a program that is not the plan's does not pass."""

from __future__ import annotations

import ctypes
import json
import re
import struct
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection
from models import moe_layer, quantised_classifier

import superkernel as sk
from superkernel.backends import backend_of
from superkernel.backends.microcontroller.archive import MAGIC
from superkernel.backends.microcontroller.compiled import MicrocontrollerCompiled
from superkernel.cli import main
from superkernel.codegen.host.emitters import emit_ir
from superkernel.codegen.host.lower import assembly
from superkernel.codegen.microcontroller.program import TableSpec, emit_data, emit_program, initial_offsets
from superkernel.frontends.json_form import save_json
from superkernel.registry.manifest import Manifest
from superkernel.target.machine import load_profile
from superkernel.target.microcontroller import CORES, MicrocontrollerTarget, typical_profile

BACKEND = backend_of(MicrocontrollerTarget.kind)


def made_of(kernel: sk.Kernel) -> MicrocontrollerCompiled:
    """What was compiled."""
    made = kernel._compiled
    assert isinstance(made, MicrocontrollerCompiled)
    return made


@pytest.fixture(scope="module")
def kernel() -> sk.Kernel:
    return sk.compile(quantised_classifier(), target="cortex-m55")


def described(folder: Path, core: str | None, tcm: int = 1 << 20, flash: int = 1 << 20) -> str:
    """A file that describes a machine."""
    path = folder / f"{core}-{tcm}-{flash}.json"
    path.write_text(replace(typical_profile("cortex-m55"), core=core, tcm_bytes=tcm, flash_bytes=flash).text())
    return str(path)


def members(file: bytes) -> list[bytes]:
    """The members of an archive behind its index, read by the format's own words."""
    assert file.startswith(MAGIC)
    at, found = len(MAGIC), []
    while at < len(file):
        header = file[at : at + 60]
        assert header.endswith(b"`\n")
        size = int(header[48:58])
        found.append(file[at + 60 : at + 60 + size])
        at += 60 + size + size % 2
    index, objects = found[0], found[1:]
    (count,) = struct.unpack_from(">I", index)
    names = index[4 + 4 * count :].split(b"\0")[:-1]
    for name, place in zip(names, struct.unpack_from(f">{count}I", index, 4), strict=True):
        size = int(file[place + 48 : place + 58])
        assert name.decode() in {s for s, there in symbols(file[place + 60 : place + 60 + size]) if there}
    return objects


def symbols(data: bytes) -> list[tuple[str, bool]]:
    """What an object defines for others, and what it wants of them."""
    tables = [s for s in ELFFile(BytesIO(data)).iter_sections() if isinstance(s, SymbolTableSection)]
    rows = [s for table in tables for s in table.iter_symbols() if s["st_info"]["bind"] != "STB_LOCAL"]
    return [(s.name, s["st_shndx"] != "SHN_UNDEF") for s in rows]


# What they are --------------------------------------------------------------------------------------------------------


def test_a_core_is_named_or_stands_in_a_profile(tmp_path: Path) -> None:
    for core in CORES:
        named = BACKEND.named(core)
        assert isinstance(named, MicrocontrollerTarget)
        assert (named.core, named.vector_bytes) == (core, 16)
        assert named.has("mve") == named.has("mve.fp") == (core in ("cortex-m55", "cortex-m85"))
    of_file = BACKEND.named(described(tmp_path, "cortex-m4", 1000, 2000))
    assert of_file is not None
    assert of_file.regions() == {"tcm": 1000, "flash": 2000}
    assert load_profile(described(tmp_path, "cortex-m4")).core == "cortex-m4"
    assert backend_of("cpu").named(described(tmp_path, "cortex-m4")) is None
    assert BACKEND.named(described(tmp_path, None)) is None
    with pytest.raises(sk.FileFormatError, match=r"'core'.*unknown core; expected cortex-m55.*found 'z80'"):
        BACKEND.named(described(tmp_path, "z80"))


def test_choice_is_explained_for_a_core(capsys: pytest.CaptureFixture[str]) -> None:
    problem = "matmul(f32[8,64], const f32[64,64])"
    assert main(["kernels", "explain", problem, "--target", "cortex-m55", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["chosen"]["kernel"].startswith("host.matmul")
    problem = "matmul_integer(u8[16,64], const i8[64,32], u8[])"
    assert main(["kernels", "explain", problem, "--target", "cortex-m55", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["chosen"]["id"] == "host.matmul.bytes/plain/mve"
    assert main(["kernels", "explain", problem, "--target", "cortex-m4", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["chosen"]["id"] == "host.matmul.bytes/plain"
    (rejected,) = (row for row in told["rejected"] if row["id"] == "host.matmul.bytes/plain/mve")
    assert "{mve}" in json.dumps(rejected)
    assert "{dsp}" in json.dumps(rejected)
    assert main(["kernels", "list", "--target", "cortex-m55", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows
    assert {row["tier"] for row in rows} <= {None, "plain"}
    assert not any("avx" in feature for row in rows for feature in row["features"])
    assert main(["kernels", "explain", problem, "--target", "cortex-m55", "--tier", "plain"]) == 2
    assert main(["kernels", "test", "host.copy", "--target", "cortex-m4"]) != 0


# What is made of a model ----------------------------------------------------------------------------------------------


def test_kernels_use_the_vectors_of_the_core(kernel: sk.Kernel) -> None:
    made = made_of(kernel)
    for sub, tiling in zip(made.schedule.subops, made.schedule.tilings, strict=True):
        for core in CORES:
            cpu = BACKEND.named(core)
            assert isinstance(cpu, MicrocontrollerTarget)
            text = assembly(emit_ir(sub.kernel, sub.body, tiling, cpu), cpu)
            vectors = bool(re.search(r"^\tv\w+\.[sui](8|16|32)\t.*\bq[0-7]\b", text, re.MULTILINE))
            if sub.body.op in ("conv_integer", "matmul_integer"):
                assert vectors == cpu.has("mve"), (core, sub.name)
                assert len(re.findall(r"\tvmla\.i32\t", text)) >= 16 * cpu.has("mve"), (core, sub.name)


def test_the_certificate_is_of_the_table(kernel: sk.Kernel) -> None:
    text = str(kernel.certificate)
    assert "covers the program as its object's table has it" in text
    assert "5 tasks on 1 core, 0 waits" in text
    summary = kernel.summary()
    assert summary["target"] == "cortex-m55"
    assert summary["regions"]["flash"]["used_bytes"] > summary["constant_bytes"]
    assert summary["regions"]["tcm"]["used_bytes"] == made_of(kernel).image.spec.arena_bytes
    assert kernel.explain(0).kernel.startswith("host.conv")


def test_a_library_is_complete(kernel: sk.Kernel, tmp_path: Path) -> None:
    library = sk.export({"cnn": kernel, "again": kernel}, tmp_path / "libnet.a")
    objects = members(Path(library.path).read_bytes())
    rows = [row for data in objects for row in symbols(data)]
    there = [name for name, is_defined in rows if is_defined]
    assert len({*there}) == len(there)
    assert {name for name, is_defined in rows if not is_defined} <= {*there, "__aeabi_unwind_cpp_pr0", ""}
    assert {"net_cnn_run_at", "net_again_run_at", "net_cnn_table", "net_cnn_constants"} <= {*there}
    assert all(name.startswith("net_") for name in there)
    for data in objects:
        assert not any(s["sh_flags"] & 3 == 3 and s["sh_size"] for s in ELFFile(BytesIO(data)).iter_sections())
    kernels = {f for entry in library.manifest.kernels.values() for f in entry.functions}
    assert kernels
    assert {f"net_{name}" for name in kernels} <= {*there}
    assert library.manifest.target == kernel._compiled.target.identity()
    header = Path(library.header).read_text()
    assert f"#define NET_CNN_ARENA_BYTES {made_of(kernel).image.spec.arena_bytes}" in header
    assert "static inline SkFirmwareStatus net_cnn_run(void *arena, const net_cnn_inputs *inputs" in header


def test_the_command_line_exports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, manifest = tmp_path / "cnn.json", tmp_path / "cnn-kernels.json"
    save_json(quantised_classifier(), model)
    target = described(tmp_path, "cortex-m55")
    assert main(["kernels", "dump", str(model), "--target", target, "-o", str(manifest)]) == 0
    words = ["export", str(model), "--target", target, "-o", str(tmp_path / "libnet.a"), "--manifest", str(manifest)]
    assert main(words) == 0
    assert "bytes of code" in capsys.readouterr().out
    assert Manifest.load(manifest).target[1] == "cortex-m55"
    assert main(["export", str(model), "-o", str(tmp_path / "libnet.a"), "--manifest", str(manifest)]) != 0
    assert "cortex-m55" in capsys.readouterr().err


# What is refused ------------------------------------------------------------------------------------------------------


def test_what_is_refused(kernel: sk.Kernel, tmp_path: Path) -> None:
    with pytest.raises(sk.UnsupportedError, match=r"does not run on this machine; expected cortex-m55.*export"):
        kernel.run(x=np.zeros((1, 3, 32, 32), np.uint8))
    assert kernel.run(x=np.zeros((1, 3, 32, 32), np.uint8), executor="reference").outputs["y"].shape == (1, 10)
    for refused in (kernel.report, kernel.time, kernel.trace, lambda: kernel.save(tmp_path / "m.skm")):
        with pytest.raises(sk.UnsupportedError):
            refused()
    with pytest.raises(sk.UnsupportedError, match=r"threads.*one thread; expected 1; found 2"):
        sk.compile(quantised_classifier(), target="cortex-m55", threads=2)
    with pytest.raises(sk.UnsupportedError, match="'debug'"):
        sk.compile(quantised_classifier(), target="cortex-m55", options={"debug": "races"})
    with pytest.raises(sk.UnsupportedError, match="tile_groups"):
        sk.compile(moe_layer(), target="cortex-m55")
    for name in ("libnet.so", "net.a"):
        with pytest.raises(sk.InputError, match=r"libNAME\.a"):
            sk.export(kernel, tmp_path / name)
    with pytest.raises(sk.InputError, match="no compiler is asked"):
        sk.export(kernel, tmp_path / "libnet.a", compiler="gcc")
    other = sk.compile(quantised_classifier(), target="cortex-m4")
    with pytest.raises(sk.InputError, match="kernels for two CPUs"):
        sk.export({"one": kernel, "two": other}, tmp_path / "libnet.a")
    with pytest.raises(sk.InputError, match="two kinds"):
        sk.export({"one": kernel, "two": sk.compile(quantised_classifier(), threads=1)}, tmp_path / "libnet.a")


def test_what_only_numpy_computes_is_refused() -> None:
    b = sk.GraphBuilder("only_numpy")
    b.output(b.gemm(b.input("x", (4, 8), "f32"), b.input("w", (8, 4), "f32")), "y")
    with pytest.raises(sk.UnsupportedError, match=r"host\.reference is not eligible \(device: region\.flash\)"):
        sk.compile(b.graph(), target="cortex-m55", options={"simplify": False, "fallback": "allow"})


def test_memories_that_end(kernel: sk.Kernel, tmp_path: Path) -> None:
    regions = kernel.summary()["regions"]
    with pytest.raises(sk.WorkspaceError, match="region 'tcm'"):
        sk.compile(quantised_classifier(), target=described(tmp_path, "cortex-m55", tcm=40_000))
    with pytest.raises(sk.WorkspaceError, match=r"region 'flash'.*code"):
        sk.compile(quantised_classifier(), target=described(tmp_path, "cortex-m55", flash=100_000))
    flash = regions["flash"]["used_bytes"] + 100
    one = sk.compile(quantised_classifier(), target=described(tmp_path, "cortex-m55", flash=flash))
    with pytest.raises(sk.WorkspaceError, match="fewer models"):
        sk.export({"one": one, "two": one}, tmp_path / "libnet.a")


# The program that is proved -------------------------------------------------------------------------------------------


def test_states_begin_anew_and_nothing_beside_them_changes() -> None:
    """`sk_reset`, translated for the machine at hand."""
    kinds = [(sk.DType.U8, (5,)), (sk.DType.F32, (0, 3)), (sk.DType.I16, (3,))]
    states = tuple(sk.TensorType(dtype, shape) for dtype, shape in kinds)
    starts = initial_offsets(states)
    begin = np.random.default_rng(5).integers(0, 256, starts[-1], np.uint8)
    texts = [emit_program(TableSpec((), (), (), states, 64, 64)), emit_data("sk_initial", begin.tobytes())]
    module = llvm.parse_assembly("")
    for text in (*texts, emit_data("sk_constants", bytes(8))):
        module.link_in(llvm.parse_assembly(text))
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    engine = llvm.create_mcjit_compiler(module, llvm.Target.from_default_triple().create_target_machine())
    engine.finalize_object()
    memory = np.full((3, 64), 0xA5, np.uint8)
    wanted = memory.copy()
    for row, start, kind in zip(wanted, starts, states, strict=False):
        row[8 : 8 + kind.nbytes] = begin[start : start + kind.nbytes]
    addresses = (ctypes.c_void_p * 3)(*(row.ctypes.data + 8 for row in memory))
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(engine.get_function_address("sk_reset"))(addresses)
    np.testing.assert_array_equal(memory, wanted)


def _word(data: bytes, number: int) -> int:
    """Where a word of the table stands in its object."""
    elf = ELFFile(BytesIO(data))
    (found,) = (s for s in elf.get_section_by_name(".symtab").iter_symbols() if s.name == "sk_table")
    return int(elf.get_section(found["st_shndx"])["sh_offset"] + found["st_value"] + 4 * number)


def _changed(number: int, change: Callable[[int], int]) -> Callable[[bytes], bytes]:
    def apply(data: bytes) -> bytes:
        made, at = bytearray(data), _word(data, number)
        (word,) = struct.unpack_from("<I", made, at)
        struct.pack_into("<I", made, at, change(word))
        return bytes(made)

    return apply


def _swapped(data: bytes) -> bytes:
    """The first two kernels exchanged: their relocations' symbols."""
    elf, made = ELFFile(BytesIO(data)), bytearray(data)
    (section,) = (s for s in elf.iter_sections() if s.name.startswith(".rel.rodata"))
    first, second = section["sh_offset"] + 4, section["sh_offset"] + 8 + 4
    made[first : first + 4], made[second : second + 4] = made[second : second + 4], made[first : first + 4]
    return bytes(made)


# Words: 0 where working memory begins; 1 a kernel, 2 and 3 its units, 4 its operands, 5 and 6 the first one's place.
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (_changed(0, lambda at: at - 64), "not its own scratch memory"),
        (_changed(1, lambda _: 4), "not a kernel's first"),
        (_changed(3, lambda end: end - 1), "units"),
        (_changed(3, lambda end: end + 1), "units that there are not"),
        (_changed(4, lambda count: count + 1), "not a program"),
        (_changed(4, lambda count: count - 1), "not a program"),
        (_changed(5, lambda base: 77), "no base 77"),
        (_changed(5, lambda base: base ^ 1), "nobody wrote|behind its memory|not its constant"),
        (_changed(6, lambda offset: offset + 64), "nobody wrote|behind its memory"),
        (_swapped, "not its kernel"),
    ],
)
def test_another_program_does_not_pass(kernel: sk.Kernel, change: Callable[[bytes], bytes], says: str) -> None:
    made = made_of(kernel)
    *_, key = made.image.objects
    proved = replace(made.certificate, emitted=None)
    again = BACKEND.attest(made, made, made.image, proved)
    assert again == made.certificate
    changed = change(made.image.program)
    assert changed != made.image.program
    other = replace(made.image, objects={**made.image.objects, key: changed})
    with pytest.raises(sk.VerificationError, match=says):
        BACKEND.attest(made, made, other, proved)
