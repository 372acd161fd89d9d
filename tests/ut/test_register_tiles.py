"""Machine code of register tiles: the loops that multiply keep everything in registers."""

from __future__ import annotations

import platform
import re
from dataclasses import replace
from typing import Any

import pytest
from anchor_bodies import anchor_case

from superkernel.codegen.host.emitters import emit_ir
from superkernel.codegen.host.gemm_core import Tile, scalars_kept, vectors_kept
from superkernel.codegen.host.lower import assembly
from superkernel.core.dtypes import DType
from superkernel.ir.body import Body
from superkernel.machine import machine_profile
from superkernel.scheduler.families import family_of
from superkernel.scheduler.families.nhwc_tiling import ACCUMULATORS, POSITIONS_MOST, VECTORS_MOST
from superkernel.target.cpu import CpuTarget, cpu_target
from superkernel.target.microcontroller import microcontroller_target, typical_profile

F32 = DType.F32
LAST = {0: (0, 2, 3, 1)}
NHWC = "host.conv.nhwc"

x86 = pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="code of x86")


def cpu(tier: str, *more: str) -> CpuTarget:
    """A CPU of the machine that tests go by, wherever they run: tiles depend on its caches."""
    made = cpu_target("x86_64-unknown-linux-gnu", tier, more, machine_profile())
    return replace(made, l1_bytes=32 << 10)


def convolution(x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any]) -> Body:
    slots = [(x, F32), (w, F32), ((w[0],), F32)]
    return anchor_case("conv", attrs, slots, constants=[1, 2], layouts=LAST).body


def product_loops(text: str, count: int) -> list[list[str]]:
    """Instructions of the loops of one block that do `count` multiply-adds."""
    found, label, block = [], "", list[str]()
    for line in map(str.strip, text.splitlines()):
        if head := re.match(r"(\.L\w+):", line):
            label, block = head[1], []
        elif line and not line.startswith((".", "#")):
            block.append(line)
            if re.match(rf"j\w+\s+{re.escape(label)}$", line) and len(products(block)) == count:
                found.append(block)
    return found


def products(block: list[str]) -> list[str]:
    """The multiply-adds of a block."""
    return [i for i in block if i.startswith(("vfmadd", "vdpbf16ps"))]


def shuffled(block: list[str]) -> list[str]:
    """What moves vectors about in a loop: to the stack, from it, from register to register."""
    return [i for i in block if i.startswith("vmov") and ("%rsp" in i or re.search(r"%[xyz]mm\d+, %[xyz]mm\d+$", i))]


@x86
@pytest.mark.parametrize(
    ("kernel", "x", "w", "attrs"),
    [
        (NHWC, (1, 64, 28, 28), (256, 64, 1, 1), {}),
        (NHWC, (1, 64, 56, 56), (128, 64, 1, 1), {"strides": (2, 2)}),
        (NHWC, (1, 64, 28, 28), (64, 64, 3, 3), {"strides": (2, 2), "pads": (1, 1, 1, 1)}),
        ("host.conv.winograd4", (1, 64, 28, 28), (64, 64, 3, 3), {"pads": (1, 1, 1, 1)}),
        (NHWC + "_bf16", (1, 64, 28, 28), (256, 64, 1, 1), {}),
        (NHWC + "_bf16", (1, 96, 27, 27), (256, 96, 5, 5), {"pads": (2, 2, 2, 2)}),
        ("host.conv.winograd2_bf16", (1, 64, 28, 28), (64, 64, 3, 3), {"pads": (1, 1, 1, 1)}),
    ],
    ids=str,
)
def test_nothing_is_moved_about_in_a_tile_of_7_by_4(
    kernel: str, x: tuple[int, ...], w: tuple[int, ...], attrs: dict[str, Any]
) -> None:
    target, body = cpu("avx512", "avx512bf16"), convolution(x, w, attrs)
    tiling: Any = family_of(kernel).tilings(kernel, body, target)[0]
    assert (tiling.positions, tiling.vectors) == (7, 4)
    loops = product_loops(assembly(emit_ir(kernel, body, tiling, target), target), 28)
    assert loops
    assert [shuffled(block) for block in loops] == [[]] * len(loops)


@x86
@pytest.mark.parametrize(("filters", "halves"), [(24, True), (40, True), (28, False), (48, False)])
def test_a_last_vector_is_halved_where_that_is_enough(filters: int, halves: bool) -> None:
    target, body = cpu("avx512"), convolution((1, 64, 28, 28), (filters, 64, 1, 1), {})
    tiling: Any = family_of(NHWC).tilings(NHWC, body, target)[0]
    assert tiling.lanes == 16
    text = assembly(emit_ir(NHWC, body, tiling, target), target)
    loops = product_loops(text, tiling.positions * tiling.vectors)
    assert loops
    for block in loops:
        narrow = [i for i in block if "vfmadd" in i and "%ymm" in i]
        assert len(narrow) == (tiling.positions if halves else 0)


@pytest.mark.parametrize("tier", sorted(ACCUMULATORS))
def test_every_tile_finds_its_registers(tier: str) -> None:
    target = microcontroller_target(typical_profile("cortex-m55")) if tier == "small" else cpu(tier)
    for vectors in range(1, VECTORS_MOST[tier] + 1):
        rows = min(POSITIONS_MOST[tier], ACCUMULATORS[tier] // vectors)
        kept = vectors_kept(Tile(rows, vectors, 4, F32), target)
        assert 0 < kept <= vectors
        assert rows * vectors + kept + scalars_kept(target) <= target.vector_registers


@pytest.mark.parametrize(
    ("kernel", "channels", "side"), [("host.conv.winograd2", 512, 7), ("host.conv.winograd4", 256, 14)]
)
def test_tall_tiles_are_preferred_where_weights_are_many(kernel: str, channels: int, side: int) -> None:
    """16 squares: 8 x 2 vectors load half the weights per product that 4 x 4 do, at as many multiply-adds."""
    body = convolution((1, channels, side, side), (channels, channels, 3, 3), {"pads": (1, 1, 1, 1)})
    tiling: Any = family_of(kernel).tilings(kernel, body, cpu("avx512"))[0]
    assert (tiling.positions, tiling.vectors) == (8, 2)


@pytest.mark.parametrize("tier", ["avx512", "avx2", "plain"])
@pytest.mark.parametrize("phases", [1, 2, 4])
def test_vectors_are_kept_beside_all_sums_and_no_longer(tier: str, phases: int) -> None:
    target = cpu(tier)
    room = target.vector_registers - scalars_kept(target)
    for rows in range(1, 9):
        for vectors in range(1, 5):
            sums = rows * vectors * phases
            kept = vectors_kept(Tile(rows, vectors, target.vector_bytes // 4, F32, phases), target)
            assert kept == 0 or sums + kept <= room
            assert kept == vectors or sums + kept >= room
