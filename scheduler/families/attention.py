"""How attention is cut: one unit is a block of query rows that share a key/value head.

Model: the query heads of one key/value head are stacked: row r of a (batch, key/value head) is query head r // Sq of
its group at position r % Sq; so a decoding step with grouped queries streams keys and values once for the whole group.
Keys are walked in blocks with an online softmax, so no score matrix ever reaches memory. The reduction over keys is
never split.

So few rows as a decoding step has for a head of keys get their scores by dot products along the depth (`dots`), whose
lanes are added up for a vector of keys at a time: keys are read as they lie. For more rows they are transposed, once,
into a panel.

In bf16 both products go over words of two values. Scaled queries are rounded when they are copied, keys when they are
transposed into the panel: [pairs of depth][keys] words. Probabilities are rounded where they are computed, and their
sum is of the rounded ones, so that what a row weighs its values with adds up to 1. Values are copied per block as
[pairs of keys][value pitch] words; of a pair whose second key no row may see, the second half is 0: nothing beyond the
last key is read. Scores, the softmax and the sums are f32.

Invariant: what a row computes depends on its position and on the block sizes only, not on how units are divided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import sqrt

from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.core.formats import BF16, F32, PAIRS, NumberFormat
from superkernel.ir.body import AnchorInput, Body, View
from superkernel.ir.collapse import runs_of_range
from superkernel.ops.opdef import FLOATS
from superkernel.registry.predicates import Reason, within
from superkernel.registry.rounding import PRODUCT_SUMS
from superkernel.scheduler.families.boxes import AccessSet
from superkernel.scheduler.families.kernel import (
    INDEX_TYPES,
    TABLE_TYPES,
    FormatFamily,
    HostKernelDef,
    HostTiling,
    PairedKernelDef,
    ReducedKernelDef,
)
from superkernel.scheduler.families.matmul import GEMM_TILES
from superkernel.scheduler.families.open_extents import OPEN, Extents, opened
from superkernel.scheduler.tiling import Access, Representative
from superkernel.target.base import Target
from superkernel.target.cpu import CpuTarget

_TILE = {"avx512": (14, 2), "avx2": (6, 2), "plain": (6, 2), "small": (3, 2)}
_ROWS_PER_BLOCK = 56
_KEYS_PER_BLOCK = {"avx512": 128, "avx2": 64, "plain": 32, "small": 32}
STREAMED_ROWS = 8  # with so few rows keys come straight from memory: smaller blocks keep both panel and values near
_STREAMED_KEYS = 64
_DOT_ROWS = 4
_NATIVE_SHARE = 0.95  # of the format's rate
Span = tuple[int, int]


@dataclass(frozen=True)
class AttentionForm:
    """The shapes and options of an attention body. `mask_strides` are over (batch, head, query, key), 0 where it is
    broadcast."""

    batch: int
    kv_heads: int
    group: int  # query heads per key/value head
    queries: int
    keys: int
    depth: int
    value_depth: int
    scale: float
    causal: bool
    softcap: float
    q: View
    k: View
    v: View
    mask: View | None
    mask_strides: tuple[int, int, int, int]
    length: View | None

    @property
    def rows(self) -> int:
        """Stacked query rows of one key/value head."""
        return self.group * self.queries

    @property
    def has_lengths(self) -> bool:
        """Whether every batch has a length of its own."""
        return self.length is not None and bool(self.length.shape) and self.length.shape[0] > 1

    def visible(self, positions: int) -> int:
        """Keys that the first so many positions may read."""
        if not self.causal or self.length is not None:
            return self.keys
        return max(0, min(self.keys, positions + self.keys - self.queries))

    def outer_strides(self) -> list[tuple[int, int, int]]:
        """Those from batch to batch and from head to head of inputs, and from row to row of the mask, by slot and
        axis: they may go by the numbers of queries and keys. None is 0."""
        strides = {0: self.q.strides[:2], 1: self.k.strides[:2], 2: self.v.strides[:2], 3: self.mask_strides[:3]}
        return [(slot, axis, n) for slot, row in strides.items() for axis, n in enumerate(row) if n]

    def touch_queries(self, found: AccessSet, batch: Span, heads: Span, positions: Span) -> None:
        """What is read of the queries."""
        found.view(self.q.operand, (batch, heads, positions, (0, self.depth)), self.q.strides, self.q.offset)

    def touch_results(self, found: AccessSet, body: Body, batch: Span, heads: Span, positions: Span) -> None:
        """What is read of the mask, and what the program behind reads and writes."""
        found.program(body.epilogue, (batch, heads, positions, (0, self.value_depth)))
        if self.mask is not None and self.keys:
            box = (batch, heads, positions, (0, self.keys))
            found.view(self.mask.operand, box, self.mask_strides, self.mask.offset)

    def touch_keys(self, found: AccessSet, batch: Span, heads: Span, keys: int) -> None:
        """What is read of the first so many keys and values of key/value heads."""
        for view in (self.k, self.v) if keys else ():
            found.view(view.operand, (batch, heads, (0, keys), (0, view.shape[3])), view.strides, view.offset)
        self.touch_length(found, batch)

    def touch_length(self, found: AccessSet, batch: Span) -> None:
        """What is read of the lengths."""
        if self.length is not None:
            box = (batch if self.has_lengths else (0, 1),) if self.length.shape else ()
            found.view(self.length.operand, box, self.length.strides, self.length.offset)


@lru_cache(maxsize=1024)
def attention_form(body: Body) -> AttentionForm:
    """The form of an `attention` body."""
    slots: list[View | None] = []
    for source in (*body.anchor_inputs, None, None)[:5]:
        assert source is None or isinstance(source, View)
        slots.append(source)
    q, k, v, mask, length = slots
    assert q is not None
    assert k is not None
    assert v is not None
    strides = (0, 0, 0, 0)
    if mask is not None:
        pad = (0,) * (4 - len(mask.shape))
        own = tuple(0 if d == 1 else s for d, s in zip(mask.shape, mask.strides, strict=True))
        full = (*pad, *own)
        strides = (full[0], full[1], full[2], full[3])
    scale = float(str(body.attr.get("scale", 0.0))) or 1.0 / sqrt(max(1, q.shape[3]))
    return AttentionForm(
        q.shape[0],
        k.shape[1],
        q.shape[1] // max(1, k.shape[1]),
        q.shape[2],
        k.shape[2],
        q.shape[3],
        v.shape[3],
        scale,
        bool(body.attr.get("causal", False)),
        float(str(body.attr.get("softcap", 0.0))),
        q,
        k,
        v,
        mask,
        strides,
        length,
    )


@dataclass(frozen=True)
class AttentionTiling(HostTiling):
    """Blocks of `block_rows` stacked rows in register tiles of `tile_rows` x `vectors`; `keys` per block of keys."""

    batch: int
    kv_heads: int
    blocks: int
    block_rows: int
    tile_rows: int
    vectors: int
    lanes: int
    keys: int
    depth: int
    value_depth: int
    format: NumberFormat = F32

    def named(self, body: Body) -> tuple[str, Mapping[str, int]]:
        return "", {"mr": self.tile_rows, "nr": self.vectors * self.lanes}

    @property
    def units(self) -> int:
        return self.batch * self.kv_heads * self.blocks

    @property
    def padded_rows(self) -> int:
        """Rows of a block in whole tiles."""
        return -(-self.block_rows // self.tile_rows) * self.tile_rows

    @property
    def dots(self) -> bool:
        """Whether scores are dot products of keys as they lie; else keys are transposed first."""
        return self.padded_rows <= _DOT_ROWS and not self.format.is_reduced

    @property
    def value_pitch(self) -> int:
        """Elements from row to row of a sum, whole vectors."""
        return -(-self.value_depth // self.lanes) * self.lanes

    @property
    def query_pitch(self) -> int:
        """An odd number of cache lines, so that rows spread over the cache's sets."""
        return (-(-self.depth // 16) | 1) * 16

    @property
    def sizes(self) -> dict[str, int]:
        """The parts of the scratch memory, in f32 elements."""
        rows = self.padded_rows + self.lanes - 1  # a vector of them may begin at the last
        sizes = {
            "query": self.padded_rows * self.query_pitch,
            "total": self.padded_rows * self.value_pitch,
            "top": rows,
            "weight": self.padded_rows,
            "correction": rows,
            "panel": 0 if self.dots else self.depth * self.keys,
            "scores": self.tile_rows * self.keys,
        }
        if self.format.is_reduced:
            sizes["values"] = self.format.words(self.keys) * self.value_pitch
        return sizes

    @property
    def offsets(self) -> dict[str, int]:
        """Where they start, in bytes; "end" is the size of all."""
        found, at = {}, 0
        for name, size in self.sizes.items():
            found[name] = at
            at += -(-size * 4 // 64) * 64
        return {**found, "end": at}

    @property
    def scratch_bytes(self) -> int:
        return self.offsets["end"]

    def accesses(self, body: Body, begin: int, end: int) -> tuple[Access, ...]:
        form, found = attention_form(body), AccessSet(body)
        for batch, head, block in runs_of_range((self.batch, self.kv_heads, self.blocks), begin, end):
            first, last = block[0] * self.block_rows, min(block[1] * self.block_rows, form.rows)
            for group, query in runs_of_range((form.group, form.queries), first, last):
                if group[1] - group[0] == form.group:
                    spans = [(head[0] * form.group + group[0], (head[1] - 1) * form.group + group[1])]
                else:
                    spans = [(h * form.group + group[0], h * form.group + group[1]) for h in range(*head)]
                for heads in spans:
                    form.touch_queries(found, batch, heads, query)
                    form.touch_results(found, body, batch, heads, query)
            form.touch_keys(found, batch, head, form.visible(last))
        return found.result()

    def representative(self, body: Body, target: Target) -> Representative | None:
        """Keys are open, and queries where they are more than are streamed past. One block of keys stays one."""
        form = attention_form(body)
        if not 1 < form.keys < OPEN or not 0 < form.queries < OPEN:
            return None
        keys = self.keys - 1 if form.keys <= self.keys else OPEN
        inputs: dict[int, Extents] = {0: {}, 1: {2: keys}, 2: {2: keys}}
        sizes = {"keys": form.keys, "queries": form.queries, "rows": form.rows, "blocks": self.blocks}
        sizes |= {"block_rows": self.block_rows, "padded_rows": self.padded_rows} | self.offsets
        tiling, queries = self, form.queries
        if self.padded_rows > STREAMED_ROWS and form.queries > 1:
            queries = OPEN
            tiling = replace(self, blocks=OPEN, block_rows=OPEN)
            inputs[0] = {2: queries}
        if form.mask is not None:
            shape, rank = form.mask.shape, len(form.mask.shape)
            inputs[3] = {rank + d: n for d, n in ((-2, queries), (-1, keys)) if rank + d >= 0 and shape[d] > 1}
        wide = opened(body, {2: queries}, inputs)
        slots = {slot: _with_open_strides(wide.anchor_inputs[slot], 1 if slot == 3 else 2) for slot in inputs}
        sources = tuple(slots.get(slot, source) for slot, source in enumerate(wide.anchor_inputs))
        sizes |= {f"{slot}.{axis}": stride for slot, axis, stride in form.outer_strides()}
        return Representative(replace(wide, anchor_inputs=sources), tiling, sizes)

    def cost_ns(self, body: Body, begin: int, end: int, target: CpuTarget) -> float:
        form = attention_form(body)
        per_head = [self._block_ns(form, i, target) for i in range(self.blocks)]
        if not per_head:
            return 30.0
        whole, rest = divmod(end, self.blocks)
        total = whole * sum(per_head) + sum(per_head[:rest])
        whole, rest = divmod(begin, self.blocks)
        return 30.0 + total - whole * sum(per_head) - sum(per_head[:rest])

    def _block_ns(self, form: AttentionForm, block: int, target: CpuTarget) -> float:
        keys = form.visible(min((block + 1) * self.block_rows, form.rows))
        rows = self.padded_rows
        products = self._products_ns(form, keys, target)
        softmax = rows * (15.0 + keys / self.lanes * 4.0)
        copy = keys / self.lanes * (7.0 * rows if self.dots else 2.0 * form.depth)
        stream = keys * (form.depth + form.value_depth) * 4.0 / target.l3_bytes_per_ns
        return 150.0 + max(products + softmax + copy, stream)

    def _products_ns(self, form: AttentionForm, keys: int, target: CpuTarget) -> float:
        """Time of a block's products."""
        rows = self.padded_rows
        speed = target.flops_per_ns * min(1.0, rows / 4) * 0.9
        products = 2.0 * rows * keys * (form.depth + form.value_depth) / speed
        if not self.format.is_reduced:
            return products
        copies = keys * form.value_depth / self.lanes * 2.0
        return products / (_NATIVE_SHARE * self.format.native_rate if self.format.native else self.format.rate) + copies


def _with_open_strides(source: AnchorInput, kept: int) -> View:
    """The view with strides that stand for any, but for its last ones."""
    assert isinstance(source, View)
    rank = len(source.shape)
    return replace(source, strides=tuple(OPEN if s and d < rank - kept else s for d, s in enumerate(source.strides)))


class AttentionFamily(FormatFamily):
    """Attention with any mask, length, causal limit and grouping, in f32 or, of f32 values, in reduced precision; or of
    bf16 values as they are."""

    def accepts_view(self, kernel: str, op: str, slot: int, view: View, dtype: DType) -> bool:
        return slot not in (1, 2) or not view.shape or view.strides[-1] == 1 or view.shape[-1] == 1

    def tilings(self, kernel: str, body: Body, target: CpuTarget) -> Sequence[HostTiling]:
        form, number, types = attention_form(body), self.format_on(target), body.anchor_input_types[:3]
        taken = DType.F32 if number.rounds_factors else number.rows
        if number.is_reduced and any(t is None or t.dtype is not taken for t in types):
            raise UnsupportedError(
                "not an attention that this kernel computes", location=kernel,
                expected=f"queries, keys, values of {taken.value}", found=", ".join(map(str, types)),
            )  # fmt: skip
        lanes = target.vector_bytes // 4
        most, vectors = _TILE[target.register_tier]
        vectors = 1 if form.keys <= lanes else vectors
        step = vectors * lanes
        most_keys = _KEYS_PER_BLOCK[target.register_tier]
        if form.rows <= STREAMED_ROWS:
            most_keys = min(most_keys, _STREAMED_KEYS)
        keys = min(most_keys, -(-max(1, form.keys) // step) * step)
        batch = form.batch if form.rows and form.value_depth else 0
        found = []
        for wanted in (_ROWS_PER_BLOCK, _ROWS_PER_BLOCK // 2):
            blocks = max(1, -(-form.rows // wanted))
            block_rows = max(1, -(-form.rows // blocks))
            tiles = -(-block_rows // most)
            tile_rows = -(-block_rows // tiles)
            blocks = -(-form.rows // block_rows)
            found.append(
                AttentionTiling(
                    batch,
                    form.kv_heads,
                    blocks,
                    block_rows,
                    tile_rows,
                    vectors,
                    lanes,
                    keys,
                    form.depth,
                    form.value_depth,
                    number,
                )
            )
        return list(dict.fromkeys(found))


ATTENTION_OTHERS = (FLOATS | {DType.BOOL}, INDEX_TYPES, TABLE_TYPES)
"""Types of the mask, the length and the table."""

KERNELS = (
    HostKernelDef(
        id="host.attention",
        ops=("attention",),
        family=AttentionFamily(),
        emitter="attention",
        micro="attention",
        dtypes=frozenset({DType.F32, DType.F16, DType.BF16}),
        typed=True,
        others=(None, None, *ATTENTION_OTHERS),
        tiles=GEMM_TILES,
        rounding=PRODUCT_SUMS,
        code_bytes=16384,
    ),
    ReducedKernelDef(
        id="host.attention.bf16",
        ops=("attention",),
        family=AttentionFamily(BF16),
        emitter="attention",
        micro="attention",
        limits=(within(Reason.SHAPE, "queries", 7),),
        others=(None, None, *ATTENTION_OTHERS),
        tiles=GEMM_TILES,
        layouts=frozenset({"dense", "view"}),
        weights=False,
        code_bytes=16384,
    ),
    PairedKernelDef(
        id="host.attention.pairs",
        ops=("attention",),
        family=AttentionFamily(PAIRS),
        emitter="attention",
        micro="attention",
        limits=(within(Reason.SHAPE, "queries", 7),),
        others=(None, None, *ATTENTION_OTHERS),
        tiles=GEMM_TILES,
        weights=False,
        transforms=(),
        code_bytes=16384,
    ),
)
