"""Errors a user can act on. Every room may import this file; it imports nothing."""

from __future__ import annotations


class SitsError(Exception):
    """Something went wrong while running (exit code 1). The text says what, why, and what to do."""

    exit_code = 1

    def __init__(self, message: str, hint: str | None = None):
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message


class InputError(SitsError):
    """Wrong usage, a bad file or an impossible request (exit code 2)."""

    exit_code = 2


class UntrustedResultError(SitsError):
    """The run ended but its figures cannot be trusted, or there are none (exit code 3)."""

    exit_code = 3


class MissingExtraError(InputError):
    """A feature needs an optional dependency group that is not installed."""

    def __init__(self, what: str, extra: str):
        super().__init__(f"{what} needs packages that are not installed", f"Run: pip install 'sits-llm[{extra}]'")
