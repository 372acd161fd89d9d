"""A slice of the model zoo, another one at every commit: whole, without fallback, and right."""

from __future__ import annotations

import os
import random

import pytest
from seeds import run_seed

if os.environ.get("SK_REQUIRE_TORCH") != "1":
    pytest.importorskip("torch", reason="torch is not installed (SK_REQUIRE_TORCH=1 makes this a failure)")
    pytest.importorskip("transformers", reason="transformers is not installed (see SK_REQUIRE_TORCH)")

import zoo
import zoo_networks

SMALL = (
    "bert", "roberta", "distilbert", "albert", "electra", "mpnet", "modernbert", "squeezebert", "fnet", "t5-encoder",
    "whisper-encoder", "clip-vision", "vit", "deit", "dinov2", "beit", "convnext", "gpt2", "gptj", "gpt-neox", "opt",
    "bloom", "falcon", "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "phi", "phi3", "olmo2", "stablelm",
    "starcoder2", "cohere",
)  # fmt: skip


@pytest.mark.usefixtures("mostly_translated")
@pytest.mark.parametrize("name", [*random.Random(run_seed()).sample(SMALL, 2), "mixtral"])
def test_a_network_of_transformers(name: str) -> None:
    row = zoo.compiled(f"transformers/{name}", threads=2, rivals=False, rounds=0)
    assert row["status"] == zoo.PASSED
    assert row["parameters"] > 10_000
    assert row["sub_operators"] > 5


def test_the_slice_is_of_the_zoo() -> None:
    assert {f"transformers/{name}" for name in SMALL} <= set(zoo_networks.NETWORKS)
