"""What reports say of kernels, on host and accelerator: which, why, what they stand in for, and at what price."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import fields, replace

import numpy as np
import pytest

import superkernel as sk
from superkernel.backends.aicore.report import SimReport
from superkernel.compilation.choice import KernelChooser
from superkernel.compilation.kernel_uses import KernelUse, KernelUses, use_lines
from superkernel.ir.body import SubOperator
from superkernel.ir.graph import Graph
from superkernel.registry.selection import Selection

OPTIONS = {"fallback": "allow", "simplify": False}


def _graph() -> Graph:
    """A product with a kernel, and one that NumPy computes."""
    b = sk.GraphBuilder("mixed")
    x = b.softmax(b.matmul(b.input("x", (4, 32)), b.constant(np.ones((32, 16), np.float32)), name="product"), axis=-1)
    b.output(b.gemm(x, b.input("w", (16, 4)), name="elsewhere"), "y")
    return b.graph()


@pytest.mark.parametrize("target", ["host", "mini"])
def test_a_report_says_of_every_kernel_what_it_is_and_why(target: str) -> None:
    kernel = sk.compile(_graph(), target=target, options=OPTIONS)
    report = kernel.report(rounds=1) if target == "host" else kernel.report()
    rows = json.loads(json.dumps(report.to_json()))["kernels"]
    schedule = kernel._compiled.schedule
    assert [row["subop"] for row in rows] == [sub.index for sub in schedule.subops]
    assert all(list(row) == [f.name for f in fields(KernelUse)] for row in rows)
    assert [row["kernel"] for row in rows] == [sub.kernel for sub in schedule.subops]
    assert [row["workspace_bytes"] for row in rows] == [tiling.scratch_bytes for tiling in schedule.tilings]
    by_op = {row["op"]: row for row in rows}
    product, elsewhere = by_op["matmul"], by_op["gemm"]
    assert (product["role"], product["determinism"], product["transfer_bytes"]) == ("tuned", "bitwise", 0)
    assert product["fallback"] is None
    assert " against " in product["why"]
    assert product["canonical"].startswith("sk_")
    assert product["computed_in"] == ("f32" if target == "host" else "f16")
    assert (elsewhere["role"], elsewhere["determinism"]) == ("reference", "run-to-run")
    assert elsewhere["fallback"] == "the operator has no kernel"
    assert elsewhere["transfer_bytes"] > 0
    text = report.text()
    assert f"{product['row']} " in text
    assert f"{elsewhere['transfer_bytes']} bytes to and from NumPy; reference, for the operator has no kernel" in text
    assert elsewhere["row"] in report._repr_html_()


def test_a_run_explains_no_kernel_until_somebody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """And then each once; copies of its report have what the report has."""
    kernel, asked = sk.compile(_graph(), target="mini", options=OPTIONS), list[str]()
    explained = KernelChooser.selection_of

    def noted(chooser: KernelChooser, sub: SubOperator) -> Selection:
        asked.append(sub.name)
        return explained(chooser, sub)

    monkeypatch.setattr(KernelChooser, "selection_of", noted)
    report = kernel.run(kernel._random()).report
    assert isinstance(report, SimReport)
    assert not asked
    assert len(report.kernels) == len(report.subops) > 1
    assert not asked
    again = pickle.loads(pickle.dumps(report))
    assert report == again == copy.copy(report)
    assert asked == [row.name for row in report.subops]
    assert again.kernels == tuple(report.kernels) == (*report.kernels,)
    assert again.text() == report.text()
    assert repr(report.kernels) == repr(again.kernels)
    assert report.kernels[-1].subop == len(report.subops) - 1
    assert report != replace(report, kernels=report.kernels[1:])


def test_what_was_pinned_says_so() -> None:
    kernel = sk.compile(_graph(), options={**OPTIONS, "pin": ["host.matmul.generic"]})
    use = next(use for use in KernelUses(kernel._compiled) if use.op == "matmul")
    assert (use.kernel, use.why.partition(",")[0]) == ("host.matmul.generic", "pinned")


def test_long_tables_say_what_they_leave_out() -> None:
    use = KernelUses(sk.compile(_graph(), options=OPTIONS)._compiled)[0]
    uses = [KernelUse(**{**vars(use), "row": f"host.kernel{i}"}) for i in range(5)]
    assert len(use_lines(uses)) == 6
    assert use_lines(uses, 3)[-1] == "(3 of 5 kernels; all of them in the JSON form)"
    assert use_lines([]) == []


def test_the_report_of_an_accelerator_says_what_became_of_prefetching_weights() -> None:
    for strength, said in (("none", "off: as asked for"), ("auto", "")):
        report = sk.compile(_graph(), target="mini", options={**OPTIONS, "weight_prefetch": strength}).report()
        assert isinstance(report, sk.SimReport)
        assert report.weights
        assert report.weights.startswith(said)
