"""A run of 100,000 requests through the command itself: memory, time after the last answer, file sizes.

python benchmarks/client/big_run.py [--requests 100000] [--tokens 32]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import save

from sits.bench.mock.process import mock_process

BAR_BYTES = 1_000_000_000


FRAME = """<!doctype html><iframe id="f" src="report.html" style="width:1200px;height:900px"></iframe><script>
var begun = performance.now(); f.onload = function () { f.contentDocument.body.getBoundingClientRect();
document.title = "loaded:" + Math.round(performance.now() - begun) + ":"; };</script>"""


def browser_seconds(folder: Path) -> float | None:
    """Seconds until the report is loaded and laid out in a headless Chromium; None without one."""
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        return None
    page = folder / "frame.html"
    page.write_text(FRAME)
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files", "--dump-dom"]
    flags.append(f"--user-data-dir={folder / 'profile'}")
    done = subprocess.run([browser, *flags, page.as_uri()], capture_output=True, text=True, timeout=120)
    found = re.search(r"loaded:(\d+):", done.stdout)
    return int(found[1]) / 1000 if found else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--name", default="client_big_run", help="file under benchmarks/results")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, mock_process("ttft=0,itl=0") as url:
        command = [sys.executable, "-m", "sits.cli.main", "bench", "--endpoint", url, "--warmup", "none"]
        command += ["--concurrency", str(arguments.concurrency), "--requests", str(arguments.requests)]
        command += ["--input-len", "32", "--output-len", str(arguments.tokens), "--out", folder]
        start = time.monotonic()
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.monotonic() - start
        result = json.loads((Path(folder) / "result.json").read_text())
        sizes = {path.name: path.stat().st_size for path in Path(folder).iterdir()}
        opened = browser_seconds(Path(folder))
    point = result["points"][0]
    measured = point["duration_s"]
    save(
        arguments.name,
        {
            "bars": {
                "memory_under_1_gb": usage.ru_maxrss * 1024 < BAR_BYTES,
                "report_opens_in_3_s": None if opened is None else opened < 3.0,
            },
            "report_opens_s": opened,
            "exit_code": os.waitstatus_to_exitcode(status),
            "requests": point["requests"],
            "max_rss_mb": round(usage.ru_maxrss / 1024, 1),
            "wall_s": round(wall, 1),
            "measured_s": round(measured, 1),
            "cpu_s": round(usage.ru_utime + usage.ru_stime, 1),
            "bytes": sizes,
            "settings": vars(arguments),
        },
    )


if __name__ == "__main__":
    main()
