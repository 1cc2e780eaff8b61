import copy
import logging
from typing import Any

import pytest
from chat_tokenizers import CHATML, make_tokenizer
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import table
from tokenizers.processors import TemplateProcessing

from turntree.agents.errors import RenderError
from turntree.agents.loop.renderer import Renderer

ASKED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 12 + 34?"}]
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "12 + 34"}}\n</tool_call>'
HEARD = [{"role": "tool", "content": "46", "name": "calculator", "tool_call_id": "call-0"}]
USER = [{"role": "user", "content": "46"}]
TOOLS = [{"type": "function", "function": {"name": "calculator", "parameters": {}}}]
NO_TOOL_ROLE = table(__file__, "no_tool_role")
SILENT_TOOL_ROLE = NO_TOOL_ROLE.replace("{{ raise_exception('unknown role tool') }}{% endif %}", "{% else %}")
SILENT_TOOL_ROLE = SILENT_TOOL_ROLE.replace("{% endfor %}", "{% endif %}{% endfor %}")


@pytest.fixture(scope="session", params=["chatml", "llama3"])
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def with_template(template: str | None, eos: str | None = "<|im_end|>") -> Any:
    return make_tokenizer(template, special=["<|endoftext|>", "<|im_start|>", "<|im_end|>"], eos=eos)


def encode(tokenizer: Any, text: str) -> tuple[int, ...]:
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def whole(tokenizer: Any, messages: list[dict[str, Any]], tools: Any = None) -> tuple[int, ...]:
    rendered = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False)
    return encode(tokenizer, rendered)


def heard(renderer: Renderer, messages: list[dict[str, Any]]) -> str:
    prompt = renderer.initial(ASKED)
    return renderer.decode(renderer.extend(prompt, (renderer.stop_token_ids[0],), messages)[len(prompt) :])


def test_tools_reach_a_template_that_uses_them(llama3: Any) -> None:
    renderer = Renderer(llama3)
    prompt = renderer.initial(ASKED, TOOLS)
    assert prompt == whole(llama3, ASKED, TOOLS)
    assert "calculator" in renderer.decode(prompt)
    assert "calculator" not in renderer.decode(renderer.initial(ASKED))


def test_a_tokenizer_that_begins_every_text_with_a_token_does_not_begin_a_part_with_it(llama3: Any) -> None:
    eager, begin = copy.deepcopy(llama3), (llama3.bos_token, llama3.bos_token_id)
    eager.backend_tokenizer.post_processor = TemplateProcessing(single=f"{begin[0]} $A", special_tokens=[begin])
    assert eager("46")["input_ids"] == [begin[1], *llama3("46")["input_ids"]]
    ours, plain = Renderer(eager), Renderer(llama3)
    assert ours.initial(ASKED) == plain.initial(ASKED)
    assert ours.extend((1,), (2,), HEARD) == plain.extend((1,), (2,), HEARD)


def test_turns_that_ended_or_were_cut_extend_to_the_templates_own_rendering(tokenizer: Any) -> None:
    renderer = Renderer(tokenizer)
    dialogue = list(ASKED)
    prompt = renderer.initial(ASKED)
    assert prompt == whole(tokenizer, ASKED)
    for text, then in ((CALL, HEARD), ("wait", USER), (CALL, [*HEARD, *HEARD]), ("#### 46", HEARD)):
        prompt = renderer.extend(prompt, (*encode(tokenizer, text), renderer.stop_token_ids[0]), then)
        dialogue += [{"role": "assistant", "content": text}, *then]
        assert prompt == whole(tokenizer, dialogue)
    prompt, stop = renderer.initial(ASKED), renderer.stop_token_ids[0]
    cut = encode(tokenizer, CALL)
    assert renderer.extend(prompt, cut, HEARD) == renderer.extend(prompt, (*cut, stop), HEARD)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_what_was_sampled_stays_as_it_is_whatever_it_was(tokenizer: Any, data: st.DataObject) -> None:
    renderer = Renderer(tokenizer)
    token = st.integers(0, len(tokenizer) - 1)
    prompt = renderer.initial([{"role": "user", "content": data.draw(st.text(max_size=20))}])
    response = tuple(data.draw(st.lists(token, max_size=12)))
    heard = [{"role": "tool", "content": data.draw(st.text(max_size=20))}]
    extended = renderer.extend(prompt, response, heard)
    assert extended[: len(prompt) + len(response)] == prompt + response
    assert len(extended) > len(prompt) + len(response)


def test_a_split_that_the_tokenizer_would_not_choose_is_kept(tokenizer: Any) -> None:
    renderer = Renderer(tokenizer)
    stop = renderer.stop_token_ids[0]
    canonical = encode(tokenizer, "answer")
    letters = tuple(token for letter in "answer" for token in encode(tokenizer, letter))
    assert len(letters) > len(canonical)
    prompt = renderer.initial(ASKED)
    extended = renderer.extend(prompt, (*letters, stop), HEARD)
    assert extended[len(prompt) :][: len(letters)] == letters
    # The control: rendering the text again gives other ids than those that were sampled.
    said = {"role": "assistant", "content": renderer.decode(letters)}
    assert said["content"] == "answer"
    assert whole(tokenizer, [*ASKED, said, *HEARD]) != extended


def test_turns_end_at_the_templates_end_of_turn_and_at_eos_and_decoding_keeps_spaces(chatml: Any, llama3: Any) -> None:
    names = chatml.convert_ids_to_tokens(Renderer(chatml).stop_token_ids)
    assert names == ["<|im_end|>", "<|endoftext|>"]
    assert llama3.convert_ids_to_tokens(Renderer(llama3).stop_token_ids) == ["<|eot_id|>"]
    assert Renderer(llama3, stop_token_ids=[7, 7]).stop_token_ids[1:] == (7,)
    renderer = Renderer(chatml)
    assert renderer.decode(encode(chatml, " a , b  c !<|im_end|>")) == " a , b  c !"


@pytest.mark.parametrize("template", [NO_TOOL_ROLE, SILENT_TOOL_ROLE], ids=["raises", "drops it"])
def test_a_template_without_a_tool_role_gets_tool_answers_as_one_user_message(template, caplog):
    answer = "<tool_response>\n46\n</tool_response>\n"
    with caplog.at_level(logging.WARNING):
        assert heard(Renderer(with_template(template)), [*HEARD, *HEARD]) == f"\nuser\n{answer}{answer}assistant\n"
    assert "no tool role" in caplog.text


THINKS = "\n{% if m.role == 'assistant' and loop.last %}<think></think>{% endif %}{{ m.content }}"


@pytest.mark.parametrize(
    "template",
    [table(__file__, "wants_the_call"), CHATML.replace("\n{{ m.content }}", THINKS)],
    ids=["the call before the answer", "an empty block before the last answer"],
)
def test_what_a_template_wants_around_an_answer_does_not_matter(template: str) -> None:
    assert heard(Renderer(with_template(template)), HEARD) == "\ntool\n46\nassistant\n"


def test_a_template_whose_turns_end_where_the_next_begins_gets_no_token_twice() -> None:
    tokenizer = with_template(table(__file__, "ends_where_the_next_begins"))
    opens = tokenizer.convert_tokens_to_ids("<|im_start|>")
    renderer = Renderer(tokenizer, stop_token_ids=[opens])
    ended = renderer.extend((5,), (6, opens), USER)
    assert ended.count(opens) == 1
    assert ended == renderer.extend((5,), (6,), USER)


@pytest.mark.parametrize(
    ("template", "eos", "says"),
    [
        (None, "<|im_end|>", "no chat template, as is usual for base models: use the model's instruct"),
        *table(__file__, "impossible_templates"),
    ],
)
def test_a_template_that_cannot_work_is_refused_at_once(template: str, eos: str, says: str) -> None:
    with pytest.raises(RenderError, match=says):
        Renderer(with_template(template or None, eos or None))


def test_a_template_that_ends_a_turn_before_a_tool_differently_or_refuses_a_role_is_refused() -> None:
    renderer = Renderer(with_template(table(__file__, "ends_a_turn_before_a_tool_differently")))
    with pytest.raises(RenderError, match="cannot be extended"):
        renderer.extend((5,), (6,), HEARD)
    renderer = Renderer(with_template(NO_TOOL_ROLE.replace("m.role == 'tool'", "m.content == 'never'")))
    with pytest.raises(RenderError, match="roles system, user: unknown role"):
        renderer.initial([ASKED[0], {"role": "user", "content": "never"}])


def test_a_turn_that_ended_as_a_last_one_is_not_ended_once_more() -> None:
    renderer = Renderer(with_template(table(__file__, "ends_the_last_turn_differently")))
    last, followed = renderer.stop_token_ids
    after = renderer.extend((5,), (6,), USER)
    assert after[:3] == (5, 6, followed)
    for end in (last, followed):
        assert renderer.extend((5,), (6, end), USER) == (5, 6, end, *after[3:])
