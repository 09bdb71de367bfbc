"""``--quick``: about a minute in all on any machine, by measuring the speed first and cutting to fit.

What is cut is said in the result. A slow machine gets shorter prompts and answers, never fewer than the
requests three rounds need.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from sits.bench.client import Client
from sits.bench.lengths import Lengths
from sits.bench.workload import SyntheticWorkload
from sits.errors import SitsError

TOTAL_S = 55.0
CONCURRENCY = (1, 4, 8)
INPUT_LEN, OUTPUT_LEN = 128, 64
_SHORTEST_INPUT, _SHORTEST_OUTPUT = 32, 16
_REQUESTS_PER_CALLER = 6  # what a point should hold at least: two a round
_PROBE_TOKENS = 9


@dataclass(slots=True)
class QuickPlan:
    """What ``--quick`` decided: seconds for each point, lengths, and the warm-up's share."""

    seconds_per_point: float
    warmup_s: float
    input_len: Lengths
    output_len: Lengths
    probe: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


async def probe_speed(client: Client, workload: SyntheticWorkload, input_len: int) -> tuple[float, float]:
    """(seconds per prompt token, seconds per output token) of a lone request, the second of two."""
    result = (0.0, 0.0)
    for index in range(2):  # the first one pays for what is lazy
        spec = workload.exact(input_len, index, "probe", _PROBE_TOKENS)
        record = await client.send(spec, time.monotonic_ns())
        times = record.chunk_times_ns
        if not record.ok or not times:
            raise SitsError(f"the probe request failed: {record.error or 'no token came back'}")
        decode = (times[-1] - times[0]) / 1e9 / max(1, record.output_tokens - 1)
        result = times[0] / 1e9 / input_len, decode
    return result


def plan_quick(
    per_prompt_token: float,
    per_output_token: float,
    points: int,
    *,
    input_len: Lengths | None,
    output_len: Lengths | None,
    spent_s: float,
) -> QuickPlan:
    """Fit ``points`` load levels into what is left of the minute. Lengths the user gave are kept."""
    left = max(12.0, TOTAL_S - spent_s)
    warmup = 0.1 * left
    # A fifth goes to the ramp before a point and the drain after it.
    seconds = 0.8 * (left - warmup) / max(1, points)
    prompt = int(input_len.mean) if input_len else INPUT_LEN
    answer = int(output_len.mean) if output_len else OUTPUT_LEN
    notes = []

    def fits() -> bool:
        return _REQUESTS_PER_CALLER * (prompt * per_prompt_token + answer * per_output_token) <= seconds

    while output_len is None and answer > _SHORTEST_OUTPUT and not fits():
        answer = max(_SHORTEST_OUTPUT, answer * 3 // 4)
    while input_len is None and prompt > _SHORTEST_INPUT and not fits():
        prompt = max(_SHORTEST_INPUT, prompt // 2)
    if output_len is None and answer < OUTPUT_LEN:
        notes.append(f"quick: answers cut from {OUTPUT_LEN} to {answer} tokens to fit a minute")
    if input_len is None and prompt < INPUT_LEN:
        notes.append(f"quick: prompts cut from {INPUT_LEN} to {prompt} tokens to fit a minute")
    if not fits():
        notes.append("quick: this machine is slow for this model; a point holds few requests")
    return QuickPlan(
        seconds_per_point=round(seconds, 2),
        warmup_s=round(warmup, 2),
        input_len=input_len or Lengths("fixed", prompt),
        output_len=output_len or Lengths("fixed", answer),
        probe={
            "prompt_tokens_per_s": 1 / max(1e-9, per_prompt_token),
            "tokens_per_s": 1 / max(1e-9, per_output_token),
        },
        notes=notes,
    )
