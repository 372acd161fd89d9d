"""Rotary position embeddings of published models: which angle a pair of elements turns by at which position.

Frequencies: theta^(-2 i / rotated) for pair i (Su et al., RoFormer, 2021). Longer contexts than a model was trained
for change them: *linear* divides all by a factor (position interpolation, Chen et al. 2023); *llama3* divides low
frequencies, leaves high ones and blends between by wavelength (Llama 3.1's model card); *yarn* blends by how often a
pair turns within the trained context and scales cosine and sine (Peng et al., YaRN, 2023).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import log, pi
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.core.errors import UnsupportedError
from superkernel.frontends.pretrained.fields import Fields

Array = NDArray[Any]
LINEAR, LLAMA3, YARN = "linear", "llama3", "yarn"
SCALINGS = ("default", LINEAR, LLAMA3, YARN)


@dataclass(frozen=True, eq=False)
class Rotary:
    """frequencies: f64 [rotated / 2], radians per position. `scale`: of cosine and sine. `interleaved`: pairs are
    neighbours instead of the two halves."""

    frequencies: Array
    scale: float = 1.0
    interleaved: bool = False

    @property
    def rotated(self) -> int:
        """Leading elements of a head that turn."""
        return 2 * len(self.frequencies)

    def tables(self, positions: int) -> tuple[Array, Array]:
        """Cosines and sines, f32 [positions, rotated / 2]."""
        angles = np.arange(positions)[:, None] * self.frequencies
        cos, sin = (f(angles) * self.scale for f in (np.cos, np.sin))
        return cos.astype(np.float32), sin.astype(np.float32)


def rotary_of(parameters: Fields, rotated: int, positions_max: int, *, interleaved: bool = False) -> Rotary:
    """parameters: `rope_type`, `rope_theta` and what the type takes, as configurations of Hugging Face have them.
    positions_max: the model's, where a type needs the trained context and is not told it. Raises FileFormatError and
    UnsupportedError."""
    kind = parameters.text("rope_type", parameters.text("type", "default"))
    if kind not in SCALINGS:
        expected = ", ".join(SCALINGS)
        raise UnsupportedError("scaling of positions", location=parameters.where, expected=expected, found=repr(kind))
    theta = parameters.number("rope_theta", 10000.0, above=1.0 if kind == YARN else 0.0)
    plain = theta ** (-np.arange(0, rotated, 2) / rotated)
    if kind == LINEAR:
        return Rotary(plain / parameters.number("factor", above=0.0), interleaved=interleaved)
    trained = parameters.whole("original_max_position_embeddings", 0, least=0) or positions_max
    if kind == LLAMA3:
        return Rotary(_llama3(plain, parameters, trained), interleaved=interleaved)
    if kind == YARN:
        factor = parameters.number("factor", above=0.0)
        return Rotary(_yarn(plain, theta, factor, parameters, trained), _yarn_scale(factor, parameters), interleaved)
    return Rotary(plain, interleaved=interleaved)


def _llama3(plain: Array, parameters: Fields, trained: int) -> Array:
    factor, low = parameters.number("factor", above=0.0), parameters.number("low_freq_factor")
    high = parameters.number("high_freq_factor", above=low)
    turns = trained * plain / (2 * pi)
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return plain * (kept + (1 - kept) / factor)


def _yarn(plain: Array, theta: float, factor: float, parameters: Fields, trained: int) -> Array:
    pairs = len(plain)

    def pair_that_turns(times: float) -> float:
        return pairs * log(trained / (times * 2 * pi)) / log(theta)

    fast, slow = parameters.number("beta_fast", 32.0, above=0.0), parameters.number("beta_slow", 1.0, above=0.0)
    low, high = pair_that_turns(fast), pair_that_turns(slow)
    if parameters.is_on("truncate", True):
        low, high = np.floor(low), np.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    divided = np.clip((np.arange(pairs) - low) / max(high - low, 0.001), 0.0, 1.0)
    frequencies: Array = plain * (1 - divided + divided / factor)
    return frequencies


def _yarn_scale(factor: float, parameters: Fields) -> float:
    if "attention_factor" in parameters:
        return parameters.number("attention_factor")

    def scale(weight: float) -> float:
        return 0.1 * weight * log(factor) + 1.0 if factor > 1 else 1.0

    own, all_dims = (parameters.number(name, 0.0) for name in ("mscale", "mscale_all_dim"))
    return scale(own) / scale(all_dims) if own and all_dims else scale(1.0)
