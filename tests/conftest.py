"""Hooks for every test: CPU seconds by file, logs of failures, no deadlines in Hypothesis, SGLang's stand-ins.

The stand-ins must be on the path before anything looks for torchvision.
"""

import gc
import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from containers import busybox_image  # noqa: F401
from log_tails import pytest_runtest_makereport, where_logs_lie  # noqa: F401

gc.disable()  # until all is collected: what imports create stays, and looking it through takes seconds

# The tests' models are tiny: a second thread, where somebody else has that core, costs twenty times what it saves.
os.environ.setdefault("OMP_NUM_THREADS", "1")

if find_spec("hypothesis") is not None:
    from hypothesis import HealthCheck, settings

    settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("any machine")

if find_spec("sglang") is not None:
    from cpu_sglang import prepare

    prepare()


def pytest_runtest_logstart(nodeid: str) -> None:
    # `make test` counts CPU seconds by the file that this variable names.
    if "TURNTREE_TEST_FILE" in os.environ:
        Path(os.environ["TURNTREE_TEST_FILE"]).write_text(nodeid.partition("::")[0])


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.fixture
def own_rewards() -> Iterator[None]:
    from turntree.rewards.registry import reward_names, unregister

    before = set(reward_names())
    yield
    for name in set(reward_names()) - before:
        unregister(name)
