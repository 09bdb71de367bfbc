"""Synthetic prompt text for targets that take no token ids: plain words, no two prompts with the same start."""

from __future__ import annotations

from sits.bench.workload import TextMaker

TOKENS_PER_WORD = 1.0  # short common words are one token each in the vocabularies in use
_WORDS = (  # noqa: SIM905
    "time year way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room "
    "mother area money story fact month lot right study book eye job word business issue side kind head house "
    "service friend father power hour game line end member law car city community name president team minute "
    "idea kid body back parent face others level office door health person art war history party result change "
    "morning reason research girl guy moment air teacher force education foot boy age policy process music "
    "market sense nation plan college interest death experience effect use class control field development role "
    "effort rate heart drug show leader light voice wife police mind price report decision son view "
    "relationship town road arm difference value building "
).split()


def word_prompts(tokens_per_word: float = TOKENS_PER_WORD) -> TextMaker:
    """A maker of prompts of about ``tokens`` tokens; the same salt gives the same text."""

    def make(tokens: int, salt: int) -> str:
        count = max(1, round(tokens / tokens_per_word))
        words: list[str] = []
        state = (salt * 0x9E3779B97F4A7C15 + 0x2545F4914F6CDD1D) & (2**64 - 1)
        rest, size = salt, len(_WORDS)
        while len(words) < count:
            if rest:  # the salt first, spelled in words
                rest, digit = divmod(rest, size)
                words.append(_WORDS[digit])
                continue
            state = (state * 6364136223846793005 + 1442695040888963407) & (2**64 - 1)
            words.append(_WORDS[(state >> 33) % size])
        return " ".join(words)

    return make
