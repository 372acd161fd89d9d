"""The loader of host code: distances, names, refusals; and memory to run from in hardened processes."""

from __future__ import annotations

import ctypes
import errno
import mmap
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from superkernel.codegen.host import executable_memory, loader
from superkernel.codegen.host.features import detect_cpu
from superkernel.codegen.host.loader import LoadedCode
from superkernel.codegen.host.lower import compile_ir
from superkernel.core.errors import InternalError, MachineError, UnsupportedError
from superkernel.target.cpu import cpu_target

CALLER = """
declare i64 @other(i64)
@table = internal constant [4 x i64] [i64 3, i64 5, i64 7, i64 11]
@entries = internal constant [2 x ptr] [ptr @here, ptr @other]
define i64 @here(i64 %x) { ret i64 %x }
define i64 @first(i64 %i) {
  %at = getelementptr i64, ptr @table, i64 %i
  %value = load i64, ptr %at
  %more = call i64 @other(i64 %value)
  %odd = and i64 %i, 1
  %slot = getelementptr ptr, ptr @entries, i64 %odd
  %target = load ptr, ptr %slot
  %last = call i64 %target(i64 %more)
  ret i64 %last
}
"""
OTHER = "define i64 @other(i64 %x) { %y = mul i64 %x, 1000 ret i64 %y }"


def test_objects_call_one_another_and_reach_their_tables() -> None:
    cpu = detect_cpu()
    code = LoadedCode([compile_ir(CALLER, cpu), compile_ir(OTHER, cpu)])
    first = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(code.address("first"))
    assert [first(i) for i in range(4)] == [3_000, 5_000_000, 7_000, 11_000_000]
    with pytest.raises(InternalError, match="no symbol 'second'"):
        code.address("second")


def test_code_is_never_writable_and_constants_never_executable() -> None:
    cpu = detect_cpu()
    code = LoadedCode([compile_ir(CALLER, cpu), compile_ir(OTHER, cpu)])
    address = code.address("first")
    with open("/proc/self/maps") as file:
        maps = [line.split()[:2] for line in file]
    ranges = {int(name.split("-")[0], 16): (int(name.split("-")[1], 16), mode[:3]) for name, mode in maps}
    (end,) = [end for begin, (end, mode) in ranges.items() if begin <= address < end and mode == "r-x"]
    assert ranges[end][1] == "r--", "constants lie right behind the code, however full the process is"


def test_what_cannot_be_linked_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = detect_cpu()
    caller, other = compile_ir(CALLER, cpu), compile_ir(OTHER, cpu)
    with pytest.raises(InternalError, match=r"nobody defines; found other$"):
        LoadedCode([caller])
    with pytest.raises(InternalError, match=r"same symbol; found other$"):
        LoadedCode([caller, other, other])
    with pytest.raises(InternalError, match=r"is written; found \.data$"):
        LoadedCode([compile_ir("@counter = global i64 7", cpu)])
    for damaged in (b"", b"x" * 100, other[:60], other[:200]):
        with pytest.raises(InternalError, match="cannot be read"):
            LoadedCode([damaged])
    monkeypatch.setattr(loader, "_FIELDS", {})
    with pytest.raises(InternalError, match="kind of relocation"):
        LoadedCode([caller, other])


def test_a_distance_too_large_for_its_field_is_an_error() -> None:
    image = np.zeros(16, np.uint8)
    field = loader._Field(4)
    for distance in (2**31 - 1, -(2**31)):
        loader._insert(image, np.array([8]), np.array([distance]), field)
        assert int(image[8:12].view("<i4")[0]) == distance
    for distance in (2**31, -(2**31) - 1):
        with pytest.raises(UnsupportedError, match="too large"):
            loader._insert(image, np.array([8]), np.array([distance]), field)


AARCH64 = """
declare i64 @other(i64)
@bytes = internal constant [5 x i8] c"abcde"
@wide = internal constant <4 x i32> <i32 1, i32 2, i32 3, i32 4>
define i64 @first(ptr %to) {
  %value = load volatile <4 x i32>, ptr @wide
  store volatile <4 x i32> %value, ptr %to
  %next = getelementptr i8, ptr @bytes, i64 3
  %letter = load volatile i8, ptr %next
  store volatile ptr @bytes, ptr %to
  %wider = zext i8 %letter to i64
  %got = call i64 @other(i64 %wider)
  %sum = add i64 %got, 1
  ret i64 %sum
}
"""


def test_addresses_in_code_of_aarch64() -> None:
    """Decoded from the instructions, by the manual: each ADRP with what uses its register, and the call."""
    cpu = cpu_target("aarch64-unknown-linux-gnu", "plain", {"neon"})
    objects = [loader._read(compile_ir(AARCH64, cpu)), loader._read(compile_ir(OTHER, cpu))]
    code_bytes, nbytes = loader._lay_out(objects)
    names = {name: at for found in objects for name, at in found.defined()}
    base = 0x7F12_3456_7000
    image = np.frombuffer(loader._link(objects, nbytes, base, names), np.uint8)
    data = image[code_bytes:].tobytes()
    wide = base + code_bytes + data.index(np.arange(1, 5, dtype="<i4").tobytes())
    letters = base + code_bytes + data.index(b"abcde")
    pages: dict[int, int] = {}
    reached, called = set(), set()
    for at in range(0, code_bytes, 4):
        word = int(image[at : at + 4].view("<u4")[0])
        if word & 0x9F000000 == 0x90000000:  # ADRP
            distance = ((word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3) << 12
            pages[word & 31] = ((base + at) & ~0xFFF) + (distance - (1 << 33) if distance >> 32 else distance)
        elif word & 0xFFC00000 == 0x91000000 and (word >> 5 & 31) in pages:  # ADD, immediate
            reached.add(pages[word >> 5 & 31] + (word >> 10 & 0xFFF))
        elif word & 0xFFC00000 == 0x3DC00000 and (word >> 5 & 31) in pages:  # LDR of 16 bytes
            reached.add(pages[word >> 5 & 31] + (word >> 10 & 0xFFF) * 16)
        elif word & 0xFC000000 == 0x94000000:  # BL
            distance = (word & 0x3FFFFFF) << 2
            called.add(at + (distance - (1 << 28) if distance >> 27 else distance))
    assert {wide, letters} <= reached
    assert called == {names["other"]}


def test_memory_that_cannot_be_protected_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a process has as many mappings as it may have."""

    def refused(*_: object) -> None:
        raise OSError(errno.ENOMEM, "mprotect")

    monkeypatch.setattr(executable_memory, "_protect", refused)
    with pytest.raises(MachineError, match=r"no executable memory.*memory file: ENOMEM"):
        executable_memory.ExecutableMemory(2 * mmap.PAGESIZE, mmap.PAGESIZE, lambda address: b"")


def test_what_a_signal_handler_raises_comes_out() -> None:
    def interrupted(address: int) -> bytes:
        raise TimeoutError("alarm")

    with pytest.raises(TimeoutError, match="alarm"):
        executable_memory.ExecutableMemory(mmap.PAGESIZE, mmap.PAGESIZE, interrupted)


HARDENED = """
import ctypes
import numpy as np
import superkernel as sk
from superkernel.codegen.host import executable_memory
assert ctypes.CDLL(None).prctl(65, 1, 0, 0, 0) == 0  # PR_SET_MDWE: pages that were written never become executable

def refused(): raise PermissionError(1, "not permitted")
"""


@pytest.mark.parametrize("ways", ["all", "disk", "none"])
def test_where_written_pages_cannot_become_executable(ways: str) -> None:
    body = """
        b = sk.GraphBuilder("g")
        b.output(b.softmax(b.input("x", (4, 8), "f32"), axis=-1), name="y")
        try:
            print(sk.compile(b.graph(), threads=2)(np.ones((4, 8), np.float32)).sum())
        except sk.MachineError as error:
            print(error)
    """
    closed = {"all": (), "disk": ("_memory_file",), "none": ("_memory_file", "_disk_file")}[ways]
    lines = [f"executable_memory.{name} = refused" for name in closed]
    script = "\n".join([HARDENED, *lines, textwrap.dedent(body)])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    if "prctl" in done.stderr:
        pytest.skip("this kernel has no PR_SET_MDWE")
    assert done.returncode == 0, done.stderr
    if ways == "none":
        assert "the process gets no executable memory" in done.stdout
        assert "memory file: EPERM, file: EPERM, anonymous memory: EACCES" in done.stdout
        assert "hint: kernels need memory" in done.stdout
    else:
        assert done.stdout.strip() == "4.0"
