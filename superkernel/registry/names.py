"""Canonical micro-kernel names: the XNNPACK convention, read and written without loss.

    name := prefix dt ("_" dt)* "_" op ["_" act] ["_" rq] "_ukernel" ["_" par] "__" target

Model: a name is a view of a kernel's fields, never their source; `superkernel.registry.lint` compares the two. The
parser reads the forms of today's convention and the older ones (multi-pass `5f5m5l4c4s4r`, pooling `9x`, `9p8x`,
`mp9p8q`, types qc8, q8, s16, u32, activations linear and relu, generators `xnn_generate_...`), and our own names
(prefix `sk`, types f64, s64, ..., targets such as `avx512amx` or `aiv`).

Which parameters an operator takes is a table of *forms*, each a template: `{mr}x{nr}[c{kr}][s{sr}]` means two sizes and
two optional parts. A size is a number without leading zeros, with `v` behind it where it counts vector registers of
run-time length. An operator with forms needs one of them, save those whose tile may stand in the target instead
(`__neon_2x8`) or be absent. What a tile demands of itself and of a problem is in `name_rules.py`.

Invariants: `format_name(parse_name(x)) == x` for every x that parses; `parse_name(format_name(n)) == n` for every legal
n. Splitting is at the first `__`; the longest operator wins; the instruction set may stand anywhere in the target;
unknown modifiers there are kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from superkernel.core.dtypes import SMALL, DType
from superkernel.core.errors import UserError, Violation, raise_all
from superkernel.ops.opdef import FLOATS, INTS


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PREFIXES = ("xnn", "sk", "xnn_generate")
DATATYPES = frozenset(
    _words(
        "bf16 f16 f32 f64 q8 pf16 pf32 qs8 qu8 s8 u8 qd8 qdu8 qp8 pqs8 pqu8 qs8w qc8w qc4w qc4uw qc2w qb4w qb4 "
        "x8 x16 x24 x32 x64 xx f32acc to cs16 s16 s32 s64 i8 i16 i32 u16 u32 u64 qc8"
    )
)
ACTIVATIONS = ("minmax", "relu", "linear")
_SAME = _words("elu gelu silu sigmoid tanh")
OWN_ACTIVATIONS = ("hswish", "lrelu", *_SAME)
"""Further ones, in names with our prefix."""

OPERATOR_ACTIVATIONS = {
    "clip": "minmax",
    "relu": "relu",
    "hard_swish": "hswish",
    "leaky_relu": "lrelu",
    **{op: op for op in _SAME},
}
"""Pointwise operator -> how a name says that it is fused."""

REQUANTISATIONS = ("fp32", "rndnu", "rndnu16", "fp16", "magic", "gemmlowp")
INSTRUCTION_SETS = frozenset(
    _words(
        "scalar neon neonfma neonv8 neonfp16 neonfp16arith neonbf16 neondot neondotfp16arith neoni8mm neonsme neonsme2 "
        "sve sve2 sme sme2 sse sse2 sse2fma ssse3 sse41 avx f16c fma3 avx2 avxvnni avxvnniint8 avx256skx avx256vnni "
        "avx256vnnigfni avx512 avx512f avx512skx avx512bf16 avx512fp16 avx512vbmi avx512vnni avx512vnnigfni avx512amx "
        "xop rvv rvvfp16arith hvx vsx psimd lsx lasx wasm wasm32 wasmsimd wasmrelaxedsimd wasmrelaxedsimdfp16 "
        "wasmpshufb wasmsdot wasmblendvps wasmusdot vfp simd32 armsimd32 fp16arith mve aic aiv aicpu"
    )
)

NAME_DTYPES = {
    **{d: d.value for d in FLOATS},
    **{d: d.value.replace("i", "s") for d in INTS},
    **dict.fromkeys((DType.BOOL, *SMALL), "x8"),
}
"""Element types as our names write them."""

TIER_TOKENS = {"avx512": "avx512skx", "avx2": "avx2", "plain": "scalar"}
"""Token of each of the host's instruction-set tiers; plain code is LLVM's baseline for the architecture."""

FEATURE_TOKENS = {"amx-bf16": "avx512amx", "amx-int8": "avx512amx", "dotprod": "neondot", "mve": "mve"}
"""Token of a row that needs one of these features, in place of its tier's."""

CORE_TOKENS = {"aic": ("aic",), "aiv": ("aiv",), "mix": ("aic", "aiv"), "aicpu": ("aicpu",)}
"""Tokens of each type of the accelerator's cores; mix: a cube core and its vector cores together."""

# operator -> its forms; operators without one have no parameters. `_FURTHER` are recognised by their first letters.
_TILE = "{mr}x{nr}[c{kr}][s{sr}]"
_POOL = (
    "{primary}x",
    "{primary}p",
    "{primary}p{incremental}x",
    "mp{primary}p{incremental}q",
    "{primary}p{incremental}q",
    "up{primary}",
)
_PLANE = ("{kh}x{kw}[s{stride}]p{pad}",)
_HWC = ("{kh}x{kw}s{stride}p{pad}[p{pad_right}]c{channel}x{nr}",)
_FORMS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(_words("gemm gemm_goi gemm_xw igemm gemminc ppmm spmm gemv bmm"), (_TILE, "upto{mr}x{nr}")),
    **dict.fromkeys(_words("packw packw_gemm_goi packw_gemm_gio packw_goi packw_gio"), ("x{nr}[c{kr}][s{sr}]",)),
    **dict.fromkeys(
        _words("packb_gemm packb_gemm_goi packb_gemm_gio zerob_gemm"),
        ("{nr}c{kr}s{sr}r{round}", "{channel}c{subtile}s{round}r", "x{nr}[c{kr}][s{sr}]"),
    ),
    "packx": ("x{mr}", "{mr}x"),
    "packlh": (_TILE,),
    "dwconv": ("{first}f{middle}m{last}l{channel}c{subtile}s{round}r", "{primary}p{channel}c", "up{channel}x{primary}"),
    **dict.fromkeys(_words("avgpool maxpool pavgpool gavgpool argmaxpool gsum"), _POOL),
    **dict.fromkeys(_words("rdsum rdsum2 rdmax rdmin rdminmax"), _POOL),
    **dict.fromkeys(_words("dwconv2d_chw dwconv_chw dwconv_spchw"), _PLANE),
    **dict.fromkeys(_words("conv_hwc conv_hwc2chw conv_hwc2spchw conv_chw"), _HWC),
    "vmulcaddc": ("c{channel}",),
    "pad": ("p{unroll}",),
    "ibilinear_chw": ("p{pixels}",),
    "prelu": ("{mr}x{nr}",),
    **dict.fromkeys(("transposec", "transposev"), (_TILE,)),
    "attention": ("{mr}x{nr}",),
    # without parameters
    **dict.fromkeys(
        _words(
            "ibilinear bilinear lut lut32norm fill copy unpool zip_x2 zip_x3 zip_x4 zip_xm pad_x2 pack_lh "
            "pack_lh_igemm raddexpminusmax raddextexp raddstoreexpminusmax rsum rsum2 rmax rmin rminmax rmaxabs window "
            "filterbank_accumulate filterbank_subtract bfly4 fftr depthtospace2d_chw2hwc gavgpool_cw gavgpool_spchw "
            "clamp hswish sigmoid relu requantize reduce argreduce cumsum softmax norm lrn pool move index rope "
            "kvupdate conv convtranspose reference"
        ),
        (),
    ),
}
_TILE_IN_TARGET = frozenset(_words("prelu transposec transposev"))
_TILE_OPTIONAL = frozenset(_words("pad packlh ibilinear_chw rdsum rdsum2 rdmax rdmin rdminmax"))
_FURTHER = re.compile(r"v[a-z][a-z0-9]*|packq_[a-z0-9]+|bfly4_samples[0-9]+|window_shift[0-9]+")
_SQUARE = re.compile(r"[0-9]+v?x[0-9]+v?")
_FIELD = re.compile(r"\{(\w+)\}")
_TOKEN = re.compile(r"[a-z0-9]+")
_NUMBER = r"(?:0|[1-9][0-9]*)"


@dataclass(frozen=True, slots=True)
class Size:
    """One number of a parameter form; `scalable`: counted in vector registers of run-time length (written `4v`)."""

    count: int
    scalable: bool = False

    def __str__(self) -> str:
        return f"{self.count}v" if self.scalable else str(self.count)


@dataclass(frozen=True, slots=True)
class Params:
    """The parameters of a name: the template they follow and the sizes in it, absent optional ones left out."""

    form: str
    sizes: tuple[tuple[str, Size], ...]

    def get(self, name: str) -> Size | None:
        """The size of a field, or None where the form has no such field or it was left out."""
        return dict(self.sizes).get(name)


@dataclass(frozen=True)
class KernelName:
    """A parsed name. `dtypes` are input, [output], [weights] as written; `target` the tokens behind `__`."""

    prefix: str
    dtypes: tuple[str, ...]
    op: str
    target: tuple[str, ...]
    activation: str | None = None
    requantisation: str | None = None
    params: Params | None = None

    @property
    def instruction_set(self) -> str | None:
        """The first token of the target that is one, wherever it stands."""
        return next((t for t in self.target if t in INSTRUCTION_SETS), None)


def operators() -> tuple[str, ...]:
    """Every operator the table names (beyond these: vector operators `v...`, and families such as `window_shift12`)."""
    return tuple(_FORMS)


def activations_of(prefix: str) -> tuple[str, ...]:
    """The activations that names with a prefix may have."""
    return (*ACTIVATIONS, *OWN_ACTIVATIONS) if prefix == "sk" else ACTIVATIONS


def forms_of(op: str) -> tuple[str, ...]:
    """The parameter templates an operator may use, () where it takes none."""
    return _FORMS.get(op, ())


def needs_tile(op: str) -> str:
    """Where the tile of an operator must stand: "parameters", "parameters or target", or "" where it need not."""
    if op in _TILE_IN_TARGET:
        return "parameters or target"
    return "parameters" if forms_of(op) and op not in _TILE_OPTIONAL else ""


def make_params(op: str, sizes: Mapping[str, int | Size]) -> Params:
    """Parameters of `op` from sizes by field name, on the first form with exactly these fields (optional ones may be
    absent). Raises UserError where none fits."""
    given = {k: v if isinstance(v, Size) else Size(v) for k, v in sizes.items()}
    for form in forms_of(op):
        fields = _FIELD.findall(form)
        needed = set(_FIELD.findall(re.sub(r"\[.*?\]", "", form)))
        if needed <= set(given) <= set(fields):
            return Params(form, tuple((f, given[f]) for f in fields if f in given))
    raise UserError(f"no parameter form of {op!r} has these fields", expected=_forms_text(op), found=", ".join(given))


def format_name(name: KernelName) -> str:
    """The text of a name. Raises UserError, with every violation, on one that could not be read back."""
    raise_all(UserError, _violations(name))
    head = [name.prefix, *name.dtypes, name.op]
    head += [part for part in (name.activation, name.requantisation) if part]
    head.append("ukernel")
    if name.params is not None:
        head.append(_format_params(name.params))
    return "_".join(head) + "__" + "_".join(name.target)


def parse_name(text: str) -> KernelName:
    """The fields of a name. Raises UserError saying which part cannot be read."""
    head, separator, tail = text.partition("__")
    if not separator:
        raise _unreadable(text, "the target is missing", "'__' and a target behind it", head)
    target = tuple(tail.split("_"))
    if not all(_TOKEN.fullmatch(t) for t in target):
        raise _unreadable(text, "the target has an empty or ill-formed token", "lower-case letters and digits", tail)
    front, separator, par = head.partition("_ukernel")
    if not separator or (par and not par.startswith("_")):
        raise _unreadable(text, "the word 'ukernel' is missing", "..._ukernel[_parameters]__target", head)
    prefix, *words = front.split("_")
    if words and f"{prefix}_{words[0]}" in PREFIXES:
        prefix += f"_{words.pop(0)}"
    if prefix not in PREFIXES:
        raise _unreadable(text, "unknown prefix", " or ".join(PREFIXES), prefix)
    count = next((i for i, w in enumerate(words) if w not in DATATYPES), len(words))
    if count == 0:
        raise _unreadable(
            text, "no data type behind the prefix", ", ".join(sorted(DATATYPES)), words[0] if words else ""
        )
    op, rest = _take_operator(text, words[count:])
    activation = rest.pop(0) if rest and rest[0] in activations_of(prefix) else None
    requantisation = rest.pop(0) if rest and rest[0] in REQUANTISATIONS else None
    if rest:
        expected = (
            f"activation ({', '.join(activations_of(prefix))}), then requantisation ({', '.join(REQUANTISATIONS)})"
        )
        raise _unreadable(text, f"unknown words behind operator {op!r}", expected, "_".join(rest))
    params = _parse_params(text, op, par[1:]) if par else None
    name = KernelName(prefix, tuple(words[:count]), op, target, activation, requantisation, params)
    for wrong in tile_violations(name):
        raise _unreadable(text, wrong.message, wrong.expected, wrong.found)
    return name


def _take_operator(text: str, words: list[str]) -> tuple[str, list[str]]:
    for stop in range(len(words), 0, -1):
        op = "_".join(words[:stop])
        if op in _FORMS or _FURTHER.fullmatch(op):
            return op, words[stop:]
    raise _unreadable(text, "unknown operator", "one of " + ", ".join(_FORMS) + ", v*", "_".join(words))


def _parse_params(text: str, op: str, par: str) -> Params:
    for form in forms_of(op):
        found = _form_pattern(form).fullmatch(par)
        if found:
            read = ((f, found[f], found[f + "_v"]) for f in _FIELD.findall(form))
            return Params(form, tuple((f, Size(int(n), v == "v")) for f, n, v in read if n is not None))
    raise _unreadable(text, f"parameters do not fit operator {op!r}", _forms_text(op), par)


@cache
def _form_pattern(form: str) -> re.Pattern[str]:
    text = form.replace("[", "(?:").replace("]", ")?")
    return re.compile(_FIELD.sub(lambda m: f"(?P<{m[1]}>{_NUMBER})(?P<{m[1]}_v>v?)", text))


def _format_params(params: Params) -> str:
    sizes = {name: str(size) for name, size in params.sizes}

    def optional(match: re.Match[str]) -> str:
        return match[1] if _FIELD.findall(match[1])[0] in sizes else ""

    return _FIELD.sub(lambda m: sizes[m[1]], re.sub(r"\[(.*?)\]", optional, params.form))


def _violations(name: KernelName) -> list[Violation]:
    """Everything that would keep the name from being read back as it is."""
    wrong: list[Violation] = []

    def check(good: bool, message: str, expected: str, found: object) -> None:
        if not good:
            wrong.append(Violation(message, location="kernel name", expected=expected, found=str(found)))

    check(name.prefix in PREFIXES, "unknown prefix", " or ".join(PREFIXES), name.prefix)
    check(
        bool(name.dtypes) and set(name.dtypes) <= DATATYPES,
        "unknown data type",
        ", ".join(sorted(DATATYPES)),
        name.dtypes,
    )
    known = name.op in _FORMS or _FURTHER.fullmatch(name.op) is not None
    check(known and name.op not in DATATYPES, "unknown operator", ", ".join(_FORMS) + ", v*", name.op)
    known_here = activations_of(name.prefix)
    check(name.activation in (None, *known_here), "unknown activation", ", ".join(known_here), name.activation)
    check(
        name.requantisation in (None, *REQUANTISATIONS),
        "unknown requantisation",
        ", ".join(REQUANTISATIONS),
        name.requantisation,
    )
    good_target = bool(name.target) and all(_TOKEN.fullmatch(t) for t in name.target)
    check(good_target, "the target has an empty or ill-formed token", "lower-case letters and digits", name.target)
    if name.params is not None:
        fields = [f for f in _FIELD.findall(name.params.form) if name.params.get(f) is not None]
        needed = set(_FIELD.findall(re.sub(r"\[.*?\]", "", name.params.form)))
        good = name.params.form in forms_of(name.op) and fields == [f for f, _ in name.params.sizes]
        good = good and needed <= set(fields) and all(size.count >= 0 for _, size in name.params.sizes)
        check(good, f"parameters do not fit operator {name.op!r}", _forms_text(name.op), name.params)
        if not good:
            return wrong
    return wrong + tile_violations(name)


def tile_violations(name: KernelName) -> list[Violation]:
    """What is wrong with a tile in itself: that there is none, an empty one, or channels of a multi-pass one that its
    subtiles do not fill."""
    where = needs_tile(name.op)
    if name.params is None:
        if not where or (where != "parameters" and any(map(_SQUARE.fullmatch, name.target))):
            return []
        return [_tile_violation(f"operator {name.op!r} without its tile", f"{_forms_text(name.op)} in the {where}")]
    wrong: list[Violation] = []
    sizes = {field: size.count for field, size in name.params.sizes}
    empty = [field for field, count in sizes.items() if count == 0 and not field.startswith("pad")]
    if empty:
        wrong.append(_tile_violation("a tile of nothing", "sizes of at least 1", f"{empty[0]} = 0"))
    elif "subtile" in sizes:
        channel, subtile, turn = sizes["channel"], sizes["subtile"], sizes["round"]
        if "first" in sizes and (channel % subtile or subtile % turn):
            rule = "channels a multiple of the subtile, the subtile of the rounding"
            wrong.append(_tile_violation("the channel tile is not whole", rule, f"{channel}c{subtile}s{turn}r"))
    return wrong


def _tile_violation(message: str, expected: str, found: str = "none") -> Violation:
    return Violation(message, location="kernel name", expected=expected, found=found)


def _forms_text(op: str) -> str:
    return " or ".join(forms_of(op)) or "no parameters"


def _unreadable(text: str, message: str, expected: str, found: str) -> UserError:
    return UserError(message, location=f"kernel name {text!r}", expected=expected, found=repr(found))
