"""torch modules whose data decides sizes, against torch: masks as indices, places, selections of boxes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import superkernel as sk
from superkernel.core.errors import UnsupportedError

torch = pytest.importorskip("torch")


class Module(torch.nn.Module):  # type: ignore[name-defined]
    """A function as a module, with a layer for it to use."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(6, 3)
        corner = torch.rand(20, 2)
        self.register_buffer("anchors", torch.cat([corner, corner + torch.rand(20, 2)], 1))
        self.register_buffer("fixed", torch.arange(6) % 2 == 0)

    def forward(self, *given: Any) -> Any:
        return self.function(self, *given)


def several(m: Any, x: Any) -> Any:
    mask = x > 0.5
    return x[mask] * 2, torch.nonzero(mask), x[mask].softmax(0), torch.masked_select(x, mask).sum()


def ranked(m: Any, x: Any) -> Any:
    score = x.amax(1)
    rows, score = x[score > 0.9], score[score > 0.9]
    best, order = score.sort(descending=True)
    return rows[order], best


CASES: dict[str, Callable[..., Any]] = {
    "several": several,
    "ranked": ranked,
    "rows through a layer": lambda m, x: (y := m.layer(x[x.amin(1) < 0.2]).relu(), y.sum(0)),
    "an axis in the middle": lambda m, x: x.unsqueeze(0)[:, :, x.amax(0) > 0.95],
    "two axes": lambda m, x: x.unsqueeze(2).expand(5, 6, 2)[x > 0.5],
    "a mask that is known": lambda m, x: x[:, m.fixed],
    "a mask over one that is known": lambda m, x: x[:, m.fixed][x[:, 0] > 0.4],
    "numbers that are not zero": lambda m, x: torch.nonzero((x * 2).long()),
    "the first of them": lambda m, x: (x[x > 0.5][:2], x[x > 0.5][-1:]),
    "one mask written twice": lambda m, x: torch.stack([x[x > 0.5], x[x > 0.5] * 2]),
    "where": lambda m, x: x[torch.where(x[:, 0] > 0.5)[0]],
    "numbers of constants": lambda m, x: (torch.nonzero(m.fixed), x[x > 0.5]),
    "behind others": lambda m, x: torch.cat([x[0], x[x > 0.5]]),
    "means and deviations": lambda m, x: (x[x[:, 0] > 0.2].std(0), x[x > 0.5].sum() / x[x > 0.5].shape[0]),
    "of one": lambda m, x: torch.nonzero(x.sum() > 20.0),
}


@pytest.mark.parametrize("what", CASES)
def test_results_are_as_long_as_torchs(what: str) -> None:
    module = Module(CASES[what]).eval()
    kernel = sk.compile(module, threads=2, example_inputs=(torch.rand(5, 6),))
    generator = torch.Generator().manual_seed(1)
    for share in (0.0, 0.3, 0.7, 1.0):
        x = torch.rand(5, 6, generator=generator) * 0.5
        x = torch.where(torch.rand(5, 6, generator=generator) < share, x + 0.5, x)
        with torch.no_grad():
            want, found = module(x), kernel(x)
        for one, other in zip(*([r] if isinstance(r, torch.Tensor) else r for r in (want, found)), strict=True):
            torch.testing.assert_close(other, one, equal_nan=True)


def test_sizes_that_change_and_sizes_that_data_decides() -> None:
    module = Module(lambda m, x: m.layer(x[x.amin(1) < 0.2])).eval()
    kernel = sk.compile_dynamic(
        module, {"n": (2, 40)}, threads=2, example_inputs=(torch.rand(5, 6),), dynamic_shapes={"given": ({0: "n"},)}
    )
    for rows in (3, 17, 40):
        x = torch.rand(rows, 6)
        torch.testing.assert_close(kernel(x), module(x).detach())


@pytest.fixture(scope="module")
def _nms() -> None:
    """torchvision's operator, where there is no torchvision."""
    if hasattr(torch.ops.torchvision, "nms"):
        return
    torch.library.define("torchvision::nms", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

    def fake(dets: Any, scores: Any, iou_threshold: float) -> Any:
        return dets.new_empty([torch.library.get_ctx().new_dynamic_size()], dtype=torch.long)

    torch.library.register_fake("torchvision::nms", fake)


def kept(boxes: Any, scores: Any, threshold: float) -> list[int]:
    """Boxes, best first, that overlap none of those before, one by one."""
    found: list[int] = []
    for box in scores.argsort(descending=True, stable=True).tolist():
        low = torch.maximum(boxes[box, :2], boxes[found, :2])
        high = torch.minimum(boxes[box, 2:], boxes[found, 2:])
        areas = (boxes[[box, *found], 2:] - boxes[[box, *found], :2]).prod(1)
        common = (high - low).clamp(0).prod(1)
        if not (common / (areas[0] + areas[1:] - common) > threshold).any():
            found.append(box)
    return found


SELECTIONS: dict[str, Callable[..., Any]] = {
    "two of the same boxes": lambda m, b, s: (select(b, s, 0.3), select(b, -s, 0.3), select(b, s, 0.6)),
    "boxes that are known": lambda m, b, s: select(m.anchors, s, 0.3),
    "places in boxes": lambda m, b, s: (select(b, s, 0.3), torch.nonzero(b > 0.5)),
    "of what is found": lambda m, b, s: (k := s > 0.4, q := select(b[k], s[k], 0.3), b[k][q][:5], s[k][q])[1:],
}


def select(boxes: Any, scores: Any, threshold: float) -> Any:
    """Traced: the operator; else what it is to find."""
    if torch.compiler.is_exporting() or torch.compiler.is_compiling():
        return torch.ops.torchvision.nms(boxes, scores, threshold)
    return torch.tensor(kept(boxes, scores, threshold), dtype=torch.long)


@pytest.mark.usefixtures("_nms")
@pytest.mark.parametrize("what", SELECTIONS)
def test_selections_are_told_apart(what: str) -> None:
    module = Module(SELECTIONS[what]).eval()
    kernel = sk.compile(module, threads=1, example_inputs=(torch.rand(20, 4), torch.rand(20)))
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        corner, side = (torch.rand(20, 2, generator=generator) for _ in range(2))
        boxes, scores = torch.cat([corner, corner + side], 1), torch.rand(20, generator=generator)
        given = {"given_0": boxes, "given_1": scores}
        found = kernel.run({name: given[name].numpy() for name in kernel.inputs}).outputs.values()
        want = module(boxes, scores)
        for one, other in zip(found, (want,) if isinstance(want, torch.Tensor) else want, strict=True):
            torch.testing.assert_close(torch.from_numpy(one), other)


@pytest.mark.usefixtures("_nms")
def test_boxes_that_overlap_are_left_out() -> None:
    module = Module(lambda m, b, s: (k := torch.ops.torchvision.nms(b, s, 0.3), b[k], s[k] * 2)).eval()
    kernel = sk.compile(module, threads=2, example_inputs=(torch.rand(20, 4), torch.rand(20)))
    for seed in range(4):
        generator = torch.Generator().manual_seed(seed)
        corner, side = (torch.rand(20, 2, generator=generator) for _ in range(2))
        boxes, scores = torch.cat([corner, corner + side], 1), torch.rand(20, generator=generator)
        want = kept(boxes, scores, 0.3)
        found = kernel(boxes, scores)
        assert found[0].tolist() == want
        torch.testing.assert_close(found[1], boxes[want])
        torch.testing.assert_close(found[2], scores[want] * 2)


def test_what_hangs_on_how_much_is_found_is_refused() -> None:
    for function in (
        lambda m, x: x[x > 0.5].sum() / max(x[x > 0.5].shape[0], 1),
        lambda m, x: torch.cat([x[x > 0.5], x[x < 0.2]]),
    ):
        with pytest.raises(UnsupportedError, match=r"(grows as no one size|behind an axis)"):
            sk.compile(Module(function).eval(), example_inputs=(torch.rand(5, 6),))
