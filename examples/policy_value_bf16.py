"""A small actor-critic network in bf16: observations normalised by running statistics, two outputs."""

import torch
from torch import nn


class PolicyValueNet(nn.Module):
    """Buffers `mean` and `variance` come from training; here they are only read."""

    def __init__(self, observations: int, actions: int, hidden: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(observations))
        self.register_buffer("variance", torch.ones(observations))
        self.trunk = nn.Sequential(
            nn.Linear(observations, hidden), nn.LayerNorm(hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh()
        )
        self.policy = nn.Linear(hidden, actions)
        self.value = nn.Linear(hidden, 1)
        self.to(torch.bfloat16)

    def forward(self, observation: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scaled = ((observation - self.mean) * torch.rsqrt(self.variance + 1e-5)).clamp(-10.0, 10.0)
        features = self.trunk(scaled)
        return torch.log_softmax(self.policy(features), dim=-1), self.value(features).squeeze(-1)


def get_init_inputs():
    return [376, 17, 256]


def get_inputs():
    return [torch.randn(4096, 376, dtype=torch.bfloat16)]
