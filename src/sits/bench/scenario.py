"""Scenarios: a whole benchmark in one YAML file, strict about what it does not know.

``sits bench -f FILE`` (or the name of a built-in one), ``--init NAME`` prints one to edit, ``--schema`` prints the
JSON schema for editors. Flags given on the command line win over the file.
"""

from __future__ import annotations

import difflib
import json
import os
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sits.errors import InputError

BUILT_IN_FOLDER = Path(__file__).parent / "scenarios"
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)(?::-([^}]*))?\}")

_TAGS = {"str", "int", "float", "bool", "constrained-str", "constrained-int", "constrained-float"}

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


def built_in_names() -> list[str]:
    """Names ``-f`` and ``--init`` know."""
    return sorted(path.stem for path in BUILT_IN_FOLDER.glob("*.yaml"))


def built_in_text(name: str) -> str:
    """The YAML of a built-in scenario. Raises ``InputError`` with the nearest name."""
    names = built_in_names()
    if name not in names:
        near = difflib.get_close_matches(name, names, n=1)
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise InputError(f"no built-in scenario {name!r}", f"{hint}Built in: {', '.join(names)}")
    return (BUILT_IN_FOLDER / f"{name}.yaml").read_text(encoding="utf-8")


def load_scenario(name_or_path: str, environment: dict[str, str] | None = None) -> Scenario:
    """A built-in scenario by name, or a YAML file. Raises ``InputError`` naming the line and what is wrong.

    ``${VAR}`` and ``${VAR:-default}`` in values are replaced from the environment. Relative paths in a file are
    relative to the file.
    """
    path = Path(name_or_path)
    if path.suffix in (".yaml", ".yml", ".json") or path.exists():
        try:
            text = path.read_text(encoding="utf-8-sig")
        except OSError as error:
            raise InputError(f"cannot read scenario {path}: {error.strerror}", _known()) from None
        except UnicodeDecodeError:
            raise InputError(f"scenario {path} is not UTF-8 text") from None
        return parse_scenario(text, str(path), environment, base=path.parent)
    return parse_scenario(built_in_text(name_or_path), name_or_path, environment)


def parse_scenario(
    text: str, where: str, environment: dict[str, str] | None = None, base: Path | None = None
) -> Scenario:
    """A scenario from YAML text; see :func:`load_scenario`."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        raise InputError(f"scenario {where}{line}: not valid YAML: {getattr(error, 'problem', error)}") from None
    except RecursionError:
        raise InputError(f"scenario {where} is nested too deeply") from None
    if not isinstance(data, dict):
        raise InputError(f"scenario {where} must be a mapping", "Print one to start from: sits bench --init chat")
    try:
        data = _substitute(data, os.environ if environment is None else environment, where)
        scenario = Scenario.model_validate(data)
    except ValidationError as error:
        raise InputError(_explain(error, where, node)) from None
    except RecursionError:
        raise InputError(f"scenario {where} refers to itself") from None
    if base is not None:
        _resolve_paths(scenario, base)
    return scenario


def schema_text() -> str:
    """JSON schema of a scenario file."""
    schema = Scenario.model_json_schema()
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=1)


def _known() -> str:
    return f"Give a YAML file or one of {', '.join(built_in_names())}"


def _substitute(value: Any, environment: Any, where: str) -> Any:
    if isinstance(value, dict):
        return {key: _substitute(item, environment, where) for key, item in value.items()}
    if isinstance(value, list):
        return [_substitute(item, environment, where) for item in value]
    if not isinstance(value, str):
        return value

    def replacement(match: re.Match[str]) -> str:
        found = environment.get(match[1], match[2])
        if found is None:
            raise InputError(
                f"scenario {where}: the environment variable {match[1]} is not set", "Or: ${VAR:-default}"
            )
        return str(found)

    return _VARIABLE.sub(replacement, value)


def _explain(error: ValidationError, where: str, node: yaml.Node | None) -> str:
    first = error.errors()[0]
    # The tags of unions (``str``, ``literal[...]``) are pydantic's own and mean nothing to the reader.
    path = [part for part in first["loc"] if not (isinstance(part, str) and (part in _TAGS or "[" in part))]
    line = _line_of(node, path)
    name = ".".join(str(part) for part in path) or "the top level"
    text = first["msg"].removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        known = _fields_at(path[:-1])
        near = difflib.get_close_matches(str(path[-1]), known, n=1)
        text = (
            f"unknown setting; did you mean {near[0]!r}?" if near else f"unknown setting; known: {', '.join(known)}"
        )
    return f"scenario {where}, line {line}: {name}: {text}"


def _fields_at(path: list[Any]) -> list[str]:
    model: type[BaseModel] = Scenario
    for part in path:
        field = model.model_fields.get(str(part))
        if field is None:
            continue
        candidates = [field.annotation, *getattr(field.annotation, "__args__", ())]
        found = [one for one in candidates if isinstance(one, type) and issubclass(one, BaseModel)]
        model = found[0] if found else (MixPart if part == "mix" else model)
    return list(model.model_fields)


def _line_of(node: yaml.Node | None, path: list[Any]) -> int:
    line = 1
    for part in path:
        if isinstance(node, yaml.MappingNode):
            entry = next(((key, value) for key, value in node.value if key.value == str(part)), None)
            if entry is None:
                break
            line, node = entry[0].start_mark.line + 1, entry[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            break
    return line


def _resolve_paths(scenario: Scenario, base: Path) -> None:
    def at(text: str | None) -> str | None:
        return str(base / text) if text else text

    target = scenario.target
    target.ca_file, target.tokenizer = at(target.ca_file), at(target.tokenizer)
    for part in [scenario.workload, *(scenario.workload.mix or {}).values()]:
        part.dataset = at(part.dataset)
        if part.trace is not None:
            part.trace.file = str(base / part.trace.file)
