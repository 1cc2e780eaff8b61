"""Probes of a chat template: the only module that handles differences between models.

A probe renders a small dummy dialogue and inspects the text. The probes find missing roles, the form of call ids, the
tokens that end a turn, the markers between messages, and whether the generation prompt opens a thought (the model's
reasoning). The renderer, the gateway and all engines rely on the results; ``turntree doctor --model`` shows them. If a
template refuses messages although its probes passed, the messages are converted to user messages if possible.
"""

from __future__ import annotations

import difflib
import functools
import itertools
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol, cast

from turntree.agents.errors import RenderError
from turntree.agents.loop import template_messages
from turntree.agents.loop.escaping import Marks, pieces
from turntree.envs.data.json_files import HALF, read_json
from turntree.envs.message import ToolCall
from turntree.envs.parsers import FORMATS, OfferedTool, get_parser
from turntree.envs.tools.tool import Tool
from turntree.rewards.reading.thoughts import THOUGHTS, Thought

logger = logging.getLogger(__name__)

# Texts of a dummy dialogue, used to locate the parts of a rendered text.
QUESTION = {"role": "user", "content": "question"}
DUMMY_ANSWER = "turntree-dummy-answer"
_DUMMY_RESULT = "turntree-dummy-result"
_DUMMY_SYSTEM = "turntree-dummy-system"
#: template variables that a user may not set
_RESERVED = frozenset(("messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now"))
_PROBE: dict[str, Any] = {
    "name": "turntree_probe",
    "description": "probe",
    "parameters": {"type": "object", "properties": {"text": {"type": "string"}, "count": {"type": "integer"}}},
}
_USUAL_ID = "call_0123456789abcdef01234567"  #: an id in the form that OpenAI's servers use


class ChatTokenizer(Protocol):
    eos_token_id: int | None
    all_special_ids: list[int]
    added_tokens_decoder: dict[int, Any]
    chat_template: Any
    special_tokens_map: Mapping[str, Any]

    def __call__(self, text: str, *, add_special_tokens: bool) -> Mapping[str, Any]: ...

    def apply_chat_template(self, conversation: list[dict[str, Any]], **options: Any) -> Any: ...

    def decode(self, token_ids: Any, **options: Any) -> str: ...


class ToolRole(StrEnum):
    PLAIN = "after any answer"
    CALLED = "only after a call"
    AS_USER = "none: answers are rendered as user messages"


class ChatTemplate:
    """A tokenizer's chat template; raises ``RenderError`` if the template refuses a dialogue or fails.

    Args:
        variables: Template variables, such as ``{"enable_thinking": False}``.
    """

    def __init__(self, tokenizer: ChatTokenizer, variables: Mapping[str, Any] | None = None) -> None:
        from jinja2 import TemplateError

        self.tokenizer = tokenizer
        self.variables = dict(variables or {})
        self._refusals = (TemplateError, ValueError, TypeError, KeyError, AttributeError, IndexError)
        self._warned: set[str] = set()
        self._check_variables()
        self._last = self._after_dummy([], generation_prompt=False)

    @functools.cached_property
    def system(self) -> bool:
        """Whether a dialogue may begin with a system message."""
        return self._shows([{"role": "system", "content": _DUMMY_SYSTEM}, QUESTION], _DUMMY_SYSTEM, QUESTION["content"])

    @functools.cached_property
    def later_system(self) -> bool:
        """Whether a system message may follow an answer."""
        answer = {"role": "assistant", "content": DUMMY_ANSWER}
        return self._shows(
            [QUESTION, answer, {"role": "system", "content": _DUMMY_SYSTEM}, QUESTION], DUMMY_ANSWER, _DUMMY_SYSTEM
        )

    @functools.cached_property
    def user_after_user(self) -> bool:
        """Whether a user message may follow another user message."""
        return self._shows([QUESTION, {"role": "user", "content": _DUMMY_SYSTEM}], QUESTION["content"], _DUMMY_SYSTEM)

    @functools.cached_property
    def _tool_support(self) -> tuple[ToolRole, bool, bool]:
        # Return the tool role, whether tool messages need ids and names, and whether ids must have nine letters. The
        # forms are tried from the least demanding one on; the first in which the template shows the answers is taken.
        bare = [{"role": "tool", "content": _DUMMY_RESULT}]
        renderers: tuple[tuple[ToolRole, Callable[..., str]], ...] = (
            (ToolRole.PLAIN, self._after_dummy),
            (ToolRole.CALLED, self._after_call),
        )
        for role, render in renderers:
            for needed, nine in ((False, False), (True, False), (True, True)):
                with_id = [{**bare[0], "tool_call_id": _USUAL_ID}]
                answers = [with_id] if needed else [bare, with_id]
                try:
                    shown = [render(template_messages.with_ids(form, needed=needed, nine=nine)) for form in answers]
                except RenderError:
                    continue
                if all(_DUMMY_RESULT in text for text in shown):
                    return role, needed, nine
        return ToolRole.AS_USER, False, False

    @property
    def tool_role(self) -> ToolRole:
        return self._tool_support[0]

    @property
    def nine_letter_ids(self) -> bool:
        """Whether call ids must be nine letters or digits, as in Mistral's templates."""
        return self._tool_support[2]

    @functools.cached_property
    def text_arguments(self) -> bool:
        """Whether a call's arguments must be JSON text."""
        call = {"type": "function", "id": "call00000", "function": {"name": "tool", "arguments": {"x": 1}}}
        dialogue: list[dict[str, Any]] = [QUESTION, {"role": "assistant", "content": "", "tool_calls": [call]}]
        return not self._shows(dialogue) and self._shows(template_messages.arguments_as_text(dialogue))

    @functools.cached_property
    def renders_tools(self) -> bool:
        """Whether the template shows the tools in a first prompt."""
        tools = [{"type": "function", "function": _PROBE}]
        try:
            return _PROBE["name"] in self.render([QUESTION], tools=tools, generation_prompt=True)
        except RenderError:
            return False

    @functools.cached_property
    def tool_format(self) -> str | None:
        """The format of ``turntree.envs.parsers`` in which the template writes calls; ``None`` if unknown."""
        # Kimi K2's template writes the call's id instead of the tool's name, so also try an id with the name in it.
        call = ToolCall(name=_PROBE["name"], arguments={"text": "turntree-value", "count": 7})
        ids = ("call00000", f"functions.{call.name}:0")
        turns = [turn for call_id in ids if (turn := self._render_call(call, call_id))]
        formats: list[tuple[bool, int, str]] = []
        for name, turn in itertools.product(FORMATS, turns):
            parser = get_parser(name, cast(Sequence[Tool], [OfferedTool.of(_PROBE)]))
            text = turn if getattr(parser, "special_tokens", False) else self._without_special(turn)
            if [(parsed.name, parsed.arguments) for parsed in parser.parse(text).calls] == [
                (call.name, call.arguments)
            ]:
                # Prefer a format that writes the call exactly as the template does.
                formats.append((parser.format_call(call) not in text, len(formats), name))
        return min(formats)[2] if formats else None

    def _render_call(self, call: ToolCall, call_id: str) -> str:
        function = {"name": call.name, "arguments": dict(call.arguments)}
        calls = [{"type": "function", "id": call_id, "function": function}]
        dialogue: list[dict[str, Any]] = [QUESTION, {"role": "assistant", "content": "", "tool_calls": calls}]
        if self.text_arguments:
            dialogue = template_messages.arguments_as_text(dialogue)
        try:
            rendered, prompt = self.render(dialogue), self.render([QUESTION], generation_prompt=True)
        except RenderError:
            return ""
        # The generation prompt may contain an empty thought that an earlier answer lacks, so compare from the start.
        differing = (n for n, (left, right) in enumerate(zip(rendered, prompt, strict=False)) if left != right)
        return rendered[next(differing, len(prompt)) :]

    def _without_special(self, text: str) -> str:
        return self.tokenizer.decode(list(self.tokens(text)), skip_special_tokens=True)

    @functools.cached_property
    def end_tokens(self) -> tuple[int, ...]:
        """Distinct tokens that end the policy's turn, according to the template, the tokenizer and the model."""
        template_ends = self.own_ends or self._opening_tokens()
        ends = (*template_ends, self.tokenizer.eos_token_id, *model_ends(getattr(self.tokenizer, "name_or_path", "")))
        return tuple(dict.fromkeys(token for token in ends if token is not None))

    @functools.cached_property
    def own_ends(self) -> tuple[int, ...]:
        """Special tokens that the template writes after a last answer, an earlier answer and a tool call."""
        ends = [self._to_special(self._last)[-1:]]
        if ends[0]:
            ends.append(self.ending_tokens[-1:])
            if self.tool_role is ToolRole.CALLED:
                _, rendered = self._dialogue_with_calls([{"role": "tool", "content": ""}])
                ends.append(self.tokens(rendered.rstrip())[-1:])
        return tuple(dict.fromkeys(token for tokens in ends for token in tokens if token in self.special))

    @functools.cached_property
    def ending_tokens(self) -> tuple[int, ...]:
        """Tokens from the end of an earlier answer's text up to the special token that ends the turn."""
        return self._to_special(self._closing) if self._to_special(self._last) else ()

    @functools.cached_property
    def _closing(self) -> str:
        # Some templates end the last answer of a dialogue differently from earlier answers.
        continuation = self._after_dummy([QUESTION], generation_prompt=False)
        if continuation.startswith(self._last):
            return self._last
        end_token = self._to_special(continuation)[-1:]
        mark = self.tokenizer.decode(list(end_token), skip_special_tokens=False)
        return continuation[: continuation.find(mark) + len(mark)]

    def _to_special(self, text: str) -> tuple[int, ...]:
        tokens = self.tokens(text)
        return tokens[: next((n + 1 for n, token in enumerate(tokens) if token in self.special), 0)]

    @functools.cached_property
    def special(self) -> frozenset[int]:
        added = self.tokenizer.added_tokens_decoder.items()
        return frozenset({*self.tokenizer.all_special_ids, *(token_id for token_id, token in added if token.special)})

    @functools.cached_property
    def marks(self) -> Marks:
        """Tokens to escape in untrusted text: special tokens, and added tokens that the template writes."""
        answer = {"role": "assistant", "content": DUMMY_ANSWER}
        system = [{"role": "system", "content": _DUMMY_SYSTEM}] if self.system else []
        shown = self._render_or_empty([*system, QUESTION, answer, QUESTION])
        if self.tool_role is not ToolRole.AS_USER:
            shown += self.after_answer([{"role": "tool", "content": _DUMMY_RESULT}])
        texts = [self.tokenizer.decode([token], skip_special_tokens=False) for token in self.tokenizer.all_special_ids]
        for token in self.tokenizer.added_tokens_decoder.values():
            if token.special or str(token) in shown:
                texts.append(str(token))
        return Marks(texts)

    @functools.cached_property
    def answer_marks(self) -> Marks:
        """Marks to escape in answers. Thought marks are excluded, because templates look for thoughts in answers."""
        thought_marks = () if self.thought is None else (self.thought.begin, self.thought.end)
        return Marks(token for token in self.marks.tokens if token not in thought_marks)

    @functools.cached_property
    def thought(self) -> Thought | None:
        """The markers of the model's thoughts; ``None`` if the model writes no thoughts."""
        texts = (*self._sources, *map(str, self.tokenizer.added_tokens_decoder.values()))
        return next((thought for thought in THOUGHTS if any(thought.begin in text for text in texts)), None)

    @functools.cached_property
    def opens(self) -> str:
        """``thought`` if the generation prompt opens a thought, ``no thought`` if it holds an empty one, else empty."""
        prompt = self._generation_prompt
        if self.thought is None or self.thought.begin not in prompt:
            return ""
        return "thought" if self.thought.is_open(prompt) else "no thought"

    @functools.cached_property
    def opened(self) -> str:
        """The end of the generation prompt, from the marker that opens a thought; empty if no thought is opened."""
        prompt = self._generation_prompt
        return prompt[prompt.rfind(self.thought.begin) :] if self.thought and self.opens == "thought" else ""

    @functools.cached_property
    def _generation_prompt(self) -> str:
        return self.render([QUESTION], generation_prompt=True).removeprefix(self.render([QUESTION]))

    @property
    def _sources(self) -> list[str]:
        source = self.tokenizer.chat_template
        return [*source.values()] if isinstance(source, dict) else [source or ""]

    @functools.cached_property
    def readable(self) -> tuple[str, ...]:
        """Variables that the template reads and that a user may set."""
        from jinja2 import Environment, meta

        variables: set[str] = set()
        for source in self._sources:
            # Remove Hugging Face's own tag ``generation``, which plain Jinja cannot parse.
            plain = re.sub(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}", "", source)
            parsed = Environment(extensions=["jinja2.ext.loopcontrols"]).parse(plain)
            variables |= meta.find_undeclared_variables(parsed)
        return tuple(sorted(variables - _RESERVED - set(self.tokenizer.special_tokens_map)))

    def _check_variables(self) -> None:
        for name in self.variables:
            readable = self.readable
            if name not in readable:
                near = difflib.get_close_matches(name, readable, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"it reads {', '.join(readable) or 'none'}"
                raise RenderError(f"the chat template reads no variable {name!r}; {hint}")

    def _opening_tokens(self) -> tuple[int, ...]:
        # If no special token ends an answer, the first token of the next message ends it.
        following: list[list[dict[str, Any]]] = [[QUESTION]]
        if self.tool_role is not ToolRole.AS_USER:
            following.append([{"role": "tool", "content": _DUMMY_RESULT}])
        firsts = [self.tokens(self.after_answer(messages, generation_prompt=False))[:1] for messages in following]
        return tuple(token for tokens in firsts for token in tokens if token in self.special)

    def beginning(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> str:
        """Render a dialogue's first prompt."""

        def render(dialogue: template_messages.Messages) -> str:
            return self.render(dialogue, tools=list(tools) or None, generation_prompt=True)

        return self._convert_and_render(render, messages, first=True)

    def after_answer(self, messages: Sequence[dict[str, Any]], *, generation_prompt: bool = True) -> str:
        """Render ``messages`` after an answer: the text between that answer and the next one."""

        def render(dialogue: template_messages.Messages) -> str:
            needs_call = self.tool_role is ToolRole.CALLED and any(message["role"] == "tool" for message in dialogue)
            after = self._after_call if needs_call else self._after_dummy
            return after(dialogue, generation_prompt=generation_prompt)

        return self._convert_and_render(render, messages, first=False)

    def _convert_and_render(
        self, render: Callable[[template_messages.Messages], str], messages: Sequence[dict[str, Any]], *, first: bool
    ) -> str:
        supported = self._with_roles(list(messages), first=first)
        has_tools = any(message["role"] == "tool" or message.get("tool_calls") for message in supported)
        if not has_tools:
            return render(supported)
        if self.tool_role is not ToolRole.AS_USER:
            converted = template_messages.with_ids(supported, needed=self._tool_support[1], nine=self._tool_support[2])
            if self.text_arguments:
                converted = template_messages.arguments_as_text(converted)
            try:
                return render(converted)
            except RenderError as error:
                self.warn("the chat template refuses some tool messages; they are rendered as user messages", error)
        else:
            self.warn("the chat template has no tool role; tool answers are rendered as user messages")
        as_text = template_messages.tools_as_user(template_messages.calls_as_text(supported))
        return render(self._with_roles(as_text, first=first))

    def _with_roles(self, messages: template_messages.Messages, *, first: bool) -> template_messages.Messages:
        # Convert messages whose role the template does not support at their position.
        roles = [message["role"] for message in messages]
        later = "system" in roles[1:] or ("system" in roles and not first)
        if "system" in roles and not (self.system if first and not later else self.later_system):
            if not self.system:
                self.warn("the chat template has no system role; system text is put before the first user message")
            messages = template_messages.system_as_user(messages, first=first and self.system)
        pairs = itertools.pairwise(messages)
        if any(left["role"] == right["role"] == "user" for left, right in pairs) and not self.user_after_user:
            messages = template_messages.joined(messages)
        return messages

    def warn(self, problem: str, error: RenderError | None = None) -> None:
        if problem not in self._warned:  # once per template, not once per message
            self._warned.add(problem)
            logger.warning("%s%s", problem, "" if error is None else f": {error}")

    def _shows(self, dialogue: list[dict[str, Any]], *texts: str) -> bool:
        # Return whether the template renders the dialogue and shows these texts in this order.
        try:
            shown = self.render(dialogue, generation_prompt=True)
        except RenderError:
            return False
        return re.search(".*".join(texts), shown, re.DOTALL) is not None

    def _render_or_empty(self, dialogue: list[dict[str, Any]]) -> str:
        try:
            return self.render(dialogue, generation_prompt=True)
        except RenderError:
            return ""

    def _after_dummy(self, messages: list[dict[str, Any]], *, generation_prompt: bool = True) -> str:
        answer = {"role": "assistant", "content": DUMMY_ANSWER}
        text = self.render([QUESTION, answer, *messages], generation_prompt=generation_prompt)
        _, answer_text, after = text.partition(DUMMY_ANSWER)
        if not answer_text:
            raise RenderError(f"the chat template drops the text of an assistant message; it rendered {text!r}")
        return after

    def _after_call(self, messages: list[dict[str, Any]], *, generation_prompt: bool = True) -> str:
        # Like ``_after_dummy``, but after an answer with tool calls, whose text templates may drop.
        dialogue, before = self._dialogue_with_calls(messages)
        after = self.render([*dialogue, *messages], generation_prompt=generation_prompt)
        ends = self.tokens(before.rstrip())[-1:]
        if not after.startswith(before) or not (before.endswith(self._last) or self.special.issuperset(ends)):
            raise RenderError(
                "the chat template renders an assistant message with tool calls differently once tool "
                f"messages follow: {before!r} became {after!r}"
            )
        return self._closing + after[len(before) :]

    def _dialogue_with_calls(self, answers: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
        calls: list[dict[str, Any]] = [
            {
                "type": "function",
                "id": message.get("tool_call_id") or f"call{number:05d}",
                "function": {"name": message.get("name") or "tool", "arguments": {}},
            }
            for number, message in enumerate(m for m in answers if m["role"] == "tool")
        ]
        dialogue: list[dict[str, Any]] = [QUESTION, {"role": "assistant", "content": DUMMY_ANSWER, "tool_calls": calls}]
        if self.text_arguments:
            dialogue = template_messages.arguments_as_text(dialogue)
        return dialogue, self.render(dialogue)

    def render(
        self,
        dialogue: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        generation_prompt: bool = False,
    ) -> str:
        """Return the text that the template renders for ``dialogue``."""
        try:
            text: str = self.tokenizer.apply_chat_template(
                dialogue, tools=tools, add_generation_prompt=generation_prompt, tokenize=False, **self.variables
            )
        except self._refusals as error:  # raised by the template, or by an expression in the template
            if not self.tokenizer.chat_template:
                raise RenderError(
                    "the tokenizer has no chat template, as is usual for base models: use the model's instruct "
                    "version, or add a chat_template.jinja to its folder"
                ) from error
            roles = ", ".join(str(message.get("role")) for message in dialogue)
            raise RenderError(
                f"the tokenizer's chat template refuses a dialogue with the roles {roles}: {error}"
            ) from error
        return text

    def tokens(self, text: str) -> tuple[int, ...]:
        """Tokenise a rendered text; special tokens spelled out in untrusted text become ordinary tokens."""
        if half := HALF.search(text):
            raise RenderError(
                f"the messages contain half of a surrogate pair, {half[0]!r}, which no tokenizer accepts; remove it"
            )
        return tuple(
            token for piece in pieces(text) for token in self.tokenizer(piece, add_special_tokens=False)["input_ids"]
        )


def model_ends(name: str) -> tuple[int, ...]:
    """Return the end tokens from a model's ``generation_config.json``, or else from its ``config.json``."""
    for file in ("generation_config.json", "config.json"):
        ends = _settings(name, file).get("eos_token_id")
        if ends is not None:
            return tuple(ends) if isinstance(ends, list) else (ends,)
    return ()


def _settings(name: str, file: str) -> dict[str, Any]:
    path: Any = Path(name, file)
    if not name:
        return {}
    if not Path(name).is_dir():
        try:
            from huggingface_hub import try_to_load_from_cache

            path = try_to_load_from_cache(name, file)
        except (ImportError, ValueError):  # not a Hugging Face id
            return {}
    try:
        values = read_json(Path(path))
    except (OSError, ValueError, TypeError):  # missing: the cache may return a value that is not a path
        return {}
    return {**(values.get("text_config") or {}), **values} if isinstance(values, dict) else {}
