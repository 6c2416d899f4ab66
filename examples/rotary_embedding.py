"""Rotary position embedding applied to queries and keys (RoPE, half-split form, as LLaMA uses it)."""

import torch
from torch import nn


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


class RotaryEmbedding(nn.Module):
    """Rotates `(batch, heads, tokens, head_dim)` by each token's position."""

    def __init__(self, head_dim: int, max_tokens: int, base: float = 10_000.0) -> None:
        super().__init__()
        inverse = 1.0 / base ** (torch.arange(0, head_dim, 2).float() / head_dim)
        angles = torch.outer(torch.arange(max_tokens).float(), inverse)
        angles = torch.cat((angles, angles), dim=-1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, query: torch.Tensor, key: torch.Tensor, positions: torch.Tensor):
        cos = self.cos[positions].unsqueeze(1)
        sin = self.sin[positions].unsqueeze(1)
        return query * cos + rotate_half(query) * sin, key * cos + rotate_half(key) * sin


def get_init_inputs():
    return [128, 4096]


def get_inputs():
    batch, heads, key_heads, tokens, head_dim = 4, 32, 8, 1024, 128
    query = torch.randn(batch, heads, tokens, head_dim)
    key = torch.randn(batch, key_heads, tokens, head_dim)
    positions = torch.arange(tokens).expand(batch, tokens).contiguous()
    return [query, key, positions]
