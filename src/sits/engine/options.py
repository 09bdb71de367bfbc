"""What an engine can be told, in one place, and how the parts are put together."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sits.cache.block_pool import BlockPool
from sits.engine.event_log import DEFAULT_CAPACITY, EventLog
from sits.engine.scheduler import Scheduler
from sits.engine.scheduler_config import SchedulerConfig
from sits.errors import InputError
from sits.policy.queue_order import QueueOrder
from sits.policy.token_budget import TokenBudget
from sits.policy.victim_choice import VictimChoice

if TYPE_CHECKING:
    from sits.engine.core import EngineCore
    from sits.engine.runner import Runner, RunnerConfig
    from sits.models.model import CausalModel


@dataclass(frozen=True, kw_only=True)
class EngineOptions:
    """Options of an engine; ``None`` means chosen for the device. Sizes in tokens unless they say blocks."""

    dtype: str = "auto"  # float32 on a CPU, bfloat16 on a GPU
    device: str = "auto"
    quantization: str | None = None  # int4-g32, fp8, a plan file, ...; None keeps what the checkpoint has
    max_model_len: int | None = None  # None: all the model has
    kv_blocks: int | None = None  # None: from free memory
    block_size: int = 16
    kv_dtype: str = "auto"  # auto | int8 | fp8
    int4_prefill: str | None = None  # exact | fp8: long prompts of an INT4 model in FP8 arithmetic (Hopper)
    max_running: int | None = None  # requests in one step; None: 16 on a CPU, 256 on a GPU
    max_step_tokens: int | None = None  # None: 512 on a CPU, 2048 on a GPU
    max_waiting: int = 100_000
    watermark: float = 0.02  # share of the blocks kept for running requests to grow into
    prefix_caching: bool = True
    cuda_graphs: bool = True
    overlap: bool | None = None  # hand over a step while the one before it runs; None: on a GPU
    memory_share: float = 0.9  # of a GPU's memory
    seed: int = 0  # for requests without a seed of their own
    event_log: bool = True
    event_capacity: int = DEFAULT_CAPACITY
    budget: TokenBudget | None = field(default=None, compare=False)
    order: QueueOrder | None = field(default=None, compare=False)
    victims: VictimChoice | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for name in ("max_model_len", "kv_blocks", "block_size", "max_running", "max_step_tokens", "max_waiting"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InputError(f"{name} must be a whole number of at least 1, not {value!r}")
        if self.int4_prefill not in (None, "exact", "fp8"):
            raise InputError(f"int4_prefill must be exact or fp8, not {self.int4_prefill!r}")
        if not 0 < self.memory_share <= 1:
            raise InputError(f"memory_share must be above 0 and at most 1, not {self.memory_share}")


def runner_config(options: EngineOptions, device: str, max_context: int) -> RunnerConfig:
    """The sizes of an engine on a type of device. ``max_context`` is the model's limit.

    Raises ``InputError`` for a longer ``max_model_len``.
    """
    from sits.engine.runner import RunnerConfig

    max_model_len = options.max_model_len or max_context
    if max_model_len > max_context:
        raise InputError(
            f"max_model_len is {max_model_len}, but the model has a context of {max_context}", "Lower max_model_len"
        )
    max_running = options.max_running or (16 if device == "cpu" else 256)
    return RunnerConfig(
        block_size=options.block_size,
        max_running=max_running,
        max_step_tokens=options.max_step_tokens or max(512 if device == "cpu" else 2048, max_running),
        max_model_len=max_model_len,
        kv_blocks=options.kv_blocks,
        kv_dtype=options.kv_dtype,
        memory_share=options.memory_share,
        cuda_graphs=options.cuda_graphs,
        overlap=device != "cpu" if options.overlap is None else options.overlap,
    )


def build_core(model: CausalModel, options: EngineOptions, max_context: int) -> tuple[EngineCore[Runner], list[str]]:
    """An engine around a loaded model, and notes on what was adjusted. ``max_context`` is the model's limit."""
    from sits.engine.core import EngineCore
    from sits.engine.runner import Runner

    on_cpu = model.device.type == "cpu"
    sizes = runner_config(options, model.device.type, max_context)
    notes: list[str] = []
    if reason := choose_int4_prefill(model, options, sizes.max_step_tokens):
        notes.append(f"int4_prefill=fp8 has no effect: {reason}")
    runner = Runner(model, sizes)
    max_model_len = sizes.max_model_len
    pool = BlockPool(runner.num_blocks, options.block_size, prefix_caching=options.prefix_caching)
    room = pool.capacity * options.block_size
    if room < max_model_len:
        notes.append(f"context limited to {room} of {max_model_len} tokens: the KV cache holds no more")
        max_model_len = room
    if options.cuda_graphs and not on_cpu and runner.no_graphs_because:
        notes.append(f"no CUDA graphs: {runner.no_graphs_because}")
    log = EventLog(options.event_capacity, enabled=options.event_log)
    config = SchedulerConfig(
        max_model_len=max_model_len,
        max_running=sizes.max_running,
        max_step_tokens=sizes.max_step_tokens,
        max_waiting=options.max_waiting,
        watermark=options.watermark,
    )
    scheduler = Scheduler(config, pool, log, budget=options.budget, order=options.order, victims=options.victims)
    return EngineCore(scheduler, runner, log, overlap=sizes.overlap), notes


def choose_int4_prefill(model: CausalModel, options: EngineOptions, max_step_tokens: int) -> str | None:
    """Tell the model how long prompts through INT4 weights are multiplied: as the option says, else the environment.

    Always, so that an engine does not inherit what another one asked of the same model. Returns why FP8 was asked for
    and no prompt will be in it, else ``None``.
    """
    from sits.kernels.int4_fp8 import LEAST_ROWS, asked_for

    mode = options.int4_prefill or ("fp8" if asked_for() else "exact")
    choose = getattr(model, "set_int4_prefill", None)
    refusal = choose(mode) if choose is not None else "this model has no such forward"
    if mode == "exact":
        return None
    if refusal is None and max_step_tokens < LEAST_ROWS:
        return f"it begins at steps of {LEAST_ROWS} tokens, and max_step_tokens is {max_step_tokens}"
    return None if refusal is None else str(refusal)


def engine_gauges(core: EngineCore[Any]) -> dict[str, float]:
    """Queue, cache and counters at this moment, as plain numbers; safe to read from any thread."""
    scheduler, pool, counters = core.scheduler, core.scheduler.pool, core.scheduler.counters
    used = pool.used
    gauges: dict[str, Any] = {
        "waiting": len(scheduler.waiting),
        "running": len(scheduler.running),
        "kv_blocks": pool.capacity,
        "kv_blocks_used": used,
        "kv_blocks_cached": pool.cached,
        "kv_use": used / pool.capacity,
        "steps": counters.steps,
        "step_tokens": counters.step_tokens,
        "output_tokens": counters.output_tokens,
        "prompt_tokens": counters.prompt_tokens,
        "prefix_hit_tokens": counters.cached_tokens,
        "prefix_hit_rate": counters.cached_tokens / max(1, counters.prompt_tokens),
        "preemptions": counters.preemptions,
        "recomputed_tokens": counters.recomputed_tokens,
    }
    gauges.update({f"finished_{reason}": count for reason, count in list(counters.finished.items())})
    return {name: float(value) for name, value in gauges.items()}
