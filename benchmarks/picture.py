"""Draw the pictures of docs/ from the figures in benchmarks/results, each in a light and a dark version.

    python benchmarks/picture.py [--results benchmarks/results] [--out docs]

``screenshot.py`` takes the screenshots of `turntree view`.

| picture | shows |
|---|---|
| `passes` | tokens per forward pass while a policy trains |
| `reward_seconds` | reward against wall-clock seconds |
| `speedup_epoch` | speed-up by epoch, on CPUs and an H200 |
| `speedup_requests` | speed-up by number of concurrent requests, on CPUs and an H200 |
| `parts` | how environment, rollout loop, engine, draft store and verl fit together |
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pictures import parts, speed_up, training_curves
from pictures.sheet import SCHEMES

SPEED_UPS = ("training", "demo", "vllm_fresh", "sglang", "engine", "engine_vllm", "engine_vllm_xeon", "gpu_h200")
RECORDS = ("algorithms", "wall_clock", *SPEED_UPS)
"""Files of benchmarks/results that the pictures show."""


def drawn(records: Mapping[str, Any]) -> dict[str, str]:
    """Return the text of each SVG by file name; ``records`` has the contents of ``RECORDS`` by name."""
    found = {}
    for scheme in SCHEMES:
        found[f"passes_{scheme}.svg"] = training_curves.passes(records["algorithms"], scheme)
        found[f"reward_seconds_{scheme}.svg"] = training_curves.reward_seconds(records["wall_clock"], scheme)
        found[f"speedup_epoch_{scheme}.svg"] = speed_up.by_epoch(records, scheme)
        found[f"speedup_requests_{scheme}.svg"] = speed_up.by_requests(records, scheme)
        found[f"parts_{scheme}.svg"] = parts.draw(scheme)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"), help="folder of the figures")
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder of the pictures")
    args = parser.parse_args()
    records = {name: json.loads((args.results / f"{name}.json").read_text(encoding="utf-8")) for name in RECORDS}
    for name, text in drawn(records).items():
        (args.out / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
