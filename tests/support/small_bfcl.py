import json
from pathlib import Path

import bfcl_stand_in

from turntree.envs.bfcl.env import SPLITS

ROWS = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))


def write_bfcl(folder: Path) -> Path:
    bfcl_stand_in.install()
    folder.mkdir(exist_ok=True)
    for split in SPLITS:
        (folder / f"multi_turn_{split}.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    return folder
