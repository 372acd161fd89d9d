"""The light ONNX models, compiled for the large accelerator and simulated: within the declared tolerance of NumPy.

Weights are random and scaled such that values stay within f16's range and the softmax at the end does not magnify the
errors of large logits (`gain`). Local response normalisation has no kernel there: NumPy computes it between launches.
Of the large ones a run draws one, a soak run has all.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import soak
from models import LIGHT_MODELS, light_input, light_model

import superkernel as sk
from superkernel.core.dtypes import DType
from superkernel.frontends import load_graph
from superkernel.reference import evaluate
from superkernel.transforms.precision import error_bound

pytest.importorskip("onnx")

GAIN = 0.75
QUICK = {"bvlc_alexnet", "shufflenet"}
ELSEWHERE = {"squeezenet", "resnet50"}  # test_aicore_models holds them to the same on both targets
LARGE = [name for name in LIGHT_MODELS if name not in QUICK | ELSEWHERE]
NAMES = [*sorted(QUICK), *(pytest.param(name, marks=pytest.mark.slow) for name in soak.drawn(LARGE, 1))]


@pytest.mark.parametrize("name", NAMES)
def test_on_the_large_accelerator(name: str) -> None:
    model = light_model(name, gain=GAIN)
    graph, inputs = load_graph(model), light_input(model)
    expected = evaluate(graph, inputs, wide=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sk.FallbackWarning)
        kernel = sk.compile(graph, target="a3")
    assert len(kernel.summary()["fallbacks"]) == sum(node.op == "lrn" for node in graph.nodes)
    bound = error_bound(graph, DType.F16)
    assert bound is not None
    for output, got in kernel.run(inputs).outputs.items():
        scale = float(np.abs(expected[output]).max())
        error = float(np.abs(got.astype(np.float64) - expected[output]).max())
        assert error <= bound * scale, f"{output}: {error / scale:.2e}, bound {bound:.2e}"
