"""The router of a mixture-of-experts layer: scores, top-k experts a token, normalised weights and the balance loss."""

import torch
from torch import nn


class TopKGating(nn.Module):
    def __init__(self, width: int, experts: int, k: int) -> None:
        super().__init__()
        self.experts = experts
        self.k = k
        self.score = nn.Linear(width, experts, bias=False)

    def forward(self, tokens: torch.Tensor):
        """Weights `(tokens, k)`, expert indices `(tokens, k)`, and the load-balance loss."""
        probabilities = nn.functional.softmax(self.score(tokens), dim=-1)
        weights, chosen = torch.topk(probabilities, self.k, dim=-1)
        weights = weights / weights.sum(dim=-1, keepdim=True)
        used = nn.functional.one_hot(chosen, self.experts).float().sum(dim=1).mean(dim=0)
        balance = self.experts * (used * probabilities.mean(dim=0)).sum()
        return weights, chosen, balance


def get_init_inputs():
    return [1024, 64, 2]


def get_inputs():
    return [torch.randn(8192, 1024)]
