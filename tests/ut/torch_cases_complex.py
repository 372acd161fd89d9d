"""Complex numbers and Fourier transforms that the torch frontend is tried with. Inputs and outputs are real."""

from __future__ import annotations

import torch
from torch_cases_pointwise import Case, f32


def _rotated(x: torch.Tensor) -> torch.Tensor:
    """Rotary embedding as Llama's own code has it, its angles a constant."""
    angles = torch.outer(torch.arange(3.0), 10000.0 ** -torch.linspace(0, 1, 4))
    turns = torch.polar(torch.ones_like(angles), angles)
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns[None, :, None]).flatten(3).type_as(x)


def _filtered(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """A layer of a Fourier neural operator: few modes mixed, the others left out."""
    modes = torch.fft.rfft2(x)
    out = torch.zeros_like(modes)
    factors = torch.view_as_complex(weight)
    out[:, :, :2, :3] = torch.einsum("bixy,ioxy->boxy", modes[:, :, :2, :3], factors)
    return torch.fft.irfft2(out, s=x.shape[-2:])


def _resynthesised(x: torch.Tensor) -> torch.Tensor:
    window = torch.hann_window(8)
    spectrum = torch.stft(x, 8, 4, window=window, return_complex=True)
    return torch.istft(spectrum * 2, 8, 4, window=window, length=x.shape[-1])


def as_real(z: torch.Tensor) -> torch.Tensor:
    """Both parts, along a last axis, also of what torch only notes to be conjugated."""
    return torch.view_as_real(z.resolve_conj())


def complexes() -> dict[str, Case]:
    """Cases by name."""
    x, y = f32(2, 3, 4, 2), f32(2, 3, 4, 2)
    signal, image = f32(2, 40), f32(1, 2, 5, 6)
    a = b = torch.view_as_complex
    return {
        "complex_products": (
            lambda p, q: tuple(
                as_real(z) for z in (a(p) * b(q), a(p) / b(q), a(p) * 2.5, a(p) * (1 - 2j), q[..., 0] * a(p), a(p) / 4)
            ),
            (x, y),
        ),
        "complex_sums": (
            lambda p, q: tuple(
                as_real(z) for z in (a(p) + b(q), a(p) - q[..., 0], torch.add(a(p), b(q), alpha=2), -a(p), a(p) + 1j)
            ),
            (x, y),
        ),
        "complex_parts": (lambda p: (a(p).real, a(p).imag, a(p).abs(), a(p).angle(), as_real(a(p).conj())), (x,)),
        "complex_made": (
            lambda p, q: tuple(
                as_real(z)
                for z in (torch.complex(p, q), torch.polar(p.abs(), q), torch.exp(torch.complex(p, q)), p * 1j)
            ),
            (f32(3, 4), f32(3, 4)),
        ),
        "complex_powers": (lambda p: tuple(as_real(a(p).pow(n)) for n in (1, 2, 3, 7)), (x,)),
        "fft_frequencies": (lambda s: (s * torch.fft.fftfreq(40, 0.5), torch.fft.rfftfreq(78) * s), (signal,)),
        "complex_moves": (
            lambda p, q: tuple(
                as_real(z)
                for z in (
                    torch.cat([a(p), b(q)], 1),
                    a(p).transpose(0, 2),
                    a(p)[:, 1:, 0],
                    a(p).sum(1),
                    a(p).flip(2).roll(1, 2),
                    torch.stack([a(p), b(q)]),
                    a(p).mean(0),
                    *a(p).unbind(1),
                    *a(p).split(2, 2),
                )
            ),
            (x, y),
        ),
        "complex_matmul": (lambda p, q: as_real(a(p) @ b(q).transpose(1, 2)), (x, y)),
        "complex_rotary": (_rotated, (f32(2, 3, 2, 8),)),
        "fft": (
            lambda s: tuple(
                as_real(z)
                for n in ("backward", "ortho", "forward")
                for z in (torch.fft.fft(s, norm=n), torch.fft.rfft(s, norm=n), torch.fft.ifft(s, n=9, norm=n))
            ),
            (signal,),
        ),
        "fft_real_again": (
            lambda s: tuple(torch.fft.irfft(torch.fft.rfft(s, n=n, norm="ortho"), n=n) for n in (40, 39, 1)),
            (signal,),
        ),
        "fft_bins_ignored": (lambda p: torch.fft.irfft(a(p), n=6, dim=2), (x,)),
        "fft_axes": (
            lambda i: (as_real(torch.fft.fft2(i)), as_real(torch.fft.rfftn(i, dim=(3, 1, 2))), torch.fft.fft2(i).real),
            (image,),
        ),
        "fft_shifted": (lambda i: torch.fft.ifft2(torch.fft.fftshift(torch.fft.fft2(i))).abs(), (image,)),
        "fft_filter": (_filtered, (image, f32(2, 2, 2, 3, 2))),
        "stft": (lambda s: torch.stft(s, 8, 4, window=torch.hann_window(8), return_complex=True).abs(), (signal,)),
        "istft": (_resynthesised, (signal,)),
    }
