"""The mock's /metrics page, in the names of vLLM, SGLang, TGI or our own server."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counters:
    """What the mock counts while it serves."""

    running: int = 0
    waiting: int = 0
    finished: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    preemptions: int = 0


_LABELS = '{model_name="mock",engine="0"}'


def render(flavor: str, c: Counters, slots: int) -> str:
    """Prometheus text of ``flavor`` (vllm | sglang | tgi | sits)."""
    kv = min(1.0, c.running / slots) if slots else min(1.0, c.running / 256)
    hit = c.prefix_hits / c.prefix_queries if c.prefix_queries else 0.0
    rows: dict[str, tuple[str, float]]
    if flavor == "sglang":
        rows = {
            "sglang:num_running_reqs": ("gauge", c.running),
            "sglang:num_queue_reqs": ("gauge", c.waiting),
            "sglang:token_usage": ("gauge", kv),
            "sglang:cache_hit_rate": ("gauge", hit),
            "sglang:prompt_tokens_total": ("counter", c.prompt_tokens),
            "sglang:generation_tokens_total": ("counter", c.output_tokens),
        }
    elif flavor == "tgi":
        rows = {
            "tgi_batch_current_size": ("gauge", c.running),
            "tgi_queue_size": ("gauge", c.waiting),
            "tgi_request_count": ("counter", c.finished),
        }
    elif flavor == "sits":
        rows = {
            "sits_requests_running": ("gauge", c.running),
            "sits_requests_waiting": ("gauge", c.waiting),
            "sits_kv_cache_usage_ratio": ("gauge", kv),
            "sits_prefix_query_tokens_total": ("counter", c.prefix_queries),
            "sits_prefix_hit_tokens_total": ("counter", c.prefix_hits),
            "sits_preemptions_total": ("counter", c.preemptions),
            "sits_output_tokens_total": ("counter", c.output_tokens),
        }
    else:
        rows = {
            "vllm:num_requests_running": ("gauge", c.running),
            "vllm:num_requests_waiting": ("gauge", c.waiting),
            "vllm:kv_cache_usage_perc": ("gauge", kv),
            "vllm:prefix_cache_queries_total": ("counter", c.prefix_queries),
            "vllm:prefix_cache_hits_total": ("counter", c.prefix_hits),
            "vllm:num_preemptions_total": ("counter", c.preemptions),
            "vllm:prompt_tokens_total": ("counter", c.prompt_tokens),
            "vllm:generation_tokens_total": ("counter", c.output_tokens),
        }
    labels = _LABELS if flavor in ("vllm", "sglang") else ""
    return "".join(f"# TYPE {name} {kind}\n{name}{labels} {value}\n" for name, (kind, value) in rows.items())
