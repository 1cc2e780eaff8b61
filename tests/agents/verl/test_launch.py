import json
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from interpreter import python
from machine_speed import eventually, patience
from omegaconf import OmegaConf
from processes import alive, heed_hangups
from tables import table

from turntree.agents.errors import UsageError
from turntree.agents.turn_drafts.config import ReuseMode
from turntree.agents.verl import launch
from turntree.agents.verl.config.compose import compose
from turntree.agents.verl.config.sections import ConfigError, plain
from turntree.agents.verl.config.settings import RunSettings
from turntree.agents.verl.launch import Phase, StepReport, train
from turntree.agents.verl.records.phases import VARIABLE, note_phase
from turntree.agents.verl.records.recording import RunFolder
from turntree.agents.verl.run.resume import keep_records, remove_halves, resumed_step


@pytest.fixture
def overrides(tiny_model: Path, tmp_path: Path) -> list[str]:
    common = f"actor_rollout_ref.model.path={tiny_model}", f"turntree.run_dir={tmp_path / 'run'}"
    return [*common, "turntree.train_tasks=4", "data.train_batch_size=4", "turntree.val_tasks=2"]


Run = Callable[..., int]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, overrides: list[str]) -> Run:
    # Trains with a script in place of verl; ``$RUN`` in the script is the run's folder.
    def run(script: str, more: Sequence[str] = (), **options: Any) -> int:
        waiting = f"import sys; assert sys.stdin.readline()\n{script}"
        command = lambda folder, socket: [sys.executable, "-c", waiting.replace("$RUN", str(folder.root))]  # noqa: E731
        monkeypatch.setattr(launch, "command", command)
        return train("demo", [*overrides, *more], **options)

    return run


def test_every_step_is_reported_once_and_whole(run: Run) -> None:
    reports: list[StepReport] = []
    assert run(table(__file__, "writes_two_steps"), on_step=reports.append) == 0
    told = [(report.step, report.reward, report.tokens_per_forward_pass) for report in reports]
    assert told == [(1, 0.5, 2.0), (2, 0.5, 3.0)]


@pytest.fixture
def prepared(overrides: list[str], tmp_path: Path) -> Callable[..., Any]:
    def prepare(*more: str, config: str = "demo") -> Any:
        folder = RunFolder(tmp_path / "run")
        folder.root.mkdir()
        launch.prepare(compose(config, [*overrides, *more]), folder, tmp_path / "ray")
        return OmegaConf.load(folder.config)

    return prepare


def test_the_folder_holds_what_verl_is_started_with(prepared: Callable[..., Any], tmp_path: Path) -> None:
    config = prepared()
    folder = RunFolder(tmp_path / "run")
    assert config.data.train_files == str(folder.rows("train"))
    assert pyarrow.parquet.read_table(config.data.train_files).num_rows == 4
    validation = pyarrow.parquet.read_table(config.data.val_files).to_pylist()
    assert [row["extra_info"]["split"] for row in validation] == ["val"] * 2
    assert json.loads(validation[0]["env_kwargs"])["split"] == "test", "validation has settings of its own"
    assert config.actor_rollout_ref.rollout.custom.turntree.run_dir == str(folder.root)
    assert config.ray_kwargs.ray_init._temp_dir == str(tmp_path / "ray")


FEW = ("turntree.train_tasks=null", "turntree.val_tasks=null", "turntree.env_kwargs.data=few.jsonl")


def test_an_environment_with_few_tasks_is_trained_on_all_of_them(prepared, monkeypatch, tmp_path, caplog):
    monkeypatch.chdir(tmp_path)
    rows = [{"question": f"{one}+1?", "answer": f"#### {one + 1}"} for one in range(5)]
    Path("few.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with caplog.at_level("INFO"):
        config = prepared(*FEW, config="turntree.env=turntree/GSM8K-v0")
    assert pyarrow.parquet.read_table(config.data.train_files).num_rows == 5
    assert "few tasks: turntree.train_tasks=5 turntree.val_tasks=5" in caplog.text
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"data\.train_batch_size=6 tasks, and there are 5 .*train_batch_size=5"):
        prepared(*FEW, "data.train_batch_size=6", config="turntree.env=turntree/GSM8K-v0")
    shutil.rmtree(tmp_path / "run")
    with pytest.raises(ConfigError, match=r"has only 5 tasks .* 6 were requested"):  # who names a number means it
        prepared(*FEW, "turntree.train_tasks=6", config="turntree.env=turntree/GSM8K-v0")


PROGRAM = ("env=program", "turntree.env_kwargs.command=agent", "turntree.val_env_kwargs={}")


def test_a_program_is_a_data_set_of_its_tasks(prepared: Callable[..., Any]) -> None:
    config = prepared(*PROGRAM, config="grpo_arithmetic_cpu")
    first = pyarrow.parquet.read_table(config.data.train_files).to_pylist()[0]
    assert [message["role"] for message in first["prompt"]] == ["user"]
    assert first["env_id"] == "turntree.agents.harness.env:HarnessEnv"


def test_programs_are_not_run_ahead(overrides: list[str]) -> None:
    longest = ("data.max_prompt_length=256", "data.max_response_length=256")
    with pytest.raises(ConfigError, match="run-ahead would run them for nothing"):
        train("grpo_arithmetic_cpu", [*overrides, *PROGRAM, *longest, "speculation=[tree,run_ahead]"])


def test_the_runs_settings_reach_the_servers_and_the_agent_loops(prepared: Callable[..., Any]) -> None:
    config = prepared(
        *("turntree.reuse.mode=spec_rl", "turntree.reuse.preset=grpo", "turntree.memo_results=100"),
        *("turntree.rewards={answer: 1, few_turns: {weight: 0.1, high: 0.5}}", "turntree.answer_format=math"),
    )
    settings = RunSettings.parse(plain(config.actor_rollout_ref.rollout.custom))
    assert (settings.reuse.mode, settings.reuse.preset, settings.memo_results) == (ReuseMode.SPEC_RL, "grpo", 100)
    assert settings.answer_format == "math"
    assert settings.scorer().names == ("answer", "few_turns")


def test_a_data_set_without_rules_is_found_before_anything_is_started(prepared: Callable[..., Any]) -> None:
    with pytest.raises(ConfigError, match=r"'arithmetic' has no answer format.* turntree\.answer_format=math"):
        prepared("turntree.rewards={answer: 1}")


@pytest.mark.parametrize(("more", "forked"), table(__file__, "forked"))
def test_workers_are_forked_on_the_cpu_of_this_machine(overrides, tmp_path, more, forked):
    folder = RunFolder(tmp_path)
    composition = compose("demo", [*overrides, *more])
    launch.prepare(composition, folder, tmp_path)
    socket = launch.fork_socket(composition, tmp_path)
    executable = OmegaConf.select(OmegaConf.load(folder.config), "ray_kwargs.ray_init.runtime_env.py_executable")
    assert (socket is not None) is forked
    assert ("fork_client" in (executable or "")) is forked
    assert any("--socket" in word for word in launch.command(folder, socket)) is forked


def test_a_failed_run_shows_the_end_of_its_log(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    assert run("print('the reason'); raise SystemExit(3)") == 3
    assert "status 3" in caplog.text
    assert "the reason" in caplog.text


def test_a_process_that_is_killed_for_memory_ends_in_one_line(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    log = table(__file__, "rays_log").replace("NAME", "WorkerDict")
    assert run(f"print({log!r}); raise SystemExit(1)") == 1
    (record,) = caplog.records
    assert "was killed with 17.9 GB, as 22.46 of" in record.getMessage()
    assert "\n" not in record.getMessage()


FULL = "OSError(errno.ENOSPC, 'No space left on device', '$RUN/checkpoints/half')"


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (FULL, "no space was left for .*/checkpoints/half .*; free some, or .*; the same command .*after step 1,"),
        ("RuntimeError('PytorchStreamWriter failed writing file')", "no space was left for .*/run "),
        ("OSError(errno.EDQUOT, 'Disk quota exceeded', 'x')", "no space was left for x "),
    ],
)
def test_a_full_disk_is_one_line_and_costs_no_checkpoint(run, tmp_path, caplog, error, said):
    folder = RunFolder(tmp_path / "run").checkpoints
    script = table(__file__, "fills_the_disk").replace("ERROR", error)
    assert run(script) == 1
    (record,) = caplog.records
    assert re.match(said, record.getMessage())
    assert "\n" not in record.getMessage()
    assert sorted(path.name for path in folder.iterdir()) == ["global_step_1", "latest_checkpointed_iteration.txt"]


def test_without_a_full_disk_no_folder_is_taken_for_a_half(run: Run, tmp_path: Path) -> None:
    # Control of the test above.
    script = "import pathlib; pathlib.Path('$RUN/checkpoints/global_step_2').mkdir(parents=True)\nraise OSError('lost')"
    assert run(script) == 1
    assert (RunFolder(tmp_path / "run").checkpoints / "global_step_2").is_dir()


@pytest.mark.parametrize(
    ("step", "earlier", "left"), [(1, (), [1]), (0, (), []), (2, (), [1, 2, 3]), (1, (3,), [1, 3])]
)
def test_only_halves_of_this_run_are_removed_and_only_beside_a_whole_one(tmp_path, step, earlier, left):
    for number in (1, 2, 3):
        (tmp_path / f"global_step_{number}").mkdir()
    (tmp_path / "global_step_1" / "actor").mkdir()  # verl has taken away that of step 2
    remove_halves(tmp_path, step, frozenset(f"global_step_{number}" for number in earlier))
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"global_step_{number}" for number in left]


def test_a_step_that_a_full_disk_left_unwritten_is_that_of_the_newest_checkpoint(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    latest = folder.checkpoints / "latest_checkpointed_iteration.txt"
    (folder.checkpoints / "global_step_12").mkdir(parents=True)
    latest.write_text("")
    assert resumed_step({"resume_mode": "auto"}, folder) == 12
    assert latest.read_text() == "", "asking changes nothing"
    keep_records(folder, 12)
    assert latest.read_text() == "12", "verl reads it, too"
    latest.write_text("twelve")
    with pytest.raises(ConfigError, match="should hold the number"):
        resumed_step({"resume_mode": "auto"}, folder)


def test_what_a_process_of_verl_finds_wrong_with_the_configuration_is_one_line(run, caplog):
    wrong = "from turntree.agents.verl.config.sections import ConfigError\nraise ConfigError('raise rollout.n')"
    assert run(wrong) == 1
    (record,) = caplog.records
    assert re.fullmatch(r"raise rollout\.n; all output of verl is in \S+", record.getMessage())


@pytest.mark.parametrize(("shares", "played", "said"), table(__file__, "failed_steps"))
def test_a_run_that_plays_nothing_to_its_end_is_a_failed_one(run, caplog, shares, played, said):
    waits = str(played if played < len(shares) else None)  # there it must be given up
    reports: list[StepReport] = []
    script = table(__file__, "writes_lost_steps").replace("SHARES", repr(shares)).replace("WAITS", waits)
    assert run(script, on_step=reports.append) == (1 if said else 0)
    assert len(reports) == played
    assert all(part in caplog.text for part in said)
    silent = [len(turns) == 1 for _, _, *turns in shares]
    assert [bool(report.program_error) for report in reports] == silent[:played]
    assert ("the training was stopped" in caplog.text) is bool(said)


def test_a_run_that_cannot_learn_is_warned_after_its_first_and_third_step(run: Run, caplog: Any) -> None:
    assert run(table(__file__, "writes_three_steps")) == 0
    told = [record.getMessage().partition(":")[0] for record in caplog.records]
    signs = ("no episode called a tool, but the environment has calculator", "the rewards are equal in every group")
    expected = [f"after step {step} {sign}" for step in (1, 3) for sign in signs]
    assert [line.partition(", so")[0] for line in told] == expected


def test_the_command_shows_these_warnings_and_no_others() -> None:
    code = table(__file__, "warns")
    assert python("-c", code, check=True).stderr == "turntree: nothing is learned\n"


def test_a_ray_that_was_slow_to_start_gets_a_second_chance(run: Run) -> None:
    assert run(table(__file__, "slow_ray")) == 0


def test_rays_folder_is_short_and_removed(run: Run, tmp_path: Path) -> None:
    run("pass")
    ray_dir = Path(OmegaConf.load(tmp_path / "run" / "config.yaml").ray_kwargs.ray_init._temp_dir)
    assert len(str(ray_dir)) < 30
    assert not ray_dir.exists()


def test_an_interrupt_ends_verl_and_its_children(run: Run, tmp_path: Path) -> None:
    def interrupt(_: StepReport) -> None:
        raise KeyboardInterrupt

    phases: list[Phase] = []
    with pytest.raises(KeyboardInterrupt):
        run(table(__file__, "with_a_child"), on_step=interrupt, on_phase=phases.append)
    assert phases[-1].words == "stopping verl and Ray"
    for pid in map(int, (tmp_path / "run" / "pids").read_text().split()):
        eventually(lambda pid=pid: not alive(pid))


@pytest.mark.parametrize(("more", "earlier", "saves", "said"), table(__file__, "stopped"))
def test_a_run_that_is_stopped_says_where_it_stands_and_how_it_goes_on(
    run: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture, more: list[str], earlier: bool, saves: bool, said: str
) -> None:
    latest = RunFolder(tmp_path / "run").checkpoints / "latest_checkpointed_iteration.txt"
    if earlier:
        latest.parent.mkdir(parents=True)
        latest.write_text("7")

    def save_and_interrupt(_: StepReport) -> None:
        if saves:
            latest.parent.mkdir(exist_ok=True)
            latest.write_text("1")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(table(__file__, "with_a_child"), more, on_step=save_and_interrupt)
    (record,) = caplog.records
    assert re.search(said, record.getMessage())


def test_phases_are_told_until_a_step_has_ended(run: Run) -> None:
    phases: list[Phase] = []
    told: list[int] = []
    run(table(__file__, "enters_phases"), on_phase=phases.append, on_step=lambda report: told.append(len(phases)))
    *begun, done = [phase.words for phase in phases]
    assert begun == ["writing the tasks, importing verl", "one", "two"]
    assert re.fullmatch("done; the episodes: turntree view .+", done)
    assert told == [3]
    seconds = [phase.seconds for phase in phases]
    assert 0 <= seconds[0] <= seconds[1] <= seconds[2]
    assert str(phases[0]).endswith(" s  writing the tasks, importing verl")


def test_what_goes_on_without_news_is_told_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turntree.agents.verl.run.progress.SILENCE", 0.0)
    phases: list[Phase] = []
    run(table(__file__, "enters_phases"), on_phase=phases.append)
    again = [phase.words for phase in phases if phase.words.startswith("still")]
    assert {"still: two", "still in step 2"} <= {re.sub(" of .*", "", words) for words in again}


def test_a_process_that_no_training_has_started_tells_no_phase(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(VARIABLE, raising=False)
    note_phase("one")
    assert not list(tmp_path.iterdir())
    monkeypatch.setenv(VARIABLE, str(tmp_path / "phases"))
    note_phase("one")
    assert json.loads((tmp_path / "phases").read_text()) == {"phase": "one"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ending", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGKILL, -signal.SIGKILL)]
)
def test_verl_ends_with_the_launcher(tmp_path: Path, tiny_model: Path, ending: signal.Signals, status: int) -> None:
    script = table(__file__, "launches").replace("MODEL", str(tiny_model)).replace("RUN", str(tmp_path))
    words = [sys.executable, "-c", script]
    process = subprocess.Popen(words, stderr=subprocess.PIPE, text=True, preexec_fn=heed_hangups)
    try:
        eventually(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text(), 60)
        process.send_signal(ending)
        _, said = process.communicate(timeout=patience(30))
        assert process.returncode == status
        words = "stopped before the first step had ended; no checkpoint was saved"
        assert (words in said) is (ending is not signal.SIGKILL)
    finally:
        process.kill()
    eventually(lambda: not alive(int((tmp_path / "pids").read_text())))
    ray_dir = Path(OmegaConf.load(tmp_path / "config.yaml").ray_kwargs.ray_init._temp_dir)
    eventually(lambda: not ray_dir.exists())


def test_a_second_training_in_a_folder_is_refused_and_the_first_goes_on(run: Run, tmp_path: Path) -> None:
    def train_again(report: StepReport) -> None:
        before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
        with pytest.raises(UsageError, match=r"by process \d+ on \S+ since .*; .* turntree.run_dir=FOLDER"):
            run("")
        refused.append(report.step)
        # The first one goes on writing meanwhile.
        assert all(path.read_bytes().startswith(content) for path, content in before.items())

    refused: list[int] = []
    assert run(table(__file__, "writes_two_steps"), on_step=train_again) == 0
    assert refused == [1, 2]
    assert run("") == 0, "once the first has ended the folder is free"


def test_a_wrong_key_is_found_before_anything_is_started(overrides: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean 'total_epochs'"):
        train("demo", [*overrides, "trainer.total_epoch=3"])
    assert not (tmp_path / "run").exists()
