from collections.abc import Iterator
from typing import Any

import pytest
from bridge_results import require_result
from playing import Shop, call, halving, play

from turntree.envs import make, require_conformance
from turntree.envs.bridges.gem import Gem, gem_environment
from turntree.envs.bridges.libraries import EpisodeFailure
from turntree.envs.errors import EnvError

pytestmark = pytest.mark.interop
SLOW = {"game:Sokoban-v0-hard"}  #: takes ten seconds to set up
TURNS = ("hello", "\\boxed{1}", "\\boxed{up}", "\\boxed{1 1}", "")


@pytest.fixture
def gem(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    import gem
    import nltk
    from gem.envs.registration import ENV_REGISTRY

    monkeypatch.setattr(nltk, "download", lambda *_, **__: False)
    monkeypatch.setattr(nltk.data, "path", [])
    before = set(ENV_REGISTRY)
    yield gem
    for id in set(ENV_REGISTRY) - before:
        del ENV_REGISTRY[id]


def test_their_games_are_played_and_go_on_from_snapshots(gem: Any) -> None:
    from gem.envs.registration import ENV_REGISTRY

    games = [id for id in ENV_REGISTRY if id.startswith("game:") and id not in SLOW]
    played, refused = 0, []
    for id in games:
        env = Gem(id)
        try:
            env.reset(options={"index": 3})
        except EnvError as error:
            refused.append(str(error))
            continue
        state = env.snapshot()
        told = [env.step(TURNS[1])]
        env.restore(state)
        assert [env.step(TURNS[1])] == told
        assert not any(play(env, [text], 3)[0][4]["failure"] for text in TURNS), id
        played += 1
    assert all(id in "\n".join(refused) for id in ("game:Wordle-v0-easy", "game:Hangman-v0-easy"))
    found = f"{played} of their games play and continue from snapshots; ours work in their registry and vectors"
    require_result("gem-llm", found)


def test_a_game_of_theirs_is_won_and_a_question_of_reasoning_gym_through_gem_is_paid() -> None:
    env = Gem("game:GuessTheNumber-v0-easy")
    env.reset(options={"index": 7})
    step = halving(env, "So I say \\boxed{{{}}}", 1, 10)
    assert (step[1], step[4]["stop_reason"]) == (1.0, "done")
    env = Gem("rg:chain_sum")
    env.reset(options={"index": 5})
    gold = env._played.data["answer"]
    assert env.step("\\boxed{no number}")[1] < 0.1
    assert play(env, [f"So \\boxed{{{gold}}}"], 5)[0][1] == 1.0


def test_ours_crosses_to_gem_and_back_unchanged_also_in_vectors_and_copies(gem: Any) -> None:
    gem.register("ours:Arithmetic", gem_environment(lambda: make("turntree/Arithmetic-v0")))
    own = make("turntree/Arithmetic-v0")
    own.reset(options={"index": 4})
    answer = f"#### {own.current_task.answer}"
    told = own.step(answer)[:3]
    there = gem.make("ours:Arithmetic")
    assert there.reset(seed=4)[1]["task_id"] == own.current_task.id
    assert there.step(answer)[:3] == told
    back = Gem("ours:Arithmetic")
    back.reset(options={"index": 4})
    assert back.step(answer)[1:3] == told[1:]
    gem.register("ours:Guessing", gem_environment(lambda: make("turntree/NumberGuessing-v0")))
    vector = gem.make_vec("ours:Guessing", seed=3)
    observations, _ = vector.reset()
    assert len(observations) == 1
    env = gem.make("ours:Guessing")
    env.reset(seed=3)
    env.step("10")
    copy = env.spawn(same_state=True)
    assert copy.step("5")[:4] == env.step("5")[:4]


def test_a_failure_of_ours_is_raised_there_and_theirs_keeps_the_rules() -> None:
    env = gem_environment(Shop)()
    env.reset(seed=1)
    with pytest.raises(EpisodeFailure, match="OSError: gone"):
        env.step(call(Shop(), "price", item="bomb"))
    require_conformance(lambda: Gem("game:GuessTheNumber-v0-easy"), ["\\boxed{5}", "\\boxed{2}"])
