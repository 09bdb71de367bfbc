"""The engines ``cpu_peers.py`` compares, each behind one call: generate(prompts as token ids, tokens) -> token ids.

Packages that are not installed are left out. Every engine gets the same weights, thread count and greedy choice.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

Prompts = Sequence[list[int]]


class Engine(Protocol):
    """A loaded engine. ``batched`` says whether several prompts run together."""

    name: str
    version: str
    batched: bool

    def generate(self, prompts: Prompts, tokens: int) -> list[list[int]]:
        """Exactly ``tokens`` greedy tokens for each prompt."""

    def close(self) -> None:
        """Free the memory."""


class Sits:
    """``sits.LLM`` with its prefix cache off, as every round repeats its prompts."""

    batched = True

    def __init__(self, dtype: str, quantization: str | None = None):
        import sits

        self.name = f"sits {quantization or dtype}"
        self.version = sits.__version__
        self._llm = sits.LLM(
            "smollm2-135m",
            device="cpu",
            dtype=dtype,
            quantization=quantization,
            prefix_caching=False,
            max_model_len=1024,
        )

    @property
    def card(self) -> dict[str, Any]:
        return self._llm.card

    def generate(self, prompts: Prompts, tokens: int) -> list[list[int]]:
        from sits import SamplingParams

        outputs = self._llm.generate(list(prompts), SamplingParams(max_tokens=tokens, ignore_eos=True))
        return [output.outputs[0].token_ids for output in outputs]

    def close(self) -> None:
        self._llm.close()


class Transformers:
    """``generate`` of transformers: a batch of mixed lengths is padded on the left."""

    batched = True

    def __init__(self, path: Path, dtype: str):
        import torch
        import transformers

        self.name, self.version = f"transformers {dtype}", transformers.__version__
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            transformers.logging.set_verbosity_error()
            self._model = transformers.AutoModelForCausalLM.from_pretrained(
                path.parent,
                gguf_file=path.name,
                dtype=getattr(torch, dtype),
                quantization_config=transformers.GgufConfig(dequantize=True),
            ).eval()

    def generate(self, prompts: Prompts, tokens: int) -> list[list[int]]:
        import torch

        width = max(map(len, prompts))
        ids = torch.tensor([[2] * (width - len(prompt)) + prompt for prompt in prompts])
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
        with torch.inference_mode():
            out = self._model.generate(
                ids,
                attention_mask=mask,
                do_sample=False,
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                eos_token_id=None,
                pad_token_id=2,
            )
        return out[:, width:].tolist()

    def close(self) -> None:
        del self._model


class LlamaCpp:
    """llama-cpp-python on the GGUF file itself; one sequence at a time."""

    batched = False

    def __init__(self, path: Path, threads: int):
        module = importlib.import_module("llama_cpp")
        self.name, self.version = "llama.cpp Q4_1", module.__version__
        self._llm = module.Llama(
            str(path), n_ctx=1024, n_threads=threads, n_threads_batch=threads, n_batch=512, verbose=False
        )

    def generate(self, prompts: Prompts, tokens: int) -> list[list[int]]:
        results = []
        for prompt in prompts:
            self._llm.reset()
            stream = self._llm.generate(prompt, temp=0.0, repeat_penalty=1.0)
            results.append([token for token, _ in zip(stream, range(tokens))])
        return results

    def close(self) -> None:
        self._llm.close()


class OpenVino:
    """OpenVINO GenAI, which reads the GGUF file; computes in its own default precision."""

    batched = False

    def __init__(self, path: Path, threads: int):
        self._genai = importlib.import_module("openvino_genai")
        self._openvino = importlib.import_module("openvino")
        self.name, self.version = "OpenVINO GenAI (GGUF)", self._genai.__version__
        self._pipe = self._genai.LLMPipeline(str(path), "CPU", INFERENCE_NUM_THREADS=threads)

    def generate(self, prompts: Prompts, tokens: int) -> list[list[int]]:
        import numpy as np

        results = []
        for prompt in prompts:
            ids = self._openvino.Tensor(np.array([prompt], dtype=np.int64))
            out = self._pipe.generate(
                ids, max_new_tokens=tokens, do_sample=False, ignore_eos=True, apply_chat_template=False
            )
            results.append(list(out.tokens[0]))
        return results

    def close(self) -> None:
        del self._pipe


class OnnxRuntime:
    """onnxruntime-genai on a folder its builder wrote (``--ort-folder``)."""

    batched = False

    def __init__(self, folder: Path):
        self._genai = importlib.import_module("onnxruntime_genai")
        self.name, self.version = f"onnxruntime-genai ({folder.name})", self._genai.__version__
        self._model = self._genai.Model(str(folder))

    def generate(self, prompts: Prompts, tokens: int) -> list[list[int]]:
        results = []
        for prompt in prompts:
            parameters = self._genai.GeneratorParams(self._model)
            length = len(prompt) + tokens
            parameters.set_search_options(do_sample=False, max_length=length, min_length=length)
            generator = self._genai.Generator(self._model, parameters)
            generator.append_tokens(prompt)
            while not generator.is_done():
                generator.generate_next_token()
            results.append(list(generator.get_sequence(0))[len(prompt) :])
        return results

    def close(self) -> None:
        del self._model
