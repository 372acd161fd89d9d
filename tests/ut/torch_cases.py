"""What the torch frontend is tried with, operator by operator: a function of tensors, and its inputs.

Kept small: each case is exported, imported and evaluated on its own.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch_cases_complex import complexes
from torch_cases_pointwise import Case, f32, i64, pointwise, positive
from torch_cases_search import searches


def _reductions() -> dict[str, Case]:
    x, whole = f32(2, 3, 4), i64(-5, 5, 3, 4)
    two = ("sum", "mean", "amax", "amin", "var", "std", "logsumexp")
    cases: dict[str, Case] = {f"{n}_axes": (lambda a, n=n: getattr(torch, n)(a, dim=(0, 2)), (x,)) for n in two}
    cases |= {f"{n}_kept": (lambda a, n=n: getattr(torch, n)(a, dim=-1, keepdim=True), (x,)) for n in two}
    every = ("sum", "mean", "max", "min", "prod", "var", "std", "any", "all", "argmax", "argmin", "amax")
    cases |= {f"{n}_all": (getattr(torch, n), (x,)) for n in every}
    return cases | {
        "sum_integers": (torch.sum, (whole,)),
        "sum_truth": (lambda a: (a > 0).sum(dim=1), (x,)),
        "sum_as": (lambda a: a.sum(dim=0, dtype=torch.float64), (x,)),
        "sum_scalar": (lambda a: a.sum().sum(), (x,)),
        "mean_as": (lambda a: a.mean(dim=0, dtype=torch.float32), (whole,)),
        "prod_axis": (lambda a: torch.prod(a, 1), (x,)),
        "var_biased": (lambda a: torch.var(a, dim=1, unbiased=False), (x,)),
        "var_corrected": (lambda a: torch.var(a, dim=(1, 2), correction=2, keepdim=True), (x,)),
        "var_mean": (lambda a: torch.var_mean(a, dim=1), (x,)),
        "std_mean": (lambda a: torch.std_mean(a, dim=(0, 1), keepdim=True), (x,)),
        "max_axis": (lambda a: torch.max(a, 1), (x,)),
        "min_axis_values": (lambda a: torch.min(a, 1, keepdim=True).values, (x,)),
        "max_axis_indices": (lambda a: torch.max(a, 2).indices, (x,)),
        "argmax_axis": (lambda a: (a.argmax(1), a.argmin(-1, keepdim=True)), (x,)),
        "any_axis": (lambda a: ((a > 1).any(1), (a > -2).all(2, keepdim=True)), (x,)),
        "any_bytes": (lambda a: a.any(), (whole.to(torch.uint8),)),
        "count_nonzero": (lambda a: torch.count_nonzero(a, dim=0), (whole,)),
        "norms": (lambda a: tuple(torch.linalg.vector_norm(a, p, dim=1) for p in (1, 2, 3, 0, float("inf"))), (x,)),
        "norm": (lambda a: (a.norm(), a.norm(dim=1, keepdim=True), a.norm(p=1, dim=0)), (x,)),
        "normalize": (lambda a: F.normalize(a, dim=1), (x,)),
        "cosine_similarity": (lambda a, b: F.cosine_similarity(a, b, dim=-1), (x, f32(2, 3, 4))),
        "softmax": (lambda a: (a.softmax(1), a.log_softmax(-1), F.softmin(a, 0)), (x,)),
        "softmax_as": (lambda a: torch.softmax(a, -1, dtype=torch.float32), (x.half(),)),
        "softmax_scalar": (lambda a: a.sum().softmax(0), (x,)),
        "cumsum": (lambda a: (a.cumsum(1), torch.cumsum(a > 0, 0)), (x,)),
        "topk": (lambda a: torch.topk(a, 2, dim=2), (x,)),
        "topk_least": (lambda a: torch.topk(a, 2, dim=1, largest=False), (x,)),
        "sort": (lambda a: (*torch.sort(a, dim=1, descending=True), torch.argsort(a, -1)), (x,)),
        "sort_truth": (lambda a: torch.sort(a > 0, dim=1, stable=True), (x,)),
        "sort_stable": (lambda a: torch.sort(a, stable=True, dim=0), (i64(0, 3, 7),)),
        "median_like": (lambda a: a.sort(-1).values[..., 1], (x,)),
        "cdist": (lambda a, b: torch.cdist(a, b), (f32(3, 4), f32(5, 4))),
    }


def _shapes() -> dict[str, Case]:
    x, image = f32(2, 3, 4), f32(2, 8, 4, 6)
    return {
        "view": (lambda a: (a.view(6, 4), a.reshape(-1), a.view(2, -1, 2)), (x,)),
        "flatten": (lambda a: (a.flatten(1), a.unflatten(2, (2, 2))), (x,)),
        "squeeze": (lambda a: (a[:, :1].squeeze(1), a[:1, :1].squeeze(), a[:1, :1].squeeze((0, 1))), (x,)),
        "unsqueeze": (lambda a: (a.unsqueeze(0), a.unsqueeze(-1)), (x,)),
        "transposes": (lambda a: (a.permute(2, 0, 1), a.transpose(0, -1), a.mT, a[0].t(), a[0].T), (x,)),
        "movedim": (lambda a: (a.movedim(0, 2), a.movedim((0, 1), (2, 0))), (x,)),
        "expand": (lambda a: (a[:, :1].expand(-1, 5, -1), a[0].expand(3, 3, 4)), (x,)),
        "slices": (lambda a: (a[:, 1:], a[..., ::2], a[-1], a[:, -2:-1], a[1:1], a[:, 5:]), (x,)),
        "select": (lambda a: (a[0], a[:, -1], a.select(2, 3)), (x,)),
        "narrow": (lambda a: a.narrow(1, 1, 2), (x,)),
        "split": (lambda a: (*a.split(2, 1), *a.split([1, 3], 2), *a.chunk(3, 2)), (x,)),
        "split_unused": (lambda a: a.split(1, 1)[2], (x,)),
        "tensor_split": (lambda a: (*a.tensor_split(3, 2), *a.tensor_split((1, 2), 1)), (x,)),
        "unbind": (lambda a: a.unbind(1), (x,)),
        "cat": (lambda a, b: (torch.cat((a, b), 1), torch.cat((a, a.long()), -1)), (x, f32(2, 5, 4))),
        "cat_empty": (lambda a: torch.cat((a.new_zeros(0), a), 0), (x,)),
        "stack": (lambda a, b: (torch.stack((a, b)), torch.stack((a, b), -1)), (x, f32(2, 3, 4))),
        "repeat": (lambda a: (a.repeat(2, 1, 3), a.repeat(2, 1, 1, 1), a.tile(2)), (x,)),
        "repeat_interleave": (lambda a: (a.repeat_interleave(2, 1), a.repeat_interleave(3)), (x,)),
        "flip": (lambda a: (a.flip(0), a.flip(1, 2)), (x,)),
        "roll": (lambda a: (a.roll(1, 1), a.roll((1, -2), (0, 2)), a.roll(5)), (x,)),
        "pads": (
            lambda a: (
                F.pad(a, (1, 2)),
                F.pad(a, (0, 1, 2, 0), value=3.0),
                F.pad(a, (-1, 1)),
                *(F.pad(a, (2, 1), mode=m) for m in ("reflect", "replicate", "circular")),
            ),
            (x,),
        ),
        "pad_cut": (
            lambda a: (
                F.pad(a, (-2, 3), mode="reflect"),
                F.pad(a, (-4, 2), mode="replicate"),
                F.pad(a, (-2, 1), mode="circular"),
                F.pad(a, (-1, -1), mode="replicate"),
            ),
            (x,),
        ),
        "pad_image": (
            lambda a: (F.pad(a, (1, 2, 3, 0), mode="reflect"), F.pad(a, (1, 0, 0, 2), mode="replicate")),
            (image,),
        ),
        "pixel_shuffle": (lambda a: (F.pixel_shuffle(a, 2), F.pixel_unshuffle(a, 2)), (image,)),
        "channel_shuffle": (lambda a: F.channel_shuffle(a, 4), (image,)),
        "diagonal": (lambda a: (a.diagonal(), a.diagonal(1, 1, 2), a.diagonal(-1, 0, 2)), (x,)),
        "triangles": (lambda a: (a.tril(), a.triu(1), a.tril(-1), (a > 0).triu()), (x,)),
        "meshgrid": (lambda a, b: torch.meshgrid(a, b, indexing="ij"), (f32(3), f32(4))),
        "unfold": (lambda a: F.unfold(a, 3, padding=1), (image,)),
        "clones": (lambda a: (a.clone(), a.contiguous(), a.detach() + 1), (x,)),
        "outer": (torch.outer, (f32(3), f32(4))),
        "made": (
            lambda a: (
                a + torch.arange(4),
                a * torch.full((3, 1), 2.0),
                torch.zeros_like(a) + a,
                torch.ones(4) * a,
                a + torch.eye(3, 4),
                torch.linspace(0, 1, 4) * a,
                a.new_full((4,), 3) * a,
                torch.full_like(a, 7),
            ),
            (x,),
        ),
        "one_hot": (lambda i: F.one_hot(i, 5), (i64(0, 5, 3, 2),)),
        "dropout": (lambda a: F.dropout(a, 0.5, training=False) * 2, (x,)),
    }


def _products() -> dict[str, Case]:
    a, b, m = f32(2, 3, 4), f32(2, 4, 5), f32(4, 5)
    terms = {
        "ij,jk->ik": (f32(3, 4), m),
        "bhqd,bhkd->bhqk": (f32(1, 2, 3, 4), f32(1, 2, 5, 4)),
        "bij,bjk,kl->bil": (a, b, f32(5, 2)),
        "ii->i": (f32(3, 3),),
        "...ij->...ji": (a,),
        "i,j": (f32(3), f32(2)),
    }
    cases: dict[str, Case] = {
        f"einsum {t}": (lambda *xs, t=t: torch.einsum(t, *xs), inputs) for t, inputs in terms.items()
    }
    return cases | {
        "matmul": (
            lambda a, b, m: (a @ b, a @ m, m.T @ a[0].T, a[0, 0] @ m, a @ m[:, 0], m[:, 0] @ m[:, 1]),
            (a, b, m),
        ),
        "matmul_broadcast": (torch.matmul, (f32(3, 1, 2, 4), f32(2, 4, 5))),
        "matmul_integers": (torch.matmul, (i64(-5, 5, 3, 4), i64(-5, 5, 4, 2))),
        "bmm": (torch.bmm, (a, b)),
        "mv": (torch.mv, (m, f32(5))),
        "addmm": (
            lambda c, x, y: (torch.addmm(c, x, y), torch.addmm(c, x, y, beta=0.5, alpha=2)),
            (f32(5), f32(3, 4), m),
        ),
        "addmm_unread": (lambda c, x, y: torch.addmm(c, x, y, beta=0), (f32(5), f32(3, 4), m)),
        "baddbmm": (lambda c, x, y: torch.baddbmm(c, x, y, beta=2, alpha=0.5), (f32(2, 3, 5), a, b)),
        "linear": (F.linear, (a, f32(6, 4), f32(6))),
        "linear_vector": (F.linear, (f32(4), f32(6, 4))),
        "bilinear": (F.bilinear, (f32(3, 2), f32(3, 4), f32(5, 2, 4), f32(5))),
        "conv1d": (lambda x, w, b: F.conv1d(x, w, b, 2, 1), (f32(2, 4, 9), f32(6, 4, 3), f32(6))),
        "conv2d": (lambda x, w: F.conv2d(x, w, None, (1, 2), (2, 1), (2, 1), 2), (f32(1, 4, 8, 9), f32(6, 2, 3, 3))),
        "conv2d_same": (lambda x, w: F.conv2d(x, w, padding="same"), (f32(1, 2, 7, 6), f32(3, 2, 4, 3))),
        "conv2d_valid": (lambda x, w: F.conv2d(x, w, padding="valid"), (f32(1, 2, 7, 6), f32(3, 2, 4, 3))),
        "conv2d_single": (F.conv2d, (f32(2, 7, 6), f32(3, 2, 4, 3), f32(3))),
        "conv3d": (lambda x, w: F.conv3d(x, w, padding=1), (f32(1, 2, 4, 4, 4), f32(3, 2, 3, 3, 3))),
        "conv_transpose1d": (lambda x, w: F.conv_transpose1d(x, w, stride=2), (f32(1, 3, 5), f32(3, 2, 3))),
        "conv_transpose2d": (
            lambda x, w, b: F.conv_transpose2d(x, w, b, 2, 1, 1, 2),
            (f32(1, 4, 5, 4), f32(4, 3, 3, 3), f32(6)),
        ),
    }


def _images() -> dict[str, Case]:
    x, odd = f32(2, 4, 9, 6), f32(1, 2, 7, 5)
    modes = ("nearest", "nearest-exact", "bilinear", "bicubic")
    return {
        "max_pool": (lambda a: (F.max_pool2d(a, 2), F.max_pool2d(a, 3, 2, 1), F.max_pool2d(a, 2, 1, 0, 2)), (x,)),
        "max_pool_ceil": (lambda a: (F.max_pool2d(a, 2, ceil_mode=True), F.max_pool2d(a, 3, 2, 1, 1, True)), (odd,)),
        "max_pool_others": (lambda a: (F.max_pool1d(a[0], 2), F.max_pool3d(a, 2), F.max_pool2d(a[0], 2)), (x,)),
        "avg_pool": (
            lambda a: (
                F.avg_pool2d(a, 2),
                F.avg_pool2d(a, 3, 2, 1),
                F.avg_pool2d(a, 3, 2, 1, count_include_pad=False),
                F.avg_pool2d(a, (3, 2), (2, 3), divisor_override=4),
            ),
            (x,),
        ),
        "avg_pool_ceil": (
            lambda a: (
                F.avg_pool2d(a, 2, ceil_mode=True),
                F.avg_pool2d(a, 3, 2, 1, ceil_mode=True),
                F.avg_pool2d(a, 3, 2, 1, ceil_mode=True, count_include_pad=False),
            ),
            (odd,),
        ),
        "avg_pool_others": (lambda a: (F.avg_pool1d(a[0], 2), F.avg_pool3d(a, 2)), (x,)),
        "adaptive_avg": (
            lambda a: (
                *(F.adaptive_avg_pool2d(a, s) for s in (1, 3, (9, 2), (4, 5), (None, 3))),
                F.adaptive_avg_pool1d(a[0], 4),
            ),
            (x,),
        ),
        "adaptive_max": (lambda a: tuple(F.adaptive_max_pool2d(a, s) for s in (1, 3, (4, 5))), (x,)),
        "batch_norm": (
            lambda a, m, v, w, b: (F.batch_norm(a, m, v, w, b), F.batch_norm(a, m, v)),
            (x, f32(4), positive(4), f32(4), f32(4)),
        ),
        "group_norm": (lambda a, w, b: (F.group_norm(a, 2, w, b, 1e-3), F.group_norm(a, 4)), (x, f32(4), f32(4))),
        "batch_norm_of_the_batch": (
            lambda a, w: (
                F.batch_norm(a, None, None, training=True),
                F.batch_norm(a.flatten(2), None, None, w, w + 1, training=True, eps=1e-3),
                F.batch_norm(a[:, :, 0, 0], None, None, w, training=True),
            ),
            (x, f32(4)),
        ),
        "instance_norm": (lambda a, w: (F.instance_norm(a), F.instance_norm(a, weight=w)), (x, f32(4))),
        "layer_norm": (
            lambda a, w, b: (F.layer_norm(a, (6,), w, b), F.layer_norm(a, (9, 6)), F.layer_norm(a, (6,), None, b)),
            (x, f32(6), f32(6)),
        ),
        "rms_norm": (lambda a, w: (F.rms_norm(a, (6,), w, 1e-5), F.rms_norm(a, (9, 6))), (x, f32(6))),
        "local_response_norm": (lambda a: F.local_response_norm(a, 3), (x,)),
        **{f"scaled {m}": (lambda a, m=m: F.interpolate(a, scale_factor=2, mode=m), (x,)) for m in modes},
        **{f"sized {m}": (lambda a, m=m: F.interpolate(a, size=(7, 10), mode=m), (x,)) for m in modes},
        **{
            f"corners {m}": (lambda a, m=m: F.interpolate(a, size=(7, 10), mode=m, align_corners=True), (x,))
            for m in modes[2:]
        },
        "scaled_broken": (lambda a: F.interpolate(a, scale_factor=1.7, mode="bilinear"), (x,)),
        "scaled_broken_nearest": (lambda a: F.interpolate(a, scale_factor=(1.7, 0.6), mode="nearest"), (x,)),
        **{
            f"antialiased {m}": (
                lambda a, m=m: tuple(
                    F.interpolate(a, size=s, mode=m, antialias=True, align_corners=c)
                    for s, c in (((4, 9), False), ((4, 3), True), ((20, 2), False))
                ),
                (x,),
            )
            for m in ("bilinear", "bicubic")
        },
        "antialiased_scaled": (
            lambda a: F.interpolate(a, scale_factor=(0.45, 1.7), mode="bicubic", antialias=True),
            (x,),
        ),
        **{
            f"bytes {m}": (
                lambda a, m=m: tuple(
                    F.interpolate(a, size=s, mode=m, align_corners=c, antialias=w)
                    for s in ((7, 10), (3, 6), (1, 4))
                    for c in (False, True)
                    for w in (False, True)
                ),
                (i64(0, 256, 2, 3, 9, 6).to(torch.uint8),),
            )
            for m in ("bilinear", "bicubic")
        },
        "interpolate_others": (
            lambda a: (
                F.interpolate(a[0], size=5, mode="linear"),
                F.interpolate(a[None], size=(3, 3, 3), mode="trilinear"),
            ),
            (x,),
        ),
        "grid_sample": (lambda a, g: F.grid_sample(a, g, align_corners=False), (odd, torch.tanh(f32(1, 3, 4, 2)))),
    }


def _indexing() -> dict[str, Case]:
    x, i, j = f32(4, 5, 6), i64(0, 4, 3), i64(-5, 5, 3)
    return {
        "embedding": (lambda i, w: (F.embedding(i, w), F.embedding(i, w, padding_idx=0)), (i64(0, 7, 2, 3), f32(7, 4))),
        "index_select": (lambda x, i: (x.index_select(0, i), x.index_select(2, i)), (x, i)),
        "gather": (lambda x, i: (x.gather(1, i), x.gather(0, i[:2] % 4)), (x, i64(0, 5, 3, 2, 4))),
        "take_along_dim": (lambda x: torch.take_along_dim(x, x.argsort(1), 1), (x,)),
        "take_along_dim_broadcast": (
            lambda x, i, j: (torch.take_along_dim(x, i, 1), torch.take_along_dim(x[:1], j, 2)),
            (x, i64(0, 5, 1, 2, 6), i64(0, 6, 4, 1, 3)),
        ),
        "take": (lambda x, i: x.take(i), (x, i64(0, 120, 2, 3))),
        "index": (
            lambda x, i, j: (x[i], x[:, j], x[i, j], x[:, i, j], x[i, :, j], x[i[:, None], j], x[..., i]),
            (x, i, j),
        ),
        "index_number_and_tensor": (lambda x, i: (x[0, i], x[i, 1]), (x, i)),
        "index_copy": (lambda x, s, i: x.index_copy(1, i, s), (x, f32(4, 3, 6), torch.tensor([4, 0, 2]))),
        "index_add": (lambda x, s, i: x.index_add(1, i, s, alpha=2), (x, f32(4, 3, 6), torch.tensor([4, 0, 4]))),
        "index_fill": (lambda x, i: x.index_fill(2, i, -1.0), (x, i)),
        "index_put": (lambda x, i, v: _put(x, i, v), (x, torch.tensor([3, 0, -2]), f32(3, 6))),
        "index_put_axis": (lambda x, v: _put_axis(x, v), (x, f32(4, 2, 6))),
        "index_put_added": (
            lambda x, i: x.index_put((i,), torch.tensor(2.0), accumulate=True),
            (x, torch.tensor([1, 1, 3])),
        ),
        "index_put_mask": (lambda x: x.index_put((x > 0.5,), torch.tensor(7.0)), (x,)),
        "index_put_row_mask": (lambda x: x.index_put((x[:, 0, 0] > 0,), torch.tensor(7.0)), (x,)),
        "scatter": (lambda x, i, s: (x.scatter(1, i, s), x.scatter(1, i, 3.5)), (x, _places(), f32(4, 3, 6))),
        "scatter_add": (lambda x, i, s: x.scatter_add(1, i, s), (x, i64(0, 5, 4, 3, 6), f32(4, 4, 6))),
        "scatter_reduce": (
            lambda x, i, s: tuple(x.scatter_reduce(1, i, s, r) for r in ("sum", "prod", "amax", "amin")),
            (x, i64(0, 5, 4, 3, 6), f32(4, 3, 6)),
        ),
        "slice_scatter": (
            lambda x, s: (x.slice_scatter(s, 1, 1, 3), x.slice_scatter(s, 1, 0, 4, 2)),
            (x, f32(4, 2, 6)),
        ),
        "select_scatter": (lambda x, s: x.select_scatter(s, 1, -1), (x, f32(4, 6))),
        "masked_scatter_like": (lambda x, s: torch.where(x > 0, s, x), (x, f32(4, 5, 6))),
    }


def _places() -> torch.Tensor:
    return torch.tensor([4, 0, 2])[None, :, None].repeat(4, 1, 6)


def _put(x: torch.Tensor, i: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[i, 2] = v
    y[1, :, i] = 0.5
    return y


def _put_axis(x: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    y = x.clone()
    y[:, torch.tensor([0, 3])] = v
    return y


def _attention() -> dict[str, Case]:
    q, k, v = f32(2, 4, 3, 8), f32(2, 4, 5, 8), f32(2, 4, 5, 6)
    sdpa = F.scaled_dot_product_attention
    return {
        "attention": (sdpa, (q, k, v)),
        "attention_scale": (lambda q, k, v: sdpa(q, k, v, scale=0.3), (q, k, v)),
        "attention_scale_zero": (lambda q, k, v: sdpa(q, k, v, scale=0.0), (q, k, v)),
        "attention_causal": (lambda q, k, v: sdpa(q, k, v, is_causal=True), (q, k[:, :, :3], v[:, :, :3])),
        "attention_causal_oblong": (lambda q, k, v: sdpa(q, k, v, is_causal=True), (q, k, v)),
        "attention_mask": (lambda q, k, v, m: sdpa(q, k, v, m), (q, k, v, f32(3, 5))),
        "attention_hidden": (
            lambda q, k, v, m: sdpa(q, k, v, m),
            (q, k, v, torch.tensor([[True, False, True, True, False]])),
        ),
        "attention_grouped": (lambda q, k, v: sdpa(q, k, v, enable_gqa=True), (q, k[:, :2], v[:, :2])),
        "attention_three_axes": (sdpa, (q[0], k[0], v[0])),
        "attention_five_axes": (lambda q, k, v, m: sdpa(q, k, v, m), (q[None], k[None], v[None], f32(1, 2, 1, 3, 5))),
        "attention_broadcast": (sdpa, (q, k[:1], v[:1])),
        "attention_length": (
            lambda q, k, v, n: (
                sdpa(q, k, v, torch.arange(5)[None] < n),
                sdpa(q, k, v, (torch.arange(5) <= n)[None, None, None]),
            ),
            (q, k, v, torch.tensor([3])),
        ),
    }


def _scalars() -> dict[str, Case]:
    """Tensors without axes, where torch takes them for rows of one element."""
    x, row, at = f32(4)[0], f32(4), torch.tensor(2)
    return {
        "einsum_bytes": (
            lambda a, b: (
                torch.einsum("ij->j", a),
                torch.einsum("ij,kj->ik", a, b),
                F.bilinear(a, b[:3], b.reshape(2, 4, 4)),
            ),
            (i64(0, 256, 3, 4).to(torch.uint8), i64(0, 256, 8, 4).to(torch.uint8)),
        ),
        "sort_scalar": (lambda a: (*torch.sort(a), torch.argsort(a, descending=True)), (x,)),
        "topk_scalar": (lambda a: torch.topk(a, 1), (x,)),
        "kthvalue_scalar": (lambda a: torch.kthvalue(a, 1), (x,)),
        "gather_scalar": (
            lambda a, b, i: (b.gather(0, i), a.gather(0, i * 0), a.gather(0, torch.tensor([0, 0]))),
            (x, row, at),
        ),
        "scatter_scalar": (
            lambda a, b, i: (b.scatter(0, i, a), b.scatter_add(0, i, b), b.scatter(0, i, 7.0), a.scatter(0, i * 0, a)),
            (x, row, at),
        ),
        "index_scalar": (
            lambda a, i: (a.index_add(0, i * 0, a), a.index_copy(0, i * 0, a), a.index_fill(0, i * 0, 3.0)),
            (x, at),
        ),
        "linspace_tensors": (
            lambda a, b: tuple(torch.linspace(a, b, n) for n in (0, 1, 2, 7)),
            (x, torch.tensor(9.0)),
        ),
        "linspace_one_tensor": (lambda a: (torch.linspace(a, 2, 4), torch.linspace(-3.5, a, 5)), (x,)),
        "logspace_tensors": (lambda a: (torch.logspace(a, 2.0, 4), torch.logspace(a, a + 1, 5, base=2)), (x,)),
    }


CASES: dict[str, Case] = {
    **pointwise(),
    **_reductions(),
    **_shapes(),
    **_products(),
    **_images(),
    **_indexing(),
    **_attention(),
    **_scalars(),
    **searches(),
    **complexes(),
}
