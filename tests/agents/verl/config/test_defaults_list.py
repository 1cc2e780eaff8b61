from pathlib import Path

import pytest
import yaml
from omegaconf import OmegaConf

from turntree import configs
from turntree.agents.verl.config.defaults_list import YamlLoader, compose_defaults

SHIPPED = sorted(Path(configs.__path__[0]).rglob("*.yaml"))


def test_libyaml_reads_what_is_shipped_as_omegaconf_does() -> None:
    assert len(SHIPPED) > 30
    for path in SHIPPED:
        assert yaml.load(path.read_text(), YamlLoader) == OmegaConf.to_container(OmegaConf.load(path)), path
    assert yaml.load("1e-6", YamlLoader) == 1e-6
    assert yaml.safe_load("1e-6") == "1e-6", "the control: PyYAML alone takes that for text"


def test_what_stands_last_in_a_defaults_list_decides(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("trainer: {project_name: other}")
    own = {"hydra": {"searchpath": [f"file://{tmp_path}"]}, "trainer": {"project_name": "own"}}
    for defaults in (["demo", "other", "_self_"], ["demo", "_self_", "other"]):
        found = compose_defaults({"defaults": defaults, **own}, [])
        assert found.config.trainer.project_name == {"_self_": "own"}.get(defaults[-1], "other")
        assert not {"hydra", "defaults"} & found.config.keys()
    assert found.paths[-2:] == ("turntree_primary", "other")


@pytest.mark.parametrize(("options", "env"), [({"own_env": True}, None), ({"without_env": True}, None), ({}, "gsm8k")])
def test_an_environment_is_left_out_where_it_is_asked_for(options: dict[str, bool], env: str | None) -> None:
    found = compose_defaults({"defaults": ["turntree_trainer"]}, ["env=gsm8k"] if env else [], **options)
    assert found.choices["env"] == env
