"""One step of a GRU written by hand, as decoders do that feed their own output back in."""

import torch
from torch import nn


class GRUStep(nn.Module):
    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.from_input = nn.Linear(inputs, 3 * hidden)
        self.from_hidden = nn.Linear(hidden, 3 * hidden)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        x_reset, x_update, x_new = self.from_input(x).chunk(3, dim=-1)
        h_reset, h_update, h_new = self.from_hidden(h).chunk(3, dim=-1)
        reset = torch.sigmoid(x_reset + h_reset)
        update = torch.sigmoid(x_update + h_update)
        new = torch.tanh(x_new + reset * h_new)
        return (1 - update) * new + update * h


def get_init_inputs():
    return [256, 512]


def get_inputs():
    return [torch.randn(256, 256), torch.randn(256, 512)]
