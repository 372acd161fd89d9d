"""Rotary position embeddings of published models: which angle a pair of elements turns by at which position.

Frequencies: theta^(-2 i / rotated) for pair i (Su et al., RoFormer, 2021). Longer contexts than a model was trained
for change them: *linear* divides all by a factor (position interpolation, Chen et al. 2023); *llama3* divides low
frequencies, leaves high ones and blends between by wavelength (Llama 3.1's model card); *yarn* blends by how often a
pair turns within the trained context and scales cosine and sine (Peng et al., YaRN, 2023).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log, pi
from typing import Any

import numpy as np
from numpy.typing import NDArray

from superkernel.core.errors import UnsupportedError

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


def rotary_of(parameters: Mapping[str, Any], rotated: int, positions_max: int, *, interleaved: bool = False) -> Rotary:
    """parameters: `rope_type`, `rope_theta` and what the type takes, as configurations of Hugging Face have them.
    positions_max: the model's, where a type needs the trained context and is not told it. Raises UnsupportedError."""
    kind = str(parameters.get("rope_type") or parameters.get("type") or "default")
    if kind not in SCALINGS:
        raise UnsupportedError("scaling of positions", expected=", ".join(SCALINGS), found=repr(kind))
    theta = float(parameters.get("rope_theta", 10000.0))
    plain = theta ** (-np.arange(0, rotated, 2) / rotated)
    if kind == LINEAR:
        return Rotary(plain / float(parameters["factor"]), interleaved=interleaved)
    trained = int(parameters.get("original_max_position_embeddings") or positions_max)
    if kind == LLAMA3:
        return Rotary(_llama3(plain, parameters, trained), interleaved=interleaved)
    if kind == YARN:
        factor = float(parameters["factor"])
        return Rotary(_yarn(plain, theta, factor, parameters, trained), _yarn_scale(factor, parameters), interleaved)
    return Rotary(plain, interleaved=interleaved)


def _llama3(plain: Array, parameters: Mapping[str, Any], trained: int) -> Array:
    factor = float(parameters["factor"])
    low, high = (float(parameters[f"{end}_freq_factor"]) for end in ("low", "high"))
    turns = trained * plain / (2 * pi)
    kept = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return plain * (kept + (1 - kept) / factor)


def _yarn(plain: Array, theta: float, factor: float, parameters: Mapping[str, Any], trained: int) -> Array:
    pairs = len(plain)

    def pair_that_turns(times: float) -> float:
        return pairs * log(trained / (times * 2 * pi)) / log(theta)

    fast, slow = float(parameters.get("beta_fast") or 32), float(parameters.get("beta_slow") or 1)
    low, high = pair_that_turns(fast), pair_that_turns(slow)
    if parameters.get("truncate", True):
        low, high = np.floor(low), np.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    divided = np.clip((np.arange(pairs) - low) / max(high - low, 0.001), 0.0, 1.0)
    frequencies: Array = plain * (1 - divided + divided / factor)
    return frequencies


def _yarn_scale(factor: float, parameters: Mapping[str, Any]) -> float:
    given = parameters.get("attention_factor")
    if given is not None:
        return float(given)

    def scale(weight: float) -> float:
        return 0.1 * weight * log(factor) + 1.0 if factor > 1 else 1.0

    own, all_dims = parameters.get("mscale"), parameters.get("mscale_all_dim")
    return scale(float(own)) / scale(float(all_dims)) if own and all_dims else scale(1.0)
