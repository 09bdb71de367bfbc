"""guidellm and aiperf beside `sits bench`, on one `sits mock-server`, in one run: what `docs/comparison.md` quotes.

    python benchmarks/client/peers.py --work /tmp/peers [--install]

The peers live in virtual environments of their own under ``--work`` (guidellm takes about 6 GiB), versions pinned
here. Every tool gets the same server and load; what is compared is what each one *reports* against the script.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import real_time, save

from sits.bench.mock.process import mock_process

VERSIONS = {"guidellm": "0.8.1", "aiperf": "0.13.0"}
TTFT_MS, ITL_MS, TOKENS = 20.0, 5.0, 32
TOKENIZER = """
import sys
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
names = ["<unk>", "<s>", "</s>", *"the of and to in is you that it he was".split()]
words = {word: k for k, word in enumerate(names)}
tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
special = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(sys.argv[1])
"""


def install(work: Path) -> None:
    """Each peer into its own virtual environment."""
    for name, version in VERSIONS.items():
        environment = work / name
        if not (environment / "bin" / name).exists():
            subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
            subprocess.run([str(environment / "bin" / "pip"), "install", "-q", f"{name}=={version}"], check=True)


def size_mb(folder: Path) -> float:
    """Size of a virtual environment."""
    files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return round(sum(path.stat().st_size for path in files) / 1e6, 1)


def run(command: list[str], timeout: float = 240.0) -> dict[str, Any]:
    """Exit code, wall and CPU seconds, and the end of what was printed."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
        code, text = done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired as error:
        code, text = None, str(error.stdout or "")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    wall = time.monotonic() - start
    return {"exit_code": code, "wall_s": round(wall, 2), "cpu_s": round(cpu, 2), "tail": text[-600:]}


def sits(
    url: str, out: Path, rate: float, requests: int, model: str, work: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    """`sits bench`: (process figures, reported figures)."""
    command = [sys.executable, "-m", "sits.cli.main", "bench", "--endpoint", url, "--served-model", model]
    command += ["--warmup", "none", "--rate", str(rate), "--requests", str(requests), "--out", str(out)]
    outcome = run([*command, "--input-len", "16", "--output-len", str(TOKENS)])
    reported: dict[str, Any] = {}
    if (out / "result.json").exists():
        point = json.loads((out / "result.json").read_text())["points"][0]
        keys = ("ttft.p50", "ttft.p99", "itl.mean", "tpot.p50", "throughput.output", "error_rate")
        reported = {key: point["metrics"][key]["value"] for key in keys}
        reported |= {"achieved_rate": (point["arrivals"] or {}).get("achieved_rate"), "status": point["status"]}
    return outcome, reported


def guidellm(
    url: str, out: Path, rate: float, requests: int, model: str, work: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    """guidellm 0.8."""
    out.mkdir(parents=True, exist_ok=True)
    report = out / "benchmarks.json"
    command = [str(work / "guidellm" / "bin" / "guidellm"), "run", "--disable-progress"]
    command += ["--backend", f"kind=openai_http,target={url},model={model}"]
    command += ["--tokenizer", f"kind=hf_auto,model={work / 'tokenizer'}", "--profile", f"kind=poisson,rate={rate}"]
    command += ["--data", f"kind=synthetic_text,prompt_tokens=16,output_tokens={TOKENS}"]
    command += ["--constraint", f"kind=max_requests,count={requests}", "--output", f"kind=json,path={report}"]
    outcome = run(command)
    reported: dict[str, Any] = {}
    if report.exists():
        metrics = json.loads(report.read_text())["benchmarks"][0]["metrics"]

        def find(name: str, which: str) -> Any:
            series = metrics.get(name, {}).get("successful", {})
            return series.get("percentiles", {}).get(which) if which != "mean" else series.get("mean")

        reported = {
            "ttft.p50": find("time_to_first_token_ms", "p50"),
            "ttft.p99": find("time_to_first_token_ms", "p99"),
            "itl.mean": find("inter_token_latency_ms", "mean"),
            "tpot.p50": find("time_per_output_token_ms", "p50"),
            "achieved_rate": find("requests_per_second", "mean"),
            "requests": metrics.get("request_totals"),
        }
    return outcome, reported


def aiperf(
    url: str, out: Path, rate: float, requests: int, model: str, work: Path
) -> tuple[dict[str, Any], dict[str, Any]]:
    """aiperf 0.13, with the server's token counts (its default re-tokenises)."""
    command = [
        str(work / "aiperf" / "bin" / "aiperf"),
        "profile",
        "-m",
        model,
        "--tokenizer",
        str(work / "tokenizer"),
    ]
    command += ["-u", url, "--endpoint-type", "chat", "--streaming", "--request-rate", str(rate)]
    command += ["--request-count", str(requests), "--isl", "16", "--osl", str(TOKENS), "--use-server-token-count"]
    outcome = run([*command, "--ui", "none", "--output-artifact-dir", str(out)])
    reported: dict[str, Any] = {}
    for path in out.rglob("profile_export_aiperf.json"):
        data = json.loads(path.read_text())
        names = {"ttft": "time_to_first_token", "itl": "inter_token_latency", "rate": "request_throughput"}
        rows = {short: data.get(name) or data.get("records", {}).get(name) or {} for short, name in names.items()}
        reported = {
            "ttft.p50": rows["ttft"].get("p50"),
            "ttft.p99": rows["ttft"].get("p99"),
            "itl.mean": rows["itl"].get("avg"),
            "achieved_rate": rows["rate"].get("avg"),
        }
    return outcome, reported


TOOLS: dict[str, Callable[..., tuple[dict[str, Any], dict[str, Any]]]] = {
    "sits": sits,
    "guidellm": guidellm,
    "aiperf": aiperf,
}
# name -> (rate, requests, script of the server): what is asked of every tool. The first requests of a faulty server
# are answered, so that a tool that probes gets as far as measuring.
CASES = {
    "poisson_50": (50.0, 400, "normal"),
    "short_32": (100.0, 32, "normal"),
    "multi_token": (20.0, 60, "multi_token"),
    "error_midstream": (20.0, 40, "error_midstream,after=4"),
    "http_500": (20.0, 40, "http_500,after=4"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--install", action="store_true")
    parser.add_argument("--tools", default="sits,guidellm,aiperf")
    parser.add_argument("--real-time", action="store_true", help="SCHED_RR for all (busy machine)")
    arguments = parser.parse_args()
    work = arguments.work.resolve()
    if arguments.install:
        install(work)
    tools = [name for name in arguments.tools.split(",") if name == "sits" or (work / name / "bin" / name).exists()]
    if not (work / "tokenizer").exists():
        peer = next((name for name in tools if name != "sits"), None)
        if peer is not None:
            subprocess.run(
                [str(work / peer / "bin" / "python"), "-c", TOKENIZER, str(work / "tokenizer")], check=True
            )
    scheduling = "SCHED_RR" if arguments.real_time and real_time() else "normal"
    rows: dict[str, Any] = {}
    for case, (rate, requests, script) in CASES.items():
        for name in tools:
            out = work / "runs" / f"{case}-{name}-{time.time_ns()}"
            # A fresh server for each, so that `after` counts from this tool's first request.
            with mock_process(f"{script},ttft={TTFT_MS},itl={ITL_MS}") as url:
                outcome, reported = TOOLS[name](url, out, rate, requests, "mock", work)
            outcome["tail"] = re.sub(r"\x1b\[[0-9;]*m", "", outcome["tail"]) if outcome["exit_code"] else ""
            rows.setdefault(case, {})[name] = {"process": outcome, "reported": reported}
            print(case, name, outcome["exit_code"], outcome["wall_s"], reported, flush=True)
    body = {"truth": {"ttft_ms": TTFT_MS, "itl_ms": ITL_MS}, "scheduling": scheduling, "versions": VERSIONS}
    sizes = {name: size_mb(work / name) for name in tools if name != "sits"}
    save("client_peers", {**body, "environment_mb": sizes, "cases": rows})


if __name__ == "__main__":
    main()
