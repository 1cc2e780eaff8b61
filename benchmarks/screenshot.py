"""Take screenshots of `turntree view` for docs/, light and dark, with headless Chromium.

    apt-get install --no-install-recommends chromium && python benchmarks/screenshot.py

The page shows `benchmarks/recorded/viewed_run.zip`: 32 training steps of the demo, with the episodes of four tasks.
``--keep RUN`` rebuilds the archive from a run's folder.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from PIL import Image

from turntree.agents.demo.tokenizer import build_tokenizer
from turntree.agents.viewer import view
from turntree.agents.viewer.page import Viewed

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
SCHEMES = {"light": 1, "dark": 0}  # Chromium's numbers of the preferred colour scheme
SIZE = (1280, 800)
COLOURS = 96  # of the palette: a third of the bytes of a screenshot in full colour
ARCHIVE = Path("benchmarks/recorded/viewed_run.zip")
TASKS = (6, 8, 11, 46)  # indices of the tasks in the archive
#: script that opens the tree of the first turn before the screenshot
SHOWN = """<script>
const waiting = setInterval(() => {
  if (!document.documentElement.dataset.ready) return;
  clearInterval(waiting);
  document.querySelector(".open-tree")?.click();
}, 20);
</script>"""


def keep(run: Path, archive: Path) -> None:
    """Write the metrics of a run and the episodes of ``TASKS``."""
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_LZMA) as packed:
        for name in ("metrics.jsonl", "engine.jsonl"):
            packed.writestr(name, (run / name).read_text(encoding="utf-8"))
        for file in sorted((run / "episodes").glob("step_*.jsonl")):
            lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
            if kept := [line for line in lines if json.loads(line)["index"] in TASKS]:
                packed.writestr(f"episodes/{file.name}", "".join(kept))


def page_of(archive: Path, folder: Path) -> Viewed:
    run = folder / "demo"
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(run)
    return view(run, folder / "page.html", tokenizer=build_tokenizer())


def screenshots(archive: Path, out: Path, browser: str, episode: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        page = page_of(archive, Path(folder)).path
        page.write_text(page.read_text(encoding="utf-8").replace("</html>", SHOWN + "</html>"), encoding="utf-8")
        for scheme, number in SCHEMES.items():
            file = out / f"view_{scheme}.png"
            options = [
                *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=5000"),
                f"--window-size={SIZE[0]},{SIZE[1]}",
                f"--blink-settings=preferredColorScheme={number}",
                f"--screenshot={file.resolve()}",
            ]
            subprocess.run([browser, *options, f"{page.as_uri()}#episode={episode}"], check=True, capture_output=True)
            Image.open(file).convert("RGB").quantize(COLOURS).save(file, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", type=Path, metavar="RUN", help="rebuild the archive from this run first")
    parser.add_argument("--run", type=Path, default=ARCHIVE, help="archive of the run")
    parser.add_argument("--episode", type=int, default=88, help="episode to open, in recorded order from 0")
    parser.add_argument("--out", type=Path, default=Path("docs"), help="folder of the screenshots")
    args = parser.parse_args()
    if args.keep is not None:
        keep(args.keep, args.run)
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        sys.exit(f"expected one of {', '.join(BROWSERS)} on the path: apt-get install --no-install-recommends chromium")
    screenshots(args.run, args.out, browser, args.episode)


if __name__ == "__main__":
    main()
