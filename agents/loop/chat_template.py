"""What a chat template needs, probed once from the template itself: the one place that knows a model's peculiarities.

Roles that it lacks, the form of call ids, the tokens that end a turn, what its generation prompt opens, and the marks
between its messages. The renderer, the gateway and with them every engine ask here; ``turntree doctor --model`` shows
it. What a template refuses although its probes passed goes in another way where there is one.
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

ASKED = {"role": "user", "content": "question"}
SAID = "turntree-dummy-answer"
_HEARD = "turntree-dummy-result"
_TOLD = "turntree-dummy-system"
_GIVEN = frozenset(("messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now"))
"""Names that are no user's to set."""
_PROBE: dict[str, Any] = {
    "name": "turntree_probe",
    "description": "probe",
    "parameters": {"type": "object", "properties": {"text": {"type": "string"}, "count": {"type": "integer"}}},
}
_USUAL_ID = "call_0123456789abcdef01234567"
"""An id as OpenAI's servers and this gateway's clients write it."""


class ChatTokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is used here."""

    eos_token_id: int | None
    all_special_ids: list[int]
    added_tokens_decoder: dict[int, Any]
    chat_template: Any
    special_tokens_map: Mapping[str, Any]

    def __call__(self, text: str, *, add_special_tokens: bool) -> Mapping[str, Any]:
        """Tokenise ``text``."""

    def apply_chat_template(self, conversation: list[dict[str, Any]], **options: Any) -> Any:
        """Render ``conversation``."""

    def decode(self, token_ids: Any, **options: Any) -> str:
        """Text of ``token_ids``."""


class ToolRole(StrEnum):
    """How a template renders a tool's answer."""

    PLAIN = "after any answer"
    CALLED = "after a call alone"
    AS_USER = "none: answers go in as user messages"


class ChatTemplate:
    """A tokenizer's chat template.

    Args:
        variables: Of the template, such as ``{"enable_thinking": False}``.

    Raises:
        RenderError: If the template is missing, or fails on a two-message dialogue.
    """

    def __init__(self, tokenizer: ChatTokenizer, variables: Mapping[str, Any] | None = None) -> None:
        from jinja2 import TemplateError

        self.tokenizer = tokenizer
        self.variables = dict(variables or {})
        """Variables that every rendering is given."""
        self._refusals = (TemplateError, ValueError, TypeError, KeyError, AttributeError, IndexError)
        self._said: set[str] = set()
        self._check_variables()
        self._last = self._after_dummy([], generation_prompt=False)

    # What it has.

    @functools.cached_property
    def system(self) -> bool:
        """Whether a dialogue may begin with a system message."""
        return self._shows([{"role": "system", "content": _TOLD}, ASKED], _TOLD, ASKED["content"])

    @functools.cached_property
    def later_system(self) -> bool:
        """Whether a system message may stand behind an answer."""
        answer = {"role": "assistant", "content": SAID}
        return self._shows([ASKED, answer, {"role": "system", "content": _TOLD}, ASKED], SAID, _TOLD)

    @functools.cached_property
    def user_after_user(self) -> bool:
        """Whether two user messages may follow each other."""
        return self._shows([ASKED, {"role": "user", "content": _TOLD}], ASKED["content"], _TOLD)

    @functools.cached_property
    def _tool(self) -> tuple[ToolRole, bool, bool]:
        """The tool role, whether its messages need ids and names, and whether ids are of nine letters."""
        bare = [{"role": "tool", "content": _HEARD}]
        tries: tuple[tuple[ToolRole, Callable[..., str]], ...] = (
            (ToolRole.PLAIN, self._after_dummy),
            (ToolRole.CALLED, self._after_call),
        )
        for role, render in tries:
            for needed, nine in ((False, False), (True, False), (True, True)):
                given = [{**bare[0], "tool_call_id": _USUAL_ID}]
                answers = [given] if needed else [bare, given]
                try:
                    shown = [render(template_messages.with_ids(one, needed=needed, nine=nine)) for one in answers]
                except RenderError:
                    continue
                if all(_HEARD in one for one in shown):
                    return role, needed, nine
        return ToolRole.AS_USER, False, False

    @property
    def tool_role(self) -> ToolRole:
        """How a tool's answer is rendered."""
        return self._tool[0]

    @property
    def nine_letter_ids(self) -> bool:
        """Whether ids of calls must be nine letters or digits, as Mistral's."""
        return self._tool[2]

    @functools.cached_property
    def text_arguments(self) -> bool:
        """Whether it takes a call's arguments as text alone."""
        call = {"type": "function", "id": "call00000", "function": {"name": "tool", "arguments": {"x": 1}}}
        dialogue: list[dict[str, Any]] = [ASKED, {"role": "assistant", "content": "", "tool_calls": [call]}]
        return not self._shows(dialogue) and self._shows(template_messages.arguments_as_text(dialogue))

    @functools.cached_property
    def renders_tools(self) -> bool:
        """Whether a first prompt shows the tools that the template is given."""
        tools = [{"type": "function", "function": _PROBE}]
        try:
            return _PROBE["name"] in self.render([ASKED], tools=tools, generation_prompt=True)
        except RenderError:
            return False

    @functools.cached_property
    def tool_format(self) -> str | None:
        """The format of ``turntree.envs.parsers`` in which it writes calls; ``None`` if it writes none that we read."""
        call = ToolCall(name=_PROBE["name"], arguments={"text": "turntree-value", "count": 7})
        turns = [turn for number in ("call00000", f"functions.{call.name}:0") if (turn := self._calling(call, number))]
        found: list[tuple[bool, int, str]] = []
        for name, turn in itertools.product(FORMATS, turns):
            parser = get_parser(name, cast(Sequence[Tool], [OfferedTool.of(_PROBE)]))
            text = turn if getattr(parser, "special_tokens", False) else self._without_special(turn)
            if [(one.name, one.arguments) for one in parser.parse(text).calls] == [(call.name, call.arguments)]:
                found.append((parser.format_call(call) not in text, len(found), name))
        return min(found)[2] if found else None

    def _calling(self, call: ToolCall, number: str) -> str:
        """The turn in which it writes a call with an id; empty if it refuses to. Kimi K2's has the tool in the id."""
        function = {"name": call.name, "arguments": dict(call.arguments)}
        calls = [{"type": "function", "id": number, "function": function}]
        dialogue: list[dict[str, Any]] = [ASKED, {"role": "assistant", "content": "", "tool_calls": calls}]
        if self.text_arguments:
            dialogue = template_messages.arguments_as_text(dialogue)
        try:
            whole, before = self.render(dialogue), self.render([ASKED], generation_prompt=True)
        except RenderError:
            return ""
        same = (number for number, (one, two) in enumerate(zip(whole, before, strict=False)) if one != two)
        return whole[next(same, len(before)) :]

    def _without_special(self, text: str) -> str:
        return self.tokenizer.decode(list(self.tokens(text)), skip_special_tokens=True)

    @functools.cached_property
    def end_tokens(self) -> tuple[int, ...]:
        """Tokens that end the policy's turn: the template's own, the tokenizer's and the model's, each once."""
        own = self.own_ends or self._opening_tokens()
        ends = (*own, self.tokenizer.eos_token_id, *model_ends(getattr(self.tokenizer, "name_or_path", "")))
        return tuple(dict.fromkeys(token for token in ends if token is not None))

    @functools.cached_property
    def own_ends(self) -> tuple[int, ...]:
        """Special tokens that the template itself writes behind answers: a last one, one that is followed, a call."""
        ends = [self._to_special(self._last)[-1:]]
        if ends[0]:
            ends.append(self.ending_tokens[-1:])
            if self.tool_role is ToolRole.CALLED:
                ends.append(self.tokens(self._called([{"role": "tool", "content": ""}])[1].rstrip())[-1:])
        return tuple(dict.fromkeys(token for tokens in ends for token in tokens if token in self.special))

    @functools.cached_property
    def ending_tokens(self) -> tuple[int, ...]:
        """Tokens from the end of an answer that is followed to the special token that ends its turn; empty without."""
        return self._to_special(self._closing) if self._to_special(self._last) else ()

    @functools.cached_property
    def _closing(self) -> str:
        """What stands behind an answer that is followed, where it is not what stands behind a last one."""
        followed = self._after_dummy([ASKED], generation_prompt=False)
        if followed.startswith(self._last):
            return self._last
        first = self._to_special(followed)[-1:]
        mark = self.tokenizer.decode(list(first), skip_special_tokens=False)
        return followed[: followed.find(mark) + len(mark)]

    def _to_special(self, text: str) -> tuple[int, ...]:
        tokens = self.tokens(text)
        return tokens[: next((n + 1 for n, token in enumerate(tokens) if token in self.special), 0)]

    @functools.cached_property
    def special(self) -> frozenset[int]:
        """The tokenizer's special tokens."""
        added = self.tokenizer.added_tokens_decoder.items()
        return frozenset({*self.tokenizer.all_special_ids, *(token for token, how in added if how.special)})

    @functools.cached_property
    def marks(self) -> Marks:
        """Special tokens, and other added ones that the template writes around messages."""
        answer = {"role": "assistant", "content": SAID}
        system = [{"role": "system", "content": _TOLD}] if self.system else []
        shown = self._try([*system, ASKED, answer, ASKED])
        if self.tool_role is not ToolRole.AS_USER:
            shown += self.after_answer([{"role": "tool", "content": _HEARD}])
        texts = [self.tokenizer.decode([token], skip_special_tokens=False) for token in self.tokenizer.all_special_ids]
        for how in self.tokenizer.added_tokens_decoder.values():
            if how.special or str(how) in shown:
                texts.append(str(how))
        return Marks(texts)

    @functools.cached_property
    def answer_marks(self) -> Marks:
        """The marks that are text in an answer too: a template finds thoughts in answers by theirs."""
        kept = () if self.thought is None else (self.thought.begin, self.thought.end)
        return Marks(token for token in self.marks.tokens if token not in kept)

    @functools.cached_property
    def thought(self) -> Thought | None:
        """How the model's thoughts begin and end; ``None`` if it has none."""
        known = (*self._sources, *(str(how) for how in self.tokenizer.added_tokens_decoder.values()))
        return next((one for one in THOUGHTS if any(one.begin in text for text in known)), None)

    @functools.cached_property
    def opens(self) -> str:
        """What the generation prompt opens for the policy: ``thought``, ``no thought`` (a closed one), or nothing."""
        prompt = self._generation_prompt
        if self.thought is None or self.thought.begin not in prompt:
            return ""
        return "thought" if self.thought.is_open(prompt) else "no thought"

    @functools.cached_property
    def opened(self) -> str:
        """The text of the thought that the generation prompt opens, from its mark on; empty if it opens none."""
        prompt = self._generation_prompt
        return prompt[prompt.rfind(self.thought.begin) :] if self.thought and self.opens == "thought" else ""

    @functools.cached_property
    def _generation_prompt(self) -> str:
        return self.render([ASKED], generation_prompt=True).removeprefix(self.render([ASKED]))

    @property
    def _sources(self) -> list[str]:
        known = self.tokenizer.chat_template
        return [*known.values()] if isinstance(known, dict) else [known or ""]

    @functools.cached_property
    def readable(self) -> tuple[str, ...]:
        """Variables that it reads and a user may set."""
        from jinja2 import Environment, meta

        read: set[str] = set()
        for source in self._sources:
            # Hugging Face's own tag, which Jinja does not know.
            plain = re.sub(r"\{%[-+]?\s*(?:end)?generation\s*[-+]?%\}", "", source)
            read |= meta.find_undeclared_variables(Environment(extensions=["jinja2.ext.loopcontrols"]).parse(plain))
        return tuple(sorted(read - _GIVEN - set(self.tokenizer.special_tokens_map)))

    def _check_variables(self) -> None:
        for name in self.variables:
            offered = self.readable
            if name not in offered:
                near = difflib.get_close_matches(name, offered, n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"it reads {', '.join(offered) or 'none'}"
                raise RenderError(f"the chat template reads no variable {name!r}; {hint}")

    def _opening_tokens(self) -> tuple[int, ...]:
        """Where no token ends an answer: those with which the message behind it opens."""
        following: list[list[dict[str, Any]]] = [[ASKED]]
        if self.tool_role is not ToolRole.AS_USER:
            following.append([{"role": "tool", "content": _HEARD}])
        found = [self.tokens(self.after_answer(messages, generation_prompt=False))[:1] for messages in following]
        return tuple(token for tokens in found for token in tokens if token in self.special)

    # How messages are rendered.

    def beginning(self, messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]]) -> str:
        """A dialogue's first prompt.

        Raises:
            RenderError: If the template refuses the messages.
        """

        def render(dialogue: template_messages.Messages) -> str:
            return self.render(dialogue, tools=list(tools) or None, generation_prompt=True)

        return self._fitted(render, messages, first=True)

    def after_answer(self, messages: Sequence[dict[str, Any]], *, generation_prompt: bool = True) -> str:
        """What stands between the text of an answer and the next one that ``messages`` lead to.

        Raises:
            RenderError: If the template refuses the messages.
        """

        def render(dialogue: template_messages.Messages) -> str:
            called = self.tool_role is ToolRole.CALLED and any(one["role"] == "tool" for one in dialogue)
            return (self._after_call if called else self._after_dummy)(dialogue, generation_prompt=generation_prompt)

        return self._fitted(render, messages, first=False)

    def _fitted(
        self, render: Callable[[template_messages.Messages], str], messages: Sequence[dict[str, Any]], *, first: bool
    ) -> str:
        given = self._with_roles(list(messages), first=first)
        has_tools = any(one["role"] == "tool" or one.get("tool_calls") for one in given)
        if not has_tools:
            return render(given)
        if self.tool_role is not ToolRole.AS_USER:
            fitted = template_messages.with_ids(given, needed=self._tool[1], nine=self._tool[2])
            if self.text_arguments:
                fitted = template_messages.arguments_as_text(fitted)
            try:
                return render(fitted)
            except RenderError as error:
                self.say("the chat template refuses some messages of tools; they go in as user messages", error)
        else:
            self.say("the chat template knows no tool role; tool answers go in as user messages")
        return render(
            self._with_roles(template_messages.tools_as_user(template_messages.calls_as_text(given)), first=first)
        )

    def _with_roles(self, messages: template_messages.Messages, *, first: bool) -> template_messages.Messages:
        """The messages without those of roles that the template does not have where they stand."""
        roles = [one["role"] for one in messages]
        later = "system" in roles[1:] or ("system" in roles and not first)
        if "system" in roles and not (self.system if first and not later else self.later_system):
            if not self.system:
                self.say("the chat template knows no system role; its text leads the first user message")
            messages = template_messages.system_as_user(messages, first=first and self.system)
        pairs = itertools.pairwise(messages)
        if any(one["role"] == two["role"] == "user" for one, two in pairs) and not self.user_after_user:
            messages = template_messages.joined(messages)
        return messages

    def say(self, what: str, error: RenderError | None = None) -> None:
        """Log a warning about the template, once."""
        if what not in self._said:
            self._said.add(what)
            logger.warning("%s%s", what, "" if error is None else f": {error}")

    def _shows(self, dialogue: list[dict[str, Any]], *texts: str) -> bool:
        """Whether a dialogue can be rendered and has these texts, in their order."""
        try:
            shown = self.render(dialogue, generation_prompt=True)
        except RenderError:
            return False
        return re.search(".*".join(texts), shown, re.DOTALL) is not None

    def _try(self, dialogue: list[dict[str, Any]]) -> str:
        try:
            return self.render(dialogue, generation_prompt=True)
        except RenderError:
            return ""

    def _after_dummy(self, messages: list[dict[str, Any]], *, generation_prompt: bool = True) -> str:
        answer = {"role": "assistant", "content": SAID}
        text = self.render([ASKED, answer, *messages], generation_prompt=generation_prompt)
        _, found, after = text.partition(SAID)
        if not found:
            raise RenderError(f"the chat template drops the text of an assistant message; it rendered {text!r}")
        return after

    def _after_call(self, messages: list[dict[str, Any]], *, generation_prompt: bool = True) -> str:
        """The same after a dummy answer that calls tools; templates may drop the text of such a message."""
        dialogue, before = self._called(messages)
        after = self.render([*dialogue, *messages], generation_prompt=generation_prompt)
        ends = self.tokens(before.rstrip())[-1:]
        if not after.startswith(before) or not (before.endswith(self._last) or self.special.issuperset(ends)):
            raise RenderError(
                "the chat template renders an assistant message with tool calls differently once tool "
                f"messages follow: {before!r} became {after!r}"
            )
        return self._closing + after[len(before) :]

    def _called(self, answers: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
        """A dialogue whose dummy answer makes the calls of ``answers``, and its rendering."""
        calls: list[dict[str, Any]] = [
            {
                "type": "function",
                "id": message.get("tool_call_id") or f"call{number:05d}",
                "function": {"name": message.get("name") or "tool", "arguments": {}},
            }
            for number, message in enumerate(m for m in answers if m["role"] == "tool")
        ]
        dialogue: list[dict[str, Any]] = [ASKED, {"role": "assistant", "content": SAID, "tool_calls": calls}]
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
        """The template's own rendering.

        Raises:
            RenderError: If the template, or an expression in it, fails.
        """
        try:
            text: str = self.tokenizer.apply_chat_template(
                dialogue, tools=tools, add_generation_prompt=generation_prompt, tokenize=False, **self.variables
            )
        except self._refusals as error:  # raised by the template, or by an expression in it
            if not self.tokenizer.chat_template:
                raise RenderError(
                    "the tokenizer has no chat template, as that of a base model: take the model's instruct version, "
                    "or write one as chat_template.jinja in its folder"
                ) from error
            roles = ", ".join(str(message.get("role")) for message in dialogue)
            raise RenderError(
                f"the tokenizer's chat template refuses a dialogue with the roles {roles}: {error}"
            ) from error
        return text

    def tokens(self, text: str) -> tuple[int, ...]:
        """Token ids of a rendered text, marks that others wrote as ordinary ones.

        Raises:
            RenderError: If the text has half of a surrogate.
        """
        if half := HALF.search(text):
            raise RenderError(
                f"the messages have half of a surrogate, {half[0]!r}, which no tokenizer reads; take it out"
            )
        return tuple(
            token for piece in pieces(text) for token in self.tokenizer(piece, add_special_tokens=False)["input_ids"]
        )


def model_ends(name: str) -> tuple[int, ...]:
    """End tokens of a model's ``generation_config.json``, as transformers reads them; of ``config.json`` without any.

    Args:
        name: A folder, or an id of the hub whose files are in the cache; others have none.
    """
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
        except (ImportError, ValueError):  # no id of the hub
            return {}
    try:
        read = read_json(Path(path))
    except (OSError, ValueError, TypeError):  # not there
        return {}
    return {**(read.get("text_config") or {}), **read} if isinstance(read, dict) else {}
