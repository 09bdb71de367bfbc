"""The options of ``sits bench`` as values, checked against each other before anything starts."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from sits.bench.arrivals import Arrivals
from sits.bench.lengths import Lengths
from sits.bench.load import Load
from sits.bench.scenario import Scenario, SearchSettings
from sits.bench.sweep import parse_concurrency, parse_levels
from sits.errors import InputError
from sits.spec.slo import parse_slo

DEFAULT_DURATION_S = 30.0
SEARCH = "max"  # a level that means: search for the highest one that meets the SLO
DEFAULT_INPUT_LEN, DEFAULT_OUTPUT_LEN = "128", "128"


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What the command line said; texts as given. :meth:`check` raises ``InputError`` on the first fault."""

    model: str | None = None
    endpoint: str | None = None
    api: str = "chat"
    served_model: str | None = None
    api_key_env: str | None = None
    header: tuple[str, ...] = ()
    concurrency: str | None = None
    rate: str | None = None
    arrival: str | None = None
    requests: int | None = None
    duration: float | None = None
    input_len: str | None = None
    output_len: str | None = None
    dataset: Path | None = None
    slo: str | None = None
    warmup: str = "ladder"
    dtype: str = "auto"
    quantization: str | None = None
    out: Path | None = None
    json_to: str | None = None
    seed: int = 0
    quick: bool = False
    scenario: Scenario | None = None
    command: list[str] = field(default_factory=list)

    def check(self) -> None:
        """Everything that can be said without a target."""
        if (self.model is None) == (self.endpoint is None):
            raise InputError(
                "give either --model or --endpoint" + ("" if self.model is None else ", not both"),
                "For example: sits bench --model smollm2-135m, or --endpoint http://127.0.0.1:8000",
            )
        for name, value in (("--served-model", self.served_model), ("--api-key-env", self.api_key_env)):
            if value is not None and self.endpoint is None:
                raise InputError(f"{name} only makes sense with --endpoint")
        if self.header and self.endpoint is None:
            raise InputError("--header only makes sense with --endpoint")
        if self.endpoint is not None and (self.dtype != "auto" or self.quantization is not None):
            raise InputError("--dtype and --quantization only make sense with --model: an endpoint has its own")
        if self.concurrency is not None and self.rate is not None:
            raise InputError(
                "--concurrency and --rate exclude each other", "A closed loop waits, an open loop does not"
            )
        if self.arrival is not None and self.rate is None:
            raise InputError("--arrival needs --rate")
        if self.requests is not None and self.duration is not None:
            raise InputError("give --requests or --duration, not both")
        if self.dataset is not None and self.input_len is not None:
            raise InputError("--input-len and --dataset exclude each other", "A dataset brings its own prompts")
        if self.is_trace() and (self.rate or self.concurrency or self.search_settings()):
            raise InputError("a trace brings its own arrivals", "Leave out --concurrency, --rate and search")
        if self.scenario is not None and self.scenario.workload.kind() != "synthetic":
            given = "--input-len" if self.input_len else "--output-len" if self.output_len else None
            if given is not None and self.dataset is None and self.scenario.workload.kind() != "dataset":
                raise InputError(f"{given} does not fit a scenario of kind {self.scenario.workload.kind()}")
        objectives = self.objectives()
        if self.search_settings() is not None and not objectives:
            raise InputError(
                "a search for the highest load needs objectives", "For example --slo ttft=500ms,itl=50ms"
            )
        if self.search_settings() is not None and self.quick:
            raise InputError("--quick measures fixed load levels and cannot search", "Leave one of them out")
        self.lengths()
        if not self.is_trace() and self.search_settings() is None:
            self.loads(1.0)
        self.api_key()
        self.headers()

    def objectives(self) -> dict[str, float]:
        return parse_slo(self.slo)

    def lengths(self) -> tuple[Lengths, Lengths]:
        """(prompt, answer) lengths with defaults filled in."""
        return (
            Lengths.parse(self.input_len or DEFAULT_INPUT_LEN, "--input-len"),
            Lengths.parse(self.output_len or DEFAULT_OUTPUT_LEN, "--output-len"),
        )

    def search_settings(self) -> SearchSettings | None:
        """The search that ``--rate max``, ``--concurrency max`` or the scenario asks for."""
        found = self.scenario.load.search if self.scenario is not None else None
        if self.rate == SEARCH:
            return SearchSettings(over="rate")
        if self.concurrency == SEARCH:
            return SearchSettings(over="concurrency")
        return found if self.rate is None and self.concurrency is None else None

    def is_trace(self) -> bool:
        """A recorded trace is replayed."""
        return self.scenario is not None and self.scenario.workload.trace is not None

    def open_loop(self) -> bool:
        """Requests are due at their times, whether or not earlier ones have been answered."""
        search = self.search_settings()
        return self.is_trace() or self.rate is not None or (search is not None and search.over == "rate")

    def needs_text(self) -> bool:
        """A later request repeats an earlier answer."""
        workload = self.scenario.workload if self.scenario is not None else None
        parts = [workload, *(workload.mix or {}).values()] if workload is not None else []
        return any(part.conversation is not None for part in parts)

    def seconds(self) -> float | None:
        """How long a load level lasts; None when requests are counted instead."""
        return self.duration if self.requests is not None or self.duration is not None else DEFAULT_DURATION_S

    def levels(self, default: str = "1") -> list[float]:
        """Concurrency levels, or rates in open loop; a search's first level."""
        search = self.search_settings()
        if search is not None:
            return [search.start or 1.0]
        if self.rate is not None:
            return parse_levels(self.rate, "rate")
        return [float(level) for level in parse_concurrency(self.concurrency or default)]

    def loads(self, duration_s: float | None = None, default_levels: str = "1") -> list[Load]:
        """The load levels in ascending order; ``duration_s`` where neither --requests nor --duration was given."""
        seconds = self.duration
        if self.requests is None and seconds is None:
            seconds = duration_s or DEFAULT_DURATION_S
        levels = self.levels(default_levels)
        if self.rate is not None:
            ramp = 0.5 * seconds if seconds else 30.0
            processes = [Arrivals.parse(self.arrival or "poisson", level, ramp) for level in levels]
            return [Load("open", arrivals=one, requests=self.requests, duration_s=seconds) for one in processes]
        return [
            Load("closed", concurrency=int(level), requests=self.requests, duration_s=seconds) for level in levels
        ]

    def api_key(self) -> str | None:
        """The key from the environment: a key on the command line would end up in results and shell histories."""
        if self.api_key_env is None:
            return None
        key = os.environ.get(self.api_key_env)
        if not key:
            raise InputError(f"the environment variable {self.api_key_env} is not set", "It must hold the API key")
        return key

    def headers(self) -> dict[str, str]:
        """``K=V`` pairs as a mapping."""
        pairs = {}
        for text in self.header:
            name, equals, value = text.partition("=")
            if not equals or not name.strip():
                raise InputError(f"cannot read the header {text!r}", "Write --header Name=value")
            pairs[name.strip()] = value.strip()
        return pairs
