import json
from pathlib import Path
from typing import Any

import pytest
from client_results import require_result
from spoken_server import MODEL, SpokenServer, gold, question, right, spoken_server

from turntree.rewards import score

pytestmark = pytest.mark.interop
TASKS, KILLED_AFTER = 10, 5


def evaluate(server: SpokenServer, folder: Path, *, kill_after: int | None) -> Any:
    import inspect_ai
    from inspect_ai.dataset import json_dataset
    from inspect_ai.model import get_model
    from inspect_ai.scorer import Score, mean, scorer
    from inspect_ai.solver import generate

    data = folder / "sums.json"
    data.write_text(json.dumps([{"input": question(n), "target": str(gold(n)), "id": n} for n in range(TASKS)]))
    scored = 0

    @scorer(metrics=[mean()])
    def turntree_reward() -> Any:
        async def judged(state: Any, target: Any) -> Any:
            nonlocal scored
            found = score(state.output.completion, target.text, "gsm8k")
            scored += 1
            if scored == kill_after:
                server.process.kill()
                server.process.wait()
            return Score(value=float(found.correct or 0))

        return judged

    task = inspect_ai.Task(dataset=json_dataset(str(data)), solver=generate(), scorer=turntree_reward())
    model = get_model(f"openai/{MODEL}", base_url=server.url, api_key="none", responses_api=False)
    (log,) = inspect_ai.eval(
        task,
        model=model,
        log_dir=str(folder / "logs"),
        display="none",
        max_samples=1,
        max_retries=0,
        temperature=0,
        max_tokens=128,
        fail_on_error=False,
    )
    return log


def test_samples_are_scored_and_those_of_a_killed_server_are_errors(tmp_path: Path) -> None:
    verdicts = [float(right(number)) for number in range(TASKS)]
    with spoken_server(tmp_path) as server:
        log = evaluate(server, tmp_path, kill_after=None)
        assert values(log) == verdicts
        log = evaluate(server, tmp_path, kill_after=KILLED_AFTER)
    assert values(log) == [*verdicts[:KILLED_AFTER], *[None] * (TASKS - KILLED_AFTER)]
    lost = [sample for sample in log.samples if sample.error is not None]
    assert [sample.id for sample in lost] == [*range(KILLED_AFTER, TASKS)]
    assert log.results.scores[0].metrics["mean"].value == sum(verdicts[:KILLED_AFTER]) / KILLED_AFTER
    scored = f"local JSON, {TASKS} samples scored by `turntree.rewards`"
    found = f"{scored}; server killed after {KILLED_AFTER}: {len(lost)} errors, no zero"
    require_result("inspect-ai", found)


def values(log: Any) -> list[float | None]:
    ranked = sorted(log.samples, key=lambda sample: sample.id)
    return [sample.scores["turntree_reward"].value if sample.scores else None for sample in ranked]
