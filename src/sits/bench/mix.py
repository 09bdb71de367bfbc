"""A mix of workloads: each request is drawn from one of them by weight, reproducibly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sits.bench.client import RequestSpec
from sits.bench.workload import Workload
from sits.errors import InputError
from sits.spec.records import RequestRecord

_BLOCK = 4096


class MixWorkload:
    """``parts``: name -> (weight, workload). The name leads the request id, so that records can be told apart."""

    def __init__(self, parts: Mapping[str, tuple[float, Workload]], seed: int = 0):
        if not parts or any(not weight > 0 for weight, _ in parts.values()):
            raise InputError("a request mix needs at least one part, each with a weight above zero")
        self.names = list(parts)
        self.workloads = [workload for _, workload in parts.values()]
        weights = np.array([weight for weight, _ in parts.values()], dtype=np.float64)
        self.shares = weights / weights.sum()
        self.seed = seed
        self._drawn: dict[int, list[int]] = {}

    def request(self, index: int, phase: str = "measure") -> RequestSpec:
        """Request ``index``: which part it comes from depends on the index alone."""
        block, place = divmod(index, _BLOCK)
        drawn = self._drawn.get(block)
        if drawn is None:
            rng = np.random.default_rng([self.seed, block, 0x313])
            drawn = self._drawn[block] = rng.choice(len(self.names), _BLOCK, p=self.shares).tolist()
        part = drawn[place]
        spec = self.workloads[part].request(index, phase)
        spec.request_id = f"{self.names[part]}/{spec.request_id}"
        return spec

    def follow_up(self, request: RequestSpec, record: RequestRecord) -> tuple[float, RequestSpec] | None:
        """Passed on to the part the request came from."""
        name = request.request_id.partition("/")[0]
        following = self.workloads[self.names.index(name)].follow_up(request, record)
        if following is not None:
            following[1].request_id = f"{name}/{following[1].request_id}"
        return following

    def describe(self) -> dict[str, Any]:
        """For the result."""
        parts = {
            name: {"share": round(float(share), 4), **workload.describe()}
            for name, share, workload in zip(self.names, self.shares, self.workloads)
        }
        return {"kind": "mix", "parts": parts}


def group_of(request_id: str) -> str | None:
    """The part of a mix a record belongs to."""
    name, slash, _ = request_id.partition("/")
    return name if slash else None


def groups(records: Sequence[RequestRecord]) -> dict[str, list[RequestRecord]]:
    """Measured records by part; empty when the workload was no mix."""
    found: dict[str, list[RequestRecord]] = {}
    for record in records:
        name = group_of(record.request_id)
        if name is not None and record.phase == "measure":
            found.setdefault(name, []).append(record)
    return found
