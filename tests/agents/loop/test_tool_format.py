import functools
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from chat_tokenizers import CHATML, make_tokenizer
from playing import arguments_of

from turntree.agents.engines.scripted import ScriptedEngine
from turntree.agents.loop.renderer import Renderer
from turntree.agents.loop.rollout import rollout
from turntree.agents.loop.tool_format import ToolFormat, follow_template, opening, untold
from turntree.envs import Env, Message, Reply, Role, Task, ToolCall, make, tool
from turntree.envs.catalogue import CATALOGUE, Entry
from turntree.envs.parsers import FORMATS, canonical

KNOWING = (
    "{% if tools %}<|im_start|>system\nTOOLS {{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
LLAMA3_CALL = '{"name": {{ c.function.name | tojson }}, "parameters": {{ c.function.arguments | tojson }}}'
TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "", "parameters": {"properties": {"x": {"type": "string"}}}},
}
CALL = {"type": "function", "id": "c", "function": {"name": "f", "arguments": {"x": "1"}}}
SAID = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "Well.", "tool_calls": [CALL]}]


TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
WRITING = {
    "hermes": KNOWING,
    "llama3_json": KNOWING.replace("<tool_call>\n{{ c.function | tojson }}\n</tool_call>", LLAMA3_CALL),
    "nothing": CHATML,
}


class Shop(Env):
    num_tasks = 2

    def task(self, index: int) -> Task:
        return Task(id=f"shop/{index}", prompt="What does tea cost?", answer="3")

    @tool
    def price(self, item: str) -> str:
        """Tell the price of an item.

        Args:
            item: Its name.
        """
        return "3"

    @tool
    def stock(self, item: str, day: int = 1) -> str:
        """Tell how many there are.

        Args:
            item: Its name.
            day: A day.
        """
        return "7"

    def reply(self, message: Message) -> Reply:
        return Reply(reward=1.0, done=True)


class Forgetful(Shop):
    def compact(self) -> list[Message] | None:
        return [Message(role=Role.USER, content="go on")]


class Described(Shop):
    describes_tools = True

    def default_system_prompt(self) -> str:
        return "Ask price or stock: " + self.parser.format_call(ToolCall(name="price", arguments={"item": "tea"}))


class Extended(Described):
    @tool
    def close_shop(self) -> str:
        """Close."""
        return "closed"


@functools.cache
def tokenizer_of(template: str) -> Any:
    return make_tokenizer(template, special=TOKENS, eos="<|endoftext|>")


def renderer_of(template: str) -> Renderer:
    return Renderer(tokenizer_of(template))


def prompt_of(env: Any, renderer: Renderer) -> str:
    follow_template(env, renderer)
    _, info = env.reset(seed=0, options={"index": 0})
    return renderer.decode(opening(env, renderer, info["messages"], info["tools"]), special_tokens=True)


@pytest.fixture
def knowing() -> Renderer:
    return renderer_of(KNOWING)


def shown(renderer: Renderer, tools: ToolFormat) -> str:
    ids = renderer.initial(*tools.rendered([dict(one) for one in SAID], [TOOL]))
    return renderer.decode(ids, special_tokens=True)


def test_a_template_that_knows_tools_is_given_them(knowing: Renderer):
    tools = ToolFormat(knowing, "hermes")
    assert tools.in_template
    text = shown(knowing, tools)
    assert text.startswith("<|im_start|>system\nTOOLS")
    assert 'Well.<tool_call>\n{"name": "f", "arguments": {"x": "1"}}' in text
    assert tools.added(SAID[1:], [TOOL]) == SAID[1:]


def test_for_another_one_tools_and_calls_stand_in_the_text(renderer: Renderer):
    tools = ToolFormat(renderer, "hermes")
    assert not tools.in_template
    text = shown(renderer, tools)
    assert "You can call these tools" in text
    assert 'Well.\n<tool_call>\n{"name": "f", "arguments": {"x": "1"}}\n</tool_call>' in text
    assert "tool_calls" not in tools.added([dict(SAID[1])], [TOOL])[0]


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_reads_what_it_writes_and_knows_how_it_begins(renderer: Renderer, name: str):
    tools = ToolFormat(renderer, name)
    parser: Any = tools.parser([TOOL])
    written = parser.format_call(ToolCall(name="f", arguments={"x": "1"}))
    (call,) = parser.parse(written).calls
    assert (call.name, call.arguments) == ("f", {"x": "1"})
    assert any(written.startswith(opening) for opening in tools.openings([TOOL]))
    assert not {"<", "["} & {*tools.openings([TOOL])}  # with which much begins that is no call


def test_a_clients_history_of_harmony_has_no_marks_but_the_formats() -> None:
    """Control: the calls' own marks are tokens."""
    special = ["<|im_start|>", "<|im_end|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>"]
    renderer = Renderer(make_tokenizer(CHATML, special=special, eos="<|im_end|>"))
    tools = ToolFormat(renderer, "harmony")

    def marks(text: str) -> list[int]:
        function = {"name": text, "arguments": {text: text}}
        said = {"role": "assistant", "content": text, "tool_calls": [{**CALL, "function": function}]}
        ids = renderer.initial(*tools.rendered([SAID[0], said, SAID[0]], []))
        return [token for token in ids if token in renderer.template.special]

    plain = marks("plain")
    assert renderer.tokenizer.convert_tokens_to_ids("<|call|>") in plain
    assert all(marks(f"a{one}assistant") == plain for one in special)


@pytest.mark.parametrize("template", ["hermes", "nothing"])
@pytest.mark.parametrize("entry", CATALOGUE, ids=lambda entry: entry.id)
def test_the_first_prompt_of_each_environment_names_each_tool_once(entry: Entry, template: str, tmp_path: Path) -> None:
    _check_once(make(entry.id, **arguments_of(entry, tmp_path)), renderer_of(WRITING[template]))


@pytest.mark.parametrize("template", WRITING)
def test_so_does_the_prompt_of_an_environment_of_ones_own(template: str) -> None:
    for kind in (Shop, Described, Extended):
        _check_once(kind(), renderer_of(WRITING[template]))


def _check_once(env: Any, renderer: Renderer) -> None:
    prompt = prompt_of(env, renderer)
    own = env.unwrapped
    tools = env.reset(seed=0, options={"index": 0})[1]["tools"]
    assert untold(env, renderer, prompt, tools) == []
    calls = re.compile(r'<tool_call>.*?</tool_call>|\{"name": "\w+", "parameters": \{(?!"type")[^{}]*\}\}', re.DOTALL)
    described = calls.sub("", prompt)
    for name in [one["function"]["name"] for one in tools]:
        assert described.count(f'"name": "{name}"') == (0 if own.describes_tools else 1), prompt
    shows = own.describes_tools or isinstance(own, Described) or not renderer.template.renders_tools
    assert bool(calls.search(prompt)) == (bool(tools) and shows)


def test_another_system_prompt_than_the_classs_does_not_describe_them() -> None:
    prompt = prompt_of(Described(system_prompt="Be brief."), renderer_of(CHATML))
    assert prompt.count('"name": "stock"') == 1
    assert "You can call these tools" not in prompt_of(Described(), renderer_of(CHATML))


def test_a_prompt_without_tools_or_with_another_format_is_found(knowing: Renderer) -> None:
    env = Shop(describes_tools=True)
    _, info = env.reset(seed=0)
    prompt = prompt_of(env, knowing)
    first, second, third = untold(env, knowing, prompt, info["tools"])
    assert ("price" in first, "stock" in second, "hermes" in third) == (True, True, True)
    told = Shop(describes_tools=True, system_prompt="Tools: price, stock")
    (only,) = untold(told, knowing, prompt_of(told, knowing), info["tools"])
    assert "how to call a tool in the format hermes" in only


@pytest.mark.parametrize("name", ["hermes", "llama3_json"])
async def test_an_environment_without_a_format_takes_the_templates(name: str) -> None:
    renderer = renderer_of(WRITING[name])
    assert (renderer.template.renders_tools, renderer.template.tool_format) == (True, name)
    env = Shop()
    written = prompt_of(env, renderer)
    assert (env.call_format, "To call one" in written) == (name, False)
    said = [env.parser.format_call(ToolCall(name="price", arguments={"item": "tea"})), "3"]
    for one, calls in ((Shop(), 1), (Shop(tool_format="tags"), 0)):
        episode = await rollout(one, ScriptedEngine(said, renderer.tokenizer), renderer, index=0)
        assert sum(len(message.tool_calls) for message in episode.messages) == calls


WRITTEN = {path.stem: path for path in (Path(__file__).parents[2] / "envs/templates").glob("*.jinja")}


@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_the_format_of_each_known_family_is_found_by_its_template(name: str) -> None:
    gathered = (
        "{%- set ns = namespace(calls=[]) -%}{%- for c in m.tool_calls -%}{%- set ns.calls = ns.calls + "
        '[{"name": c.function.name, "arguments": c.function.arguments, "id": c.id}] -%}{%- endfor -%}'
        f"{{%- set calls = ns.calls -%}}{WRITTEN[name].read_text().strip()}"
    )
    before, _, rest = KNOWING.partition("{% for c in")
    template = f"{before}{{% if m.tool_calls %}}{gathered}{{% endif %}}{rest.partition('{% endfor %}')[2]}"
    assert renderer_of(template).template.tool_format == canonical(name)


def test_a_format_that_is_not_the_templates_is_warned_of_once_and_shown(caplog: pytest.LogCaptureFixture) -> None:
    renderer = renderer_of(WRITING["llama3_json"])
    with caplog.at_level(logging.WARNING):
        prompts = [prompt_of(Shop(tool_format="hermes"), renderer) for _ in range(2)]
    (told,) = [one.message for one in caplog.records if "chat template writes" in one.message]
    assert "hermes" in told
    assert "llama3_json" in told
    assert all("TOOLS" not in prompt and "<tool_call>" in prompt for prompt in prompts)
    caplog.clear()
    prompt_of(Shop(tool_format="llama3_json"), renderer)
    assert not caplog.records


def test_the_first_user_message_has_them_where_there_is_no_system_role() -> None:
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role') }}{% endif %}" + CHATML
    prompt = prompt_of(Shop(), renderer_of(refusing))
    assert "<|im_start|>user\nYou can call these tools:" in prompt
    assert "What does tea cost?" in prompt


def test_a_shown_call_has_real_names_and_plausible_values() -> None:
    prompt = prompt_of(Shop(), renderer_of(CHATML))
    assert '{"name": "price", "arguments": {"item": "..."}}' in prompt
    Shop.example_call = ToolCall(name="stock", arguments={"item": "tea", "day": 2})
    try:
        assert '{"name": "stock", "arguments": {"item": "tea", "day": 2}}' in prompt_of(Shop(), renderer_of(CHATML))
    finally:
        Shop.example_call = None


async def test_the_tools_are_told_again_after_the_dialogue_was_shortened() -> None:
    renderer = renderer_of(CHATML)
    call = '<tool_call>\n{"name": "price", "arguments": {"item": "tea"}}\n</tool_call>'
    episode = await rollout(Forgetful(), ScriptedEngine([call, "3"], renderer.tokenizer), renderer, index=0)
    first, second = (renderer.decode(turn.prompt_ids) for turn in episode.turns)
    assert "What does tea cost?" in first
    assert "What does tea cost?" not in second
    assert second.count("You can call these tools") == 1
