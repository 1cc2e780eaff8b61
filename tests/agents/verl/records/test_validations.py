import pytest
from recording_engine import a_turn

from turntree.agents.episodes.episode import Episode, StopReason, Turn
from turntree.agents.verl.records.validations import LastEpisodes


def episode(*turns: tuple[int, ...]) -> Episode:
    said = tuple(Turn(prompt_ids=(1,), completion=a_turn(*tokens), text="") for tokens in turns)
    return Episode(env_id="e", task=None, seed=0, messages=(), turns=said, stop_reason=StopReason.DONE)


@pytest.mark.parametrize(
    ("turns", "unchanged", "same", "share"),
    [
        ([(1, 2), (3, 4)], 1.0, 4.0, 1.0),
        ([(1, 2), (3, 5)], 0.0, 3.0, 0.75),
        ([(9, 2), (3, 4)], 0.0, 0.0, 0.0),
        ([(1, 2)], 0.0, 2.0, 0.5),
        ([(1, 2), (3, 4), (5, 6, 7, 8)], 0.0, 4.0, 0.5),
    ],
)
def test_an_episode_is_compared_with_the_last_one_of_its_key(turns, unchanged, same, share):
    last, first = LastEpisodes(), episode((1, 2), (3, 4))
    assert last.compare("here", first) == last.compare("there", episode((7,))) == {}
    names = ("coupled_unchanged", "coupled_same_tokens", "coupled_same_share")
    assert last.compare("here", episode(*turns)) == dict(zip(names, (unchanged, same, share), strict=True))
    assert (last.compare("here", first)["coupled_unchanged"] == 1.0) is bool(unchanged), "the last one counts"
