import random
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from overlapped_vllm import (
    ROWS,
    Answer,
    Asked,
    ScriptedSwitch,
    engine_arguments,
    overlap,
    play,
    runner_of,
    scheduler_of,
    vllm_here,
)
from tiny_llama import save_tiny_llama

from turntree.agents.engines.request_wire import request_entries
from turntree.agents.engines.vllm.overlap import drafter as overlapped
from turntree.spec_tree import DialogueState

pytestmark = pytest.mark.vllm

VOCABULARY, STOP = 64, 5


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("vllm", reason="needs vLLM; see make test-vllm")
    folder = tmp_path_factory.mktemp("policy")
    save_tiny_llama(folder, vocabulary=VOCABULARY, spread=1.0)
    with vllm_here() as patch:
        from vllm import LLM

        plain = LLM(**engine_arguments(folder, drafts=False))
        overlap(patch)
        drafted = LLM(**engine_arguments(folder, drafts=True))
        # Smaller steps wait for their drafts late, larger ones are trimmed.
        patch.setattr(overlapped, "FREE", 3 * ROWS)
        scheduler, preempted = scheduler_of(drafted), Counter[str]()
        preempt = scheduler._preempt_request

        def counted(*given: Any, **named: Any) -> Any:
            preempted["all"] += 1
            return preempt(*given, **named)

        patch.setattr(scheduler, "_preempt_request", counted)
        yield SimpleNamespace(plain=plain, drafted=drafted, preempted=preempted)


def requests(seed: int, count: int) -> list[Asked]:
    rng = random.Random(seed)
    prompts = [[rng.randrange(6, VOCABULARY) for _ in range(rng.choice((4, 20, 40, 120)))] for _ in range(6)]
    made = []
    for number in range(count):
        dialogue, variant = rng.randrange(len(prompts)), rng.randrange(4)
        given = rng.choice((0, 0, 0, 3))
        entries = request_entries(
            state=DialogueState(exact=dialogue + seed * len(prompts)), seed=1000 * dialogue + variant, given=given
        )
        sampling = {
            "temperature": rng.choice((1.0, 1.0, 0.0)),
            "max_tokens": rng.randrange(1, 60),
            "stop_token_ids": [STOP],
            "ignore_eos": True,
            "presence_penalty": rng.choice((0.0,) * 9 + (0.5,)),
            "extra_args": entries,
        }
        aborted = rng.randrange(1, 30) if rng.random() < 0.1 else None
        prompt = prompts[dialogue] + [7 + variant] * given
        made.append(Asked(rng.randrange(4 * count), f"{seed}-{number}", prompt, sampling, aborted))
    return made


def unlike(plain: dict[str, Answer], drafted: dict[str, Answer], asked: list[Asked]) -> list[str]:
    # An aborted request may be shorter in one engine: compare its beginning.
    aborted = {one.name for one in asked if one.aborted is not None}
    found = []
    for name in plain.keys() | drafted.keys():
        if (name not in plain or name not in drafted) and name in aborted:
            continue
        one, other = plain[name], drafted[name]
        most = min(len(one.tokens), len(other.tokens)) if name in aborted else None
        same = one.tokens[:most] == other.tokens[:most]
        reason = name in aborted or one.reason == other.reason
        if not (same and reason and one.logprobs[:most] == pytest.approx(other.logprobs[:most], abs=2e-3)):
            found.append(name)
    return found


def drafted_answers(engines: Any, asked: list[Asked], *, every: int = 5) -> tuple[dict[str, Answer], int, Counter[str]]:
    switch = scheduler_of(engines.drafted)._switch = ScriptedSwitch(every)
    answers, steps = play(engines.drafted, asked)
    assert len(answers) > 0.9 * len(asked)
    return answers, steps, Counter("drafts" if step["drafted"] else "none" for step in switch.observed)


def test_answers_are_those_of_synchronous_steps_without_drafts(engines: Any) -> None:
    asked = requests(1, 60)
    answers, steps, kinds = drafted_answers(engines, asked)
    assert unlike(play(engines.plain, asked)[0], answers, asked) == []
    assert steps > 150
    assert min(kinds["drafts"], kinds["none"]) > 30, kinds
    assert engines.preempted["all"] > 5
    assert runner_of(engines.drafted).drafter.counts.accepted > 100


@pytest.fixture
def ragged(engines: Any, monkeypatch: pytest.MonkeyPatch) -> Counter[bool]:
    # Counts steps in which equally planned requests kept fewer draft positions, and other steps.
    drafter, seen = runner_of(engines.drafted).drafter, Counter[bool]()
    trim = drafter.trim

    def watched(step: Any) -> None:
        planned = {name: len(tokens) for name, tokens in step.scheduled_spec_decode_tokens.items()}
        trim(step)
        most = max(planned.values(), default=0)
        left = {len(step.scheduled_spec_decode_tokens.get(name, ())) for name, n in planned.items() if n == most}
        assert not drafter.lengths or left <= {0, *drafter.lengths}
        seen[len(left) > 1] += 1

    monkeypatch.setattr(drafter, "trim", watched)
    return seen


def test_drafts_of_one_length_a_step_sample_the_same(engines: Any, few: Any, ragged: Any, monkeypatch: Any) -> None:
    asked, answers = few
    monkeypatch.setattr(overlapped, "FREE", 12)
    drafted_answers(engines, asked)
    assert ragged[True] > 10  # the control: without lengths to choose from they are as long as what is stored
    ragged.clear()
    drafter = runner_of(engines.drafted).drafter
    monkeypatch.setattr(drafter, "lengths", [2, 4])
    accepted = drafter.counts.accepted
    assert unlike(answers, drafted_answers(engines, asked)[0], asked) == []
    assert ragged[True] == 0
    assert ragged[False] > 30
    assert drafter.counts.accepted - accepted > 100


@pytest.mark.release
@pytest.mark.parametrize("seed", range(10, 20))
def test_answers_are_so_in_ten_thousand_steps(engines: Any, seed: int) -> None:
    asked = requests(seed, 300)
    answers, steps, _ = drafted_answers(engines, asked, every=1 + seed % 7)
    assert unlike(play(engines.plain, asked)[0], answers, asked) == []
    assert steps > 1000


@pytest.fixture(scope="module")
def few(engines: Any) -> tuple[list[Asked], dict[str, Answer]]:
    asked = requests(2, 20)
    answers, _ = play(engines.plain, asked)
    assert unlike(answers, drafted_answers(engines, asked)[0], asked) == []
    return asked, answers


def test_positions_by_the_length_of_outputs_are_noticed(engines: Any, few: Any, monkeypatch: Any) -> None:
    """Control: outputs count tokens before vLLM knows whether they are sampled."""
    from turntree.agents.engines.vllm.drawing.batch_rows import BatchRows

    def ends(rows: BatchRows, runner: Any) -> Any:
        lengths = [len(runner.requests[name].output_token_ids) for name in runner.input_batch.req_ids]
        return rows.held.new_tensor(lengths)[rows.index]

    monkeypatch.setattr(BatchRows, "ends", ends)
    asked, answers = few
    assert unlike(answers, drafted_answers(engines, asked)[0], asked)


def test_a_step_without_drafts_that_forgets_those_before_it_is_noticed(engines, few, monkeypatch):
    """Control: such a step corrects positions that were counted with drafts."""
    runner = runner_of(engines.drafted)
    modes, execute = runner.execute_model.__self__, runner.execute_model

    def forgetful(*given: Any, **named: Any) -> Any:
        modes._planned = False
        return execute(*given, **named)

    monkeypatch.setattr(runner, "execute_model", forgetful)
    asked, answers = few
    assert unlike(answers, drafted_answers(engines, asked)[0], asked)
