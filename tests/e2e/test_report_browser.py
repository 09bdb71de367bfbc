"""The report in a real browser: no sideways scrolling on a phone, no network, dark and light."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import sits

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine")

FRAME = """<!doctype html><body style="margin:0"><iframe id="f" src="report.html"
 style="width:390px;height:800px;border:0"></iframe><script>f.onload = function () {
  var d = f.contentDocument, e = d.documentElement;
  var cut = [].filter.call(d.querySelectorAll("svg.narrow text"), function (t) {
    var a = t.getBoundingClientRect(), b = t.ownerSVGElement.getBoundingClientRect();
    return a.width && (a.left < b.left - 12 || a.right > b.right + 12);
  }).length;
  document.title = JSON.stringify({scroll: e.scrollWidth, client: e.clientWidth, cut: cut,
    shown: [].filter.call(d.querySelectorAll("svg"), function (s) { return s.getBoundingClientRect().width; }).length,
    loaded: performance.getEntriesByType("resource").length});
};</script>"""


def dump(page: Path, tmp_path: Path, *flags: str) -> str:
    assert CHROMIUM is not None
    done = subprocess.run(
        [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
            *("--disable-background-networking", "--disable-component-update", "--allow-file-access-from-files"),
            *(f"--user-data-dir={tmp_path / 'profile'}", "--enable-logging=stderr", "--v=0", *flags),
            *("--dump-dom", page.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert "Uncaught" not in done.stderr
    return done.stdout


def test_the_report_fits_a_phone(tmp_path: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(sits.__file__).parents[1])}
    done = subprocess.run(
        [
            *(sys.executable, "-m", "sits", "bench", "--model", "scripted:ttft=9ms,itl=3ms,jitter=0.3,fail=0.05"),
            *("--concurrency", "1,2,4,8,16,32", "--requests", "32", "--output-len", "5..20", "--warmup", "none"),
            *("--slo", "ttft=20ms", "--out", str(tmp_path)),
        ],
        env=environment,
        timeout=120,
        capture_output=True,
    )
    assert done.returncode in (0, 3), done.stderr
    (tmp_path / "frame.html").write_text(FRAME)
    html = dump(tmp_path / "frame.html", tmp_path)
    title = re.search(r"<title>(.*?)</title>", html)
    assert title, html[:500]
    found = {k: int(v) for k, v in re.findall(r'"(\w+)":(\d+)', title[1])}
    assert found["scroll"] <= found["client"], found
    assert found["cut"] == 0, "labels cut off"
    assert found["shown"] >= 5, found
    assert found["loaded"] <= 1  # the frame itself
