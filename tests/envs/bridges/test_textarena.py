import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from bridge_results import require_result
from playing import halving, play

from turntree.envs import Env, require_conformance
from turntree.envs.bridges.textarena import TextArena
from turntree.envs.errors import EnvError

pytestmark = pytest.mark.interop
SLOW = {"Sokoban-v0-medium"}  #: takes ten seconds to set up, and differs from Sokoban-v0 only in size
BAD = ("word", "", "[[[((", "[" + "9" * 4000 + "]", "[-1 -1]", "[a]")
MOVES = ("[up]", "[1]", "[down]", "[0 0]", "[A1]", "[1 2 3]", "[C A]", "[right]", "[1 1 1]", "[continue]") * 2


@pytest.fixture(scope="module")
def games() -> Iterator[dict[str, str]]:
    # Every game by its name, with the reason why it cannot begin, if there is one.
    import nltk
    from textarena.envs.registration import ENV_REGISTRY

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nltk, "download", lambda *_, **__: False)
        patch.setattr(nltk.data, "path", [])
        names = [name for name in ENV_REGISTRY if "-raw" not in name and "-train" not in name and name not in SLOW]
        yield {name: refusal(name) for name in names}


def refusal(name: str) -> str:
    try:
        TextArena(name).reset(options={"index": 3})
    except EnvError as error:
        return str(error)
    return ""


def first(games: dict[str, str]) -> list[str]:
    # One game of each kind, because games of a kind differ only in size.
    kinds = {name.partition("-")[0]: name for name in sorted(games, reverse=True) if not games[name]}
    return list(kinds.values())


def steps(env: Env, turns: Any) -> list[Any]:
    env.reset(options={"index": 3})
    return on(env, turns)


def on(env: Env, turns: Any) -> list[Any]:
    taken: list[Any] = []
    for turn in turns:
        taken.append(env.step(turn))
        if taken[-1][2] or taken[-1][3]:
            break
    return taken


def test_every_game_of_one_player_is_scored_whatever_is_said(games: dict[str, str]) -> None:
    playable = [name for name, reason in games.items() if not reason]
    kinds = first(games)
    failures = {
        name: failure
        for name in playable
        for text in (BAD if name in kinds else BAD[:1])
        if (failure := steps(TextArena(name), [text] * 3)[-1][4]["failure"])
    }
    assert failures == {}
    played = f"{len(playable)} single-player games ({len(kinds)} kinds)"
    found = f"{played} play, score and continue from snapshots; other games are refused with the reason"
    require_result("textarena", found)


def test_every_kind_of_game_goes_on_from_a_snapshot(games: dict[str, str]) -> None:
    for name in first(games):
        env, fresh = TextArena(name), TextArena(name)
        env.reset(options={"index": 3})
        state = env.snapshot()
        told = on(env, MOVES)
        fresh.restore(state)
        assert on(fresh, MOVES) == told, name


def test_the_games_that_cannot_begin_say_why(games: dict[str, str]) -> None:
    refused = {name: reason for name, reason in games.items() if reason}
    assert {"single-player" in refused["PublicGoodsGame-v0"], "LookupError" in refused["Wordle-v0"]} == {True}
    assert all(name in reason and "\n" not in reason for name, reason in refused.items())


def test_a_game_is_won_from_its_seed_and_a_second_bad_move_is_worth_what_it_says() -> None:
    env = TextArena("GuessTheNumber-v0")
    assert "number between" in env.reset(seed=0, options={"index": 7})[0]
    step = halving(env, "[{}]", 1, 20)
    assert (step[1], step[4]["stop_reason"]) == (1.0, "done")
    assert play(TextArena("PegJump-v0"), ["hello", "hello"])[-1][1] == pytest.approx(1 / 14)
    assert play(TextArena("Bandit-v0"), ["hello", "hello"])[-1][1] == -1.0
    import pickle

    import textarena

    game = textarena.make("GuessTheNumber-v0")
    with pytest.raises(RecursionError):
        pickle.loads(pickle.dumps(game))


def test_games_leave_the_global_randomness_alone() -> None:
    def state() -> Any:
        return random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[union-attr]

    before = state()
    told = [steps(TextArena(name), MOVES)[-1][0] for name in ("Sokoban-v0", "2048-v0")]
    assert state() == before
    random.seed(5)
    np.random.seed(5)
    assert [steps(TextArena(name), MOVES)[-1][0] for name in ("Sokoban-v0", "2048-v0")] == told


@pytest.mark.parametrize("name", ["GuessTheNumber-v0", "2048-v0", "Countdown-v0"])
def test_it_keeps_the_rules(name: str) -> None:
    require_conformance(lambda: TextArena(name), ["[5]", "[up]", "[1 2 +]", "[left]"])
