import json
from pathlib import Path
from typing import Any

from chat_tokenizers import make_tokenizer
from tables import table

from turntree.agents.loop.renderer import Renderer

_HERE = str(Path(__file__).parents[1] / "agents" / "conftest.py")
TEMPLATES: dict[str, dict[str, Any]] = table(_HERE, "templates")


def template_row(name: str) -> dict[str, Any]:
    given = TEMPLATES[name]
    other = TEMPLATES.get(given.get("like", ""), {"row": {}})
    return {**other, **given, "row": {**other["row"], **given["row"]}}


def field_tokenizer(name: str, folder: Path | None = None) -> Any:
    row = template_row(name)
    tokenizer = make_tokenizer(row["template"], special=row["special"], eos=row["eos"], bos=row["special"][0])
    tokenizer.add_tokens(row.get("added", []))
    if folder is not None:
        ends = tokenizer.convert_tokens_to_ids(row.get("config_ends", []))
        (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends} if ends else {}))
        tokenizer.name_or_path = str(folder)
    return tokenizer


def field_renderer(name: str, folder: Path | None = None) -> Renderer:
    return Renderer(field_tokenizer(name, folder), template_options=template_row(name).get("variables"))
