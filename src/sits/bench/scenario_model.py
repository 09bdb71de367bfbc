"""What a scenario file may say: its sections, their defaults and limits, and what excludes what."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

Length = Annotated[str, Field(pattern=r"^[a-z0-9.:]+$", description="128, 64..256, normal:128:32, lognormal:128:0.5")]
Positive = Annotated[float, Field(gt=0)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", coerce_numbers_to_str=True)


class TimeoutSettings(_Part):
    """Seconds; null means no limit."""

    connect_s: Positive = 10.0
    request_s: Positive | None = 600.0
    first_token_s: Positive | None = Field(
        default=300.0, description="From sending to the first token: queue and prefill"
    )
    idle_s: Positive | None = Field(default=60.0, description="Between two reads once tokens have begun to come")


class TargetSettings(_Part):
    """Which endpoint, and how to talk to it."""

    endpoint: str | None = None
    api: Literal["chat", "completions", "responses"] = "chat"
    served_model: str | None = None
    api_key_env: str | None = None
    headers: dict[str, str] = {}
    extra_body: dict[str, Any] = Field(default={}, description="Fields added to every request body")
    verify_tls: bool = True
    ca_file: str | None = None
    proxy: str | None = Field(default=None, description="http://host:port; none: never; null: http_proxy and friends")
    keep_alive: bool = True
    compression: bool = Field(default=False, description="Ask for gzip; compressing proxies may hold tokens back")
    chunk_usage: bool = Field(default=False, description="Ask for running usage: exact tokens per chunk")
    keep_text: bool = Field(default=False, description="Keep the answers' text in the records")
    retries: Annotated[int, Field(ge=0, le=100)] = Field(default=3, description="After 429/503 with Retry-After")
    workers: Annotated[int, Field(ge=1, le=256)] | Literal["auto"] = Field(
        default="auto", description="Client processes"
    )
    timeouts: TimeoutSettings = TimeoutSettings()
    scrape_metrics: bool = Field(default=True, description="Read the server's /metrics beside the run")
    tokenizer: str | None = Field(default=None, description="tokenizer.json to cross-check the server's counts with")


class ConversationSettings(_Part):
    """Multi-turn traffic."""

    turns: Length = "2..6"
    user_len: Length = "64"
    output_len: Length = "128"
    think_ms: Length | Literal["0"] = "lognormal:2000:0.8"
    system: Annotated[int, Field(ge=0)] = 0


class TraceSettings(_Part):
    """Replay of a recorded trace."""

    file: str
    speed: Positive = 1.0
    limit: Annotated[int, Field(gt=0)] | None = None
    seconds: Positive | None = Field(default=None, description="Only this much of the trace's own time")


class WorkloadSettings(_Part):
    """What is sent. One of: lengths, ``dataset``, ``conversation``, ``trace``, ``mix``."""

    input_len: Length | None = None
    output_len: Length | None = None
    prefix_len: Annotated[int, Field(ge=0)] = Field(
        default=0, description="Tokens all prompts share (a system prompt)"
    )
    prefixes: Annotated[int, Field(ge=1)] = Field(
        default=1, description="How many different shared prefixes there are"
    )
    dataset: str | None = None
    conversation: ConversationSettings | None = None
    trace: TraceSettings | None = None
    mix: dict[str, MixPart] | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> WorkloadSettings:
        kinds = [name for name in ("dataset", "conversation", "trace", "mix") if getattr(self, name) is not None]
        if kinds and kinds != ["dataset"] and (self.input_len or (self.output_len and kinds != ["mix"])):
            raise ValueError(f"{kinds[0]} brings its own lengths")
        if len(kinds) > 1:
            raise ValueError(f"{' and '.join(kinds)} exclude each other")
        return self

    def kind(self) -> str:
        """synthetic, dataset, conversation, trace or mix."""
        kinds = ("dataset", "conversation", "trace", "mix")
        return next((name for name in kinds if getattr(self, name) is not None), "synthetic")


class MixPart(WorkloadSettings):
    """A part of a request mix."""

    weight: Positive = 1.0

    @model_validator(mode="after")
    def _no_nesting(self) -> MixPart:
        if self.mix is not None or self.trace is not None:
            raise ValueError("a part of a mix cannot be a mix or a trace")
        return self


class SearchSettings(_Part):
    """Find the highest load that meets the SLO, instead of measuring given levels."""

    over: Literal["rate", "concurrency"]
    start: Positive | None = Field(default=None, description="First level; null: what keeps one request in flight")
    limit: Positive = 4096.0
    precision: Annotated[float, Field(ge=0.001, le=1)] = 0.05
    attainment: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.99, description="Share of requests that must meet it"
    )


class LoadSettings(_Part):
    """How hard to press: ``concurrency`` (closed loop), ``rate`` (open loop) or ``search``."""

    concurrency: str | None = Field(default=None, description="1,4,8 or 1..64")
    rate: str | None = Field(default=None, description="Requests per second: 0.5,1,2")
    arrival: str | None = Field(default=None, description="poisson, constant, burst[:SHAPE], ramp")
    requests: Annotated[int, Field(gt=0)] | None = None
    duration_s: Positive | None = None
    search: SearchSettings | None = None

    @model_validator(mode="before")
    @classmethod
    def _lists(cls, data: Any) -> Any:
        if isinstance(data, dict):
            for name in ("concurrency", "rate"):
                if isinstance(data.get(name), list):
                    data = {**data, name: ",".join(str(level) for level in data[name])}
        return data

    @model_validator(mode="after")
    def _one_kind(self) -> LoadSettings:
        if sum(value is not None for value in (self.concurrency, self.rate, self.search)) > 1:
            raise ValueError("give one of concurrency, rate and search")
        if self.requests is not None and self.duration_s is not None:
            raise ValueError("give requests or duration_s, not both")
        return self


class Scenario(_Part):
    """A benchmark."""

    name: str = "scenario"
    description: str = ""
    model: str | None = Field(default=None, description="A model on this machine, instead of target.endpoint")
    target: TargetSettings = TargetSettings()
    workload: WorkloadSettings = WorkloadSettings()
    load: LoadSettings = LoadSettings()
    warmup: Literal["article", "ladder", "none"] | None = None
    slo: dict[Literal["ttft", "itl", "tpot", "e2e"], str] = Field(default={}, description="For example {ttft: 500ms}")
    seed: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    calibration_s: Annotated[float, Field(ge=0, le=60)] | None = Field(
        default=None, description="0: no self-calibration"
    )

    def flags(self) -> dict[str, Any]:
        """What the command line's own flags would be, as their defaults; only those that are set."""
        target, load = self.target, self.load
        plain = self.workload.kind() in ("synthetic", "dataset")
        values = {
            "model": self.model,
            "endpoint": target.endpoint,
            "api": target.api,
            "served_model": target.served_model,
            "api_key_env": target.api_key_env,
            "header": [f"{name}={value}" for name, value in target.headers.items()] or None,
            "concurrency": load.concurrency,
            "rate": load.rate,
            "arrival": load.arrival,
            "requests": load.requests,
            "duration": load.duration_s,
            "input_len": self.workload.input_len if plain else None,
            "output_len": self.workload.output_len if plain else None,
            "dataset": self.workload.dataset,
            "slo": self.slo_text(),
            "warmup": self.warmup,
            "seed": self.seed,
        }
        return {name: value for name, value in values.items() if value is not None}

    def slo_text(self) -> str | None:
        """The objectives as ``--slo`` takes them."""
        return ",".join(f"{name}={bound}" for name, bound in self.slo.items()) or None


WorkloadSettings.model_rebuild()
