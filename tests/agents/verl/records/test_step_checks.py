import json
import logging
from pathlib import Path

import pytest
from unlearning import CAUSES, played_groups

from turntree.agents.loop.renderer import Renderer
from turntree.agents.verl.episodes.output import to_output
from turntree.agents.verl.records.metrics import PlayedRow, episode_metrics
from turntree.agents.verl.records.recording import EpisodeRecorder, RunFolder
from turntree.agents.verl.records.step_checks import LearningWarnings


@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("cause", CAUSES)
async def test_a_training_that_cannot_learn_is_warned_after_its_first_and_third_step(
    renderer: Renderer, tmp_path: Path, caplog: pytest.LogCaptureFixture, cause: str, recorded: bool
) -> None:
    said, groups = CAUSES[cause]
    folder = RunFolder(tmp_path)
    rows = []
    for index, episodes in enumerate(await played_groups(renderer, groups)):
        for session, episode in enumerate(episodes):
            extra = to_output(episode, weights_version=0, filler_id=0).extra_fields
            rows.append(PlayedRow(extra=extra, levels=(1,), group=f"group {index}"))
            for step in range(5, 9) if recorded else ():
                EpisodeRecorder(folder).write(episode, step=step, index=index, session=session, seed=0)
    warnings = LearningWarnings(folder, lambda: ["add", "multiply"])
    told = []
    for step in range(5, 9):  # of a run that was resumed
        caplog.clear()
        warnings.see(step, json.loads(json.dumps(episode_metrics(rows))))
        told.append([record.getMessage() for record in caplog.records])
        assert all(record.levelno == logging.WARNING for record in caplog.records)
    assert list(map(len, told)) == [bool(said), 0, bool(said), 0]
    expected = said if recorded else said.partition(",")[0]
    assert all(f"after step {step} {expected}" in line for step, lines in enumerate(told, start=5) for line in lines)


def test_nothing_is_said_without_turntrees_figures(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    LearningWarnings(RunFolder(tmp_path), lambda: ["add"]).see(1, {"critic/score/mean": 0.0})
    assert not caplog.records
