"""Chat templates: Jinja from a model's files, run in a sandbox because model files are not trusted code."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from typing import Any

from sits.errors import InputError, MissingExtraError


class ChatTemplate:
    """A compiled chat template. ``tokens`` are the special tokens it may name (``bos_token``, ``eos_token``)."""

    def __init__(self, source: str, tokens: Mapping[str, str | None] | None = None):
        try:
            import jinja2
            from jinja2.ext import loopcontrols
            from jinja2.sandbox import ImmutableSandboxedEnvironment
        except ImportError as error:
            raise MissingExtraError("Chat templates", "engine") from error
        self.source = source
        self.tokens = {key: value for key, value in (tokens or {}).items() if value is not None}
        self._error = jinja2.TemplateError
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        environment.globals["strftime_now"] = lambda form: datetime.datetime.now().strftime(form)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise InputError(f"the model's chat template is not valid Jinja: {error}") from error

    def render(
        self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True, **variables: Any
    ) -> str:
        """Prompt text of a conversation. ``InputError`` when the template refuses it (e.g. roles out of order)."""
        if not messages:
            raise InputError("messages is empty", "Give at least one message")
        try:
            return self._template.render(
                messages=list(messages), add_generation_prompt=add_generation_prompt, **self.tokens, **variables
            )
        except (self._error, TypeError, KeyError, ValueError) as error:
            raise InputError(f"the model's chat template refused the messages: {error}") from error


def _refuse(message: str) -> None:
    raise ValueError(message)


def _to_json(value: Any, indent: int | None = None, **options: Any) -> str:
    """JSON without HTML escaping, as model templates expect."""
    return json.dumps(value, ensure_ascii=False, indent=indent)
