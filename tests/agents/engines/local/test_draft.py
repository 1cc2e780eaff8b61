import numpy as np
import pytest
import torch
from cores import AdversarialForest, run_core, same_turns, tiny_llama
from draft_trees import draft_trees
from forest_checks import paths, rows_of

from turntree.agents.engines.drafting.trees import select, spread, with_turn_drafts
from turntree.agents.engines.local import LocalEngineConfig, Speculation, drafting
from turntree.agents.engines.local.core import EngineCore
from turntree.agents.engines.local.forward.model import Policy
from turntree.agents.engines.protocol import Completion, FinishReason, Sampling, TurnRequest
from turntree.spec_tree import DraftBatch

TREE = Speculation(max_nodes=8, max_depth=6, min_probability=0.0, adaptive=False)
LONG = Sampling(max_tokens=40)
TREES = draft_trees([(5, -1), (6, 0), (7, -1), (8, 1), (9, 2)], [], [(1, -1), (2, 0)], last_probability=0.1)


def ways(draft: DraftBatch) -> list[set[tuple[int, ...]]]:
    """Return the paths to the nodes of each row; equal siblings would collapse."""
    rows = rows_of(draft)
    assert all(node.depth == len(path) for row in rows for node, path in zip(row, paths(row), strict=True))
    assert all(len(set(paths(row))) == len(row) for row in rows)
    return [set(paths(row)) for row in rows]


def test_a_draft_and_a_tree_share_the_nodes_that_they_agree_on():
    both = with_turn_drafts(TREES, [[5, 6, 4], [3], []])
    tree = ways(TREES)
    assert ways(both) == [tree[0] | {(5,), (5, 6), (5, 6, 4)}, {(3,)}, tree[2]]
    assert (both.tokens[:3].tolist(), both.parents[:3].tolist()) == ([5, 6, 4], [-1, 0, 1])


@pytest.mark.parametrize("seed", range(20))
def test_no_path_is_lost_or_doubled(seed):
    rng = np.random.default_rng(seed)
    turn_drafts = [rng.integers(5, 8, size=int(rng.integers(0, 5))).tolist() for _ in range(3)]
    both = ways(with_turn_drafts(TREES, turn_drafts))
    prefixes = [{tuple(turn_draft[: n + 1]) for n in range(len(turn_draft))} for turn_draft in turn_drafts]
    assert both == [tree | chain for tree, chain in zip(ways(TREES), prefixes, strict=True)]


def test_rows_are_spread_and_selected():
    wide = spread(TREES, [0, 2, 3], 5)
    assert [len(p) for p in ways(wide)] == [5, 0, 0, 2, 0]
    assert ways(select(wide, np.array([0, 3]))) == [ways(TREES)[0], ways(TREES)[2]]


@pytest.mark.parametrize("chunk", [1, 7, 16, 1024])
def test_a_right_draft_takes_one_pass_a_chunk(model, prompts, chunk):
    plain = run_core(model, prompts, LONG)
    replayed = run_core(model, prompts, LONG, turn_drafts=lambda i: plain[i].token_ids, prefill_chunk=chunk)
    assert same_turns(replayed, plain)
    assert {t.draft.verify_steps for t in replayed} == {-(-40 // (chunk + 1))}
    assert {t.accepted for t in replayed} == {
        tuple(position < 39 and position % (chunk + 1) != chunk for position in range(40))
    }


def test_what_follows_a_wrong_token_is_drawn_with_the_stores_help(model, prompts):
    plain = run_core(model, prompts, LONG)

    def wrong_in_the_middle(i: int) -> list[int]:
        turn_draft = list(plain[i].token_ids)
        turn_draft[20] = (turn_draft[20] + 1) % 32
        return turn_draft

    replayed = run_core(model, prompts, LONG, turn_drafts=wrong_in_the_middle)
    assert same_turns(replayed, plain)
    assert {t.draft.verify_steps for t in replayed} == {1 + 19}
    helped = run_core(
        model,
        prompts,
        LONG,
        turn_drafts=wrong_in_the_middle,
        forest=AdversarialForest(32, branching=8),
        speculation=TREE,
    )
    assert same_turns(helped, plain)
    assert sum(t.draft.drafted for t in helped) > sum(t.draft.drafted for t in replayed)


def test_drafts_bounded_in_logits_are_still_verified_whole(prompts, monkeypatch):
    monkeypatch.setattr(drafting, "LOGITS", 10 * 5 * 32)
    model = tiny_llama()
    plain = run_core(model, prompts, LONG)
    replayed = run_core(model, prompts, LONG, turn_drafts=lambda i: plain[i].token_ids)
    assert same_turns(replayed, plain)
    assert max(t.draft.verify_steps for t in replayed) == -(-40 // 6)


def test_a_draft_respects_the_limits_of_the_turn_and_of_the_context(model, prompts):
    how = Sampling(max_tokens=99)
    plain = run_core(model, prompts[:4], how, max_context=40)
    cut = run_core(model, prompts[:4], how, max_context=40, turn_drafts=lambda i: [*plain[i].token_ids, 1, 2, 3])
    assert same_turns(cut, plain)
    short = run_core(model, prompts[:4], Sampling(max_tokens=3), turn_drafts=lambda i: plain[i].token_ids)
    assert [t.token_ids for t in short] == [t.token_ids[:3] for t in plain]


async def test_the_engine_ignores_draft_tokens_after_a_stop_token(engine, prompts):
    free = await engine.generate(TurnRequest(prompts[0], Sampling(max_tokens=20, seed=3)))
    stop = free.token_ids[6]
    how = Sampling(max_tokens=20, seed=3, stop_token_ids=(stop,))
    turn = await engine.generate(TurnRequest(prompts[0], how, draft=free.token_ids))
    end = free.token_ids.index(stop) + 1
    assert turn.token_ids == free.token_ids[:end]
    assert turn.finish_reason is FinishReason.STOP
    assert (turn.draft.drafted, turn.draft.verify_steps) == (end, 1)


async def test_a_draft_of_unknown_tokens_is_refused(engine, prompts):
    with pytest.raises(ValueError, match="the draft holds token 32, the model knows 0 to 31"):
        await engine.generate(TurnRequest(prompts[0], Sampling(), draft=[1, 32]))
    with pytest.raises(ValueError, match="top_logprobs is 33"):
        await engine.generate(TurnRequest(prompts[0], Sampling(top_logprobs=33)))


def test_an_aborted_replay_keeps_what_was_verified(model, prompts):
    plain = run_core(model, prompts[:2], LONG)
    core = EngineCore(Policy(model), LocalEngineConfig(max_context=128, prefill_chunk=8, speculation=None), None)
    step = core.step

    def once() -> None:
        step()
        if any(r.verify_steps == 2 for r in core.live):
            core.abort_all()

    core.step = once
    cut = run_core(model, prompts[:2], LONG, core=core, turn_drafts=lambda i: plain[i].token_ids)
    assert {t.finish_reason for t in cut} == {FinishReason.ABORT}
    assert all(t.token_ids == p.token_ids[: len(t.token_ids)] for t, p in zip(cut, plain, strict=True))
    assert max(len(t.token_ids) for t in cut) == 18


def test_a_replay_under_new_weights_says_what_the_new_policy_says(prompts):
    # Most of a stored turn survives a small update, and the output is exactly plain decoding.
    old, new = tiny_llama(sharpness=2.0), tiny_llama(sharpness=2.0)
    with torch.no_grad():
        for parameter in new.parameters():
            parameter.add_(0.001 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)).double())
    stored = run_core(old, prompts, LONG)
    plain = run_core(new, prompts, LONG)
    assert [t.token_ids for t in stored] != [t.token_ids for t in plain], "the weights must have changed something"
    replayed = run_core(new, prompts, LONG, turn_drafts=lambda i: stored[i].token_ids)
    assert same_turns(replayed, plain)
    assert sum(t.draft.verify_steps for t in replayed) < 0.8 * sum(t.draft.verify_steps for t in plain)


def test_a_turn_of_another_seed_replays_worse(prompts):
    """Control of the test above: the shared noise keeps prefixes."""
    model = tiny_llama(sharpness=1.5)
    same = run_core(model, prompts, lambda i: Sampling(max_tokens=40, seed=i))
    other = run_core(model, prompts, lambda i: Sampling(max_tokens=40, seed=100 + i))

    def passes(turns: list[Completion]) -> int:
        replayed = run_core(model, prompts, LONG, turn_drafts=lambda i: turns[i].token_ids)
        return sum(t.draft.verify_steps for t in replayed)

    assert passes(same) == len(prompts)
    assert passes(other) > 10 * len(prompts)
