"""The model zoo's bench: what it calls a difference, what it draws, what it says."""

from __future__ import annotations

import math
import os

import pytest

if os.environ.get("SK_REQUIRE_TORCH") != "1":
    pytest.importorskip("torch", reason="torch is not installed (SK_REQUIRE_TORCH=1 makes this a failure)")

import torch
import zoo
import zoo_networks
from torch import nn


def test_differences_are_of_the_largest_element_of_an_output() -> None:
    wanted = torch.tensor([1.0, -4.0, 2.0])
    assert zoo.difference(wanted.clone(), wanted) == 0
    assert zoo.difference(wanted + torch.tensor([0.0, 0.0, 0.5]), wanted) == 0.125
    assert zoo.differences([wanted, 10 * wanted + 1], [wanted, 10 * wanted]) == pytest.approx(1 / 40)


@pytest.mark.parametrize(
    ("found", "wanted"),
    [
        (torch.zeros(2), torch.zeros(3)),
        (torch.zeros(2, dtype=torch.float64), torch.zeros(2)),
        (torch.tensor([1, 2]), torch.tensor([1, 3])),
        (torch.tensor([1.0, math.nan]), torch.tensor([1.0, 2.0])),
        (torch.tensor([1.0, math.inf]), torch.tensor([1.0, -math.inf])),
    ],
)
def test_what_is_wrong_is_infinitely_different(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert zoo.difference(found, wanted) == math.inf


def test_masked_elements_may_be_infinite() -> None:
    wanted = torch.tensor([1.0, -math.inf, math.nan])
    assert zoo.difference(wanted.clone(), wanted) == 0
    assert zoo.difference(torch.tensor([1.5, -math.inf, math.nan]), wanted) == 0.5


def test_an_output_too_few_is_wrong() -> None:
    assert zoo.differences([], [torch.zeros(1)]) == math.inf
    assert zoo.differences([], []) == math.inf


def test_a_verdict_names_what_is_wrong_before_what_falls_back() -> None:
    assert zoo.verdict(1e-6, ()) == zoo.PASSED
    assert zoo.verdict(math.nan, ["sort"]).startswith("wrong")
    assert zoo.verdict(2e-4, ()) == "wrong: difference 2.0e-04"
    assert zoo.verdict(2e-4, (), (1.9e-4, 1e-4)) == "rounded: 1.9e-04 from float64, torch itself 1.0e-04"
    assert zoo.verdict(2e-4, (), (2.1e-4, 1e-4)) == "wrong: difference 2.0e-04"
    assert zoo.verdict(0.0, ["sort", "sort"]) == "fallback: sort"


class Block(nn.Module):
    """A residual branch that a fresh model switches off, behind a batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.BatchNorm1d(4), nn.Linear(4, 4)
        self.scale = nn.Parameter(1e-6 * torch.ones(4))
        nn.init.normal_(self.linear.weight, std=1e-3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x + self.scale * self.linear(self.norm(x))
        return y


def test_weights_are_drawn_so_that_no_branch_hides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(zoo_networks.NETWORKS, "own/block", lambda: (Block(), (3 + torch.randn(2, 4),)))
    module, (x,) = zoo_networks.made("own/block")
    module.requires_grad_(False)
    assert not module.training
    assert float(module.scale.min()) > 0.1
    assert float(module.linear.weight.std()) > 0.3
    assert float(module.norm.running_mean.abs().max()) > 0
    assert float((module(x) - x).abs().max()) > 0.1
    again, _ = zoo_networks.made("own/block")
    assert torch.equal(module(x), again(x))


def test_the_summary_counts_what_failed() -> None:
    good = {
        "status": zoo.PASSED,
        "difference": 1e-6,
        "peak_mb": 100.0,
        "compile_s": 2.0,
        "added_mb": 10.0,
        "whole_s": 3.0,
    }
    timed = {**good, "ms": {"superkernel": 1.0, "torch": 4.0}, "peak_mb": 300.0}
    rows = {"a": good, "b": timed, "c": {"status": "wrong: difference 1e-1", "whole_s": 1.0}}
    text = zoo.summary(rows, ["torch"])
    assert "2 of 3 pass, 0 rounded otherwise, 1 wrong" in text
    assert "held 300 MB" in text
    assert "torch takes 4.00 times as long over 1, and is faster on 0" in text
    assert zoo.summary({"c": rows["c"]}, []).startswith("0 of 1 pass")


def test_networks_with_a_batch_that_changes_are_in_the_zoo() -> None:
    assert set(zoo_networks.DYNAMIC) <= set(zoo_networks.NETWORKS)
    assert len(zoo_networks.DYNAMIC) >= 20
