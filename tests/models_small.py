"""The smallest models in which every optimisation of the accelerator finds something to do."""

from __future__ import annotations

import models
from aicore_systems import fused_model

from superkernel.ir.graph import Graph


def encoder() -> Graph:
    return models.transformer(layers=1)


def decoder() -> Graph:
    return models.decode_step(layers=1)


def mixed() -> Graph:
    return fused_model()


def experts() -> Graph:
    return models.moe_layer(tokens=16, width=64, inner=64, experts=4)
