"""A precision plan: which linear is stored how. A YAML file a person can read and edit.

    # SITS precision plan
    version: 1
    default: int4-g32            # linears no line below names
    method: rtn                  # rtn or hqq
    layers:
      model.layers.*.self_attn.o_proj: dense
      model.layers.11.mlp.down_proj: fp8

Names are those of the Hugging Face checkpoint. An exact name wins over a pattern; of several patterns the last that
matches wins. ``lm_head`` stays dense unless it is named. q, k and v of a layer, and gate and up, run as one
multiplication: they need the same precision.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import yaml

from sits.errors import InputError
from sits.quant.precision import DENSE, Precision, parse_precision

METHODS = ("rtn", "hqq")
FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


@dataclass(frozen=True)
class PrecisionPlan:
    """``precision_of(name)`` answers for one linear, e.g. ``model.layers.0.mlp.up_proj``."""

    default: Precision
    layers: dict[str, Precision] = field(default_factory=dict)
    method: str = "rtn"

    def precision_of(self, name: str) -> Precision:
        """The precision of a linear by its checkpoint name."""
        if name in self.layers:
            return self.layers[name]
        matches = [precision for pattern, precision in self.layers.items() if fnmatchcase(name, pattern)]
        if matches:
            return matches[-1]
        return DENSE if name.rsplit(".", 1)[-1] == "lm_head" else self.default

    def shared(self, names: Iterable[str]) -> Precision:
        """The one precision of linears that are multiplied together. Raises ``InputError`` when they differ."""
        chosen = {name: self.precision_of(name) for name in names}
        if len(set(chosen.values())) > 1:
            listed = ", ".join(f"{name}: {precision}" for name, precision in chosen.items())
            raise InputError(f"these linears run as one multiplication but differ in precision ({listed})")
        return next(iter(chosen.values()))

    def check_names(self, names: Iterable[str]) -> None:
        """Raise ``InputError`` for a line that matches none of the model's linears (a typo), or a split fusion."""
        known = list(names)
        for pattern in self.layers:
            if pattern not in known and not any(fnmatchcase(name, pattern) for name in known):
                near = known[0] if known else "none"
                raise InputError(f"the plan names {pattern}, which this model does not have", f"A valid name: {near}")
        present = set(known)
        for name in known:
            parent, _, leaf = name.rpartition(".")
            for group in FUSED:
                if leaf == group[0]:
                    self.shared(member for last in group if (member := f"{parent}.{last}") in present)

    def to_yaml(self, comment: str = "") -> str:
        """The file; ``comment`` goes on top."""
        lines = ["# SITS precision plan", *(f"# {line}" for line in comment.splitlines())]
        body: dict[str, Any] = {"version": 1, "default": str(self.default), "method": self.method}
        if self.layers:
            body["layers"] = {name: str(precision) for name, precision in self.layers.items()}
        return "\n".join(lines) + "\n" + yaml.safe_dump(body, sort_keys=False)


def read_plan(path: str | Path) -> PrecisionPlan:
    """Read a plan file. Raises ``InputError`` with the line or key that is wrong."""
    try:
        data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read the plan {path}: {error}") from error
    except yaml.YAMLError as error:
        raise InputError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    return plan_from(data, str(path))


def plan_from(data: Any, where: str = "the plan") -> PrecisionPlan:
    """A plan from parsed YAML."""
    if not isinstance(data, dict):
        raise InputError(f"{where} is not a precision plan", "It needs `version: 1` and `default: <precision>`")
    unknown = set(data) - {"version", "default", "method", "layers"}
    if unknown:
        raise InputError(
            f"{where}: unknown key {sorted(map(str, unknown))[0]!r}", "Keys: version, default, method, layers"
        )
    if data.get("version") != 1:
        raise InputError(f"{where}: version {data.get('version')!r} is not supported", "Write `version: 1`")
    layers = data.get("layers") or {}
    if not isinstance(layers, dict):
        raise InputError(f"{where}: `layers` must map names to precisions")
    method = data.get("method", "rtn")
    if method not in METHODS:
        raise InputError(f"{where}: unknown method {method!r}", f"Choose one of {', '.join(METHODS)}")
    default = data.get("default", "dense")
    return PrecisionPlan(
        parse_precision(str(default)),
        {str(name): parse_precision(str(text)) for name, text in layers.items()},
        method,
    )
