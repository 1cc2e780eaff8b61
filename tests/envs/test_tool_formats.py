import re
from typing import Any

import pytest
from playing import Errand, made_up

from turntree.envs import ToolCall, UnknownParser, get_parser
from turntree.envs.parsers import FORMATS, likely_format
from turntree.envs.parsers.formats import ALIASES

CALLS = {
    "calculate": ToolCall(name="calculate", arguments={"expression": "3*4"}),
    "book": ToolCall(name="book", arguments={"title": "Émile", "pages": 230, "tags": ["a"]}),
}
SPECIAL = re.compile("<\\|\\w+\\|>|<\uff5c[^<>]+\uff5c>|\\[(?:TOOL_CALLS|ARGS)\\]")


class Shop(Errand):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.given: list[Any] = []

    @made_up
    def calculate(self, expression: str) -> str:
        self.given.append(expression)
        return "12"

    @made_up
    def book(self, title: str, pages: int, tags: list[str] | None = None, extra: dict[str, Any] | None = None) -> str:
        self.given.append({"title": title, "pages": pages, "tags": tags, "extra": extra})
        return "booked"


def stepped(configured: str, text: str) -> tuple[Shop, dict[str, Any], bool]:
    env = Shop(tool_format=configured)
    env.reset(seed=0)
    _, _, terminated, _, info = env.step(text)
    return env, info, terminated


def written(name: str, call: ToolCall) -> str:
    return get_parser(name, Shop(tool_format=name).offered_tools).format_call(call)


@pytest.mark.parametrize("configured", FORMATS)
@pytest.mark.parametrize("called", CALLS)
def test_a_call_in_any_format_is_read_or_told_and_never_an_answer(configured: str, called: str) -> None:
    call = CALLS[called]
    expected = {"name": call.name, "arguments": call.arguments}
    for name in FORMATS if called == "calculate" else FORMATS[:-1]:
        text = written(name, call)
        for turn in (text, SPECIAL.sub("", text), f"<think>Hm.</think>\n{text}"):
            env, info, terminated = stepped(configured, turn)
            assert not terminated, (name, turn)
            if info["tool_calls"]:
                assert [one["function"] for one in info["tool_calls"]] == [expected], (name, turn)
                assert (info["parse_error"], len(env.given)) == ("", 1)
            else:
                assert env.given == []
                assert info["messages"][0]["content"] == f"Error: {info['parse_error']}"
                assert configured in info["parse_error"] or "malformed" in info["parse_error"], (name, turn)
                assert "Write it as" in info["parse_error"]
        if name == configured:
            assert stepped(configured, text)[0].given


@pytest.mark.parametrize("configured", FORMATS)
@pytest.mark.parametrize("name", FORMATS[:-1])
def test_a_call_among_words_or_cut_off_is_no_answer_either(configured: str, name: str) -> None:
    text = written(name, CALLS["book"])
    for turn in (f"Let me see.\n{text}", text[: text.index("mile")]):
        _, info, terminated = stepped(configured, turn)
        assert not terminated, turn
        assert info["tool_calls"] or info["parse_error"], turn


@pytest.mark.parametrize("configured", FORMATS)
@pytest.mark.parametrize(
    "text",
    [
        "The answer is 12.",
        '{"answer": 12}',
        '```json\n[{"name": "Ann", "arguments": {"for": 1, "against": 2}}]\n```',
        'Look at [shelf(title="Émile")].',
        "I used the tools calculate and book (twice) to find 12.",
        "`def calculate(expression):` has no type hints.",
        "The book [1] says <b>12</b>, not <i>13</i>.",
        "<think>calculate(3*4) or [calculate(expression='3*4')]?</think>12",
        '<think><tool_call>{"name": "calculate", "arguments": {"expression": "1"}}</tool_call></think>12',
        "calculate",
        "",
    ],
)
def test_an_answer_stays_one_also_if_it_quotes_code(configured: str, text: str) -> None:
    # The control.
    _, info, terminated = stepped(configured, text)
    assert terminated
    assert (info["parse_error"], info["tool_calls"]) == ("", [])


def test_the_error_shows_the_call_as_it_should_have_been_written() -> None:
    error = stepped("hermes", written("qwen3_coder", CALLS["calculate"]))[1]["parse_error"]
    assert "malformed tool call" in error
    assert "in the qwen3_coder format, but the expected format is hermes" in error
    error = stepped("hermes", "calculate(3*4)")[1]["parse_error"]
    assert "in the compact format" in error
    assert '{"name": "calculate", "arguments": {"expression": "3*4"}}' in error
    error = stepped("compact", written("mistral", CALLS["book"]))[1]["parse_error"]
    assert error.endswith("Write it as calculate(VALUE)")
    error = stepped("llama3_json", "So: " + written("llama3_json", CALLS["calculate"]))[1]["parse_error"]
    assert "other text surrounds it" in error
    assert stepped("hermes", "<tool_call>{")[1]["parse_error"].startswith("malformed tool call: not JSON")


@pytest.mark.parametrize("name", FORMATS)
def test_the_format_of_a_call_is_known_by_its_text(name: str) -> None:
    known = {"mistral_v11": "mistral"}  # whose parser reads both
    assert likely_format(written(name, CALLS["calculate"]), ["calculate"]) == known.get(name, name)
    assert likely_format(written(name, CALLS["calculate"]), ["search"]) is None


ARGUMENTS: list[tuple[dict[str, Any], Any]] = [
    ({"title": "a", "pages": 230.0}, {"title": "a", "pages": 230, "tags": None, "extra": None}),
    ({"title": "  if x:\n    y", "pages": 1}, {"title": "  if x:\n    y", "pages": 1, "tags": None, "extra": None}),
    ({"title": "\tx ", "pages": 1, "extra": {"a": [True, None]}}, None),
]


@pytest.mark.parametrize("name", FORMATS[:-1])
def test_integral_floats_and_white_space_come_to_the_tool_as_meant(name: str) -> None:
    for arguments, given in ARGUMENTS:
        env, info, _ = stepped(name, written(name, ToolCall(name="book", arguments=arguments)))
        assert env.given == [given or {"tags": None, **arguments}], info
        assert all(type(one["pages"]) is int for one in env.given)
    env, info, _ = stepped(name, written(name, ToolCall(name="book", arguments={"title": "a", "pages": 2.5})))
    assert (env.given, info["parse_error"]) == ([], "")


@pytest.mark.parametrize("name", FORMATS)
def test_half_a_surrogate_pair_is_told_and_does_not_come_to_the_tool(name: str) -> None:
    env, info, _ = stepped(name, written(name, ToolCall(name="calculate", arguments={"expression": "a\ud83db"})))
    assert env.given == []
    assert "half of a surrogate" in info["messages"][0]["content"] or info["parse_error"]


@pytest.mark.parametrize("name", ["qwen3_coder", "glm45", "minimax_m2", "pythonic"])
def test_python_literals_are_read(name: str) -> None:
    text = written(name, ToolCall(name="book", arguments={"title": "a", "pages": 1, "extra": {"mark": 1}}))
    literal = "{'a': True, 'b': (None, 'it\\'s')}"
    env, info, _ = stepped(name, re.sub(r"\{.mark.: 1\}", lambda found: literal, text))
    assert env.given == [{"title": "a", "pages": 1, "tags": None, "extra": {"a": True, "b": [None, "it's"]}}], info


QWEN = "<function=book>\n<parameter=title>\na\n</parameter>\n<parameter=pages>\n1\n</parameter>\n</function>"


@pytest.mark.parametrize(
    "text",
    [
        QWEN,
        f"Let me see.\n{QWEN}\n</tool_call>",
        f"<tool_call>\n{QWEN}\n</tool_call>",
        QWEN.replace("=book>", '="book">').replace("=title>", " = 'title' >"),
        QWEN.replace("<function=book>", "<function= book >"),
    ],
)
def test_qwen_is_read_without_the_outer_tag_and_with_quotes_and_spaces(text: str) -> None:
    env, info, _ = stepped("qwen3_coder", text)
    assert [(one["title"], one["pages"]) for one in env.given] == [("a", 1)], info


def test_a_tag_that_begins_no_call_of_a_tool_is_text() -> None:
    assert stepped("qwen3_coder", "In C++ it is std::<function=x>.")[2]
    assert stepped("qwen3_coder", "<function=book><parameter=title>a")[1]["parse_error"]


def test_names_of_vllm_and_sglang_are_names_of_formats() -> None:
    for alias, name in ALIASES.items():
        assert alias not in FORMATS
        text = written(name, CALLS["book"])
        assert get_parser(alias, Shop().offered_tools).parse(text).calls, alias
    assert not get_parser("qwen", Shop().offered_tools).parse(written("qwen3_coder", CALLS["book"])).calls


def test_a_format_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(
        UnknownParser, match=r"must be one of hermes, .*, compact, got 'deepseek_v32'; turntree does not support"
    ):
        get_parser("deepseek_v32")
    with pytest.raises(UnknownParser, match="did you mean 'kimi_k2'"):
        get_parser("kimi-k2")


def test_the_reason_is_in_info_whatever_it_is() -> None:
    # The control: wrong arguments and unknown tools are no parse errors.
    for text in ("<tool_call>", '<tool_call>{"name": 3}</tool_call>', "[calculate(expression='3*4')]"):
        assert stepped("hermes", text)[1]["parse_error"]
    for call in (ToolCall(name="calculate"), ToolCall(name="other")):
        info = stepped("hermes", written("hermes", call))[1]
        assert (info["parse_error"], len(info["tool_calls"])) == ("", 1)
        assert info["messages"][0]["content"].startswith("Error: ")
