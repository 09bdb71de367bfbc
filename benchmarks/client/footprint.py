"""What a new user waits for: installed size, ``sits --version`` from cold, first result of 32 short requests.

    python benchmarks/client/footprint.py [--python python3.11]

Installs this repository's base package (no extras) into a fresh virtual environment; needs a package index.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import RESULTS, real_time, save

REPOSITORY = RESULTS.parent.parent


def size(folder: Path) -> int:
    """Bytes of all files below ``folder``."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def timed(command: list[str]) -> float:
    """Wall seconds of a command that must succeed."""
    start = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.monotonic() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--real-time", action="store_true", help="SCHED_RR (busy machine)")
    arguments = parser.parse_args()
    scheduling = "SCHED_RR" if arguments.real_time and real_time() else "normal"
    with tempfile.TemporaryDirectory() as folder:
        environment = Path(folder) / "venv"
        timed([arguments.python, "-m", "venv", str(environment)])
        bin_folder = environment / "bin"
        bare = size(environment)
        install = timed([str(bin_folder / "pip"), "install", "--no-compile", str(REPOSITORY)])
        installed = size(environment) - bare
        listing = subprocess.run(
            [str(bin_folder / "pip"), "list", "--format", "json"], check=True, capture_output=True, text=True
        )
        sits = str(bin_folder / "sits")
        first_version = timed([sits, "--version"])  # compiles the byte code as well
        version = min(timed([sits, "--version"]) for _ in range(arguments.repeats))
        command = [sits, "mock-server", "--port", "0"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            url = server.stdout.readline().split()[3]
            # 32 short requests, as the peers were measured: 8 at a time, 16 tokens in, 32 out.
            bench = [sits, "bench", "--endpoint", url, "--warmup", "none", "--requests", "32", "--concurrency", "8"]
            bench += ["--input-len", "16", "--output-len", "32", "--out", f"{folder}/out"]
            timed(bench)
            first_result = min(timed(bench) for _ in range(arguments.repeats))
        finally:
            server.terminate()
            server.wait()
        packages = len(json.loads(listing.stdout))
    figures = {
        "installed_mb": round(installed / 1e6, 1),
        "packages": packages,
        "install_s": round(install, 1),
        "version_first_s": round(first_version, 3),
        "version_s": round(version, 3),
        "first_result_s": round(first_result, 2),
    }
    bars = {
        "installed_130_mb": figures["installed_mb"] <= 130,
        "version_0.2_s": figures["version_s"] <= 0.2,
        "first_result_3_s": figures["first_result_s"] <= 3.0,
    }
    save("client_footprint", {"bars": bars, "scheduling": scheduling, **figures})


if __name__ == "__main__":
    main()
