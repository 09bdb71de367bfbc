"""How far a quantised model is from the original on the same tokens: perplexity, KL divergence, agreement."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

_ROWS = 256  # rows compared at a time: bounds the float32 temporaries to a few hundred MB for any vocabulary


@dataclass
class Quality:
    """Sums over tokens; the properties are per token. ``loss`` and ``divergence`` in nats."""

    tokens: int = 0
    loss: float = 0.0
    reference_loss: float = 0.0
    divergence: float = 0.0
    agreeing: int = 0

    @property
    def perplexity(self) -> float:
        """exp of the mean loss."""
        return math.exp(self.loss / self.tokens)

    @property
    def reference_perplexity(self) -> float:
        """The original's."""
        return math.exp(self.reference_loss / self.tokens)

    @property
    def kl(self) -> float:
        """Mean KL(original || quantised), nats per token."""
        return self.divergence / self.tokens

    @property
    def top1_agreement(self) -> float:
        """Share of positions where both put the same token first."""
        return self.agreeing / self.tokens

    def add(self, reference: torch.Tensor, candidate: torch.Tensor, targets: torch.Tensor) -> None:
        """Count logits [T, V] of both models for target ids [T]."""
        for start in range(0, len(targets), _ROWS):
            rows = slice(start, start + _ROWS)
            p, q = reference[rows].float().log_softmax(-1), candidate[rows].float().log_softmax(-1)
            wanted = targets[rows].unsqueeze(1)
            self.tokens += len(wanted)
            self.loss -= float(q.gather(1, wanted).sum())
            self.reference_loss -= float(p.gather(1, wanted).sum())
            self.divergence += float((p.exp() * (p - q)).sum())
            self.agreeing += int((p.argmax(-1) == q.argmax(-1)).sum())

    def row(self) -> dict[str, float]:
        """For a table."""
        return {
            "perplexity": round(self.perplexity, 4),
            "perplexity_change": round(self.perplexity / self.reference_perplexity - 1, 6),
            "kl": round(self.kl, 6),
            "top1_agreement": round(self.top1_agreement, 4),
            "tokens": self.tokens,
        }
