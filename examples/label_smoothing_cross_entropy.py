"""Cross-entropy with label smoothing over a large vocabulary, padding left out: a language model's loss."""

import torch
from torch import nn


class LabelSmoothingCrossEntropy(nn.Module):
    def __init__(self, smoothing: float = 0.1, padding: int = 0) -> None:
        super().__init__()
        self.smoothing = smoothing
        self.padding = padding

    def forward(self, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        log_probabilities = nn.functional.log_softmax(logits, dim=-1)
        picked = -log_probabilities.gather(-1, target.unsqueeze(-1)).squeeze(-1)
        smooth = -log_probabilities.mean(dim=-1)
        loss = (1.0 - self.smoothing) * picked + self.smoothing * smooth
        kept = target != self.padding
        return (loss * kept).sum() / kept.sum().clamp(min=1)


def get_init_inputs():
    return [0.1, 0]


def get_inputs():
    tokens, vocabulary = 4096, 32_000
    return [torch.randn(tokens, vocabulary), torch.randint(0, vocabulary, (tokens,))]
