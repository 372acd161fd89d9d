"""Convolutions on the accelerator's cube: results, declared accesses, independence of the split; which cuts are offered
and what bounds them."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from math import prod
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from aicore_check import check_aicore
from aicore_conv_cases import ConvCase, conv_case
from aicore_timing import engine_busy, recorded
from grouped_on import grouped_on
from image_nets import NETS
from interpret import run_body

from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.ir.body import Instruction
from superkernel.ir.body import Role as Use
from superkernel.registry.records import Policy
from superkernel.registry.requirement import body_of, parse_requirement
from superkernel.scheduler.families.aicore import AICORE_KERNELS, depthwise, family_of
from superkernel.scheduler.families.aicore.base import AicoreKernelType, AicoreTiling, CoreRole
from superkernel.scheduler.families.aicore.conv import cube_tilings
from superkernel.scheduler.families.aicore.conv_fix import FixForm
from superkernel.scheduler.families.aicore.conv_form import CubeConv, ImageLoad, cube_conv
from superkernel.scheduler.families.aicore.conv_tiling import ConvTiling, conv_fix, window
from superkernel.target.aicore import AicoreTarget, load_target
from superkernel.target.engines import Engine
from superkernel.transforms.precision import lower_precision

Shape = tuple[int, ...]
TOLERANCE = {DType.F16: 2e-3, DType.BF16: 1.6e-2, DType.F32: 1e-4}
MINI = load_target("mini")


def every_cut(case: ConvCase, target: AicoreTarget = MINI) -> list[ConvTiling]:
    return list(cube_tilings(case.body, target, every=True))


def check(case: ConvCase, dtype: DType = DType.F16, others: int = 1, target: AicoreTarget = MINI) -> None:
    """The best cut, and some of all others, drawn by the case's own numbers."""
    draw = random.Random(crc32(repr(case.body).encode()))
    cuts = every_cut(case, target)
    for tiling in [cuts[0], *draw.sample(cuts, min(others, len(cuts)))]:
        check_aicore(
            "aicore.conv", case.body, case.arrays, case.expected, tiling=tiling, tol=TOLERANCE[dtype], target=target,
            splits=1,
        )  # fmt: skip


LIMITS = {
    "conv(f16[1,16,300,8], const f16[16,16,{n},1]; layout=channels_last)": 255,
    "conv(f16[1,16,300,8], const f16[16,16,3,3]; strides=(1,{n}), layout=channels_last)": 63,
    "conv(f16[1,16,600,8], const f16[16,16,2,2]; dilations=({n},1), layout=channels_last)": 255,
    "conv(f16[1,16,30,8], const f16[16,16,3,3]; pads=({n},0,0,0), layout=channels_last)": 255,
    "conv(f16[1,16,30,8], const f16[16,16,3,3]; pads=(0,{n},0,0), layout=channels_last)": 255,
}


@pytest.mark.parametrize("text", LIMITS)
def test_windows_are_as_large_as_the_command_takes_and_no_larger(text: str) -> None:
    def form(n: int) -> CubeConv:
        body = body_of(parse_requirement(text.format(n=n), MINI, Policy()))
        assert body is not None
        return cube_conv(body)

    assert form(LIMITS[text]).channels == 16
    with pytest.raises(UnsupportedError, match="beyond the im2col command"):
        form(LIMITS[text] + 1)


SHAPES: list[tuple[Shape, Shape, dict[str, Any]]] = [
    ((1, 3, 9, 11), (5, 3, 3, 3), {"pads": (1, 1, 1, 1)}),
    ((2, 4, 13, 12), (30, 4, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
    ((1, 4, 20, 20), (6, 2, 3, 3), {"pads": (2, 0, 1, 1), "dilations": (2, 1), "groups": 2}),
    ((2, 16, 14, 14), (40, 16, 1, 1), {}),
    ((1, 7, 3, 3), (5, 7, 1, 1), {}),
    ((1, 40, 9, 9), (20, 40, 1, 1), {"strides": (2, 2)}),
    ((1, 3, 33, 31), (8, 3, 7, 7), {"pads": (3, 3, 3, 3), "strides": (2, 2)}),
    ((1, 1, 28, 28), (6, 1, 5, 5), {"pads": (2, 2, 2, 2)}),
    ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    ((1, 5, 22, 22), (6, 5, 2, 5), {"pads": (0, 4, 1, 4), "strides": (3, 1), "dilations": (1, 2)}),
    ((1, 2, 3, 3), (3, 2, 3, 3), {"pads": (2, 2, 2, 2)}),
    ((1, 2, 3, 3), (3, 2, 1, 1), {"pads": (5, 4, 5, 4)}),
    ((0, 3, 9, 9), (4, 3, 3, 3), {}),
    ((1, 64, 7, 7), (40, 64, 3, 3), {"pads": (1, 1, 1, 1)}),
    ((1, 64, 6, 6), (64, 2, 3, 3), {"pads": (1, 1, 1, 1), "groups": 32}),
    ((1, 24, 8, 8), (48, 1, 3, 3), {"pads": (1, 1, 1, 1), "groups": 24}),
    ((1, 3, 32, 32), (24, 3, 8, 8), {"strides": (8, 8)}),
    ((1, 16, 5, 60), (16, 16, 1, 9), {"pads": (0, 4, 0, 4)}),
]  # fmt: skip


@pytest.mark.parametrize(("x", "w", "attrs"), SHAPES, ids=str)
def test_shapes(x: Shape, w: Shape, attrs: dict[str, Any]) -> None:
    check(conv_case(x, w, attrs, bias=x[1] % 2 == 0))


LINES: list[tuple[Shape, Shape, dict[str, Any]]] = [
    ((1, 5, 1000), (6, 5, 5), {"pads": (2, 2)}),
    ((1, 5, 411), (6, 5, 4), {"pads": (2, 7), "strides": (2,), "dilations": (3,)}),
    ((2, 5, 301), (6, 5, 1), {}),
    ((1, 80, 100), (48, 80, 3), {"pads": (1, 1), "strides": (2,)}),
]


@pytest.mark.parametrize(("x", "w", "attrs"), LINES, ids=str)
def test_one_dimension(x: Shape, w: Shape, attrs: dict[str, Any]) -> None:
    check(conv_case(x, w, attrs, bias=True, epilogue="relu"))


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16], ids=str)
@pytest.mark.parametrize(("x", "w", "attrs"), SHAPES[1:6], ids=str)
def test_other_types(x: Shape, w: Shape, attrs: dict[str, Any], dtype: DType) -> None:
    check(conv_case(x, w, attrs, dtype=dtype, bias=True), dtype, others=1)


@pytest.mark.parametrize("epilogue", ["relu", "leaky", "clip", "scaled", "shifted"])
def test_fix_does_the_epilogue(epilogue: str) -> None:
    case = conv_case((1, 16, 9, 10), (24, 16, 3, 3), {"pads": (1, 1, 1, 1)}, epilogue=epilogue)
    assert conv_fix(case.body) is not None
    check(case)


@pytest.mark.parametrize("epilogue", ["residual", "swish", "twice"])
@pytest.mark.parametrize(
    ("x", "w", "attrs"),
    [
        ((2, 16, 9, 10), (24, 16, 3, 3), {"pads": (1, 1, 1, 1), "strides": (2, 2)}),
        ((1, 64, 7, 7), (40, 64, 1, 1), {}),
        ((1, 8, 90), (12, 8, 3), {"pads": (1, 1)}),
        ((1, 8, 3, 3), (70, 8, 3, 3), {}),
    ],
    ids=str,
)
def test_vector_cores_do_the_epilogue(x: Shape, w: Shape, attrs: dict[str, Any], epilogue: str) -> None:
    case = conv_case(x, w, attrs, bias=True, epilogue=epilogue)
    assert all(t.kernel_type is AicoreKernelType.MIX_1_2 for t in every_cut(case))
    check(case)


@pytest.mark.parametrize("epilogue", ["store", "residual"])
def test_windows_of_wider_images(epilogue: str) -> None:
    """Parts of concatenations: channels of wider pixels, columns of longer rows, stores into wider pixels."""
    for wider, longer, out_wider in ((6, 0, 0), (0, 3, 0), (16, 2, 10), (0, 0, 5)):
        kw: dict[str, Any] = {"wider": wider, "longer": longer, "out_wider": out_wider, "epilogue": epilogue}
        check(conv_case((1, 16, 9, 20), (24, 16, 3, 3), {"pads": (1, 1, 1, 1)}, **kw), others=1)
        check(conv_case((1, 10, 9, 9), (12, 10, 1, 1), {}, **kw), others=1)


def test_rows_that_are_cut_across() -> None:
    """Images too wide for L1 are cut in columns, at the border with padding of their own."""
    small = MINI.replaced({"memory.l1_bytes": 16384})
    case = conv_case((1, 16, 6, 150), (16, 16, 3, 3), {"pads": (1, 1, 1, 1), "strides": (1, 1)}, bias=True)
    cuts = every_cut(case, small)
    assert any(c.column_blocks > 1 for c in cuts)
    for cut in [c for c in cuts if c.column_blocks > 1][:4]:
        check_aicore("aicore.conv", case.body, case.arrays, case.expected, tiling=cut, target=small, splits=1)


def test_every_way_of_loading_and_holding() -> None:
    """Among the cuts of these cases is every combination that the kernel has code for."""
    found: set[tuple[str, ImageLoad]] = set()
    for wider, longer in ((0, 0), (0, 3), (16, 0)):
        kw: dict[str, Any] = {"wider": wider, "longer": longer}
        case = conv_case((2, 32, 12, 20), (64, 32, 3, 3), {"pads": (1, 1, 1, 1)}, **kw)
        for cut in every_cut(case):
            if (cut.hold, cut.load) not in found:
                found.add((cut.hold, cut.load))
                check_aicore("aicore.conv", case.body, case.arrays, case.expected, tiling=cut, splits=2)
    assert len(found) == 9


DEPTHWISE: list[tuple[Shape, Shape, dict[str, Any]]] = [
    ((1, 32, 8, 8), (32, 1, 3, 3), {"pads": (1, 1, 1, 1)}),
    ((2, 40, 9, 11), (40, 1, 5, 5), {"pads": (2, 2, 2, 2), "strides": (2, 2)}),
    ((1, 72, 7, 7), (72, 1, 7, 7), {"pads": (3, 3, 3, 3), "dilations": (2, 1)}),
    ((1, 130, 5, 6), (130, 1, 3, 3), {}),
    ((1, 3, 6, 40), (3, 1, 1, 3), {"pads": (2, 2, 2, 2)}),
    ((1, 24, 200), (24, 1, 9), {"pads": (4, 4)}),
    ((1, 48, 4, 21), (48, 1, 3, 3), {"pads": (1, 1, 1, 1)}),
    ((2, 16, 61), (16, 1, 4), {"pads": (1, 2), "strides": (3,), "dilations": (2,)}),
]


@pytest.mark.parametrize("epilogue", ["store", "residual"])
@pytest.mark.parametrize(("x", "w", "attrs"), DEPTHWISE, ids=str)
def test_depthwise(x: Shape, w: Shape, attrs: dict[str, Any], epilogue: str) -> None:
    case = conv_case(x, w, {**attrs, "groups": x[1]}, bias=x[0] == 1, epilogue=epilogue)
    cuts = depthwise.tilings(case.body, MINI)
    offered = family_of("aicore.conv").tilings("aicore.conv", case.body, MINI)
    assert cuts[0] in offered
    assert (cuts[0].fold > 1) == (x[1] in (32, 48) and x[-1] > 5)
    assert cuts[0].kernel_type is AicoreKernelType.VECTOR
    for tiling in dict.fromkeys([cuts[0], random.Random(x[1]).choice(cuts)]):
        check_aicore("aicore.conv", case.body, case.arrays, case.expected, tiling=tiling, splits=1)


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16], ids=str)
def test_depthwise_of_other_types(dtype: DType) -> None:
    case = conv_case((1, 40, 9, 11), (40, 1, 3, 3), {"pads": (1, 1, 1, 1), "groups": 40}, dtype=dtype, epilogue="clip")
    tol = {DType.F32: 1e-5, DType.BF16: 1.6e-2}[dtype]
    check_aicore("aicore.conv", case.body, case.arrays, case.expected, tol=tol, splits=1)


def test_fix_refuses_a_product_with_what_it_computed_itself() -> None:
    """The other factor is neither a constant nor a vector of constants, and not the chain's own value."""
    case = conv_case((1, 16, 5, 5), (16, 16, 1, 1), {})
    plain = case.body.epilogue
    first = len(plain.inputs)
    kind = plain.inputs[0].dtype
    steps = tuple(Instruction("identity", (0 if n == 0 else first + n - 1,), kind) for n in range(2))

    def stored(*more: Instruction) -> FixForm | None:
        every = (*steps, *more)
        outputs = (replace(plain.outputs[0], value=first + len(every) - 1),)
        return conv_fix(replace(case.body, epilogue=replace(plain, instructions=every, outputs=outputs)))

    assert stored() is not None
    assert stored(Instruction("mul", (first + 1, first), kind)) is None
    assert stored(Instruction("mul", (first + 1, first + 1), kind)) is None
    number = Instruction("constant", (), kind, (("value", 0.5),))
    scaled = stored(number, Instruction("mul", (first + 1, first + 2), kind))
    assert scaled is not None
    assert scaled.factor == 0.5
    assert (
        stored(replace(number, attrs=(("value", math.nan),)), Instruction("mul", (first + 1, first + 2), kind)) is None
    )


def test_depthwise_sums_are_stored_as_they_are() -> None:
    """In f32, with nothing behind the sums; in several units."""
    case = conv_case((2, 40, 9, 11), (40, 1, 3, 3), {"pads": (1, 1, 1, 1), "groups": 40}, dtype=DType.F32)
    cuts = [
        t
        for t in family_of("aicore.conv").tilings("aicore.conv", case.body, MINI)
        if isinstance(t, depthwise.DepthwiseTiling)
    ]
    assert any(tiling.units > 2 for tiling in cuts)
    for tiling in cuts:
        check_aicore("aicore.conv", case.body, case.arrays, case.expected, tiling=tiling, tol=1e-5, splits=1)


def test_depthwise_windows() -> None:
    for wider, longer, out_wider in ((8, 0, 0), (0, 3, 6)):
        case = conv_case(
            (1, 20, 9, 11), (20, 1, 3, 3), {"pads": (1, 1, 1, 1), "groups": 20}, wider=wider, longer=longer,
            out_wider=out_wider,
        )  # fmt: skip
        check_aicore("aicore.conv", case.body, case.arrays, case.expected, splits=1)


@pytest.mark.parametrize("net", NETS)
def test_bodies_as_networks_have_them(net: str) -> None:
    """Every convolution of a network, grouped for the accelerator by its own families, on random operands."""
    subops = grouped_on(lower_precision(NETS[net](1)), MINI, AICORE_KERNELS).subops
    bodies = list(dict.fromkeys(s.body for s in subops if s.kernel == "aicore.conv"))
    assert bodies
    rng = np.random.default_rng(3)
    for body in bodies:
        arrays = [
            None if o.role is Use.OUTPUT else (0.5 * rng.standard_normal(o.type.shape)).astype(o.type.dtype.numpy)
            for o in body.operands
        ]
        flat = [np.zeros(o.type.size, o.type.dtype.numpy) if a is None else a.reshape(-1).copy()
                for a, o in zip(arrays, body.operands, strict=True)]  # fmt: skip
        run_body(body, flat)
        expected = {i: flat[i] for i, o in enumerate(body.operands) if o.role is Use.OUTPUT}
        best = family_of("aicore.conv").tilings("aicore.conv", body, MINI)[0]
        assert isinstance(best, AicoreTiling)
        check_aicore("aicore.conv", body, arrays, expected, tiling=best, tol=6e-3, splits=1)


def test_search_leaves_out_only_worse_cuts() -> None:
    """How many it leaves out depends on what stores cost: the second problem's are all within reach of the best."""
    left_out = []
    for x, w, strides in (((1, 32, 40, 40), (96, 32, 3, 3), (1, 1)), ((4, 64, 28, 28), (64, 64, 1, 1), (1, 1))):
        body = conv_case(x, w, {"strides": strides}).body
        device = load_target("a3")
        quick, thorough = cube_tilings(body, device), cube_tilings(body, device, every=True)
        assert quick[0] == thorough[0]
        assert set(quick) <= set(thorough)
        left_out.append(len(thorough) - len(quick))
    assert left_out[0] > 0


RESNET: list[tuple[Shape, Shape, int, Engine]] = [
    ((1, 64, 56, 56), (64, 64, 3, 3), 1, Engine.MTE2),
    ((1, 128, 28, 28), (128, 128, 3, 3), 1, Engine.MTE2),
    ((1, 256, 14, 14), (256, 256, 3, 3), 1, Engine.MTE2),
    ((1, 512, 7, 7), (512, 512, 3, 3), 1, Engine.MTE2),
    ((1, 1024, 14, 14), (256, 1024, 1, 1), 1, Engine.MTE2),
    ((1, 512, 7, 7), (2048, 512, 1, 1), 1, Engine.MTE2),
    ((1, 64, 56, 56), (256, 64, 1, 1), 1, Engine.FIX),
    ((1, 256, 56, 56), (256, 256, 3, 3), 1, Engine.M),
    ((8, 256, 14, 14), (256, 256, 3, 3), 1, Engine.M),
]


@pytest.mark.parametrize(("x", "w", "strides", "bottleneck"), RESNET, ids=str)
def test_what_bounds_image_networks(x: Shape, w: Shape, strides: int, bottleneck: Engine) -> None:
    """On a whole device the scarce engine is that which the shape says, and it works near its rate: MTE2 at that of
    all bytes in a few transfers, the cube at that of its multiplications, FIX at that of its stores."""
    pad = w[2] // 2
    attrs = {"strides": (strides, strides), "pads": (pad, pad, pad, pad)}
    body, device = conv_case(x, w, attrs, bias=True, epilogue="relu").body, load_target("a3")
    tiling = cube_tilings(body, device)[0]
    share = -(-tiling.units // device.device.cube_cores)
    commands = recorded("aicore.conv", body, tiling, device, 0, share)[CoreRole.CUBE]
    busy = engine_busy(commands, device)
    assert max(busy, key=lambda e: busy[e]) is bottleneck
    numbers = [(c.engine, c.name, c.numbers) for c in commands]
    if bottleneck is Engine.MTE2:
        loads = [n for engine, name, n in numbers if engine is Engine.MTE2 and name.startswith("gm_")]
        size = sum(n["bytes"] if "bytes" in n else 2 * n["rows"] * n["cols"] for n in loads)
        ideal = device.transfer_cycles("rates.gm_to_l1_gb_per_s", size) + len(loads) * device.dma.startup_cycles
        assert len(loads) <= 7
    elif bottleneck is Engine.M:
        ideal = body.anchor_outputs[0].size * prod(w[1:]) // (device.device.cube_cores * 16**3)
    else:
        stores = [n for _, name, n in numbers if name == "l0c_to_gm"]
        size = sum(2 * n["m"] * n["n"] for n in stores)
        ideal = device.transfer_cycles("rates.l0c_to_gm_gb_per_s", size) + len(stores) * device.dma.store_startup_cycles
        ideal += sum(n["m"] for n in stores) * device.dma.row_cycles
    limit = 1.3 if bottleneck is Engine.M else 1.1
    assert busy[bottleneck] <= limit * ideal, (busy, ideal)
    estimate = tiling.cost_cycles(body, 0, share, device)
    assert 0.8 * busy[bottleneck] <= estimate <= 2.5 * busy[bottleneck]


SMALL = (1, 64, 9, 9), (24, 64, 3, 3)


def test_refusals() -> None:
    fits = conv_case(*SMALL, {})
    tiny = MINI.replaced({"memory.l0a_bytes": 512, "memory.l0b_bytes": 512})
    with pytest.raises(UnsupportedError, match="l0a_bytes"):
        family_of("aicore.conv").tilings("aicore.conv", fits.body, tiny)
    lonely, swish = MINI.replaced({"device.vector_cores_per_group": 1}), conv_case(*SMALL, {}, epilogue="swish")
    assert family_of("aicore.conv").tilings("aicore.conv", conv_case(*SMALL, {}).body, lonely)
    with pytest.raises(UnsupportedError, match="vector cores cannot finish a convolution"):
        family_of("aicore.conv").tilings("aicore.conv", swish.body, lonely)
    far = conv_case((1, 2, 300, 4), (2, 2, 2, 1), {"dilations": (256, 1)})
    with pytest.raises(UnsupportedError, match="dilations"):
        family_of("aicore.conv").tilings("aicore.conv", far.body, MINI)


def test_a_block_of_outputs_wants_a_row_at_least() -> None:
    conv = cube_conv(conv_case((1, 16, 9, 9), (16, 16, 2, 2), {"pads": (4, 4, 4, 4)}).body)
    assert window(conv, 0, (0, 1)) == (0, 1)  # sees padding alone
    assert window(conv, 0, (13, 15)) == (8, 9)
    assert window(conv, 0, (2, 6)) == (0, 3)


@pytest.mark.parametrize(("high", "wide"), [(1, 40), (40, 1), (1, 1), (9, 12)])
def test_one_line_of_positions_is_evenly_spaced_wherever_lines_lie(high: int, wide: int) -> None:
    """Lines of the result that lie far apart are cut into rectangles, unless there is one, or one position in each."""
    body = conv_case((1, 16, high, wide), (16, 16, 1, 1), {}).body
    (store,) = body.epilogue.outputs
    batch, channels, rows, columns = store.strides
    apart = replace(store, strides=(2 * batch, channels, 2 * rows, columns))
    spread = replace(body, epilogue=replace(body.epilogue, outputs=(apart,)))
    found = [{t.framed for t in cube_tilings(each, MINI, every=True)} for each in (body, spread)]
    assert False in found[0]
    assert (False in found[1]) is (1 in (high, wide))
