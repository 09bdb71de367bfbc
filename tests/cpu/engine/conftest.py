"""SmolLM2 once per session: ours, and the same weights in transformers as the reference."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from sits.engine.llm import LLM
from sits.models.loading import load_model, open_source, resolve


@pytest.fixture(scope="session")
def loaded():
    return load_model("smollm2-135m", dtype="float32", device="cpu")


@pytest.fixture
def make_llm(loaded):
    """An engine over the shared model; closed, and every block accounted for, at the end of the test."""
    engines: list[LLM] = []

    def make(**settings) -> LLM:
        engines.append(LLM.from_model(loaded.model, loaded.tokenizer, **{"max_model_len": 512, **settings}))
        return engines[-1]

    yield make
    for llm in engines:
        llm.close()
        llm.core.scheduler.check_integrity()
        assert llm.core.scheduler.pool.used == 0


@pytest.fixture(scope="session")
def reference_logits() -> Callable[[list[int]], torch.Tensor]:
    """token ids[T] -> logits[T, vocab] of transformers in float32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    source, config = open_source(resolve("smollm2-135m"))
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.kv_heads,
            rms_norm_eps=config.norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope.theta},
            tie_word_embeddings=True,
            max_position_embeddings=config.max_position,
        )
    ).eval()
    with torch.no_grad():
        for name, tensor in model.named_parameters():
            source.read_checked(name, tensor.data)

    @torch.inference_mode()
    def logits(ids: list[int]) -> torch.Tensor:
        return model(torch.tensor([ids])).logits[0]

    return logits
