"""The models of `ablation.py`, by name, at full size."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from superkernel.ir.graph import Graph

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
import models
import models_aicore


def decode() -> Graph:
    sizes = {"width": 512, "heads": 8, "kv_heads": 2, "inner": 1408, "vocabulary": 1024, "positions": 128}
    return models.decode_step(layers=8, **sizes)


def encoder() -> Graph:
    return models.transformer(layers=1, tokens=128, width=384, heads=12)


def resnet50() -> Graph:
    from superkernel.frontends.onnx import load_onnx

    return load_onnx(models.light_model("resnet50", gain=0.5))


MODELS: dict[str, Callable[[], Graph]] = {
    "decode": decode,
    "encoder": encoder,
    "residual": models_aicore.residual_chain,
    "branches": models_aicore.branching,
    "experts": models.moe_layer,
    "inception": models_aicore.inception,
    "resnet50": resnet50,
}
