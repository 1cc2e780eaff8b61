import json
from pathlib import Path

import pytest
from client_results import require_result
from spoken_server import MODEL, gold, question, right, spoken_server

from turntree.agents.cli import main
from turntree.agents.episodes.record import read_episodes

pytestmark = pytest.mark.interop
TASKS = 24
TASK = r"""
task: sums
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}, cache_dir: {cache}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer.split('#### ')[1]}}}}"
generation_kwargs: {{until: ["<|im_end|>"], max_gen_toks: 128, temperature: 0}}
filter_list:
  - {{name: strict, filter: [{{function: regex, regex_pattern: "#### (-?[0-9]+)"}}, {{function: take_first}}]}}
metric_list:
  - {{metric: exact_match, aggregation: mean, higher_is_better: true}}
"""


def test_a_local_task_has_the_score_of_turntree_eval(tmp_path: Path) -> None:
    data, out = tmp_path / "sums.jsonl", tmp_path / "out.jsonl"
    rows = [{"question": question(number), "answer": f"#### {gold(number)}"} for number in range(TASKS)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "sums.yaml").write_text(TASK.format(data=data, cache=tmp_path / "cache"))
    with spoken_server(tmp_path) as server:
        theirs = theirs_of(server.url, tmp_path)
        words = ("eval", "turntree/GSM8K-v0", "--engine", "openai", "--base-url", server.url, "--model", MODEL)
        with pytest.raises(SystemExit) as stopped:
            main([*words, "--data", str(data), "-n", str(TASKS), "--out", str(out)])
        assert stopped.value.code == 0
    ours = [episode.reward for episode in read_episodes(out)]
    assert sorted(ours) == sorted(theirs)
    assert sum(ours) == sum(map(right, range(TASKS)))
    require_result(
        "lm-eval", f"`local-chat-completions`, a local task: {sum(theirs):.0f} of {TASKS}, as `turntree eval`"
    )


def theirs_of(url: str, folder: Path) -> list[float]:
    import lm_eval
    from lm_eval.tasks import TaskManager

    found = lm_eval.simple_evaluate(
        model="local-chat-completions",
        model_args={"model": MODEL, "base_url": f"{url}/chat/completions", "num_concurrent": 4, "max_retries": 1},
        tasks=["sums"],
        task_manager=TaskManager(include_path=str(folder), include_defaults=False),
        apply_chat_template=True,
        bootstrap_iters=0,
    )
    return [sample["exact_match"] for sample in found["samples"]["sums"]]
