"""A residual block as in diffusion U-Nets: group norm, SiLU, convolution, twice, with a time embedding between."""

import torch
from torch import nn


class ResidualBlock(nn.Module):
    def __init__(self, channels_in: int, channels_out: int, time_width: int, groups: int = 32) -> None:
        super().__init__()
        self.norm1 = nn.GroupNorm(groups, channels_in)
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, padding=1)
        self.time = nn.Linear(time_width, channels_out)
        self.norm2 = nn.GroupNorm(groups, channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1)
        self.skip = nn.Conv2d(channels_in, channels_out, 1) if channels_in != channels_out else nn.Identity()

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        h = self.conv1(nn.functional.silu(self.norm1(x)))
        h = h + self.time(nn.functional.silu(time))[:, :, None, None]
        h = self.conv2(nn.functional.silu(self.norm2(h)))
        return h + self.skip(x)


def get_init_inputs():
    return [128, 256, 512]


def get_inputs():
    return [torch.randn(8, 128, 64, 64), torch.randn(8, 512)]
