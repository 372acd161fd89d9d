"""Cases of scans, searches, ranks, bags of embeddings and joined scatters (see torch_cases.py)."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch_cases_pointwise import Case, f32, i64, truth

NONE, INF = math.nan, math.inf
SPECIAL = torch.tensor([NONE, INF, -INF, 0.0, -0.0, 1.0, -2.5, 1e-40, 3e38, 7.0])


def _pairs() -> tuple[torch.Tensor, torch.Tensor]:
    """Every special number against every other."""
    return SPECIAL.repeat_interleave(len(SPECIAL)), SPECIAL.repeat(len(SPECIAL))


def signs() -> dict[str, Case]:
    """Functions that tell the signs of zeros apart."""
    a, b = _pairs()
    return {
        "signbit": (torch.signbit, (SPECIAL,)),
        "signbit_integers": (lambda a: (torch.signbit(a), torch.signbit(a.to(torch.uint8))), (i64(-5, 5, 9),)),
        "copysign": (torch.copysign, (a, b)),
        "copysign_number": (lambda a: (torch.copysign(a, -2.0), torch.copysign(a, 0.0)), (a,)),
        "copysign_integers": (torch.copysign, (i64(-5, 5, 9), i64(-5, 5, 9))),
        "hypot": (torch.hypot, (a, b)),
        "hypot_half": (torch.hypot, (f32(6).half() * 200, f32(6).half())),
    }


def _scans() -> dict[str, Case]:
    x, whole = f32(3, 11), i64(-3, 4, 4, 5)
    far = torch.tensor([1e30, 1e30, 1e-30, 1e-30, -2.0, 0.0, 3.0])
    ties = torch.tensor([[1.0, 3.0, 3.0, -INF, 3.0], [NONE, 1.0, NONE, 2.0, INF]])
    return {
        "cumprod": (lambda a: (torch.cumprod(a, 1), torch.cumprod(a, 0), a.sum().cumprod(0)), (x,)),
        "cumprod_integers": (lambda a: (a.cumprod(0), (a > 0).cumprod(1), a.cumprod(1, dtype=torch.float64)), (whole,)),
        "cumprod_far": (lambda a: a.cumprod(0), (far,)),
        "cumprod_special": (lambda a: a.cumprod(0), (SPECIAL.flip(0),)),
        "cumprod_half": (lambda a: a.cumprod(1), (x.half(),)),
        "cummax": (lambda a: (*torch.cummax(a, 1), *torch.cummin(a, 0)), (x,)),
        "cummax_ties": (lambda a: (*torch.cummax(a, 1), *torch.cummin(a, 1)), (ties,)),
        "cummax_integers": (lambda a: (torch.cummax(a, 1).values, torch.cummin(a > 0, 0).values), (whole,)),
        "logcumsumexp": (lambda a: torch.logcumsumexp(a, 1), (x * 50,)),
        "logcumsumexp_special": (lambda a: torch.logcumsumexp(a, 0), (torch.tensor([-INF, -INF, 2.0, INF, 1.0]),)),
        "vander": (lambda a: torch.vander(a, 4), (f32(5),)),
    }


def _groups() -> dict[str, Case]:
    rows, ends = f32(12, 16).bfloat16(), torch.tensor([3, 3, 8, 12], dtype=torch.int32)
    return {
        "histc": (lambda a: (torch.histc(a, 7, -1, 1), torch.histc(a, 3, 0.5, 2.5)), (f32(50),)),
        "histc_limits": (lambda a: torch.histc(a, 5, 0, 4), (torch.arange(6).float().repeat(3),)),
        "histc_special": (lambda a: torch.histc(a, 4, -2.5, 7), (SPECIAL[1:],)),
        "grouped_mm": (lambda a, w, e: F.grouped_mm(a, w, offs=e), (rows, f32(4, 16, 8).bfloat16(), ends)),
        "grouped_mm_transposed": (
            lambda a, w, e: F.grouped_mm(a, w.transpose(1, 2), offs=e), (rows, f32(4, 24, 16).bfloat16(), ends),
        ),
        "grouped_mm_one": (lambda a, w, e: F.grouped_mm(a, w, offs=e), (rows, f32(1, 16, 8).bfloat16(), ends[-1:])),
    }  # fmt: skip


def _searches() -> dict[str, Case]:
    bounds, many = f32(9).sort().values, f32(300).sort().values
    bounds[3] = bounds[4]
    values = torch.cat([f32(2, 6), bounds[2:8][None]])
    every = torch.cat([SPECIAL, many[5:9]])

    def both(b: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.searchsorted(b, v), torch.searchsorted(b, v, right=True), torch.bucketize(v, b, right=True)

    rows = f32(2, 3, 200).sort(-1).values
    return {
        "searchsorted": (both, (bounds, values)),
        "searchsorted_special": (both, (bounds, SPECIAL)),
        "searchsorted_many": (both, (many, every)),
        "searchsorted_rows": (
            lambda b, v: (torch.searchsorted(b, v), torch.searchsorted(b[..., :50].contiguous(), v, side="right")),
            (rows, rows[..., 3:9].contiguous()),
        ),
        "searchsorted_number": (
            lambda b, c: (torch.searchsorted(b, 0.25), torch.searchsorted(c, 0.25, out_int32=True)),
            (bounds, many),
        ),
        "searchsorted_sorter": (lambda b, v, o: torch.searchsorted(b, v, sorter=o), (bounds.flip(0), values, _back(9))),
        "bucketize_integers": (lambda v: torch.bucketize(v, torch.tensor([-2, 0, 0, 3])), (i64(-4, 5, 3, 4),)),
        "bucketize_none": (lambda v: torch.bucketize(v, torch.empty(0)), (f32(3),)),
    }


def _back(count: int) -> torch.Tensor:
    return torch.arange(count - 1, -1, -1)


def _ranks() -> dict[str, Case]:
    x, whole = f32(4, 7), i64(-50, 50, 6)
    has_nan = torch.tensor([[1.0, NONE, 3.0, NONE], [4.0, INF, -INF, 1.0]])
    return {
        "median": (lambda a: (*a.median(1), *a.median(0, keepdim=True), a.median()), (x,)),
        "median_integers": (lambda a: a.median(), (whole,)),
        "median_scalar": (lambda a: tuple(a.sum().median(0)), (x,)),
        "median_special": (lambda a: (*a.median(1), a.median()), (has_nan,)),
        "nanmedian": (lambda a: (*a.nanmedian(1), a.nanmedian(), a.nanmedian(0).values), (has_nan,)),
        "nanmedian_none": (lambda a: (a.nanmedian(1).values, (a > 0).long().nanmedian()), (has_nan[:, 1:2],)),
        "kthvalue": (lambda a: (*a.kthvalue(3, 1), *a.kthvalue(1, 0, keepdim=True)), (x,)),
        "kthvalue_special": (lambda a: tuple(a.kthvalue(3, 1)), (has_nan,)),
    }


def _bags() -> dict[str, Case]:
    table, picks, offsets = f32(10, 4), i64(0, 10, 7), torch.tensor([0, 2, 2, 5])
    cases: dict[str, Case] = {}
    for mode in ("sum", "mean", "max"):
        cases |= {
            f"embedding_bag_{mode}": (
                lambda w, i, m=mode: (F.embedding_bag(i, w, _OFFSETS, mode=m), F.embedding_bag(i[None], w, mode=m)),
                (table, picks),
            ),
            f"embedding_bag_{mode}_given": (
                lambda w, i, o, m=mode: F.embedding_bag(i, w, o, mode=m),
                (table, picks, offsets),
            ),
            f"embedding_bag_{mode}_even": (
                lambda w, i, m=mode: F.embedding_bag(i, w, mode=m),
                (table, i64(0, 10, 3, 5).int()),
            ),
            f"embedding_bag_{mode}_last": (
                lambda w, i, o, m=mode: (
                    F.embedding_bag(i, w, _OFFSETS, mode=m, include_last_offset=True),
                    F.embedding_bag(i, w, o, mode=m, include_last_offset=True),
                ),
                (table, picks[:5], offsets),
            ),
            f"embedding_bag_{mode}_padded": (
                lambda w, i, j, m=mode: (
                    F.embedding_bag(i, w, _OFFSETS, mode=m, padding_idx=3),
                    F.embedding_bag(j, w, mode=m, padding_idx=3),
                ),
                (table, torch.tensor([3, 1, 3, 3, 3, 2, 3]), torch.tensor([[1, 3, 5], [3, 3, 3]])),
            ),
        }
    return cases | {
        "embedding_bag_weighted": (
            lambda w, i, p: F.embedding_bag(i, w, _OFFSETS, mode="sum", per_sample_weights=p),
            (table, picks, f32(7)),
        ),
    }


_OFFSETS = torch.tensor([0, 2, 2, 5])


def _scatters() -> dict[str, Case]:
    x, new, whole = f32(4, 5), f32(4, 5), i64(-9, 9, 4, 5)
    places = torch.tensor([[0, 1, 1, 2, 0]]).expand(4, 5) % 4
    cases: dict[str, Case] = {}
    for word in ("sum", "prod", "mean", "amax", "amin"):
        cases[f"scatter_reduce_{word}"] = (
            lambda a, b, w, r=word: tuple(
                t.scatter_reduce(0, places, s, r, include_self=itself)
                for t, s in ((a, b), (w, w.flip(0)))
                for itself in (True, False)
            ),
            (x, new, whole),
        )
    for word in ("prod", "mean", "amax", "amin"):
        cases[f"index_reduce_{word}"] = (
            lambda a, b, r=word: tuple(
                a.index_reduce(1, torch.tensor([0, 3, 3]), b[:, :3], r, include_self=itself) for itself in (True, False)
            ),
            (x, new),
        )
    flat = torch.tensor([0, 7, -1])
    return cases | {
        "put": (lambda a: (a.put(flat, _THREE), a.put(flat, _THREE, accumulate=True)), (x,)),
        "masked_scatter": (lambda a, m, b: a.masked_scatter(m, b), (x, truth(4, 5), new)),
        "masked_scatter_broadcast": (
            lambda a, m, b: (a[0].masked_scatter(m, b), a.masked_scatter(m[0], b)),
            (x, truth(4, 5), new),
        ),
        "as_strided": (lambda a: torch.as_strided(a, (2, 3), (7, 2), 1), (x,)),
        "fill_diagonal": (lambda a: a.clone().fill_diagonal_(2.0), (x,)),
        "diagonal_scatter": (lambda a: (a.diagonal_scatter(_THREE, 2), a.diagonal_scatter(_THREE, -1)), (x,)),
    }


_THREE = torch.tensor([1.0, 2.0, 3.0])


def _windows() -> dict[str, Case]:
    x, image = f32(3, 8), f32(2, 3, 7, 6)
    pool = F.max_pool2d
    return {
        "unfold": (lambda a: (a.unfold(1, 3, 1), a.unfold(0, 2, 1), a.unfold(1, 4, 4), a.unfold(1, 3, 4)), (x,)),
        "unfold_twice": (lambda a: a.unfold(2, 3, 2).unfold(3, 3, 2), (image,)),
        "unfold_scalar": (lambda a: a.sum().unfold(0, 1, 1), (x,)),
        "unfold_images": (lambda a: (F.unfold(a, (3, 2), 2, (1, 0), 2), F.unfold(a[0], 2)), (image,)),
        "fold": (lambda a: F.fold(F.unfold(a, 3), (7, 6), 3), (image,)),
        "max_pool_places": (
            lambda a: (
                *pool(a, 3, 2, 1, return_indices=True),
                *pool(a, 2, dilation=2, ceil_mode=True, return_indices=True),
            ),
            (image,),
        ),
        "max_pool_places_whole": (lambda a: pool(a, 3, 2, 1, return_indices=True)[1], (i64(-4, -1, 2, 7, 6),)),
        "max_unpool": (lambda a: F.max_unpool2d(*pool(a, 2, return_indices=True), 2), (image,)),
        "hamming_window": (lambda a: a * torch.hamming_window(8) + torch.kaiser_window(8), (x,)),
        "inner": (
            lambda a, b: (torch.inner(a, b), torch.inner(a, b[0, 0, 0, 0]), torch.inner(a[0], a[1])),
            (x[:, :6], image),
        ),
        "pdist": (lambda a: (F.pdist(a), F.pdist(a, 1.0)), (x,)),
        "rrelu": (F.rrelu, (x,)),
        "fmax": (lambda a, b: (torch.fmax(a, b), torch.fmin(a, b)), _pairs()),
    }


def searches() -> dict[str, Case]:
    """All cases of this file."""
    return {**signs(), **_scans(), **_groups(), **_searches(), **_ranks(), **_bags(), **_scatters(), **_windows()}
