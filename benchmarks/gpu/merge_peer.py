"""Put the peer's figures into a result of ours measured in the same session on the same card, peer last.

usage: merge_peer.py RESULT.json PEER.json      (the result of decode_step.py or prefill.py, that of peer_vllm.py)

Refuses when card, driver, model or precision differ, or when more than an hour lies between the two.
"""

from __future__ import annotations

import datetime
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

LONGEST_GAP = datetime.timedelta(hours=1)


def refusal(result: dict[str, Any], about: dict[str, Any]) -> str | None:
    """Why the two do not belong together."""
    for key in ("card", "driver"):
        if result[key] != about[key]:
            return f"{key}: {result[key]} and {about[key]}"
    ours, theirs = (datetime.datetime.fromisoformat(data["date"]) for data in (result, about))
    if abs(ours - theirs) > LONGEST_GAP:
        return f"measured at {ours} and {theirs}"
    model = about["model"].replace("llama-3", "llama3") + (f"-{about['layers']}-layers" if about["layers"] else "")
    wanted = f"{model}/{about['precision']}/"
    wrong = next((row["case"] for row in result["rows"] if not row["case"].startswith(wanted)), None)
    return f"{wrong} is not of {wanted}" if wrong else None


def merge(result: dict[str, Any], peer: dict[str, Any]) -> int:
    """Fill in ``peer`` and ``peer_name``; returns the number of rows that got a figure."""
    filled = 0
    for row in result["rows"]:
        batch = re.search(r"/b(\d+)/", row["case"])
        figures = peer.get(batch[1] if batch else "16")
        if figures is not None:
            row["peer"] = figures[0] if batch else figures[2] / 1e3
            row["peer_name"] = peer["about"]["engine"]
            filled += 1
    return filled


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    path, peer = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    result = json.loads(path.read_text())
    if why := refusal(result, peer["about"]):
        sys.exit(f"not merged: {why}")
    filled = merge(result, peer)
    partial = path.with_suffix(".json.partial")
    partial.write_text(json.dumps(result, indent=1) + "\n")
    os.replace(partial, path)
    print(f"{path.name}: {filled} of {len(result['rows'])} rows have a figure of {peer['about']['engine']}")


if __name__ == "__main__":
    main()
