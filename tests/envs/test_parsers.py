import json
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from playing import made_up
from shared_cases import shared_rows
from tables import table

from turntree.envs import CompactParser, HermesParser, ParsedTurn, Tool, ToolCall, get_parser
from turntree.envs.math.calculator import calculator
from turntree.envs.parsers import FORMATS, call_scanner
from turntree.envs.parsers.typed_text import MAX_LITERAL, literal_value, parse_expression, read_typed


@made_up
def book(title: str, pages: int, price: float | None = None, tags: list[str] | None = None, new: bool = False) -> str:
    return title


TOOLS: tuple[Tool, ...] = (calculator, book)
NOT_COMPACT = FORMATS[:-1]  #: the compact format allows only calls with one text
marks = st.sampled_from(["</tool_call>", "</calculator>", "<|call|>", "</think>", "<think>", "</parameter>", "a", " "])
words = st.text(st.characters(blacklist_categories=["Cs"]), max_size=12) | st.lists(marks, max_size=4).map("".join)
book_arguments = st.fixed_dictionaries(
    {"title": words, "pages": st.integers()},
    optional={
        "price": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "tags": st.lists(words, max_size=3),
        "new": st.booleans(),
    },
)
calls = st.one_of(
    book_arguments.map(lambda arguments: ToolCall(name="book", arguments=arguments)),
    words.map(lambda text: ToolCall(name="calculator", arguments={"expression": text})),
)

PIECES = [
    *("<tool_call>", "</tool_call>", "<function=book>", "</function>", "<parameter=x>", "</parameter>", "{", "}"),
    *(
        "[TOOL_CALLS]",
        "[ARGS]",
        "[",
        "]",
        "book",
        "(",
        ")",
        "x=",
        "<arg_key>x</arg_key>",
        "<arg_value>",
        "</arg_value>",
    ),
    *(
        "<\uff5ctool▁call▁begin\uff5c>",
        "function<\uff5ctool▁sep\uff5c>",
        "```json",
        "<invoke name='book'>",
        "<|tool_call_begin|>book:0",
    ),
    *("<|message|>", "<|call|>", "to=functions.book", "<book>", "</book>", '"name"', ":", '"x"', ";", " ", "1e999"),
]


@pytest.mark.parametrize("name", NOT_COMPACT)
@settings(max_examples=30)
@given(call=calls)
def test_a_format_reads_what_it_writes(name: str, call: ToolCall) -> None:
    parser = get_parser(name, TOOLS)
    turn = parser.parse(parser.format_call(call))
    assert (turn.error, meant(turn), turn.content) == ("", [[call.name, call.arguments]], "")


@pytest.mark.parametrize("name", NOT_COMPACT)
@settings(max_examples=30)
@given(text=st.lists(st.sampled_from(PIECES)).map("".join))
def test_no_text_makes_a_parser_raise(name: str, text: str) -> None:
    turn = get_parser(name, TOOLS).parse(text)
    assert not (turn.calls and turn.error)
    json.dumps([call.to_openai() for call in turn.calls], allow_nan=False)


@pytest.mark.parametrize("name", NOT_COMPACT)
def test_words_alone_are_content(name: str) -> None:
    turn = get_parser(name, TOOLS).parse("  The answer is <b>14</b>. ")
    assert (turn.content, turn.calls, turn.error) == ("The answer is <b>14</b>.", (), "")


@pytest.mark.parametrize(
    ("name", "joint"),
    [*((name, "\n") for name in NOT_COMPACT if name not in ("llama3_json", "pythonic")), ("llama3_json", "; ")],
)
def test_several_calls_are_read_in_order(name: str, joint: str) -> None:
    parser = get_parser(name, TOOLS)
    several = tuple(ToolCall(name="calculator", arguments={"expression": str(i)}) for i in range(3))
    turn = parser.parse(joint.join(map(parser.format_call, several)))
    assert meant(turn) == [["calculator", {"expression": str(i)}] for i in range(3)]


SECOND = '<tool_call>{"name": "now"}</tool_call><tool_call>%s</tool_call>'  # nothing is called where one is malformed


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        *table(__file__, "malformed_calls"),
        ("hermes", SECOND % ("[" * 100_000), "nested too deeply"),
        ("hermes", SECOND % ('{"name": "a", "x": ' + "9" * 5000 + "}"), "malformed"),
    ],
)
def test_a_malformed_call_is_told_to_the_model_with_the_form_to_use(name: str, text: str, reason: str) -> None:
    turn = get_parser(name, TOOLS).parse(text)
    assert turn.calls == ()
    assert reason in turn.error
    assert "Write it as" in turn.error


def test_llama_may_begin_with_its_tag_and_harmony_name_the_recipient_in_the_role() -> None:
    parser = get_parser("llama3_json")
    assert parser.parse('<|python_tag|>{"name": "now", "parameters": {}}').calls == (ToolCall(name="now"),)
    assert parser.parse('{"answer": 3}').content == '{"answer": 3}'
    text = (
        "<|channel|>analysis<|message|>Hm, to=functions?<|end|>"
        "<|start|>assistant to=functions.calculator<|channel|>commentary json<|message|>"
        '{"expression": "1"}<|call|>'
    )
    turn = get_parser("harmony").parse(text)
    assert turn.calls == (ToolCall(name="calculator", arguments={"expression": "1"}),)
    assert turn.content == ""
    final = "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|channel|>final<|message|>14<|return|>"
    assert get_parser("harmony").parse(final).content == "14"


@made_up
def calc(expression: str) -> str:
    return expression


@made_up
def edit(path: str, text: str) -> str:
    return text


@made_up
def put(n: int = 0, flag: bool = False, tags: list[str] | None = None) -> str:
    return ""


def meant(turn: ParsedTurn) -> Any:
    return "error" if turn.error else [[call.name, dict(call.arguments)] for call in turn.calls] or "text"


@pytest.mark.parametrize(("name", "text", "right"), table(__file__, "calls_as_meant"))
def test_thoughts_are_not_acted_on_and_marks_in_an_argument_are_text(name: str, text: str, right: Any) -> None:
    assert meant(get_parser(name, (calc, edit, put)).parse(text)) == right


def test_calls_of_other_projects_reports_are_read_as_they_were_meant() -> None:
    for row in shared_rows("env_cases_3.jsonl", "parser:"):
        name = row["contract"].partition(":")[2].replace("qwen", "qwen3_coder")
        read = meant(get_parser(name, (calc, edit, put)).parse(row["prediction"]))
        assert read == row["right"] or read in row["right"], row["id"]


@pytest.mark.parametrize(("schema", "text", "value"), table(__file__, "typed_texts"))
def test_a_typed_text_has_a_type_that_its_schema_allows(schema: dict[str, Any], text: str, value: Any) -> None:
    definitions = {"Size": {"enum": [1, 2, "all"]}, "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}, {"type": "integer"}]}}
    read = read_typed(text, schema, definitions)
    assert json.dumps(read) == json.dumps(value).replace('"null"', "null")


@pytest.mark.parametrize("text", ["[" * 200 + "1" + "]" * 200, "[" + "1," * MAX_LITERAL + "1]", "[" + "9" * 5000 + "]"])
def test_literals_are_read_in_bounded_steps(text: str) -> None:
    with pytest.raises(ValueError, match=r"deep|characters|not Python|parenthes"):
        literal_value(parse_expression(text))
    python = text.replace("1", "'a'")
    assert read_typed(python, {"type": "array"}, {}) == python


@pytest.mark.parametrize("name", NOT_COMPACT)
def test_texts_that_are_made_to_be_slow_are_read_in_bounded_steps(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    marks = ("<tool_call>", "<tool_call><function=a>", "<calc>", "<calc></think>", "</think>", "<parameter=a>")
    tried = Mock(side_effect=call_scanner.next_thought)
    monkeypatch.setattr(call_scanner, "next_thought", tried)
    for mark in marks:
        get_parser(name, (calc, edit)).parse(mark * 2000)
        assert tried.call_count < 20_000


#: the part of a chat template that writes calls, as published with the models
TEMPLATES = {path.stem: path.read_text().removesuffix("\n") for path in Path(__file__).parent.glob("templates/*.jinja")}


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_what_a_chat_template_writes_is_read(name: str) -> None:
    sandbox = pytest.importorskip("jinja2.sandbox", reason="chat templates are Jinja")
    environment: Any = sandbox.ImmutableSandboxedEnvironment()
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    line = " " if name == "pythonic" else "\n"  # that template does not escape what it puts into quotes
    arguments = {"title": f"Émile{line}'x'", "pages": 3, "new": True, "tags": ["a"]}
    several = [["book", arguments], ["book", {"title": "7", "pages": 4}]][: 1 if name == "llama3_json" else 2]
    calls = [{"name": one[0], "arguments": one[1], "id": f"functions.book:{n}"} for n, one in enumerate(several)]
    turn = get_parser(name, TOOLS).parse(environment.from_string(TEMPLATES[name]).render(calls=calls))
    assert (meant(turn), turn.content) == (several, "")
    if name == "kimi_k2":
        assert [call.id for call in turn.calls] == ["functions.book:0", "functions.book:1"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
tagless = st.text().filter(lambda text: "tool_call" not in text and "think" not in text.lower())


class TestHermes:
    parser = HermesParser()

    @settings(max_examples=30)
    @given(
        name=st.from_regex(r"\w{1,12}", fullmatch=True),
        arguments=st.dictionaries(st.text(), json_values, max_size=3),
        before=tagless,
        after=tagless,
    )
    def test_reads_what_it_writes_between_any_text(self, name: str, arguments: dict, before: str, after: str) -> None:
        call = ToolCall(name=name, arguments=arguments)
        written = self.parser.format_call(call)
        turn = self.parser.parse(before + written + after)
        assert (turn.error, turn.calls) == ("", (call,))
        assert turn.content == (before + after).strip()

    def test_words_between_calls_are_content_and_arguments_may_be_missing(self) -> None:
        calls = (ToolCall(name="calculator", arguments={"expression": "1"}), ToolCall(name="now"))
        written = [self.parser.format_call(calls[0]), '<tool_call>{"name": "now"}</tool_call>']
        turn = self.parser.parse("Let me see.\n" + "\n".join(written) + "\nThen.")
        assert (turn.content, turn.calls) == ("Let me see.\n\n\nThen.", calls)


class TestCompact:
    parser = CompactParser([calculator, book])

    @pytest.mark.parametrize(("text", "argument"), table(__file__, "compact_calls"))
    def test_the_whole_turn_is_a_call(self, text: str, argument: str) -> None:
        turn = self.parser.parse(text)
        assert turn.calls == (ToolCall(name="calculator", arguments={"expression": argument}),)
        assert (turn.content, turn.error) == ("", "")

    @pytest.mark.parametrize(
        "text",
        ["#### 14", "calculator(3*4) then", "so calculator(3*4)", "other(3)", "book(2)", "calculator(3*4", "", "(3)"],
    )
    def test_anything_else_is_content(self, text: str) -> None:
        turn = self.parser.parse(text)
        assert (turn.calls, turn.error) == ((), "")
        assert turn.content == text.strip()

    def test_without_tools_nothing_is_a_call(self) -> None:
        assert CompactParser().parse("calculator(3*4)").calls == ()

    @given(argument=st.text())
    def test_reads_what_it_writes(self, argument: str) -> None:
        call = ToolCall(name="calculator", arguments={"expression": argument})
        assert self.parser.parse(self.parser.format_call(call)).calls == (call,)

    @pytest.mark.parametrize("arguments", [{}, {"a": "1", "b": "2"}, {"a": 1}])
    def test_a_call_that_the_format_cannot_say_is_refused(self, arguments: dict[str, object]) -> None:
        with pytest.raises(ValueError, match="one string argument"):
            self.parser.format_call(ToolCall(name="calculator", arguments=arguments))
