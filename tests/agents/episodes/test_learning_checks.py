from dataclasses import replace

import pytest
from adder import Adder
from adder import play as play_adder
from unlearning import CALL, CAUSES, FINE, WRONG, played, played_groups

from turntree.agents.episodes.episode import StopReason
from turntree.agents.episodes.learning_checks import Advice, equal_groups, figures_of, learning_warnings
from turntree.agents.episodes.record import episode_from_dict, episode_to_dict
from turntree.agents.evaluation.table import EvalResult, warnings
from turntree.agents.loop.renderer import Renderer


@pytest.mark.parametrize("cause", CAUSES)
async def test_each_cause_is_the_only_warning_and_a_fine_batch_has_none(renderer: Renderer, cause: str) -> None:
    said, groups = CAUSES[cause]
    episodes = await played_groups(renderer, groups)
    advice = Advice(tool_format="FORMAT", token_limit="LIMIT")
    turns = [turn for group in episodes for episode in group for turn in episode.turns if turn.parse_error]
    found = learning_warnings(
        figures_of(episodes), advice, tools=lambda: ["add", "multiply"], unparsed_turn=lambda: turns[0]
    )
    assert len(found) == bool(said), found
    assert all(said in line for line in found)


async def test_a_turn_records_why_its_call_could_not_be_parsed(renderer: Renderer) -> None:
    episode = await played(renderer, [WRONG, CALL, "good"])
    first, *others = episode.turns
    assert "malformed tool call" in first.parse_error
    assert first.parse_error in first.observation[0].content
    assert [turn.parse_error for turn in others] == ["", ""]
    row = episode_to_dict(episode)
    assert ["parse_error" in turn for turn in row["turns"]] == [True, False, False]
    assert episode_from_dict(row) == episode
    # An environment with the answer format alone has no such key.
    foreign, _ = await play_adder(renderer, "call 4", "5", env=Adder())
    assert [turn.parse_error for turn in foreign.turns] == ["", ""]


async def test_nothing_is_said_of_episodes_that_failed_or_of_tools_that_are_not_there(renderer: Renderer) -> None:
    advice = Advice(tool_format="FORMAT", token_limit="LIMIT")
    for cause in CAUSES.values():
        groups = await played_groups(renderer, cause.groups)
        failed = [[replace(episode, stop_reason=StopReason.FAILURE) for episode in group] for group in groups]
        assert learning_warnings(figures_of(failed), advice, tools=lambda: ["add"], unparsed_turn=lambda: None) == []
    words = figures_of(await played_groups(renderer, CAUSES["no call"].groups))
    assert learning_warnings(words, advice, tools=list, unparsed_turn=lambda: None) == []
    unknown = figures_of(await played_groups(renderer, CAUSES["unparsed"].groups))
    (line,) = learning_warnings(unknown, advice, tools=list, unparsed_turn=lambda: None)
    assert line.startswith("2 of 3 tool calls could not be parsed: ")


async def test_an_evaluation_is_checked_alike_and_may_solve_everything(renderer: Renderer) -> None:
    for cause in ("no call", "equal", "unparsed", "cut", "fine"):
        said, groups = CAUSES[cause]
        episodes = [episode for group in await played_groups(renderer, groups) for episode in group]
        found = warnings(EvalResult("sums", "model", 2, episodes, 0.0, ("add", "multiply")))
        assert [line.startswith(said) for line in found] == [True] * bool(said), found
    (solved, _), _ = await played_groups(renderer, FINE)
    assert warnings(EvalResult("sums", "model", 1, [solved] * 3, 0.0, ("add",))) == []
    wrong = await played(renderer, [CALL, "bad"])
    assert "rewards are equal" in warnings(EvalResult("sums", "model", 1, [wrong] * 3, 0.0, ("add",)))[0]
    assert warnings(EvalResult("sums", "model", 1, [wrong], 0.0, ("add",))) == [], "one episode has no gradient anyway"


def test_groups_of_one_are_compared_with_each_other_and_rounding_is_no_difference() -> None:
    assert equal_groups([[0.1 + 0.2, 0.3], [1.0]]) == 1.0
    assert equal_groups([[0.0], [1.0]]) == 0.0
    assert equal_groups([[0.0, 1.0], [1.0, 1.0]]) == 0.5
    assert equal_groups([]) is equal_groups([[], [1.0]]) is None
