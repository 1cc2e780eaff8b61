import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from chat_tokenizers import chatml_tokenizer
from command import Said
from pages import ROOT, blocks
from tables import table
from tiny_llama import random_llama, save_chat_llama

from turntree.agents.engines.scripted import turn_tokens
from turntree.agents.episodes.record import EpisodeWriter, read_episodes
from turntree.agents.evaluation.environments import env_maker
from turntree.agents.loop.renderer import Renderer
from turntree.agents.sft import fit as loop
from turntree.agents.sft.demonstrations import NoDemonstration, Source
from turntree.agents.sft.fit import backward, training_tensors

SHOP = "sft_shop:Shop"
CALL = '<tool_call>\n{"name": "price", "arguments": {"product": "apple"}}\n</tool_call>'
SAID = [f"{CALL}<|im_end|>", "31<|im_end|>"]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("shop")
    (folder / "sft_shop.py").write_text(table(__file__, "shop"))
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_chat_llama(tmp_path_factory.mktemp("model"), chatml_tokenizer(), positions=2048)


def source(
    renderer: Renderer, env: str = SHOP, *, above: float = 0.0, positions: int = 2048, **arguments: Any
) -> Source:
    make_env = env_maker(env, arguments)
    return Source(make_env=make_env, renderer=renderer, positions=positions, above=above)


@pytest.fixture
def sft(turntree: Callable[..., Said], shop: Path, model: Path, tmp_path: Path) -> Callable[..., Said]:
    return lambda *words: turntree("sft", *words, "--model", model, "--out", tmp_path / "out")


def trained_text(view: Any, renderer: Renderer) -> list[str]:
    # The texts whose tokens the loss counts, one per run of tokens.
    inputs, targets = training_tensors([view])
    assert inputs[0, 1:].equal(torch.where(targets[0, :-1] >= 0, targets[0, :-1], inputs[0, 1:]))
    texts: list[list[int]] = [[]]
    for token in targets[0].tolist():
        texts.append([]) if token < 0 else texts[-1].append(token)
    return [renderer.decode(text, special_tokens=True) for text in texts if text]


def test_the_loss_counts_exactly_the_tokens_of_the_policys_turns(shop: Path, renderer: Renderer) -> None:
    (view,) = source(renderer).solutions(1).views
    assert trained_text(view, renderer) == SAID
    assert "Look up a price." in renderer.decode(view.prompt_ids), "the prompt has the tools"


def test_a_loss_on_all_tokens_would_be_noticed(shop: Path, renderer: Renderer) -> None:
    (view,) = source(renderer).solutions(1).views
    every = replace(view, mask=(1,) * len(view.mask))
    assert trained_text(every, renderer) != SAID


def test_a_common_beginning_is_computed_once_with_the_same_gradients(shop, renderer, monkeypatch):
    views = source(renderer).solutions(6).views
    model = random_llama(len(renderer.tokenizer), max_position_embeddings=2048)

    def gradients() -> tuple[float, list[torch.Tensor]]:
        model.zero_grad()
        loss = backward(model, views)
        return loss, [parameter.grad.clone() for parameter in model.parameters()]

    passes: list[int] = []
    model.register_forward_pre_hook(lambda _, __, given: passes.append(given["input_ids"].numel()), with_kwargs=True)
    shared, ours = gradients()
    fewer = sum(passes)
    monkeypatch.setattr(loop, "_MIN_PREFIX", 1 << 20)
    passes.clear()
    whole, theirs = gradients()
    assert fewer < 0.6 * sum(passes)
    assert shared == pytest.approx(whole, rel=1e-5)
    assert all(torch.allclose(one, other, rtol=1e-3, atol=1e-6) for one, other in zip(ours, theirs, strict=True))
    monkeypatch.setattr(loop, "_MIN_PREFIX", 32)
    monkeypatch.setattr(loop._Prefix, "backward", lambda self: None)
    _, cut = gradients()
    assert not all(torch.allclose(one, other, rtol=1e-3, atol=1e-6) for one, other in zip(cut, theirs, strict=True))


def test_a_model_learns_its_demonstrations_and_is_a_folder_that_eval_takes(turntree, sft, tmp_path):
    figures = sft(SHOP, "--tasks", 8, "--steps", 12, "--lr", 0.01, "--json").json
    assert (figures["demonstrations"], figures["steps"]) == (8, 12)
    assert figures["loss_last"] < 0.8 * figures["loss_first"]
    assert json.loads((tmp_path / "out/sft.json").read_text()) == figures
    assert [path.name for path in tmp_path.iterdir()] == ["out"], "nothing unfinished is left"
    said = turntree("eval", SHOP, "--model", tmp_path / "out", "-n", 1, "--max-tokens", 4, "--no-speculate")
    assert said.status == 0, said.err
    again = sft(SHOP)
    assert (again.status, "out already exists" in again.err) == (2, True)
    assert json.loads((tmp_path / "out/sft.json").read_text()) == figures


async def test_of_a_recorded_run_only_episodes_above_the_bound_are_used(shop, renderer, llama3, tmp_path):
    from turntree.agents.engines.scripted import ScriptedEngine
    from turntree.agents.loop.rollout import rollout

    right, wrong = ["31"], ["no idea"]
    with EpisodeWriter(tmp_path / "episodes.jsonl") as writer:
        for script in (right, wrong, right):
            env = env_maker(SHOP, {})()
            engine = ScriptedEngine(script, renderer.tokenizer)
            writer.write(await rollout(env, engine, renderer, index=0, seed=0))
    ours = source(renderer)
    found = ours.recorded(tmp_path)
    assert found.summary().startswith(
        "2 of 3 demonstrations used, 1 dropped: 1 with a reward of 0 or less (first: task"
    )
    episode = next(iter(read_episodes(tmp_path / "episodes.jsonl")))
    assert found.views[0].prompt_ids + found.views[0].response_ids == (
        *episode.turns[0].prompt_ids,
        *episode.turns[0].completion.token_ids,
    )
    assert len(source(renderer, above=-1.0).recorded(tmp_path).views) == 3, "control: a bound that all are above"
    with pytest.raises(NoDemonstration, match=r"0 of 3 .*threshold .--above 1"):
        source(renderer, above=1.0).recorded(tmp_path)
    with pytest.raises(NoDemonstration, match=r"3 not of Arithmetic|3 not of turntree/Arithmetic-v0"):
        source(renderer, "turntree/Arithmetic-v0").recorded(tmp_path)
    other = Renderer(llama3)  # of another tokenizer: rendered from the messages
    assert trained_text(source(other).recorded(tmp_path).views[0], other) == ["31<|eot_id|>"]


def test_dialogues_of_openai_messages_are_rendered_as_rollouts_are(shop, renderer, tmp_path):
    ours = source(renderer)
    (played,) = ours.solutions(1).views
    call = {"id": "1", "type": "function", "function": {"name": "price", "arguments": '{"product": "apple"}'}}
    messages = [
        {"role": "system", "content": "You help in a shop."},
        {"role": "user", "content": "What is the price of one apple?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "name": "price", "content": "31"},
        {"role": "assistant", "content": "31"},
        {"role": "user", "content": "Thanks."},
    ]
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps({"messages": messages}) + "\n")
    (read,) = ours.messages(file).views
    assert (read.prompt_ids, read.response_ids, read.mask) == (played.prompt_ids, played.response_ids, played.mask)
    messages[2]["weight"] = 0
    file.write_text(json.dumps({"messages": messages, "tools": []}) + "\n")
    (read,) = ours.messages(file).views
    assert trained_text(read, renderer) == ["31<|im_end|>"]
    assert "price" not in renderer.decode(read.prompt_ids).replace("the price of", ""), "control: tools of the row"


def test_the_row_that_the_page_shows_is_one(shop: Path, renderer: Renderer, tmp_path: Path) -> None:
    (row,) = (block.text for block in blocks(ROOT / "docs/howto/sft.md") if block.language == "json")
    (tmp_path / "rows.jsonl").write_text(row)
    assert source(renderer).messages(tmp_path / "rows.jsonl").used == 1


def test_a_text_that_ends_the_turn_itself_is_not_ended_twice(renderer: Renderer) -> None:
    stops = renderer.stop_token_ids
    once = turn_tokens("31", renderer.tokenizer, stops)
    assert once[-1] == stops[0]
    assert turn_tokens("31<|im_end|>", renderer.tokenizer, stops) == once


def test_the_answer_is_the_solution_of_an_environment_without_tools(shop: Path, renderer: Renderer) -> None:
    found = source(renderer, "sft_shop:Plain").solutions()
    assert (found.used, trained_text(found.views[0], renderer)) == (2, ["0<|im_end|>"])


@pytest.mark.parametrize(("words", "said"), table(__file__, "refused_demonstrations"))
def test_what_cannot_be_learnt_is_refused_with_what_to_do(words, said, sft, tmp_path):
    for name, text in table(__file__, "dialogue_files").items():
        (tmp_path / name).write_text(text.replace("LONG", "1 " * 3000))
    done = sft(*(word.replace("{at}", str(tmp_path)) for word in words.split()))
    assert (done.status, done.err.strip().count("\n")) == (2, 0), done.err
    assert said in done.err
    assert not (tmp_path / "out").exists()
