import pytest

pytest.importorskip("verl")

import warm_driver

from turntree.agents.demo import run
from turntree.agents.demo.compared import Comparison
from turntree.agents.demo.policy import PolicyShape
from turntree.agents.demo.warm_start import WarmStart, warm_started_policy
from turntree.agents.verl import launch

pytestmark = pytest.mark.slow

SHORT = WarmStart(
    shape=PolicyShape(hidden=32, layers=1, heads=2, intermediate=32), demonstrations=160, steps=40, batch=32, warm_up=4
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("demo")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TURNTREE_CACHE", str(root / "cache"))
        patch.setattr(launch, "command", warm_driver.command)
        patch.setattr(
            run, "warm_started_policy", lambda settings, *, on_step: warm_started_policy(SHORT, on_step=on_step)
        )
        assert run.main(steps=2, out=root / "run", every=1) == 0
    return root / "run"


def test_both_ways_sampled_the_same_and_the_page_is_there(folder):
    comparison = Comparison.load(folder / "comparison.jsonl")
    assert [step.step for step in comparison.steps] == [1, 2]
    assert comparison.equal
    assert all(step.episodes == 16 * 8 for step in comparison.steps)
    assert "engine seconds of replayed steps" in (folder / "view.html").read_text()
