"""The depth loops of products keep their sums in registers, whatever stands behind the product: LLVM hoists the
constants of an epilogue to the function's entry, and must not make room for them by spilling sums inside the loop."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import superkernel as sk
from superkernel.builder import Tensor
from superkernel.codegen.host.features import detect_cpu

EPILOGUES: dict[str, Callable[[sk.GraphBuilder, Tensor], Tensor]] = {
    "gelu": lambda b, x: b.gelu(x),
    "silu": lambda b, x: b.mul(x, b.sigmoid(x)),
    "tanh": lambda b, x: b.tanh(x),
}


def depth_loop(code: bytes, folder: Path, operation: str = "vfmadd") -> list[str]:
    """Of all loops without a branch inside, the one with most multiply-adds (`operation`): its instructions."""
    path = folder / "kernel.o"
    path.write_bytes(code)
    text = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", path], check=True, capture_output=True, text=True
    ).stdout
    best: list[str] = []
    piece: list[tuple[int, str]] = []
    for line in text.splitlines():
        at, colon, instruction = line.strip().partition(":\t")
        if not colon:
            continue
        piece.append((int(at, 16), instruction))
        if instruction.startswith("j"):
            head = int(instruction.split()[1], 16)
            loop = [i for a, i in piece if a >= head]
            if head <= int(at, 16) and sum(operation in i for i in loop) > sum(operation in i for i in best):
                best = loop
            piece = []
    return best


@pytest.mark.skipif(detect_cpu().tier != "avx512", reason="counts the registers of AVX-512")
@pytest.mark.skipif(shutil.which("objdump") is None, reason="reads a disassembly")
@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("rows", [5, 16, 64])
def test_sums_stay_in_registers(epilogue: str, rows: int, tmp_path: Path) -> None:
    b = sk.GraphBuilder("product")
    x = b.input("x", (rows, 384), "f32")
    w = b.constant(np.random.default_rng(0).standard_normal((384, 768), dtype=np.float32))
    b.output(EPILOGUES[epilogue](b, b.matmul(x, w)), "y")
    kernel = sk.compile(b.graph(), threads=1)
    code = next(data for name, data in kernel._compiled.image.objects.items() if "matmul" in name)
    loop = depth_loop(code, tmp_path)
    assert sum("vfmadd" in i for i in loop) >= 8
    assert not [i for i in loop if "%rsp" in i or "%rbp" in i], loop


@pytest.mark.skipif(not detect_cpu().has("avx512vnni"), reason="counts the registers of AVX-512")
@pytest.mark.skipif(shutil.which("objdump") is None, reason="reads a disassembly")
@pytest.mark.parametrize("window", [1, 3])
def test_sums_of_bytes_stay_in_registers(window: int, tmp_path: Path) -> None:
    """A convolution with a residual: its epilogue quantises twice."""
    rng = np.random.default_rng(0)
    b = sk.GraphBuilder("residual")
    scales = [b.constant(np.float32(s)) for s in (0.03, 0.7, 0.12, 0.34)]
    zero, middle = b.constant(np.uint8(0)), b.constant(np.uint8(129))
    image, other = b.input("x", (1, 64, 8, 28), "u8"), b.input("r", (1, 128, 8, 28), "u8")
    filters = b.constant(rng.integers(-127, 128, (128, 64, window, window)).astype(np.int8))
    w = b.dequantize(filters, b.constant(np.full((128, 1, 1, 1), 0.01, np.float32)))
    sums = b.conv(b.dequantize(image, scales[0], zero), w, pads=(window // 2,) * 4)
    rounded = b.dequantize(b.quantize(sums, scales[1], middle, dtype="u8"), scales[1], middle)
    joined = b.relu(b.add(rounded, b.dequantize(other, scales[2], zero)))
    b.output(b.quantize(joined, scales[3], zero, dtype="u8"), "y")
    kernel = sk.compile(b.graph(), threads=1)
    code = next(data for name, data in kernel._compiled.image.objects.items() if "conv.bytes" in name)
    loop = depth_loop(code, tmp_path, "vpdpbusd")
    assert sum("vpdpbusd" in i for i in loop) >= 20
    assert not [i for i in loop if "%rsp" in i or "%rbp" in i or "vmovdqa" in i], loop
