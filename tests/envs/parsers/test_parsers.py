import pytest
from hypothesis import given
from hypothesis import strategies as st

from turntree.envs import CompactParser, HermesParser, ToolCall, UnknownParser, get_parser, tool
from turntree.envs.calculator import calculator


@tool
def power(base: int, exponent: int) -> int:
    """Raise a number to a power.

    Args:
        base: The number
        exponent: The power
    """
    return int(base**exponent)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
tagless = st.text().filter(lambda text: "tool_call" not in text)


class TestHermes:
    parser = HermesParser()

    @given(
        name=st.from_regex(r"\w{1,12}", fullmatch=True),
        arguments=st.dictionaries(st.text(), json_values, max_size=3),
        before=tagless,
        after=tagless,
    )
    def test_reads_what_it_writes_between_any_text(
        self, name: str, arguments: dict[str, object], before: str, after: str
    ) -> None:
        call = ToolCall(name=name, arguments=arguments)
        written = self.parser.format_call(call)
        if written.count("</tool_call>") > 1:
            return  # a string argument that holds the closing tag: the format cannot say it
        turn = self.parser.parse(before + written + after)
        assert turn.error == ""
        assert turn.calls == (call,)
        assert turn.content == (before + after).strip()

    def test_words_between_calls_are_content_and_arguments_may_be_missing(self) -> None:
        calls = (ToolCall(name="calculator", arguments={"expression": "1"}), ToolCall(name="now"))
        written = [self.parser.format_call(calls[0]), '<tool_call>{"name": "now"}</tool_call>']
        turn = self.parser.parse("Let me see.\n" + "\n".join(written) + "\nThen.")
        assert (turn.content, turn.calls) == ("Let me see.\n\n\nThen.", calls)

    @pytest.mark.parametrize(
        ("body", "reason"),
        [
            ("{'name': 'now'}", "not JSON"),
            ("", "not JSON"),
            ("[1]", "expected a JSON object"),
            ('{"arguments": {}}', '"name" must be the name of a tool'),
            ('{"name": 3}', '"name" must be the name of a tool'),
            ('{"name": "now", "arguments": "x"}', '"arguments" must be a JSON object'),
            ('{"name": "now", "arguments": {"x": NaN}}', "NaN is no JSON number"),
            ('{"name": "now", "arguments": {"x": 1e999}}', "1e999 is no JSON number"),
            ("[" * 100_000, "nested too deeply"),
            ('{"name": "a", "arguments": {"x": ' + "9" * 5000 + "}}", "malformed"),
        ],
    )
    def test_a_malformed_call_is_told_to_the_model_and_nothing_is_called(self, body: str, reason: str) -> None:
        good = self.parser.format_call(ToolCall(name="now"))
        turn = self.parser.parse(f"{good}<tool_call>{body}</tool_call>")
        assert turn.calls == ()
        assert reason in turn.error
        assert "Write it as <tool_call>" in turn.error


class TestCompact:
    parser = CompactParser([calculator, power])

    @pytest.mark.parametrize(
        ("text", "argument"),
        [
            ("calculator(3*4)", "3*4"),
            (" calculator(3*4)\n", "3*4"),
            ("calculator((1+2)*3)", "(1+2)*3"),
            ("calculator()", ""),
            ("calculator(a)b)", "a)b"),
            ("calculator(1\n+2)", "1\n+2"),
        ],
    )
    def test_the_whole_turn_is_a_call(self, text: str, argument: str) -> None:
        turn = self.parser.parse(text)
        assert turn.calls == (ToolCall(name="calculator", arguments={"expression": argument}),)
        assert (turn.content, turn.error) == ("", "")

    @pytest.mark.parametrize(
        "text",
        ["#### 14", "calculator(3*4) then", "so calculator(3*4)", "other(3)", "power(2)", "calculator(3*4", "", "(3)"],
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


def test_parsers_are_found_by_name() -> None:
    assert isinstance(get_parser("hermes"), HermesParser)
    assert get_parser("compact", [calculator]).parse("calculator(1)").calls


def test_an_unknown_format_names_the_nearest() -> None:
    with pytest.raises(UnknownParser, match=r"got 'hermess'; did you mean 'hermes'\?"):
        get_parser("hermess")
