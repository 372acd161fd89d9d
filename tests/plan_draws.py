"""Operators drawn at random, by the registry's text, for CPUs whose caches are so small that problems of few elements
come by every limit: sizes lie at and beside the numbers that kernels go by. Equal seeds draw equal problems."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from plan_cases import TARGETS

from superkernel.registry.records import Policy
from superkernel.target.base import Target

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 23, 31, 32, 33, 48, 64, 65, 96, 100, 127, 128, 130, 192, 256, 300)
FEW, SIDES, CHANNELS = SIZES[:9], SIZES[1:13], (1, 2, 3, 4, 7, 8, 12, 16, 20, 31, 32, 33, 48, 64, 65, 96, 128)
TYPES = ("f32", "f32", "f32", "f64", "f16", "bf16")
LAST = "layout=channels_last"


def _machine(name: str, cores: int, l2_bytes: int, l3_bytes: int) -> Callable[[], Any]:
    def made() -> Target:
        target: Any = TARGETS[name]()
        return replace(target, cores=cores, readers=cores, l1_bytes=1 << 12, l2_bytes=l2_bytes, l3_bytes=l3_bytes)

    return made


MACHINES: Mapping[str, Callable[[], Any]] = {
    "avx512": _machine("avx512", 6, 1 << 15, 1 << 17),
    "avx2": _machine("avx2", 2, 1 << 16, 1 << 18),
    "plain": _machine("plain", 17, 1 << 14, 1 << 16),
    "tiles": _machine("tiles", 24, 1 << 16, 1 << 17),
    "neon": _machine("neon", 1, 1 << 15, 1 << 16),
}
"""With a first, second and last level of a few KB each, and their cores."""


def _dims(sizes: Sequence[int]) -> str:
    return f"[{','.join(map(str, sizes))}]"


def _list(name: str, values: Sequence[int]) -> str:
    return f"{name}=({','.join(map(str, values))}{',' * (len(values) == 1)})"


def _call(op: str, operands: Sequence[str], *attributes: str) -> str:
    given = [a for a in attributes if a]
    return f"{op}({', '.join(operands)}{'; ' * bool(given)}{', '.join(given)})"


def _matmul(rng: random.Random) -> str:
    kind, batch = rng.choice(TYPES), [rng.choice(FEW) for _ in range(rng.choice((0, 0, 0, 1, 2)))]
    m, k, n = rng.choice(SIZES), rng.choice(SIZES), rng.choice(SIZES)
    turned = rng.choice((False, False, True))
    own = batch if batch and rng.random() < 0.5 else []
    right = ("const " if rng.random() < 0.7 else "") + kind + _dims([*own, *((n, k) if turned else (k, n))])
    return _call("matmul", (kind + _dims([*batch, m, k]), right), "trans_b=true" * turned)


def _bytes(rng: random.Random) -> str:
    kind, k, n = rng.choice(("u8", "i8")), rng.choice(SIZES), rng.choice(SIZES)
    return _call("matmul_integer", (kind + _dims((*_rows_of(rng), k)), f"const i8[{k},{n}]", f"{kind}[]"))


def _rows_of(rng: random.Random) -> tuple[int, ...]:
    """Of a left factor, in batches now and then."""
    return (rng.choice(FEW),) * (rng.random() < 0.3) + (rng.choice(SIZES),)


def _blocks(rng: random.Random) -> str:
    bits, block = rng.choice((4, 8)), rng.choice((16, 32, 64))
    k, n = block * rng.choice(FEW), rng.choice(SIZES)
    kind, zero = rng.choice(("f32", "f16")), f"zero={rng.choice((7, 8))}" if bits == 4 else ""
    x, codes = "f32" + _dims((*_rows_of(rng), k)), f"const u8[{n},{k * bits // 8}]"
    x_bits, scales = rng.choice(("", "x_bits=8")), f"const {kind}[{n},{k // block}]"
    return _call("block_matmul", (x, codes, scales), f"bits={bits}", f"block={block}", zero, x_bits)


def _windows(rng: random.Random, kernel: Sequence[int]) -> list[str]:
    """Attributes of windows, each with its default now and then."""
    rank, found = len(kernel), []
    if rng.random() < 0.3:
        found.append(_list("strides", [rng.choice((1, 2, 2, 3)) for _ in range(rank)]))
    if rng.random() < 0.6:
        same = [k // 2 for k in kernel]
        found.append(
            _list("pads", (*same, *same) if rng.random() < 0.7 else [rng.randrange(k) for k in (*kernel, *kernel)])
        )
    return found


def _conv(rng: random.Random) -> str:
    rank = rng.choice((1, 2, 2, 2, 2, 2, 3))
    kernel = (rng.choice((3, 3, 3, 1, 5, 2)),) * rank
    if rng.random() < 0.2:
        kernel = tuple(rng.choice((1, 2, 3)) for _ in range(rank))
    sides = [rng.choice(SIDES) + k for k in kernel]
    groups, out, channels = 1, rng.choice(CHANNELS), rng.choice(CHANNELS)
    which = rng.random()
    if which < 0.25:
        groups, out, channels = channels, 1, 1
    elif which < 0.35:
        groups = rng.choice((2, 3, 4))
    op, kind, weight = "conv", rng.choice(("f32", *TYPES[:5])), "const "
    operands = kind, kind
    if rng.random() < 0.25:
        op, operands = "conv_integer", ("u8", "i8")
    if rng.random() < 0.1:
        weight = ""
    x = operands[0] + _dims((rng.choice((1, 1, 2)), groups * channels, *sides))
    w = weight + operands[1] + _dims((groups * out, channels, *kernel))
    found = [f"groups={groups}" if groups > 1 else "", *_windows(rng, kernel)]
    if rng.random() < 0.1:
        sides = [2 * s for s in sides]
        x = operands[0] + _dims((1, groups * channels, *sides))
        found.append(_list("dilations", [2] * rank))
    return _call(op, (x, w), *found, LAST if rng.random() < 0.6 else "")


def _pool(rng: random.Random) -> str:
    rank = rng.choice((1, 2, 2, 2, 3))
    kernel = [rng.choice((1, 2, 3, 3, 5)) for _ in range(rank)]
    kind, sides = rng.choice((*TYPES, "i8", "u8")), [rng.choice(SIDES) + k for k in kernel]
    x = kind + _dims((rng.choice(FEW), rng.choice(CHANNELS), *sides))
    last = LAST if rng.random() < 0.5 else ""
    ops = ("max_pool", "global_max_pool", "avg_pool", "global_avg_pool")
    op = rng.choice(ops[:2] if kind in ("i8", "u8") else ops)
    if op.startswith("global"):
        return _call(op, (x,), last)
    return _call(op, (x,), _list("kernel", kernel), *_windows(rng, kernel), last)


def _rows(rng: random.Random) -> str:
    shape = [rng.choice(SIZES) for _ in range(rng.choice((1, 2, 2, 3)))]
    kind, axis = rng.choice(TYPES), rng.randrange(len(shape))
    x = kind + _dims(shape)
    op = rng.choice(("softmax", "log_softmax", "layer_norm", "rms_norm", "reduce_sum", "reduce_max", "reduce_l2",
                     "argmax", "argmin", "cumsum", "lp_norm"))  # fmt: skip
    if op in ("layer_norm", "rms_norm"):
        scale = kind + _dims(shape[axis:])
        return _call(op, (x, scale, *([scale] if op == "layer_norm" else [])), f"axis={axis}")
    if op.startswith("reduce"):
        return _call(op, (x,), _list("axes", sorted(rng.sample(range(len(shape)), rng.randint(1, len(shape))))))
    return _call(op, (x,), f"axis={axis}")


def _norm(rng: random.Random) -> str:
    kind, channels = rng.choice(TYPES), rng.choice((2, 4, 6, 8))
    x = kind + _dims((rng.choice(FEW), channels, *(rng.choice(SIDES) for _ in range(rng.choice((1, 2))))))
    each = f"{kind}[{channels}]"
    op, count, attribute = rng.choice(
        (("instance_norm", 2, ""), ("group_norm", 2, "groups=2"), ("batch_norm", 4, ""), ("lrn", 0, "size=3"))
    )
    return _call(op, (x, *[each] * count), attribute)


def _attention(rng: random.Random) -> str:
    heads, shared = rng.choice(((1, 1), (2, 1), (4, 2), (3, 3), (8, 1)))
    queries, keys, depth = rng.choice(SIZES[:-4]), rng.choice(SIZES), rng.choice((3, 8, 16, 31, 32, 64, 100))
    batch, kind = rng.choice((1, 1, 2)), rng.choice(TYPES)
    kv = kind + _dims((batch, shared, keys, depth))
    return _call("attention", (kind + _dims((batch, heads, queries, depth)), kv, kv), rng.choice(("", "causal=true")))


def _elements(rng: random.Random) -> str:
    shape = [rng.choice((*SIZES, 511, 512, 513, 1023, 1024, 1025, 4096, 4097)) for _ in range(rng.choice((1, 1, 2, 3)))]
    while len(shape) > 1 and max(shape) > 5000 // min(shape):
        shape[shape.index(max(shape))] = rng.choice(SIDES)
    other = [1 if rng.random() < 0.3 else n for n in shape][rng.randrange(len(shape)) :]
    kind = rng.choice((*TYPES, "i8", "i32", "i64"))
    op = rng.choice(("add", "mul", "maximum", "identity"))
    return _call(op, (kind + _dims(shape), *([] if op == "identity" else [kind + _dims(other)])))


def _moves(rng: random.Random) -> str:
    shape = [rng.choice(SIZES[:-6]) for _ in range(rng.choice((2, 3)))]
    kind, axis, rank = rng.choice((*TYPES, "i8", "i64")), rng.randrange(len(shape)), len(shape)
    x = kind + _dims(shape)
    op = rng.choice(
        ("gather", "concat", "pad", "tile", "trilu", "gather_elements", "gather_nd", "scatter_nd", "one_hot")
    )
    if op == "gather":
        return _call(op, (x, f"i64[{rng.choice(FEW)}]"), f"axis={axis}")
    if op == "concat":
        others = [[rng.choice(FEW) if d == axis else n for d, n in enumerate(shape)] for _ in range(rng.choice((1, 2)))]
        return _call(op, (x, *(kind + _dims(other) for other in others)), f"axis={axis}")
    if op == "pad":
        mode = rng.choice(("constant", "edge", "reflect"))
        most = [n if mode == "reflect" else 4 for n in (*shape, *shape)]
        return _call(op, (x,), _list("pads", [rng.randrange(min(3, n)) for n in most]), f"mode={mode}")
    if op == "tile":
        return _call(op, (x,), _list("repeats", [rng.choice((1, 1, 2, 3)) for _ in shape]))
    if op == "trilu":
        return _call(op, (x,), f"k={rng.choice((-1, 0, 2))}", rng.choice(("", "upper=false")))
    if op == "gather_elements":
        return _call(
            op, (x, f"i64{_dims([rng.choice(FEW) if d == axis else n for d, n in enumerate(shape)])}"), f"axis={axis}"
        )
    if op == "gather_nd":
        return _call(op, (x, f"i64[{rng.choice(FEW)},{rng.randint(1, rank)}]"))
    if op == "scatter_nd":
        count, deep = rng.choice(FEW), rng.randint(1, rank)
        return _call(op, (x, f"i64[{count},{deep}]", kind + _dims((count, *shape[deep:]))))
    return _call(op, (f"i64{_dims(shape)}", f"{kind}[2]"), f"depth={rng.choice(FEW)}", f"axis={rng.choice((-1, 0))}")


MAKERS = (_matmul, _matmul, _matmul, _conv, _conv, _conv, _conv, _bytes, _blocks, _pool, _pool, _rows, _rows, _norm,
          _attention, _attention, _elements, _moves)  # fmt: skip

EDGES = (
    "attention(f32[1,2,1,64], f32[1,2,70,64], f32[1,2,70,64])",
    "attention(f32[1,1,1,32], f32[1,1,9,32], f32[1,1,9,32])",
    "attention(f32[1,2,3,8], f32[1,2,0,8], f32[1,2,0,8])",
    "attention(f32[2,2,5,16], f32[2,2,40,16], f32[2,2,40,16], f32[2,1,5,40])",
    "attention(f32[2,2,5,16], f32[2,2,40,16], f32[2,2,40,16], bool[2,2,5,40], i32[2])",
    "reduce_sum(f32[])",
    "reduce_mean(f32[1,1]; keepdims=true)",
    "reduce_max(f32[3,4,5]; axes=(0,2), keepdims=true)",
    "reduce_prod(f32[5,0]; axes=(1,))",
    "reduce_log_sum_exp(f32[65,33]; axes=(0,))",
    "argmin(f32[3,4,5]; axis=0, keepdims=false, select_last_index=true)",
    "topk(f32[5,40]; k=40)",
    "topk(f32[40,5]; k=3, axis=0, largest=false)",
    "cumsum(f32[3,4,5]; axis=1)",
    "softmax(f32[0,37]; axis=-1)",
    "softmax(f32[16,64]; axis=-1)",
    "softmax(f32[15,64]; axis=-1)",
    "softmax(f32[16,65]; axis=-1)",
    "softmax_integer(f32[5,33]; axis=-1, grid=8)",
    "matmul(f32[0,5], const f32[5,37])",
    "matmul(f32[5,0], const f32[0,37])",
    "matmul(f32[3,1,5], const f32[5,37])",
    "matmul(f32[16,96], f32[96,130])",
    "matmul(f64[9,17], f64[20,17]; trans_b=true)",
    "matmul(i64[9,17], i64[20,17]; trans_b=true)",
    "matmul(f32[3,4,5], f32[5])",
    "matmul(f32[5], f32[3,5,4])",
    "matmul(f32[1,4,5], f32[3,5,4])",
    "matmul(f32[2,1,4,5], f32[3,5,4])",
    "matmul_integer(u8[2,20], const i8[20,37], u8[2,1])",
    "matmul_integer(i8[7,20], i8[20,33], i8[], i8[])",
    "conv(f32[1,4,2,2], const f32[4,4,3,3]; pads=(3,3,3,3))",
    "conv(f32[0,4,8,8], const f32[4,4,3,3])",
    "conv(f32[1,16,12,12], f32[16,16,3,3], f32[16]; pads=(1,1,1,1))",
    "conv(f32[1,16,12,12], const f32[32,16,1,1]; strides=(2,2), layout=channels_last)",
    "conv(f32[1,16,12,12], const f32[32,16,1,1]; pads=(1,1,1,1), layout=channels_last)",
    "conv_integer(u8[1,64,20,20], const i8[48,64,3,3]; layout=channels_last)",
    "conv_integer(u8[1,66,9,9], const i8[48,66,1,1]; layout=channels_last)",
    "conv_integer(u8[1,16,20], const i8[48,16,3]; layout=channels_last)",
    "conv_transpose(f32[1,4,5,6], const f32[4,3,2,3]; strides=(2,1), output_padding=(1,0))",
    "conv_transpose(f32[2,4,5], const f32[4,1,3]; groups=4, strides=(3,))",
    "max_pool(f32[1,3,8,8]; kernel=(3,3), strides=(2,2), ceil_mode=true)",
    "avg_pool(f32[1,3,8,8]; kernel=(3,3), strides=(2,2), pads=(1,1,1,1), ceil_mode=true, count_include_pad=true)",
    "avg_pool(f32[1,3,8,8]; kernel=(3,3), pads=(1,1,1,1), count_include_pad=true, layout=channels_last)",
    "lp_pool(f32[1,5,6,7]; kernel=(2,3), p=2)",
    "gather(f32[9,50,20], i32[7,2]; axis=1)",
    "gather(f32[70,1], i64[40]; axis=0)",
    "gather(f32[70,1100], i64[40]; axis=0)",
    "gather(f32[70,30], i64[]; axis=1)",
    "scatter_elements(f32[4,5], i64[2,5], f32[2,5]; axis=0, reduction=add)",
    "scatter_nd(f32[4,5], i64[3,1], f32[3,5]; reduction=max)",
    "kv_update(f32[2,2,8,4], f32[2,2,1,4], i64[])",
    "kv_update(f32[2,2,8,4], f32[2,2,3,4], i64[1])",
    "rope(f32[1,2,300,8], f32[300,4], f32[300,4])",
    "rope(f32[1,2,3,8], f32[3,4], f32[3,4]; interleaved=true)",
    "lrn(f32[2,5,7]; size=4)",
    "grouped_matmul(f32[60,65], const f32[3,65,70], i64[3], i32[32]; cut=(16,1,1))",
    "grouped_matmul(f32[60,65], const f32[3,65,70], i64[3], i32[136]; cut=(2,2,3))",
    "tile_groups(i64[3]; rows=60, tile=16)",
    "tile_lengths(i64[3]; keys=40)",
    "resize(f32[1,2,4,5]; sizes=(1,2,7,8), mode=nearest)",
    "one_hot(i64[3], f32[2]; depth=4, axis=0)",
    "trilu(f32[3,5,6]; k=-1)",
    "trilu(f32[3,5,6]; upper=false)",
    "pad(f32[6]; pads=(-1,3))",
    "concat(f32[2,0], f32[2,5]; axis=1)",
    "floor(f32[3,35])",
    "ceil(f64[3,35])",
    "trunc(f32[3,35])",
    "round(f32[3,35])",
    "exp(f64[3,35])",
    "log(f32[3,35])",
    "sin(f32[3,35])",
    "erf(f32[3,35])",
    "cast(f32[3,35]; dtype=bf16)",
    "cast(bf16[3,35]; dtype=f32)",
    "cast(f64[3,35]; dtype=u8)",
    "cast(i64[3,35]; dtype=f64)",
    "cast(u8[3,35]; dtype=f16)",
    "cast(f32[3,35]; dtype=bool)",
    "div(i32[3,35], i32[35])",
    "mod(f32[3,35], f32[35]; fmod=true)",
    "pow(f32[3,35], f32[35])",
    "atan2(f32[3,35], f32[35])",
    "avg_pool(f32[1,20,3,40]; kernel=(1,14), pads=(0,7,0,6), strides=(1,2), layout=channels_last)",
    "max_pool(f32[1,40,9,40]; kernel=(2,13), dilations=(3,2), layout=channels_last)",
    "max_pool(u8[1,70,9,40]; kernel=(3,13), pads=(1,6,1,6), layout=channels_last)",
    "conv(f32[1,20,3,40], const f32[20,1,2,14]; groups=20, pads=(0,7,1,6), strides=(1,2), layout=channels_last)",
    "conv(f32[1,40,9,40], const f32[40,1,2,13]; groups=40, dilations=(3,2), layout=channels_last)",
    "conv(f32[1,20,4,5,30], const f32[20,1,2,2,13]; groups=20, layout=channels_last)",
    "global_avg_pool(f32[2,20,5,7]; layout=channels_last)",
    "global_max_pool(f32[2,40,3,5,7]; layout=channels_last)",
    "identity(f32[3,300])",
    "identity(f32[40,70])",
    "identity(f32[130,5])",
    "identity(i8[2,70,3])",
    "identity(f32[2,3,5,130])",
    "add(f32[1024], f32[1024])",
    "add(f32[1023], f32[1023])",
    "add(f32[16,4096], f32[4096])",
    "add(f32[15,4096], f32[4096])",
    "add(f32[16,4097], f32[4097])",
    "add(f32[7,3,1], f32[5])",
    "add(f32[], f32[])",
    "mul(f32[0,5], f32[5])",
)
"""Without elements or with few, at limits, with attributes that those drawn have not."""


def drawn_problems(count: int) -> Iterator[tuple[str, str, Policy]]:
    """All of `EDGES`, so many others: a machine's name, an operator, and what precision it may have."""
    names = [*MACHINES]
    for text in EDGES:
        yield from ((name, text, Policy()) for name in names[:3:2])
    for seed in range(count):
        rng = random.Random(seed)
        text = MAKERS[seed % len(MAKERS)](rng)
        reduced = text.startswith(("matmul(f32", "conv(f32", "attention(f32")) and rng.random() < 0.4
        precision: Any = rng.choice(("bf16", "int8", "tf32-like"))
        yield rng.choice(names), text, Policy(precision=precision) if reduced else Policy()


def drawn_settings(seed: int) -> tuple[str, int, dict[str, Any]]:
    """A machine's name, threads, and options that are not as usual."""
    rng = random.Random(seed)
    values: dict[str, tuple[Any, ...]] = {
        "fuse": (False,),
        "simplify": (False,),
        "cost_placement": (False,),
        "precision": ("bf16", "int8", "tf32-like"),
        "objective": ("size", "memory"),
        "determinism": ("bitwise", "run-to-run"),
    }
    options = {name: rng.choice(kinds) for name, kinds in values.items() if rng.random() < 0.2}
    return rng.choice([*MACHINES]), rng.choice((1, 2, 3, 4, 6)), options
