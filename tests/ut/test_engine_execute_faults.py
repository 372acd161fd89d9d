"""What engine commands in C++ refuse: a case per kind of fault; reads of memory that was never written, to the byte."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from engine_execute_cases import GM_BYTES, TABLE, core_of, fields_of, legal_command

from superkernel import _core
from superkernel.core.dtypes import DType
from superkernel.target.aicore import load_target
from superkernel.target.engines import Command, command, encode, footprint
from superkernel.target.engines.checking import TouchedBytes
from superkernel.target.engines.model import Local

MINI = load_target("mini")
RAM = MINI.map.ram_address
SIZES = {m.value: int(str(MINI.value(m.size_path))) for m in Local}
F32, F16 = (DType.F32,), (DType.F16,)
# Commands that touch only what the contents of an operand name.
BY_CONTENTS = ("v_gather", "v_scatter", "l1_im2col")
MOVING = [name for name, spec in TABLE.items() if any(o.memory for o in spec.operands)]


def bench() -> _core.EngineBench:
    return _core.EngineBench(fields_of(MINI))


def add(**changes: int) -> Command:
    numbers: Any = {
        "dst": 0, "a": 4096, "b": 8192, "rows": 4, "cols": 8, "dst_stride": 32, "a_stride": 32, "b_stride": 32,
    }  # fmt: skip
    return command("v_add", types=F32, **(numbers | changes))


REFUSED = {
    "misaligned": add(a=4100),
    "out_of_range": add(b=SIZES["ub"] - 32),
    "unmapped": command("gm_to_ub", dst=0, src=RAM - 1, bytes=8),
    "illegal_overlap": add(dst=4096 + 32),
    "self_overlap": add(cols=9),
    "bad_operand": command("v_shl", types=(DType.I16,), dst=0, src=64, cols=4, shift=16),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_illegal_commands_are_refused_with_their_kind(kind: str) -> None:
    c = REFUSED[kind]
    for found in (
        bench().decode(c.engine.title, "aiv", encode(c)),
        bench().execute(c.engine.title, "aiv", encode(c), bytearray(64)),
    ):
        assert found is not None
        assert found[0] == kind
        assert str(c) in found[1]


def test_words_that_are_no_command() -> None:
    doorbell = encode(add())[-1]
    words = encode(add())[:-1]
    for engine, changed in (
        ("v", 0xFF),  # opcode
        ("v", doorbell & ~0xF00 | 0x300),  # v_add of bf16
        ("v", doorbell | 1 << 63),  # a bit that is no operand's
        ("mte2", doorbell),  # another engine of the core
    ):
        found = bench().decode(engine, "aiv", (*words, changed))
        assert found is not None
        assert found[0] == "undefined_command", hex(changed)


def test_numbers_beyond_their_range() -> None:
    words = encode(add())
    found = bench().decode("v", "aiv", (words[0] & ~(0xFFFF << 20), *words[1:]))
    assert found is not None
    assert found[0] == "bad_operand"
    assert "'rows': expected 1 to 65535, found 0" in found[1]


def test_commands_of_another_core() -> None:
    copy = encode(command("gm_to_l1", dst=0, src=RAM, bytes=32))
    for engine, core, words in (("v", "aic", encode(add())), ("mte2", "aiv", copy), ("v", "aicpu", encode(add()))):
        found = bench().decode(engine, core, words)
        assert found is not None
        assert found[0] == "not_on_core"


@pytest.mark.parametrize("name", ["v_gather", "v_scatter"])
@pytest.mark.parametrize("offset", [64, 2, 62, 0xFFFF_FFFC])
def test_offsets_outside_the_table(name: str, offset: int) -> None:
    engines = bench()
    engines.write("ub", 0, bytes(4096))
    engines.write("ub", 2048, np.array([0, 60, offset], "<u4").tobytes())
    c = command(name, types=F32, dst=1024, src=512, offsets=2048, cols=3, table_bytes=64)
    before = engines.read("ub", 0, 4096)
    found = engines.execute("v", "aiv", encode(c), bytearray())
    assert found is not None
    assert found[0] == "bad_offset"
    assert f"offset 2 is {offset}" in found[1]
    assert engines.read("ub", 0, 4096) == before
    assert engines.execute("v", "aiv", encode(c), bytearray(), data=False) is None  # contents are not looked at


def test_global_memory_that_is_smaller_than_the_map() -> None:
    c = command("gm_to_ub", dst=0, src=RAM + 60, bytes=8)
    found = bench().execute("mte2", "aiv", encode(c), bytearray(64))
    assert found is not None
    assert found[0] == "unmapped"
    assert bench().execute("mte2", "aiv", encode(c), bytearray(68)) is None


def touched_bytes(touches: list[TouchedBytes]) -> set[tuple[str, int]]:
    return {
        (t.memory.value, t.start + r * t.stride + b)
        for t in touches
        if t.memory
        for r in range(t.rows)
        for b in range(t.row_bytes)
    }


@pytest.mark.parametrize("name", [n for n in MOVING if n not in BY_CONTENTS])
@pytest.mark.parametrize("data", [True, False], ids=["data", "timing"])
def test_reads_and_writes_count_to_the_byte(name: str, data: bool) -> None:
    """With one byte of its footprint missing a command is refused and changes nothing; with all it writes its own."""
    rng = random.Random(name)
    c = legal_command(name, rng, MINI)
    place = (c.engine.title, core_of(c), encode(c))
    touches = footprint(c, MINI)
    read = sorted(touched_bytes([t for t in touches if not t.writes]))
    engines = bench()
    gm = bytearray(rng.randbytes(GM_BYTES))
    for memory, byte in read:
        engines.write(memory, byte, bytes([rng.randrange(256)]))
    before = {memory: engines.read(memory, 0, size) for memory, size in SIZES.items()}
    if read:
        memory, missing = rng.choice(read)
        partial = bench()
        for other, byte in read:
            if (other, byte) != (memory, missing):
                partial.write(other, byte, b"\0")
        found = partial.execute(*place, gm, data=data)
        assert found is not None
        assert found[0] == "unwritten_read"
        assert f"byte {missing} of {memory} was never written" in found[1]
        assert not any(partial.read(m, 0, size).strip(b"\0") for m, size in SIZES.items())
    assert engines.execute(*place, gm, data=data) is None
    if not data:
        assert {memory: engines.read(memory, 0, size) for memory, size in SIZES.items()} == before
    wanted = touched_bytes(list(touches))
    for memory, size in SIZES.items():
        written = [byte for byte in range(min(size, 40000)) if engines.first_unwritten(memory, byte, 1) != byte]
        assert written == sorted(b for m, b in wanted if m == memory and b < 40000)


def test_gather_reads_and_scatter_writes_what_offsets_name() -> None:
    engines = bench()
    engines.write("ub", 1024, np.array([8, 2], "<u4").tobytes())
    engines.write("ub", 512 + 8, b"ab")
    engines.write("ub", 512 + 2, b"cd")
    gather = command("v_gather", types=F16, dst=0, src=512, offsets=1024, cols=2, table_bytes=64)
    assert engines.execute("v", "aiv", encode(gather), bytearray()) is None
    assert engines.read("ub", 0, 4) == b"abcd"
    scatter = command("v_scatter", types=F16, dst=2048, src=0, offsets=1024, cols=2, table_bytes=64)
    assert engines.execute("v", "aiv", encode(scatter), bytearray()) is None
    written = [b for b in range(2048, 2048 + 64) if engines.first_unwritten("ub", b, 1) != b]
    assert written == [2050, 2051, 2056, 2057]
    engines.write("ub", 1024, np.array([8, 4], "<u4").tobytes())
    found = engines.execute("v", "aiv", encode(gather), bytearray())
    assert found is not None
    assert found[0] == "unwritten_read"
    assert "byte 516 of ub" in found[1]


def test_im2col_reads_what_elements_need() -> None:
    """A 2 x 2 filter's first column only: the image's last column is never needed."""
    engines = bench()
    width, channels = 4, 2
    for y in range(3):
        engines.write("l1", 2 * y * width * channels, bytes(2 * (width - 1) * channels))
    shape: dict[str, Any] = {
        "height": 3, "width": width, "channels": channels, "out_width": 3, "kernel_h": 2, "kernel_w": 1,
    }  # fmt: skip
    c = command("l1_im2col", types=F16, dst=0, src=0, m=6, k=4, **shape)
    for data in (True, False):
        assert engines.execute("mte1", "aic", encode(c), bytearray(), data=data) is None
    wider = command("l1_im2col", types=F16, dst=0, src=0, m=8, k=4, **(shape | {"out_width": 4}))
    for data in (True, False):
        found = engines.execute("mte1", "aic", encode(wider), bytearray(), data=data)
        assert found is not None
        assert found[0] == "unwritten_read"
        assert "byte 12 of l1" in found[1]


def test_arguments_of_the_bench_are_checked() -> None:
    engines = bench()
    for call in (
        lambda: engines.decode("warp", "aiv", [0]),
        lambda: engines.decode("v", "gpu", [0]),
        lambda: engines.decode("v", "aiv", []),
        lambda: engines.read("gm", 0, 1),
        lambda: engines.execute("v", "aiv", encode(add()), bytearray(), isa="sse9"),
    ):
        with pytest.raises(ValueError, match=r"unknown|16 words|local memory|instruction set"):
            call()
    with pytest.raises(IndexError):
        engines.read("ub", SIZES["ub"] - 1, 2)
    fields = fields_of(MINI)
    del fields["cube.m"]
    with pytest.raises(KeyError):
        _core.EngineBench(fields)
