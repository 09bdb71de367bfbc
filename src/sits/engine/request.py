"""One request and where it stands. The engine thread owns everything here except ``cancel_requested``."""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING

from sits.engine.sampling_params import SamplingParams

if TYPE_CHECKING:
    from sits.engine.detokenizer import IncrementalDetokenizer


class RequestState(IntEnum):
    """Legal transitions: WAITING -> RUNNING -> FINISHED, RUNNING -> WAITING (preempted), WAITING -> FINISHED."""

    WAITING = 0
    RUNNING = 1
    FINISHED = 2


STOP = "stop"  # end-of-text, a stop token or a stop string
LENGTH = "length"  # max_tokens or the end of the context
CANCELLED = "cancelled"
FAILED = "error"


class Request:
    """A prompt, its output so far, and its place in the KV cache."""

    __slots__ = (
        "admitted_ns",
        "arrival_ns",
        "blocks",
        "cached_tokens",
        "cancel_event",
        "cancel_requested",
        "detokenizer",
        "digests",
        "error",
        "finish_reason",
        "finished_ns",
        "first_scheduled_ns",
        "followers",
        "last_event",
        "logprobs",
        "max_tokens",
        "needs_known_tokens",
        "num_computed",
        "on_update",
        "params",
        "plain_greedy",
        "preemptions",
        "priority",
        "prompt_tokens",
        "published",
        "request_id",
        "root",
        "row",
        "scheduled",
        "seed",
        "state",
        "stop_ids",
        "token_ids",
        "token_times_ns",
        "unknown",
        "unknown_at",
    )

    def __init__(
        self,
        request_id: str,
        prompt_ids: list[int],
        params: SamplingParams,
        *,
        arrival_ns: int = 0,
        priority: int = 0,
        on_update: Callable[[Request], None] | None = None,
        detokenizer: IncrementalDetokenizer | None = None,
    ):
        """``on_update(request)`` runs on the engine thread when it got a token or ended."""
        self.request_id = request_id
        self.params = params
        self.token_ids = list(prompt_ids)  # the prompt, then the output
        self.prompt_tokens = len(prompt_ids)
        self.max_tokens = params.max_tokens  # lowered when the context is shorter
        self.priority = priority
        self.on_update = on_update
        self.detokenizer = detokenizer
        self.plain_greedy = (  # the most likely token and nothing else
            params.greedy and not params.penalised and params.logprobs is None and not params.min_tokens
        )
        self.needs_known_tokens = params.penalised  # on the host, before the next is chosen
        self.seed = params.seed or 0
        self.stop_ids: frozenset[int] = frozenset()
        self.state = RequestState.WAITING
        self.finish_reason: str | None = None
        self.error: str | None = None
        self.cancel_requested = False
        # KV cache
        self.num_computed = 0  # tokens whose K and V are in the cache
        self.scheduled = 0  # and those that steps in flight write
        self.unknown = 0  # tokens that steps in flight choose
        self.unknown_at = 0  # the place of the last of them among the tokens of its step
        self.blocks: list[int] = []
        self.digests: list[bytes] = []  # names of the full blocks, as far as they were needed
        self.published = 0  # blocks that were offered to the prefix index
        self.root = b""
        self.row = -1  # its row in the tables of the running requests
        self.cached_tokens = 0  # prompt tokens that were not computed thanks to the prefix index
        self.preemptions = 0
        self.followers: list[Request] = []  # wait until this prompt is computed, then share its blocks
        # times, and the events that later ones point to
        self.arrival_ns = arrival_ns
        self.admitted_ns = 0
        self.first_scheduled_ns = 0
        self.finished_ns = 0
        self.token_times_ns: list[int] = []
        self.logprobs: list[tuple[float, list[tuple[int, float]]]] = []  # per output token: its own, alternatives
        self.cancel_event = -1
        self.last_event = -1

    @property
    def num_tokens(self) -> int:
        """Prompt and output tokens so far."""
        return len(self.token_ids)

    @property
    def output_tokens(self) -> int:
        """Output tokens so far."""
        return len(self.token_ids) - self.prompt_tokens

    @property
    def output_ids(self) -> list[int]:
        """A copy of the output so far."""
        return self.token_ids[self.prompt_tokens :]

    @property
    def finished(self) -> bool:
        """Whether it has ended, whatever the reason."""
        return self.state is RequestState.FINISHED
