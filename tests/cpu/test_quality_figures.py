"""The quality figures on distributions small enough to work out by hand."""

from __future__ import annotations

import math

import pytest
import torch

from sits.quant.quality import Quality


def test_figures_of_two_known_distributions():
    half, skewed = torch.tensor([0.5, 0.5]).log(), torch.tensor([0.75, 0.25]).log()
    quality = Quality()
    quality.add(half.expand(4, 2), skewed.expand(4, 2), torch.tensor([0, 0, 1, 1]))
    assert quality.tokens == 4
    assert quality.reference_perplexity == pytest.approx(2.0)
    assert quality.perplexity == pytest.approx(1 / math.sqrt(0.75 * 0.25))
    assert quality.kl == pytest.approx(0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25))


def test_logits_may_be_shifted_and_pieces_added():
    torch.manual_seed(0)
    reference, candidate = torch.randn(700, 30), torch.randn(700, 30)
    targets = torch.randint(0, 30, (700,))
    whole, parts = Quality(), Quality()
    whole.add(reference, candidate, targets)
    parts.add(reference[:300] + 5, candidate[:300] - 7, targets[:300])
    parts.add(reference[300:], candidate[300:], targets[300:])
    assert parts.row() == pytest.approx(whole.row(), rel=1e-4)
    assert whole.loss / 700 == pytest.approx(float(torch.nn.functional.cross_entropy(candidate, targets)), rel=1e-5)
    same = Quality()
    same.add(reference, reference, targets)
    assert same.kl == pytest.approx(0.0, abs=1e-7)
    assert same.top1_agreement == 1.0
