"""The gated feed-forward block of many transformers (GEGLU, "GLU variants improve transformer").

Two projections, GELU on one half, a product, a projection back. Eager PyTorch writes and reads the
wide intermediate four times.
"""

import torch
from torch import nn


class GEGLUFeedForward(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.proj_in = nn.Linear(width, 2 * hidden)
        self.proj_out = nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        value, gate = self.proj_in(self.norm(x)).chunk(2, dim=-1)
        return x + self.proj_out(value * nn.functional.gelu(gate))


def get_init_inputs():
    return [512, 1365]


def get_inputs():
    # A batch of 8 sequences of 512 tokens.
    return [torch.randn(8, 512, 512)]
