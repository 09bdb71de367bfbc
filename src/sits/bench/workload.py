"""What is sent: synthetic prompts of exact length, or the prompts of a file.

Every synthetic prompt differs from its first token on, and differs between phases and seeds, so that a prefix
cache cannot answer by accident. Request k of a workload is the same in every run with the same seed.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from sits.bench.client import RequestSpec
from sits.bench.lengths import Lengths
from sits.errors import InputError
from sits.spec.records import RequestRecord

_POOL = 1 << 17
_BLOCK = 4096
_PHASE_SALT = {"measure": 0, "warmup": 1, "cooldown": 2, "probe": 3}

TextMaker = Callable[..., str]  # (tokens, salt[, shared prefix tokens, prefix group])


class Workload(Protocol):
    """A source of requests. ``request`` must be cheap: it runs on the load generator's loop."""

    def request(self, index: int, phase: str = "measure") -> RequestSpec:
        """Request ``index`` (from 0) of a phase."""

    def follow_up(self, request: RequestSpec, record: RequestRecord) -> tuple[float, RequestSpec] | None:
        """The next turn of a conversation and the think time in seconds before it, or ``None``."""

    def describe(self) -> dict[str, Any]:
        """What the result says about it."""


class SyntheticWorkload:
    """Random token ids (``vocab_size`` given), or text made by ``text(tokens, salt)`` for a target without ids.

    ``prefix_len`` tokens at the start of each prompt are shared (a system prompt): by all requests, or by those of
    one of ``prefixes`` groups.
    """

    def __init__(
        self,
        input_len: Lengths,
        output_len: Lengths,
        *,
        vocab_size: int | None = None,
        text: TextMaker | None = None,
        prefix_len: int = 0,
        prefixes: int = 1,
        max_context: int | None = None,
        seed: int = 0,
    ):
        self.input_len, self.output_len, self.prefix_len, self.seed = input_len, output_len, prefix_len, seed
        self.prefixes = max(1, prefixes)
        self._max_context = max_context
        self._text = text
        self._lengths: dict[tuple[str, int], tuple[list[int], list[int]]] = {}
        self.clipped = 0
        self._pool: list[int] = []
        if vocab_size is not None:
            # Special tokens sit at either end of every vocabulary in use; ordinary ones lie between.
            low, high = (vocab_size // 50, vocab_size - vocab_size // 50) if vocab_size > 500 else (0, vocab_size)
            self._pool = np.random.default_rng([seed, 0x7001]).integers(low, high, _POOL).tolist()
            self._low, self._span = low, high - low
        elif text is None:
            raise ValueError("a synthetic workload needs vocab_size or a text maker")

    def request(self, index: int, phase: str = "measure") -> RequestSpec:
        tokens, output = self.lengths(index, phase)
        return self.exact(tokens, index, phase, output)

    def exact(self, tokens: int, index: int, phase: str, output: int = 1) -> RequestSpec:
        """A request of exactly these lengths whose prompt is unlike that of any other (index, phase)."""
        salt = (index << 2 | _PHASE_SALT.get(phase, 3)) + (self.seed << 32)
        spec = RequestSpec(f"{phase}-{index}", output, prompt_tokens=tokens, seed=self.seed)
        # A multiplicative hash, so that the groups do not come in turn.
        group = (index * 2654435761 >> 8) % self.prefixes
        if self._pool:
            spec.prompt_ids = self._ids(tokens, salt, group)
        else:
            assert self._text is not None
            shared = (self.prefix_len, group) if self.prefix_len else ()
            spec.prompt = self._text(tokens, salt, *shared)
        return spec

    def lengths(self, index: int, phase: str = "measure") -> tuple[int, int]:
        """(prompt, output) tokens of a request."""
        block, place = divmod(index, _BLOCK)
        drawn = self._lengths.get((phase, block))
        if drawn is None:
            rng = np.random.default_rng([self.seed, block, _PHASE_SALT.get(phase, 3)])
            drawn = self.input_len.draw(rng, _BLOCK).tolist(), self.output_len.draw(rng, _BLOCK).tolist()
            self._lengths[phase, block] = drawn
        tokens, output = drawn[0][place], drawn[1][place]
        if self._max_context is not None and tokens + output > self._max_context:
            self.clipped += 1
            output = min(output, max(1, self._max_context - 1))
            tokens = self._max_context - output
        return tokens, output

    def follow_up(self, request: RequestSpec, record: RequestRecord) -> tuple[float, RequestSpec] | None:
        return None

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "synthetic",
            "input_len": str(self.input_len),
            "output_len": str(self.output_len),
            "prefix_len": self.prefix_len,
            "prefixes": self.prefixes,
            "prompts": "random token ids" if self._pool else "text",
        }

    def _ids(self, tokens: int, salt: int, group: int = 0) -> list[int]:
        # A Weyl step scatters the start; the first tokens spell the salt, so no two prompts share a first block.
        start = (salt * 0x9E3779B97F4A7C15 >> 7) % (_POOL - 1)
        ids = self._pool[start : start + tokens]
        while len(ids) < tokens:
            ids += self._pool[: tokens - len(ids)]
        place = min(self.prefix_len, max(0, tokens - 1))
        if place:
            begin = group * 8191 % max(1, _POOL - place)
            ids[:place] = (self._pool[begin:] + self._pool)[:place]
        rest = salt
        while place < tokens:
            rest, digit = divmod(rest, self._span)
            ids[place] = self._low + digit
            place += 1
            if rest == 0:
                break
        return ids


class DatasetWorkload:
    """Prompts of a file, in order, and again from the start when they run out.

    ``.txt``: a prompt a line. ``.jsonl``/``.json``: objects with ``prompt`` (or ``text``, ``question``,
    ``instruction``) or ``messages``, and optionally ``output_tokens`` (or ``max_tokens``, ``output_len``).
    """

    def __init__(self, path: Path, output_len: Lengths, *, seed: int = 0):
        self.path, self.output_len, self.seed = path, output_len, seed
        self.rows = read_dataset(path)
        self._outputs = output_len.draw(np.random.default_rng([seed, 0xDA7A]), max(1, len(self.rows))).tolist()
        self.reused = False

    def request(self, index: int, phase: str = "measure") -> RequestSpec:
        count = len(self.rows)
        self.reused |= phase == "measure" and index >= count
        # Warm-up walks from the end, so that it does not fill a cache with what is measured first.
        place = index % count if phase == "measure" else (count - 1 - index % count)
        row = self.rows[place]
        return RequestSpec(
            f"{phase}-{index}",
            row["max_tokens"] or self._outputs[place],
            prompt=row["prompt"],
            messages=row["messages"],
            ignore_eos=row["max_tokens"] is None,
            seed=self.seed,
        )

    def follow_up(self, request: RequestSpec, record: RequestRecord) -> tuple[float, RequestSpec] | None:
        return None

    def describe(self) -> dict[str, Any]:
        return {
            "kind": "dataset",
            "file": self.path.name,
            "prompts": len(self.rows),
            "output_len": str(self.output_len),
            "reused": self.reused,
        }


def read_dataset(path: Path) -> list[dict[str, Any]]:
    """Rows ``{prompt, messages, max_tokens}`` of a dataset file. Raises ``InputError`` naming the line."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot read dataset {path}: {error.strerror}", "Give a .jsonl or .txt file") from None
    except UnicodeDecodeError:
        raise InputError(f"dataset {path} is not UTF-8 text", "Give a .jsonl or .txt file") from None
    if path.suffix == ".json":
        try:
            whole = json.loads(text)
        except (json.JSONDecodeError, RecursionError) as error:
            raise InputError(f"dataset {path} is not valid JSON: {error}") from None
        objects = list(enumerate(whole if isinstance(whole, list) else [whole], start=1))
    elif path.suffix == ".jsonl":
        objects = []
        for number, line in enumerate(text.splitlines(), start=1):
            if line.strip():
                try:
                    objects.append((number, json.loads(line)))
                except (json.JSONDecodeError, RecursionError) as error:
                    raise InputError(f"dataset {path}, line {number}: not valid JSON: {error}") from None
    else:
        objects = [(k, {"prompt": line}) for k, line in enumerate(text.splitlines(), start=1) if line.strip()]
    rows = [_row(path, number, item) for number, item in objects]
    if not rows:
        raise InputError(f"dataset {path} holds no prompt", "Write one prompt a line, or JSON lines with a prompt")
    return rows


def _row(path: Path, number: int, item: Any) -> dict[str, Any]:
    where = f"dataset {path}, entry {number}"
    if isinstance(item, str):
        item = {"prompt": item}
    if not isinstance(item, dict):
        raise InputError(f"{where}: expected an object", 'Write {"prompt": "..."} or {"messages": [...]}')
    prompt = next(
        (item[k] for k in ("prompt", "text", "question", "instruction") if isinstance(item.get(k), str)), ""
    )
    messages = item.get("messages")
    if messages is not None and not (
        isinstance(messages, list) and messages and all(isinstance(m, dict) and "role" in m for m in messages)
    ):
        raise InputError(f"{where}: messages must be a list of objects with a role")
    if not prompt and messages is None:
        raise InputError(f"{where}: no prompt", 'Write {"prompt": "..."} or {"messages": [...]}')
    wanted = next((item[k] for k in ("output_tokens", "max_tokens", "output_len") if item.get(k) is not None), None)
    if wanted is not None and (isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1):
        raise InputError(f"{where}: the output length must be a whole number of at least 1, not {wanted!r}")
    return {"prompt": None if messages else prompt, "messages": messages, "max_tokens": wanted}
