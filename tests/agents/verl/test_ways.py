from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from turntree.agents.reuse_config import ReuseConfig, ReuseMode
from turntree.agents.verl.compose import Composition, compose
from turntree.agents.verl.sections import ConfigError
from turntree.agents.verl.ways import list_ways


def composed(tiny_model: Path, *overrides: str, config: str = "grpo_arithmetic_cpu") -> Composition:
    return compose(config, [f"actor_rollout_ref.model.path={tiny_model}", *overrides])


def speculation(composition: Composition) -> Any:
    return composition.verl.actor_rollout_ref.rollout.engine_kwargs.turntree.speculation


def mode(composition: Composition) -> ReuseMode:
    return ReuseConfig(**composition.settings.reuse).mode


def test_there_is_a_file_for_every_way() -> None:
    assert set(list_ways()) == {"tree", *map(str, ReuseMode)}


@pytest.mark.parametrize("way", ["replay", "exact", "lenient"])
def test_a_way_can_be_had_with_drafts_from_trees_and_without(tiny_model: Path, way: str) -> None:
    with_trees, without = (composed(tiny_model, f"ways=[{first},{way}]") for first in ("tree", "none"))
    assert speculation(with_trees) is not None
    assert speculation(without) is None
    assert mode(with_trees) == mode(without) == way


def test_no_way_drafts_from_trees_and_none_is_plain_decoding(tiny_model: Path) -> None:
    assert speculation(composed(tiny_model)) is not None
    assert mode(composed(tiny_model)) is ReuseMode.NONE
    plain = composed(tiny_model, "ways=[none]")
    assert speculation(plain) is None
    assert mode(plain) is ReuseMode.NONE


def test_overrides_go_over_a_way_wherever_they_stand(tiny_model: Path) -> None:
    composition = composed(tiny_model, "turntree.reuse.preset=dapo", "ways=[lenient]")
    assert ReuseConfig(**composition.settings.reuse).lenience == pytest.approx(1.1618, abs=1e-4)


def test_a_configuration_may_name_its_ways_and_an_override_replaces_them(tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("base: cpu\nways: [lenient]\nturntree: {env: turntree/Arithmetic-v0}\n")
    assert mode(composed(tiny_model, config=str(path))) is ReuseMode.LENIENT
    assert mode(composed(tiny_model, "ways=[exact]", config=str(path))) is ReuseMode.EXACT


@pytest.mark.parametrize(
    ("override", "message"),
    [("ways=[exakt]", "unknown key 'exakt' in ways; did you mean 'exact'"), ("ways=exact", r"ways=\[tree,exact\]")],
)
def test_an_unknown_way_is_refused(tiny_model: Path, override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        composed(tiny_model, override)
