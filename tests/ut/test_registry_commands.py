"""The texts of `superkernel kernels ...`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from registry_cases import PROBLEMS, TARGETS, manifest

from superkernel.core.errors import InputError, UserError
from superkernel.registry.commands import kernels_dump, kernels_explain, kernels_list, kernels_merge, kernels_name
from superkernel.registry.manifest import Manifest
from superkernel.registry.records import Policy
from superkernel.scheduler.families import HOST_KERNELS

REGISTRY = HOST_KERNELS.registry


def test_list_shows_all_rows_or_those_asked_for() -> None:
    everything = json.loads(kernels_list(REGISTRY, as_json=True))
    assert [r["id"] for r in everything] == [r.id for r in REGISTRY.rows]
    some = json.loads(kernels_list(REGISTRY, op="matmul", dtype="f32", role="tuned", tier="avx2", as_json=True))
    assert [r["id"] for r in some] == [
        f"host.matmul.{k}/f32/avx2"
        for k in ("bf16", "dynamic", "gemv", "gemv_bf16", "gemv_int8", "int8", "packed", "tf32")
    ]
    text = kernels_list(REGISTRY, op="lrn", tier="plain")
    assert "sk_f32_lrn_ukernel__scalar" in text
    assert "every operator" in text
    assert text.endswith("5 kernels")


def test_explain_a_problem_an_operator_and_a_pattern() -> None:
    problem = kernels_explain(REGISTRY, PROBLEMS[0], target=TARGETS["avx512"])
    assert "chosen     host.matmul.packed/f32/avx512  (sk_f32_gemm_ukernel_14x32__avx512skx)" in problem
    data = json.loads(
        kernels_explain(
            HOST_KERNELS.registry, PROBLEMS[0], target=TARGETS["avx2"], policy=Policy(pin=("*generic*",)), as_json=True
        )
    )
    assert data["chosen"]["id"] == "host.matmul.generic/avx2"
    rows = kernels_explain(REGISTRY, "attention")
    assert "dtype: in0.dtype must be f16" in rows
    assert "fallback: policy.fallback must be allow | warn" in rows
    gemv = json.loads(kernels_explain(REGISTRY, "host.matmul.gemv/f32/*", as_json=True))
    assert len(gemv) == 3
    assert {"reason": "shape", "field": "m", "required": "1..6"} in gemv[0]["clauses"]


def test_explain_refuses_what_is_nothing() -> None:
    with pytest.raises(InputError, match="no kernel or operator"):
        kernels_explain(REGISTRY, "host.nothing")
    with pytest.raises(InputError, match="for a target"):
        kernels_explain(REGISTRY, PROBLEMS[0])


def test_dump_and_merge_write_files(tmp_path: Path) -> None:
    paths = []
    for model, texts in (("a", PROBLEMS[:5]), ("b", PROBLEMS[3:])):
        paths.append(tmp_path / f"{model}.json")
        text = kernels_dump(made := manifest(model, texts))
        made.save(paths[-1])
        assert Manifest.from_json(json.loads(text)) == Manifest.load(paths[-1])
    said = kernels_merge(paths, output=tmp_path / "both.json")
    merged = Manifest.load(tmp_path / "both.json")
    assert merged.models == {"a", "b"}
    assert f"{len(merged.kernels)} kernels for a, b" in said


def test_name_says_the_fields_and_the_passes() -> None:
    text = kernels_name("xnn_f32_dwconv_minmax_ukernel_5f5m5l16c8s4r__avx2", elements=25, channels=40)
    said = dict(re.split(r"  +", line.strip(), maxsplit=1) for line in text.splitlines()[1:])
    assert said["tile"] == "first 5, middle 5, last 5, channel 16, subtile 8, round 4"
    assert (said["activation"], said["instruction set"]) == ("minmax", "avx2")
    assert (said["window of 25"], said["40 channels"]) == ("5, 3 times 5, 5", "2 tiles, 1 subtiles")
    with pytest.raises(UserError, match="does not take"):
        kernels_name("xnn_f32_dwconv_ukernel_9p16c__avx2", elements=10)
