import re
from collections import Counter
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf
from tables import table

from turntree.agents.verl.config.checks import COUNTS, Row, _leaves, check_verl_keys, key_rows
from turntree.agents.verl.config.compose import compose, fields_of, verl_defaults
from turntree.agents.verl.config.sections import ConfigError

MODEL = "actor_rollout_ref.model.path=some/model"


@pytest.mark.parametrize(("override", "message"), table(__file__, "wrong_or_ignored_values"))
def test_a_value_of_the_wrong_kind_or_one_that_is_ignored_is_refused_in_one_line(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        compose("grpo_arithmetic_cpu", [MODEL, override])
    assert "\n" not in str(refused.value)
    assert override in str(refused.value) or re.search("got|did you mean", message)


@pytest.mark.parametrize(
    "override",
    [
        "actor_rollout_ref.actor.optim.lr=1",
        "trainer.total_training_steps=null",
        "actor_rollout_ref.actor.ppo_mini_batch_size=${data.train_batch_size}",
        "speculation=[none,run_ahead] reuse=same_seed",
    ],
)
def test_numbers_nothing_and_interpolations_are_taken(override: str) -> None:
    compose("grpo_arithmetic_cpu", [MODEL, *override.split()])


def test_every_count_is_a_key_of_verl() -> None:
    for key in COUNTS:
        of_verl(key)


def test_verls_flat_configuration_is_what_hydra_composes() -> None:
    from hydra import compose as composed
    from hydra import initialize_config_dir

    spec = find_spec("verl")
    assert spec is not None
    with initialize_config_dir(str(Path(spec.origin or "").parent / "trainer" / "config"), version_base=None):
        theirs = OmegaConf.to_container(composed("ppo_trainer"))
    assert kinds(theirs) == kinds(verl_defaults()[1])
    assert kinds({"a": 1}) != kinds({"a": 1.0}), "the control: equal, and of another type"


def kinds(value: Any) -> Any:
    # The value with the types of all of its parts.
    if isinstance(value, dict):
        return {key: kinds(inner) for key, inner in value.items()}
    return [kinds(inner) for inner in value] if isinstance(value, list) else (type(value), value)


def of_verl(key: str) -> Any:
    value: Any = verl_defaults()[1]
    for part in key.split("."):
        value = value[part]
    return value


def of_all_dataclasses(section: dict[str, Any], above: str = "") -> list[str]:
    # Fields of verl's dataclasses that its YAML lacks.
    inner = [(f"{above}{key}.", one) for key, one in section.items() if isinstance(one, dict)]
    hidden = [f"{above}{name}" for name in fields_of(section) - section.keys()]
    return hidden + [key for path, one in inner for key in of_all_dataclasses(one, path)]


def without_a_row(keys: Iterable[str], rows: Iterable[Row]) -> list[str]:
    # Keys that have no unconditional row, nor has a section around them.
    named = {key for row in rows if not row.where for key in row.keys}
    return [key for key in keys if not {key[: m.start()] for m in re.finditer(r"\.|$", key)} & named]


def test_every_key_of_verl_is_followed_refused_or_meaningless() -> None:
    _, known = verl_defaults()
    keys = [*(key for key, _ in _leaves(known)), *of_all_dataclasses(dict(known))]
    assert len(keys) > 1100
    new = without_a_row(keys, key_rows())
    assert not new, f"verl has keys of which verl_keys.toml does not say what becomes of them: {', '.join(new)}"
    always = Counter(key for row in key_rows() if not row.where for key in row.keys)
    assert always.most_common(1)[0][1] == 1, "two rows for one key"
    gone = [key for row in key_rows() for key in row.keys if not any(f"{one}.".startswith(f"{key}.") for one in keys)]
    ours = {"actor_rollout_ref.rollout.engine_kwargs.turntree", "actor_rollout_ref.rollout.custom.turntree"}
    below = {key for key in gone if any(key.startswith(f"{one}.") for one in keys)}  # verl keeps the section whole
    assert set(gone) - below <= ours, "verl has these no more"
    for row in key_rows():
        assert row.fate in ("followed", "refused", "meaningless", "unsupported")
        assert bool(row.takes) or row.fate != "unsupported"
        assert bool(row.why) == (row.fate != "followed")


def test_a_key_of_a_new_verl_is_named() -> None:
    keys = ["data.shuffle", "data.shuffle_again", "actor_rollout_ref.rollout.n", "trainer.v2.mode"]
    assert without_a_row(keys, key_rows()) == ["data.shuffle_again", "trainer.v2.mode"]
    fewer = [row for row in key_rows() if "data.shuffle" not in row.keys]
    assert without_a_row(keys[:1], fewer) == ["data.shuffle"]


def refused_keys() -> list[str]:
    return [key for row in key_rows() if row.fate == "refused" and not row.where for key in row.keys]


def composed_with(*overrides: str) -> None:
    compose("grpo_arithmetic_cpu", [MODEL, *overrides])


def changed(key: str) -> str:
    # An override that gives a key of verl another value.
    try:
        default = of_verl(key)
    except KeyError:
        default = None
    value = {bool: not default, int: 7, float: 0.5, list: "[7]", dict: "{other: 7}"}.get(type(default), "other")
    return f"{key}={value}"


def test_a_refused_key_ends_the_start_in_one_line() -> None:
    # Each by the check itself; compositions of all take a minute.
    _, known = verl_defaults()
    for key in refused_keys():
        name, _, value = changed(key).partition("=")
        with pytest.raises(ConfigError, match=re.escape(name)) as refused:
            check_verl_keys({name: value}, OmegaConf.create(), known, None)
        assert "\n" not in str(refused.value)


def test_what_is_refused_with_one_setting_is_followed_with_another() -> None:
    composed_with("actor_rollout_ref.model.lora_rank=8", "actor_rollout_ref.model.lora.merge=true")
    scores = ("turntree.score_in_verl=true", "reward.num_workers=1")
    composed_with("reward.custom_reward_function.path=mine.py", *scores)
    composed_with("actor_rollout_ref.rollout.agent.default_agent_loop=turntree_env", "trainer.use_v1=true")


def test_what_changes_nothing_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    composed_with()
    assert not caplog.text
    composed_with("actor_rollout_ref.rollout.multi_turn.enable=true", "trainer.balance_batch=false")
    assert caplog.text.count("changes nothing") == 2
    assert "actor_rollout_ref.rollout.multi_turn.enable=True changes nothing: every training here" in caplog.text
