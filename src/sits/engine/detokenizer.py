"""Token by token to text: never half a character, never the beginning of a stop string.

A character may span tokens, and a decoder writes U+FFFD for what is incomplete, so a trailing run of U+FFFD is
held back until it is known what it becomes. Text that could still grow into a stop string is held back too.
It knows only a ``decode`` function, so any tokenizer works.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

REPLACEMENT = "\ufffd"
_CONTEXT = 8  # tokens before a window that keep its first characters right (leading spaces, joined bytes)
_WINDOW = 40  # a window is shortened when it grows past this, so that a step stays O(1)
_PATIENCE = 16  # more tokens than any character has: these bytes are meant to be invalid

Decode = Callable[[Sequence[int]], str]


class IncrementalDetokenizer:
    """Text of a growing list of tokens. ``text`` is what may be shown so far."""

    def __init__(self, decode: Decode, stop: Sequence[str] = (), context: Sequence[int] = ()):
        """``context`` are the tokens before the first one (the end of the prompt); they are not part of the text."""
        self.text = ""
        self.stopped = False  # a stop string was found; ``text`` ends before it
        self._decode = decode
        self._stop = tuple(stop)
        self._longest_stop = max(map(len, self._stop), default=0)
        self._window, text = _whole_tail(decode, context)
        self._emitted = len(text.rstrip(REPLACEMENT))
        self._held = ""  # decoded, but may be the beginning of a stop string
        self._taken = 0
        self._waiting = 0  # tokens since the text last ended in a whole character

    def push(self, token: int, *, match_stop: bool = True) -> None:
        """Add one token. With ``match_stop=False`` stop strings are not looked for yet."""
        if self.stopped:
            return
        self._window.append(token)
        whole = self._decode(self._window)
        ready = whole.rstrip(REPLACEMENT)
        self._waiting = 0 if len(ready) == len(whole) else self._waiting + 1
        if self._waiting > _PATIENCE:
            ready = whole[:-_PATIENCE]
        if len(ready) > self._emitted:
            piece = ready[self._emitted :]
            self._emitted = len(ready)
            self._release(piece, match_stop)
        if len(self._window) >= _WINDOW and len(ready) == len(whole):
            self._shorten()

    def finish(self) -> None:
        """No more tokens: whatever is held back is text after all."""
        if not self.stopped:
            whole = self._decode(self._window) if self._window else ""
            self._release(whole[self._emitted :], True)
            self._emitted = max(self._emitted, len(whole))
            if not self.stopped:
                self.text += self._held
        self._held = ""

    def take(self) -> str:
        """The part of ``text`` that was not taken before."""
        piece = self.text[self._taken :]
        self._taken = len(self.text)
        return piece

    def _release(self, piece: str, match_stop: bool) -> None:
        if not self._stop or not match_stop:
            self.text += self._held + piece
            self._held = ""
            return
        pending = self._held + piece
        # The stop string that is complete first wins, so it does not matter how the text was cut into tokens.
        found = [(index + len(stop), index) for stop in self._stop if (index := pending.find(stop)) >= 0]
        if found:
            self.text += pending[: min(found)[1]]
            self._held = ""
            self.stopped = True
            return
        keep = 0
        for length in range(min(len(pending), self._longest_stop - 1), 0, -1):
            if any(stop.startswith(pending[-length:]) for stop in self._stop):
                keep = length
                break
        self.text += pending[: len(pending) - keep]
        self._held = pending[len(pending) - keep :]

    def _shorten(self) -> None:
        """Forget old tokens at a place where no character is cut."""
        tail, text = _whole_tail(self._decode, self._window)
        if len(tail) < len(self._window):
            self._window, self._emitted = tail, len(text)


def detokenize(decode: Decode, tokens: Sequence[int], context: Sequence[int] = ()) -> str:
    """Text of all ``tokens`` at once, the same as pushing them one by one without stop strings."""
    head, text = _whole_tail(decode, context)
    return decode([*head, *tokens])[len(text.rstrip(REPLACEMENT)) :]


def _whole_tail(decode: Decode, tokens: Sequence[int]) -> tuple[list[int], str]:
    """A short end of ``tokens`` that begins with a whole character, and its text."""
    for size in range(min(_CONTEXT, len(tokens)), min(_WINDOW, len(tokens)) + 1):
        tail = list(tokens[len(tokens) - size :])
        text = decode(tail) if tail else ""
        if not text.startswith(REPLACEMENT):
            return tail, text
    return list(tokens[-_WINDOW:]), decode(tokens[-_WINDOW:])
