import os
from pathlib import Path

import pytest
from interpreter import python
from omegaconf import OmegaConf
from tables import table

from turntree.agents.verl.run.failure_causes import kernel_kills, memory_kill

CONFIG = OmegaConf.create(
    {
        "data": {"max_prompt_length": 500, "max_response_length": 500, "train_batch_size": 4},
        "actor_rollout_ref": {"actor": {"ppo_max_token_len_per_gpu": 2048}, "rollout": {"max_num_seqs": 16}},
    }
)


@pytest.mark.parametrize(("name", "said"), table(__file__, "killed_for_memory"))
def test_a_kill_by_ray_is_told_in_one_line_with_the_setting_to_lower(name: str, said: str) -> None:
    told = memory_kill(table(__file__, "rays_log").replace("NAME", name), CONFIG, by_kernel=False)
    assert told == said


def test_a_row_that_fills_the_micro_batch_is_what_to_shorten() -> None:
    config = OmegaConf.merge(CONFIG, {"actor_rollout_ref": {"actor": {"ppo_max_token_len_per_gpu": 1000}}})
    told = memory_kill(table(__file__, "rays_log"), config, by_kernel=False)
    assert str(told).endswith("; lower data.max_response_length, now 500")


def test_a_kill_by_the_kernel_is_told_apart_from_other_deaths() -> None:
    log = table(__file__, "log_of_a_dead_actor")
    assert memory_kill(log, CONFIG, by_kernel=False) is None
    told = "the trainer (WorkerDict) was killed, as the machine had no memory left; lower actor_rollout_ref.actor."
    assert str(memory_kill(log, CONFIG, by_kernel=True)).startswith(told)
    assert str(memory_kill("", CONFIG, by_kernel=True)).startswith("a process of the training was killed")
    assert memory_kill("ValueError: no", CONFIG, by_kernel=False) is None


def test_the_kernels_count_is_read(tmp_path: Path) -> None:
    assert kernel_kills(tmp_path / "nothing") == 0
    (tmp_path / "vmstat").write_text("nr_free_pages 3\noom_kill 17\nswap_ra 0\n")
    assert kernel_kills(tmp_path / "vmstat") == 17


def test_rays_own_words_are_the_ones_that_are_read() -> None:
    ray = pytest.importorskip("ray")
    raylet = Path(ray.__file__).parent.joinpath("core", "src", "ray", "raylet", "raylet").read_bytes()
    for words in table(__file__, "rays_words_for_memory"):
        assert words.encode() in raylet, words


@pytest.mark.slow
@pytest.mark.release  # the test above reads the same words without a Ray
def test_ray_still_says_so_when_it_kills_a_worker_for_memory() -> None:
    # The threshold is below what any machine uses.
    bound = {"RAY_memory_usage_threshold": "0.001", "RAY_memory_monitor_refresh_ms": "100"}
    done = python("-c", table(__file__, "has_a_worker"), env={**os.environ, **bound})
    told = memory_kill(done.stdout, CONFIG, by_kernel=False)
    assert told is not None, done.stdout + done.stderr
    assert told.startswith("the trainer (WorkerDict) was killed with ")
