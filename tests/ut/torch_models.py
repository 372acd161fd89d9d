"""Small networks of the kinds that the torch frontend is for, as people write them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn


class Residual(nn.Module):
    """A block of two convolutions, with a projection where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.short: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.short = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        y += self.short(x)
        return self.relu(y)


class ResNet(nn.Module):
    """A stem, a pool, three blocks, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.blocks = nn.Sequential(Residual(8, 8, 1), Residual(8, 16, 2), Residual(16, 16, 1))
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.blocks(self.pool(self.stem(x)))
        return self.head(torch.flatten(F.adaptive_avg_pool2d(y, 1), 1))


class MobileNet(nn.Module):
    """An inverted residual with squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.expand = nn.Sequential(nn.Conv2d(8, 24, 1), nn.BatchNorm2d(24), nn.Hardswish())
        self.depth = nn.Sequential(nn.Conv2d(24, 24, 3, padding=1, groups=24), nn.BatchNorm2d(24), nn.ReLU6())
        self.squeeze = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(24, 6, 1), nn.ReLU(), nn.Conv2d(6, 24, 1), nn.Hardsigmoid()
        )
        self.project = nn.Sequential(nn.Conv2d(24, 8, 1), nn.BatchNorm2d(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.depth(self.expand(x))
        return x + self.project(y * self.squeeze(y))


class Encoder(nn.Module):
    """Embeddings and torch's own transformer encoder, with padding masked; returns a mapping."""

    def __init__(self, layers: int = 2, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(50, width), nn.Embedding(16, width)
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 50, bias=False)
        self.head.weight = self.words.weight

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> dict[str, Any]:
        x = self.words(input_ids) + self.places(torch.arange(input_ids.shape[1]))
        hidden = None if attention_mask is None else attention_mask == 0
        y = self.encoder(x, src_key_padding_mask=hidden)
        return {"logits": self.head(y), "pooled": (y[:, 0], y.mean(1)), "attentions": None}


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return torch.cat((-b, a), -1)


class Decoder(nn.Module):
    """One block of a decoder with grouped queries, rotary positions and a cache that it writes in place."""

    def __init__(self, width: int = 32, heads: int = 4, shared: int = 2, rows: int = 8) -> None:
        super().__init__()
        self.heads, self.shared, self.depth = heads, shared, width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, shared * self.depth, bias=False)
        self.v = nn.Linear(width, shared * self.depth, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.gate, self.up = nn.Linear(width, 48, bias=False), nn.Linear(width, 48, bias=False)
        self.down = nn.Linear(48, width, bias=False)
        step = 10000.0 ** (-torch.arange(0, self.depth, 2) / self.depth)
        angles = torch.outer(torch.arange(rows), step).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self.register_buffer("k_cache", torch.zeros(1, shared, rows, self.depth))
        self.register_buffer("v_cache", torch.zeros(1, shared, rows, self.depth))

    def turned(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        return x * self.cos[position] + rotate_half(x) * self.sin[position]

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        b, s, _ = x.shape
        y = self.norm1(x)
        q = self.turned(self.q(y).view(b, s, self.heads, -1).transpose(1, 2), position)
        k = self.turned(self.k(y).view(b, s, self.shared, -1).transpose(1, 2), position)
        self.k_cache[:, :, position] = k
        self.v_cache.index_copy_(2, position, self.v(y).view(b, s, self.shared, -1).transpose(1, 2))
        seen = torch.arange(self.k_cache.shape[2])[None, :] <= position[:, None]
        y = F.scaled_dot_product_attention(q, self.k_cache, self.v_cache, seen, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, s, -1))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Recurrent(nn.Module):
    """Two recurrent layers, which torch unrolls."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, 1, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(16, 8, 1)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y, (h, _) = self.lstm(x)
        z, _ = self.gru(y.transpose(0, 1))
        return z, h


class Counter(nn.Module):
    """Buffers written in every way: added to, overwritten, swapped, partly written."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("last", torch.zeros(3))
        self.register_buffer("ring", torch.zeros(4, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        self.total.add_(x)
        y = self.last.clone()
        self.last.copy_(x)
        self.ring[2:3] = x
        self.ring[0] = self.total
        return y + self.ring.sum(0) * self.steps
