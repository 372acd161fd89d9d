"""No default makes a model over 1 % slower than leaving it off, on the simulator; what was predicted of each stands
beside it. A run draws half of the models and targets; a soak run has all."""

from __future__ import annotations

from collections.abc import Callable

import models
import pytest
import soak
from models_aicore import branching, fork_and_join, residual_chain

from superkernel.analysis.ablate import LOSS, Choice, ablation_target, choice_lines, choices
from superkernel.ir.graph import Graph

MODELS: dict[str, Callable[[], Graph]] = {
    "mlp": models.mlp,
    "encoder": lambda: models.transformer(layers=1),
    "decoder": lambda: models.decode_step(layers=1),
    "fork and join": fork_and_join,
    "residual": residual_chain,
    "branches": branching,
}


CASES = [(name, target) for name in MODELS for target in ("a3", "mini")]


@pytest.mark.parametrize(("name", "target"), soak.drawn(CASES, 6))
def test_no_default_loses(name: str, target: str) -> None:
    found = choices(MODELS[name](), ablation_target(target))
    assert {choice.option for choice in found} >= {"sync", "early_start", "preload", "streams", "locality"}
    losses = [choice for choice in found if choice.gain < -LOSS]
    assert not losses, "\n".join(choice_lines(found))
    gains = {choice.option: choice for choice in found}
    sync = gains["sync"]
    assert sync.gain > 0.05
    assert sync.predicted is not None
    assert 0.3 * sync.gain < sync.predicted < 1.5 * sync.gain


def test_a_loss_is_called_one() -> None:
    said = choice_lines([Choice("streams", 10.0, -0.02, 0.1), Choice("split", 10.0, -0.005, None)])
    assert said[1].split() == ["streams", "-2.0%", "10.0%", "10.00", "a", "loss"]
    assert said[2].split() == ["split", "-0.5%", "10.00"]
