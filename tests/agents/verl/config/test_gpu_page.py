import re
from pathlib import Path

import pytest

from turntree.agents.verl.config.compose import compose
from turntree.agents.verl.config.sections import ConfigError

ROOT = Path(__file__).resolve().parents[4]
PAGE = (ROOT / "docs/howto/gpu.md").read_text()
KEY = re.compile(r"`((?:actor_rollout_ref|data|critic|trainer)\.[\w.]+)(?:=(\w+))?`")
NAMED = dict(KEY.findall(PAGE))
#: by the last word of keys that do not take 4,096
VALUES = {"gpu_memory_utilization": "0.4", "max_tokens": "100000", "optimizer_offload": "true"}
VALUES |= dict.fromkeys(("max_prompt_length", "max_response_length"), "1024")  # rows that fit in micro-batches of 4,096


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_keys_that_make_room_in_memory_are_those_of_a_training(engine: str) -> None:
    other = {"vllm": ".sglang.", "sglang": ".vllm."}[engine]
    given = [
        f"{key}={value or VALUES.get(key.rpartition('.')[2], '4096')}"
        for key, value in NAMED.items()
        if other not in key
    ]
    compose(None, [f"engine={engine}", "size=1.5b", "algorithm=ppo", "env=gsm8k", *given])


def test_a_key_that_there_is_not_is_seen() -> None:
    # Control.
    assert len(NAMED) > 12
    with pytest.raises(ConfigError, match="unknown key"):
        compose(None, ["engine=vllm", "size=1.5b", "env=gsm8k", "actor_rollout_ref.rollout.max_num_seq=4"])


@pytest.mark.parametrize("command", re.findall(r"^turntree train (.*)$", PAGE, re.MULTILINE))
def test_the_trainings_of_the_page_are_put_together(command: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    config, *overrides = (word.replace("models/qwen", str(tmp_path)) for word in command.split())
    compose(config, overrides)
