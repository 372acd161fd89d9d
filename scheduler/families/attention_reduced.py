"""How attention is cut where bf16 is allowed: the blocks of `attention`, both products over words of two values.

Model: scaled queries are rounded when they are copied, keys when they are transposed into the panel: [pairs of depth]
[keys] words. Probabilities are rounded where they are computed, and their sum is of the rounded ones, so that what a
row weighs its values with adds up to 1. Values are copied per block as [pairs of keys][value pitch] words. Scores,
the softmax and the sums are f32.

Invariant: of a pair whose second key no row may see, the second half is 0: nothing beyond the last key is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from superkernel.core.dtypes import DType
from superkernel.core.errors import UnsupportedError
from superkernel.core.formats import BF16, NumberFormat
from superkernel.ir.body import Body
from superkernel.scheduler.families.attention import AttentionFamily, AttentionForm, AttentionTiling
from superkernel.scheduler.tiling import Tiling
from superkernel.target.cpu import CpuTarget


@dataclass(frozen=True)
class NarrowAttentionTiling(AttentionTiling):
    """A cut of attention in bf16."""

    format: NumberFormat = BF16

    @property
    def sizes(self) -> dict[str, int]:
        return {**super().sizes, "values": -(-self.keys // 2) * self.value_pitch}

    def _products_ns(self, form: AttentionForm, keys: int, target: CpuTarget) -> float:
        rate = 1.9 if self.format.native else self.format.rate
        copies = keys * form.value_depth / self.lanes * 2.0
        return super()._products_ns(form, keys, target) / rate + copies


class NarrowAttentionFamily(AttentionFamily):
    """Attention of f32 values, rounded to bf16 for its products."""

    kernels = ("host.attention.bf16",)

    def tilings(self, kernel: str, body: Body, target: CpuTarget) -> Sequence[Tiling]:
        types = body.anchor_input_types[:3]
        if any(t is None or t.dtype is not DType.F32 for t in types):
            raise UnsupportedError(
                "not an attention that this kernel computes", location=kernel, expected="queries, keys, values of f32",
                found=", ".join(map(str, types)),
            )  # fmt: skip
        found = [t for t in super().tilings(kernel, body, target) if isinstance(t, AttentionTiling)]
        given = [{f.name: getattr(t, f.name) for f in fields(AttentionTiling)} for t in found]
        return [NarrowAttentionTiling(**g, format=BF16.on(target.has)) for g in given]


FAMILY = NarrowAttentionFamily()
