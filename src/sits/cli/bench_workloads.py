"""Workloads a scenario can describe: lengths with shared prefixes, data sets, conversations, traces, mixes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sits.bench.client import TargetInfo
from sits.bench.composed import PartMaker
from sits.bench.conversation import ConversationShape, ConversationWorkload
from sits.bench.lengths import Lengths
from sits.bench.mix import MixWorkload
from sits.bench.scenario import ConversationSettings, TraceSettings, WorkloadSettings
from sits.bench.trace import TraceWorkload, read_trace
from sits.bench.workload import DatasetWorkload, SyntheticWorkload, Workload
from sits.errors import InputError


def scenario_workload(
    settings: WorkloadSettings,
    info: TargetInfo,
    text: Any,
    seed: int,
    input_len: Lengths,
    output_len: Lengths,
    keep_text: bool = False,
) -> Workload:
    """The workload of a scenario. ``text`` is the calibrated prompt maker of an endpoint, None for token ids."""
    if settings.mix is not None:
        parts: dict[str, tuple[float, Workload]] = {}
        for name, part in settings.mix.items():
            if "/" in name or not name:
                raise InputError(f"the name of a mix part may not be empty or hold a slash: {name!r}")
            own_in = Lengths.parse(part.input_len, f"mix.{name}.input_len") if part.input_len else input_len
            own_out = Lengths.parse(part.output_len, f"mix.{name}.output_len") if part.output_len else output_len
            inner = scenario_workload(part, info, text, seed, own_in, own_out, keep_text)
            parts[name] = (part.weight, inner)
        return MixWorkload(parts, seed)
    if settings.trace is not None:
        return trace_workload(settings.trace, info, text, seed)
    if settings.conversation is not None:
        shape = conversation_shape(settings.conversation)
        return ConversationWorkload(shape, part_maker(info, text, seed), info.max_context, keep_text)
    if settings.dataset is not None:
        return DatasetWorkload(Path(settings.dataset), output_len, seed=seed)
    return SyntheticWorkload(
        input_len,
        output_len,
        vocab_size=info.vocab_size,
        text=text,
        prefix_len=settings.prefix_len,
        prefixes=settings.prefixes,
        max_context=info.max_context,
        seed=seed,
    )


def trace_workload(settings: TraceSettings, info: TargetInfo, text: Any, seed: int) -> TraceWorkload:
    """The requests of a trace file."""
    path = Path(settings.file)
    rows = read_trace(path, settings.speed, settings.limit, settings.seconds)
    return TraceWorkload(rows, part_maker(info, text, seed), path.name, info.max_context)


def conversation_shape(settings: ConversationSettings) -> ConversationShape:
    """Parsed distributions of a conversation."""
    return ConversationShape(
        turns=Lengths.parse(settings.turns, "conversation.turns"),
        user_len=Lengths.parse(settings.user_len, "conversation.user_len"),
        output_len=Lengths.parse(settings.output_len, "conversation.output_len"),
        think_ms=None if settings.think_ms == "0" else Lengths.parse(settings.think_ms, "conversation.think_ms"),
        system=settings.system,
    )


def part_maker(info: TargetInfo, text: Any, seed: int) -> PartMaker:
    """Prompts from parts, as ids or as text, whichever the target takes."""
    if info.vocab_size is not None:
        return PartMaker(vocab_size=info.vocab_size, seed=seed)
    return PartMaker(text=text.without_overhead(), overhead=max(0, round(text.overhead)), seed=seed)
