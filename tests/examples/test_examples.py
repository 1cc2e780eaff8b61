import sys
from pathlib import Path
from typing import Any

import pytest
from example_files import EXAMPLES, load


def test_every_example_is_tested() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    for path in EXAMPLES.glob("*.py"):
        assert f'load("{path.stem}")' in text, path.stem


def test_an_environment_of_ones_own_and_one_in_fifteen_lines(capsys: pytest.CaptureFixture[str]) -> None:
    from turntree.envs.registry import unregister

    try:
        assert load("custom_environment").main() == 1.0
    finally:
        unregister("examples/GuessNumber-v0")
    assert "reward: 1.0" in capsys.readouterr().out
    two_tools = load("two_tools")
    try:
        assert two_tools.main() == 1.0
    finally:
        unregister("examples/Shop-v0")
    example = load("tiny_environment")
    assert example.main() == 1.0
    from turntree.envs import check_environment

    for environment in (example.Doubling, two_tools.Shop):
        assert [finding for finding in check_environment(environment) if not finding.passed] == []


def test_a_dialogue_longer_than_a_row_is_shortened(tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    episode = load("long_dialogue").main([str(tiny_model)])
    assert episode.reward == 1.0
    assert [len(turns) for turns in episode.segments] == [2, 2, 2]
    assert "You have read pages 0, 1, 2, 3" not in episode.messages[-2].content, "only the policy saw the note"
    shown = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in shown] == ["segment 1", "segment 2", "segment 3", "reward"]


def test_a_reward_of_ones_own(own_rewards: None) -> None:
    assert load("custom_reward").main() == pytest.approx([1 + 0.2 * 2 / 3, 1.0, 0.2 / 3])


def test_a_model_is_evaluated_and_earlier_turns_are_used_again(tiny_model: Path) -> None:
    result = load("evaluate_model").main([str(tiny_model), "--tasks", "2", "--samples", "2", "--max-tokens", "8"])
    assert result.scored == 4
    words = [str(tiny_model), "--tasks", "1", "--samples", "2", "--max-tokens", "12"]
    passes = load("reuse_and_trees").main(words)
    assert set(passes) == {"none", "tree", "same_seed", "rejection_sampling", "spec_rl"}
    assert passes["same_seed"] > passes["none"]
    assert passes["tree"] > passes["none"]


def test_drafts_change_the_passes_and_not_the_tokens(tiny_model: Path) -> None:
    words = [str(tiny_model), "--max-tokens", "16", "--dtype", "float64", "--always"]
    plain, drafted = load("speculate_local").main(words)
    assert (plain.tokens, plain.tokens_per_forward_pass) == (drafted.tokens, 1.0)
    assert drafted.tokens_per_forward_pass > 1.2


def test_the_walk_through_the_store(capsys: pytest.CaptureFixture[str]) -> None:
    forest = load("walk_the_store").main()
    out = capsys.readouterr().out
    assert "after 4 5: [7" in out
    assert "another state of the task: [4" in out
    assert forest.stats().rollouts == 5


def test_the_policy_of_an_agent_takes_two_tools_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from turntree.agents.demo.policy import build_policy, save_policy

    example, told = load("train_sdk_agent"), list[Any]()
    monkeypatch.setattr(example, "warm_started_policy", lambda: save_policy(build_policy(), tmp_path / "demo"))
    monkeypatch.setattr(example, "train", lambda config, overrides, **_: told.append((config, overrides)) or 0)
    assert example.main(["--steps", "3", "--policy", str(tmp_path / "two")]) == 0
    ((config, overrides),) = told
    assert (config, overrides[1:]) == (
        "grpo_sdk_agent_cpu",
        ["trainer.total_training_steps=3", "turntree.env_kwargs.program=sdk_agent:solve"],
    )
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "two")
    known, new = (tokenizer(word)["input_ids"] for word in ("calculator", "multiply"))
    rows = AutoModelForCausalLM.from_pretrained(tmp_path / "two").get_input_embeddings().weight
    assert len(known) == len(new) == 1
    assert known != new
    assert rows[known].equal(rows[new])
    # The agent itself, sdk_agent.py, needs the SDK: load("sdk_agent") in tests/agents/harness/test_sdk_agent.py.


def test_training_hands_on_what_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    example, told = load("train_grpo_cpu"), list[Any]()
    monkeypatch.setattr(example, "train", lambda config, overrides, **_: told.append((config, overrides)) or 0)
    assert example.main(["MODEL", "--steps", "3", "data.train_batch_size=4"]) == 0
    overrides = ["actor_rollout_ref.model.path=MODEL", "trainer.total_training_steps=3", "data.train_batch_size=4"]
    assert told == [("grpo_arithmetic_cpu", overrides)]


@pytest.mark.parametrize(("name", "extra"), [("evaluate_model", "local"), ("speculate_vllm", "vllm")])
def test_an_example_without_its_packages_ends_in_the_line_of_a_command(name: str, extra: str, monkeypatch) -> None:
    load(name)  # control
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(SystemExit, match=rf"^turntree: .* run: .*\[{extra}\]"):
        load(name)
