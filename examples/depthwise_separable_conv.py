"""A depthwise-separable convolution block (MobileNet): 3x3 depthwise, then pointwise, each with norm and ReLU6."""

import torch
from torch import nn


class DepthwiseSeparableBlock(nn.Module):
    def __init__(self, channels_in: int, channels_out: int, stride: int = 1) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(channels_in, channels_in, 3, stride, padding=1, groups=channels_in, bias=False)
        self.norm1 = nn.BatchNorm2d(channels_in)
        self.pointwise = nn.Conv2d(channels_in, channels_out, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels_out)
        self.activation = nn.ReLU6(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.activation(self.norm1(self.depthwise(x)))
        return self.activation(self.norm2(self.pointwise(x)))


def get_init_inputs():
    return [64, 128]


def get_inputs():
    return [torch.randn(32, 64, 112, 112)]
