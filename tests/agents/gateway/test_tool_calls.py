"""Tools in the prompt: by a chat template that knows them, as text for one that does not."""

from typing import Any

import pytest
from chat_tokenizers import CHATML, make_tokenizer

from turntree.agents.gateway.tool_calls import ToolFormat
from turntree.agents.loop.renderer import Renderer
from turntree.envs.message import ToolCall

KNOWING = (
    "{% if tools %}<|im_start|>system\nTOOLS {{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}CALL {{ c.function.name }} {{ c.function.arguments | tojson }}{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "", "parameters": {"properties": {"x": {"type": "string"}}}},
}
CALL = {"type": "function", "id": "c", "function": {"name": "f", "arguments": {"x": "1"}}}
SAID = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "Well.", "tool_calls": [CALL]}]


@pytest.fixture
def knowing() -> Renderer:
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    return Renderer(make_tokenizer(KNOWING, special=tokens, eos="<|endoftext|>"))


def shown(renderer: Renderer, tools: ToolFormat) -> str:
    ids = renderer.initial(*tools.rendered([dict(one) for one in SAID], [TOOL]))
    return renderer.decode(ids, special_tokens=True)


def test_a_template_that_knows_tools_is_given_them(knowing: Renderer):
    tools = ToolFormat(knowing, "hermes")
    assert tools.in_template
    text = shown(knowing, tools)
    assert text.startswith("<|im_start|>system\nTOOLS")
    assert 'Well.CALL f {"x": "1"}' in text
    assert tools.added(SAID[1:], [TOOL]) == SAID[1:]


def test_for_another_one_tools_and_calls_stand_in_the_text(renderer: Renderer):
    tools = ToolFormat(renderer, "hermes")
    assert not tools.in_template
    text = shown(renderer, tools)
    assert "You can call these tools" in text
    assert 'Well.\n<tool_call>\n{"name": "f", "arguments": {"x": "1"}}\n</tool_call>' in text
    assert "tool_calls" not in tools.added([dict(SAID[1])], [TOOL])[0]


@pytest.mark.parametrize("name", ["hermes", "qwen3_coder", "llama3_json", "compact", "tags", "harmony"])
def test_every_format_reads_what_it_writes_and_knows_how_it_begins(renderer: Renderer, name: str):
    tools = ToolFormat(renderer, name)
    parser: Any = tools.parser([TOOL])
    written = parser.format_call(ToolCall(name="f", arguments={"x": "1"}))
    (call,) = parser.parse(written).calls
    assert (call.name, call.arguments) == ("f", {"x": "1"})
    assert any(written.startswith(opening) for opening in tools.openings([TOOL]))


def test_a_clients_history_of_harmony_has_no_marks_but_the_formats() -> None:
    """The control: the calls' own marks are tokens."""
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
