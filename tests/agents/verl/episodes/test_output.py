from dataclasses import replace
from typing import Any

import pytest
import torch
from recording_engine import a_turn
from tables import table

from turntree.agents.engines.protocol import DraftStats
from turntree.agents.episodes.episode import Episode, StopReason, Turn
from turntree.agents.episodes.record import episode_from_dict, episode_to_dict
from turntree.agents.verl.episodes.output import EpisodeOutput, neutralise, to_output
from turntree.agents.verl.episodes.scored_text import SAMPLE
from turntree.agents.verl.records.metrics import EPISODE
from turntree.envs import Message, Role, ToolCall


def turn(prompt: tuple[int, ...], *tokens: int, reward: float, version: int) -> Turn:
    counts = {"draft": DraftStats(verify_steps=2, drafted=3, accepted=1), "weights_version": version}
    said = a_turn(*tokens, logprobs=(-0.5,) * len(tokens), **counts)
    return Turn(prompt_ids=prompt, completion=said, text="t", reward=reward)


def episode(**changes: Any) -> Episode:
    call = Message(role=Role.ASSISTANT, content="t", tool_calls=(ToolCall(name="f"),))
    fields: dict[str, Any] = {
        "env_id": "e",
        "task": None,
        "seed": 0,
        "messages": (call, Message(role=Role.ASSISTANT, content="t")),
        "turns": (turn((1, 2), 3, 4, reward=0.25, version=6), turn((1, 2, 3, 4, 8, 8), 5, reward=1.0, version=7)),
        "stop_reason": StopReason.DONE,
    }
    return Episode(**{**fields, **changes})


def lay_out(episode: Episode, **options: Any) -> EpisodeOutput:
    return to_output(episode, weights_version=9, filler_id=0, **options)


FAILED = episode(stop_reason=StopReason.FAILURE, failure="the tool broke")
UNSTARTED = episode(turns=(), messages=(), stop_reason=StopReason.FAILURE, failure="no env")
UNPLAYED = episode(turns=(), messages=(), stop_reason=StopReason.MAX_TOKENS)
TRUNCATED = episode(stop_reason=StopReason.MAX_TOKENS)
UNGRADED = episode(ungraded=("answer",))


def told(output: EpisodeOutput) -> dict[str, Any]:
    return output.extra_fields["reward_extra_info"]


def test_tokens_lie_end_to_end_with_rewards_on_the_last_of_a_turn_and_observations_masked() -> None:
    output = lay_out(episode())
    assert output.prompt_ids == [1, 2]
    assert output.response_ids == [3, 4, 8, 8, 5]
    assert output.response_mask == [1, 1, 0, 0, 1]
    assert output.response_logprobs == [-0.5, -0.5, 0.0, 0.0, -0.5]
    row = lay_out(episode()).as_dict()
    assert row["rm_scores"].tolist() == [0.0, 0.25, 0.0, 0.0, 1.0]
    assert "turn_ends" not in row
    assert "turn_rewards" not in row


def test_levels_and_behaviour_lie_beside_the_response() -> None:
    first, last = episode().turns
    marked = replace(first.completion, levels="CD", behaviour_logprobs=(-0.25, -0.75))
    row = lay_out(episode(turns=(replace(first, completion=marked), last))).as_dict()
    assert row["token_levels"].dtype == torch.int8
    assert row["token_levels"].tolist() == [3, 4, 0, 0, 1]
    assert row["behaviour_log_probs"].dtype == torch.float32
    assert row["behaviour_log_probs"].tolist() == [-0.25, -0.75, 0.0, 0.0, -0.5]
    assert row["token_levels"].shape == row["behaviour_log_probs"].shape == row["responses"].shape


def test_counters_are_summed_over_the_turns() -> None:
    extra = lay_out(episode()).extra_fields
    assert (extra["spec_num_draft_tokens"], extra["spec_num_accepted_tokens"]) == (6, 2)
    assert extra["spec_num_verify_steps"] == 4
    assert (extra["min_global_steps"], extra["max_global_steps"]) == (6, 7)
    info = extra["reward_extra_info"]
    assert (info["acc"], info["turns"], info["tool_calls"], info["failure"]) == (1.0, 2, 1, 0.0)


@pytest.mark.parametrize(("masked", "failure", "ungraded"), [(FAILED, 1.0, 0.0), (UNGRADED, 0.0, 1.0)])
def test_an_episode_that_failed_or_has_no_verdict_teaches_nothing_and_is_counted(masked, failure, ungraded):
    output = lay_out(masked)
    row, info = output.as_dict(), told(output)
    assert (row["response_mask"].sum(), row["rm_scores"].sum()) == (0, 0)
    assert (info["failure"], info["ungraded"], info["acc"]) == (failure, ungraded, 0.0)


def test_an_episode_without_a_turn_is_still_valid_for_verl() -> None:
    output = lay_out(UNSTARTED)
    row = output.as_dict()
    assert len(row["prompts"]) == len(row["responses"]) == len(row["response_mask"]) == 1
    assert row["rollout_log_probs"].shape == row["rm_scores"].shape == (1,)
    assert row["token_levels"].tolist() == row["behaviour_log_probs"].tolist() == [0]
    assert row["response_mask"].tolist() == [0]
    assert (output.extra_fields["min_global_steps"], output.extra_fields["max_global_steps"]) == (9, 9)


def test_an_unmasked_episode_without_a_turn_is_a_truncated_row_of_which_nothing_is_learnt() -> None:
    output = lay_out(UNPLAYED)
    row, info = output.as_dict(), told(output)
    assert len(row["responses"]) == 1
    assert (row["response_mask"].tolist(), row["rm_scores"].tolist()) == ([0], [0.0])
    assert (info["truncated"], info["masked"], info["turns"], info["attempts"]) == (1.0, 0.0, 0, 1)
    scored = lay_out(UNPLAYED, score_in_verl=True)
    scored.reward_score, scored.extra_fields["reward_extra_info"] = 0.5, {"score": 0.5}
    assert scored.as_dict()["rm_scores"].tolist() == [0.5]
    beside = lay_out(episode(extra_dialogues=(UNPLAYED,))).rows[0].as_dict()
    assert beside["response_mask"].tolist() == [0]


def test_every_output_has_the_same_fields() -> None:
    outputs = [lay_out(e) for e in (episode(), UNSTARTED, UNPLAYED, TRUNCATED)]
    for fields in (lambda o: o.extra_fields, told, EpisodeOutput.as_dict):
        assert len({tuple(sorted(fields(output))) for output in outputs}) == 1


@pytest.mark.parametrize("limit", [StopReason.MAX_TOKENS, StopReason.MAX_TURNS])
def test_an_episode_that_a_limit_cut_off_is_no_failure_is_paid_and_not_solved(limit: StopReason) -> None:
    output = lay_out(episode(stop_reason=limit))
    info = told(output)
    assert (info["truncated"], info["score"], info["acc"]) == (1.0, 1.25, 0.0)
    assert sum(output.response_mask) == 3


def test_masked_episodes_are_given_the_mean_of_their_group_so_that_they_do_not_move_it() -> None:
    outputs = [lay_out(e) for e in (episode(), FAILED, episode(turns=episode().turns[:1]), UNGRADED)]
    scores = [output.as_dict()["rm_scores"].sum().item() for output in outputs]
    neutralise(outputs)
    neutral = [output.as_dict()["rm_scores"].sum().item() for output in outputs]
    assert (scores, neutral) == ([1.25, 0.0, 0.25, 0.0], [1.25, 0.75, 0.25, 0.75])
    assert outputs[1].as_dict()["response_mask"].sum() == 0
    outputs = [lay_out(FAILED)] * 2
    neutralise(outputs)
    assert outputs[0].as_dict()["rm_scores"].sum() == 0


def test_verl_may_score_the_policys_words_and_what_it_cannot_grade_is_masked() -> None:
    output = lay_out(episode(), score_in_verl=True)
    assert output.reward_score is None
    assert output.extra_fields[SAMPLE]["turns"] == ["t", "t"]
    output.reward_score = 0.5
    output.extra_fields["reward_extra_info"] = {"score": 0.5, "ungraded": 0.0}
    row = output.as_dict()
    assert row["rm_scores"].tolist() == [0.0, 0.0, 0.0, 0.0, 0.5]
    assert row["response_mask"].tolist() == [1, 1, 0, 0, 1]
    assert row["extra_fields"][EPISODE]["turns"] == 2
    assert SAMPLE not in row["extra_fields"]
    output = lay_out(episode(), score_in_verl=True)
    output.reward_score = 0.0
    output.extra_fields["reward_extra_info"] = {"score": 0.0, "ungraded": 1.0}
    row = output.as_dict()
    assert (row["response_mask"].sum(), row["response_mask"].dtype) == (0, torch.int64)


def test_named_rewards_are_logged_for_every_episode() -> None:
    paid = episode(rewards={"answer": 1.0, "steps": 3.0})
    first, second = (told(lay_out(one, rewards=("answer", "few_turns"))) for one in (paid, UNSTARTED))
    assert (first["reward_answer"], first["reward_few_turns"]) == (1.0, 0.0)
    assert tuple(first) == tuple(second)
    assert "reward_steps" not in first


@pytest.mark.parametrize(("rewards", "accuracy"), table(__file__, "accuracies"))
def test_accuracy_is_that_of_the_answer_or_the_environment_not_of_what_form_earns(rewards, accuracy):
    assert told(lay_out(episode(rewards=rewards)))["acc"] == accuracy


def several() -> Episode:
    first, second = episode().turns
    branch = episode(turns=(first, replace(second, reward=0.0)), shared_turns=1)
    agent = episode(turns=(turn((7,), 5, 6, reward=0.0, version=6),))
    return episode(extra_dialogues=(agent, branch))


def test_each_dialogue_of_a_program_is_a_row_and_its_own_the_last() -> None:
    agent, branch, own = (row.as_dict() for row in lay_out(several()).rows)
    assert [row["responses"].tolist() for row in (agent, branch, own)] == [[5, 6], [3, 4, 8, 8, 5], [3, 4, 8, 8, 5]]
    assert [row["rm_scores"].sum().item() for row in (agent, branch, own)] == [1.25, 1.25, 1.25]
    assert agent.keys() == branch.keys() == own.keys()
    assert agent["extra_fields"].keys() == own["extra_fields"].keys()


def test_a_turn_of_two_dialogues_is_trained_on_and_counted_once() -> None:
    _, branch, own = (row.as_dict() for row in lay_out(several()).rows)
    assert branch["response_mask"].tolist() == [0, 0, 0, 0, 1]
    assert branch["token_levels"].tolist() == [0, 0, 0, 0, 1]
    assert own["response_mask"].tolist() == [1, 1, 0, 0, 1]
    assert [row["extra_fields"]["spec_num_verify_steps"] for row in (branch, own)] == [2, 4]


def test_the_other_dialogues_follow_what_is_said_of_the_episode_later() -> None:
    output = lay_out(several(), score_in_verl=True)
    output.reward_score = 0.5
    output.extra_fields["reward_extra_info"] = {"score": 0.5, "ungraded": 1.0}
    for row in output.rows:
        assert row.as_dict()["rm_scores"].sum().item() == 0.5
        assert row.as_dict()["response_mask"].sum() == 0
    failed = replace(several(), stop_reason=StopReason.FAILURE, failure="it crashed")
    assert lay_out(failed).rows == [lay_out(failed)], "nothing is learnt from any dialogue of a failure"


def shortened(**changes: Any) -> Episode:
    # Three segments: two turns, one, and two.
    first, second = episode().turns
    alone = replace(turn((7, 7), 6, 6, reward=0.5, version=7), shortened=True)
    last = (replace(turn((9,), 5, reward=0.0, version=8), shortened=True), turn((9, 5, 8), 4, 3, reward=2.0, version=9))
    return episode(turns=(first, second, alone, *last), **changes)


def trained(rows: list[dict[str, Any]]) -> list[int]:
    return [int(token) for row in rows for token in row["responses"][row["response_mask"].bool()]]


def sampled(one: Episode) -> list[int]:
    return [token for turn in one.turns for token in turn.completion.token_ids]


def test_each_segment_of_a_shortened_dialogue_is_a_row_and_each_token_is_trained_once() -> None:
    one = shortened()
    rows = [row.as_dict() for row in lay_out(one).rows]
    assert [row["prompts"].tolist() for row in rows] == [[1, 2], [7, 7], [9]]
    assert [row["responses"].tolist() for row in rows] == [[3, 4, 8, 8, 5], [6, 6], [5, 8, 4, 3]]
    assert [row["response_mask"].tolist() for row in rows] == [[1, 1, 0, 0, 1], [1, 1], [1, 0, 1, 1]]
    assert [row["rollout_log_probs"].tolist() for row in rows][2] == [-0.5, 0.0, -0.5, -0.5]
    assert trained(rows) == sampled(one)
    kept = episode_from_dict(episode_to_dict(one))
    assert (kept, kept.segments) == (one, one.segments)


def test_a_token_that_is_trained_twice_is_noticed() -> None:
    one = shortened()
    again = replace(one, turns=one.segments[1])  # as a dialogue beside it, and not as a segment of it
    rows = [row.as_dict() for row in lay_out(replace(one, extra_dialogues=(again,))).rows]
    assert trained(rows) != sampled(one)
    whole = replace(one, turns=tuple(replace(turn, shortened=False) for turn in one.turns))
    with pytest.raises(ValueError, match="the prompt of turn 2 does not begin"):
        lay_out(whole)


def test_each_segment_has_the_whole_reward_and_the_episode_is_counted_once() -> None:
    output = lay_out(shortened())
    rows = [row.as_dict() for row in output.rows]
    assert [row["rm_scores"].tolist() for row in rows] == [
        [0.0, 0.25, 0.0, 0.0, 3.5],
        [0.0, 3.75],
        [0.0, 0.0, 0.0, 3.75],
    ]
    assert [bool(row["extra_fields"][EPISODE]) for row in rows] == [False, False, True]
    assert (told(output)["turns"], told(output)["score"]) == (5, 3.75)
    assert [row["extra_fields"]["spec_num_verify_steps"] for row in rows] == [4, 2, 4]
    assert [row["extra_fields"]["max_global_steps"] for row in rows] == [7, 7, 9]
    scored = lay_out(shortened(), score_in_verl=True)
    scored.reward_score = 0.5
    assert [row.as_dict()["rm_scores"].sum().item() for row in scored.rows] == [0.5] * 3
    failed = lay_out(shortened(stop_reason=StopReason.FAILURE, failure="it crashed"))
    assert [row.as_dict()["response_mask"].sum() for row in failed.rows] == [0]
