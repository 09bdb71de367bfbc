"""Prompts of a wanted token length without a tokenizer: how many tokens a word is, the server's usage tells.

Two probes of different length give ``tokens = overhead + per_word * words``: the overhead is the chat template.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

# Short, common words: nearly all are one token in the vocabularies in use, so the straight line fits well.
_TEXT = """
the of and to in is you that it he was for on are as with his they at be this have from or one had by word but
not what all were we when your can said there use an each which she do how their if will up other about out many
then them these so some her would make like him into time has look two more write go see number no way could
people my than first water been call who oil its now find long down day did get come made may part over new
sound take only little work know place year live me back give most very after thing our just name good sentence
man think say great where help through much before line right too mean old any same tell boy follow came want
show also around form three small set put end does another well large must big even such because turn here why
ask went men read need land different home us move try kind hand picture again change off play spell air away
animal house point page letter mother answer found study still learn should world high every near add food
between own below country plant last school father keep tree never start city earth eye light thought head under
story saw left few while along might close something seem next hard open example begin life always those both
paper together got group often run
"""
_WORDS = tuple(_TEXT.split())
_POOL = 1 << 16


@dataclass(slots=True)
class WordText:
    """Makes text of about ``tokens`` tokens, different from its first word on for every salt.

    ``prefix`` tokens at the start are the same for every salt of a ``group`` (a shared system prompt).
    """

    overhead: float = 0.0
    per_word: float = 1.0
    seed: int = 0
    calibrated: bool = False
    _pool: list[str] = field(default_factory=list)

    def __call__(self, tokens: int, salt: int, prefix: int = 0, group: int = 0) -> str:
        """Text for a prompt of ``tokens`` tokens, template included; at least one word."""
        if not self._pool:
            chosen = np.random.default_rng([self.seed, 0x30D5]).integers(0, len(_WORDS), _POOL)
            self._pool = [_WORDS[k] for k in chosen.tolist()]
        count = self.words(tokens)
        shared = min(self.words(prefix), count) if prefix else 0
        own = count - shared
        start = (salt * 0x9E3779B97F4A7C15 >> 9) % (_POOL - 1)
        words = self._pool[start : start + own]
        while len(words) < own:
            words += self._pool[: own - len(words)]
        rest = salt
        for place in range(own):
            # The salt as digits, spelt in words: no two prompts begin alike.
            rest, digit = divmod(rest, len(_WORDS))
            words[place] = _WORDS[digit]
            if rest == 0:
                break
        begin = group * 8191 % _POOL
        return " ".join((self._pool[begin:] + self._pool)[:shared] + words if shared else words)

    def without_overhead(self) -> WordText:
        """A maker for parts of a prompt: the template is counted once, elsewhere."""
        return replace(self, overhead=0.0)

    def words(self, tokens: int) -> int:
        """Words that make ``tokens`` tokens."""
        return max(1, round((tokens - self.overhead) / self.per_word))


def fit(points: list[tuple[int, int]], seed: int = 0) -> WordText | None:
    """A calibrated maker from ``(words, prompt tokens)`` of two probes; None when they make no sense."""
    (short, low), (long, high) = points
    per_word = (high - low) / (long - short)
    if not 0.2 < per_word < 12:
        return None
    return WordText(low - per_word * short, per_word, seed, calibrated=True)
