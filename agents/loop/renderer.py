"""Dialogue to token ids and back, token in and token out.

Invariant: ``extend(prompt, response, messages)`` begins with ``prompt`` and
``response`` unchanged. Sampled tokens are never tokenised or rendered again;
only the new messages pass through the chat template, as the difference that
they make to a dummy dialogue. A template that rewrites earlier turns (for
example one that drops their reasoning) therefore has no effect on them: the
policy keeps seeing what it generated.
"""

from __future__ import annotations

import functools
import json
import logging
import re
from collections.abc import Mapping, Sequence
from enum import Enum, auto
from typing import Any, Protocol

from turntree.agents.errors import RenderError

logger = logging.getLogger(__name__)

_CACHED = 4096
_HALF = re.compile("[\ud800-\udfff]")
_ASKED = {"role": "user", "content": "question"}
_SAID = "turntree-dummy-answer"
_HEARD = "turntree-dummy-result"


class ChatTokenizer(Protocol):
    """The part of a Hugging Face tokenizer that is used here."""

    eos_token_id: int | None
    all_special_ids: list[int]
    added_tokens_decoder: dict[int, Any]

    def __call__(self, text: str, *, add_special_tokens: bool) -> Mapping[str, Any]:
        """Tokenise ``text``."""

    def apply_chat_template(self, conversation: list[dict[str, Any]], **options: Any) -> Any:
        """Render ``conversation``."""

    def decode(self, token_ids: Any, **options: Any) -> str:
        """Text of ``token_ids``."""


class _ToolRole(Enum):
    """How a template renders a tool's answer."""

    PLAIN = auto()
    """After any assistant message."""
    CALLED = auto()
    """Only after an assistant message with ``tool_calls``."""
    AS_USER = auto()
    """Not at all: it goes in as a user message."""


class Renderer:
    """Turns messages into token ids with the chat template of ``tokenizer``.

    If the template knows no ``tool`` role, tool answers become one user message, each between
    ``<tool_response>`` tags; this is logged once. Renderings are cached, so samples of one prompt and
    repeated observations cost a dictionary look-up.

    Args:
        tokenizer: A Hugging Face tokenizer with a chat template.
        stop_token_ids: Tokens that end a turn besides the template's own end and ``eos_token_id``.
        template_options: Variables for the template, such as ``{"enable_thinking": False}``.
        cached: Renderings that are kept, of beginnings and of what is added each.

    Raises:
        RenderError: If the template is missing, fails on a two-message dialogue, or shows no token that
            ends a turn.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        *,
        stop_token_ids: Sequence[int] = (),
        template_options: Mapping[str, Any] | None = None,
        cached: int = _CACHED,
    ) -> None:
        from jinja2 import TemplateError

        self.tokenizer = tokenizer
        self._refusals = (TemplateError, ValueError, TypeError, KeyError, AttributeError)
        self._options = dict(template_options or {})
        self._initial = functools.lru_cache(maxsize=cached)(self._render_initial)
        self._addition = functools.lru_cache(maxsize=cached)(self._render_addition)
        self._ending_text = self._render_after_answer([], generation_prompt=False)
        self._ending = self._ending_tokens()
        stops = (*self._ending[-1:], tokenizer.eos_token_id, *stop_token_ids)
        self.stop_token_ids: tuple[int, ...] = tuple(dict.fromkeys(i for i in stops if i is not None))
        """Tokens that end the policy's turn; the template's own end of turn comes first."""
        if not self.stop_token_ids:
            raise RenderError(
                "nothing ends a turn: the chat template puts no special token after an assistant message and "
                "the tokenizer has no eos_token; set tokenizer.eos_token or pass stop_token_ids"
            )

    def initial(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[int, ...]:
        """Token ids of the first prompt, generation prompt included, shape (prompt,).

        Args:
            messages: OpenAI messages.
            tools: OpenAI tool schemas; a template that does not use tools ignores them.

        Raises:
            RenderError: If the template refuses the messages.
        """
        return self._initial(json.dumps(list(messages)), json.dumps(list(tools)))

    def extend(
        self,
        prompt_ids: Sequence[int],
        response_ids: Sequence[int],
        messages: Sequence[Mapping[str, Any]],
    ) -> tuple[int, ...]:
        """Token ids of the next prompt: ``prompt_ids``, ``response_ids``, then only the new tokens.

        The new tokens are the end of the turn where the response was cut before it, the observation, and
        the next generation prompt.

        Args:
            prompt_ids: The policy's prompt, shape (prompt,).
            response_ids: The tokens it sampled, shape (response,).
            messages: The observation as OpenAI messages.

        Raises:
            RenderError: If the template refuses the messages.
        """
        added = self._addition(json.dumps(list(messages)))
        end = len(self._ending)
        if end and response_ids and response_ids[-1] == self._ending[-1]:
            added = added[end:]
        elif not end and response_ids and response_ids[-1] == added[0]:
            # Some templates end a turn by opening the next one; the policy has sampled that token.
            added = added[1:]
        return (*prompt_ids, *response_ids, *added)

    def decode(self, token_ids: Sequence[int], *, special_tokens: bool = False) -> str:
        """Text of ``token_ids``, spaces untouched, special tokens skipped unless asked for."""
        return self.tokenizer.decode(
            list(token_ids), skip_special_tokens=not special_tokens, clean_up_tokenization_spaces=False
        )

    def _render_initial(self, messages: str, tools: str) -> tuple[int, ...]:
        dialogue = json.loads(messages)
        if self._tool_role is _ToolRole.AS_USER:
            dialogue = tools_as_user(dialogue)
        text = self._render(dialogue, tools=json.loads(tools) or None, generation_prompt=True)
        return self._tokens(text)

    def _render_addition(self, messages: str) -> tuple[int, ...]:
        added = self._tokens(self._render_after_answer(json.loads(messages), generation_prompt=True))
        if added[: len(self._ending)] != self._ending:
            raise RenderError(
                f"the chat template ends an assistant turn with tokens {self._ending} when it is the last, "
                f"with {added[: len(self._ending)]} when a message follows; it cannot be extended "
                "token by token"
            )
        if not added:
            raise RenderError(f"the chat template rendered nothing for {messages}")
        return added

    def _render_after_answer(self, messages: list[dict[str, Any]], *, generation_prompt: bool) -> str:
        """What the template puts after the text of a dummy answer that ``messages`` follow."""
        if any(message["role"] == "tool" for message in messages):
            if self._tool_role is _ToolRole.AS_USER:
                messages = tools_as_user(messages)
            elif self._tool_role is _ToolRole.CALLED:
                return self._render_after_call(messages)
        return self._after_dummy(messages, generation_prompt=generation_prompt)

    def _after_dummy(self, messages: list[dict[str, Any]], *, generation_prompt: bool = True) -> str:
        said = {"role": "assistant", "content": _SAID}
        text = self._render([_ASKED, said, *messages], generation_prompt=generation_prompt)
        _, found, after = text.partition(_SAID)
        if not found:
            raise RenderError(f"the chat template drops the text of an assistant message; it rendered {text!r}")
        return after

    def _render_after_call(self, messages: list[dict[str, Any]]) -> str:
        """The same after a dummy answer that calls tools; templates may drop the text of such a message."""
        calls: list[dict[str, Any]] = [
            {
                "type": "function",
                "id": message.get("tool_call_id") or f"call{number:05d}",
                "function": {"name": message.get("name") or "tool", "arguments": {}},
            }
            for number, message in enumerate(m for m in messages if m["role"] == "tool")
        ]
        dialogue: list[dict[str, Any]] = [
            _ASKED,
            {"role": "assistant", "content": _SAID, "tool_calls": calls},
        ]
        before = self._render(dialogue)
        after = self._render([*dialogue, *messages], generation_prompt=True)
        if not after.startswith(before) or not before.endswith(self._ending_text):
            raise RenderError(
                "the chat template renders an assistant message with tool calls differently once tool "
                f"messages follow: {before!r} became {after!r}"
            )
        return self._ending_text + after[len(before) :]

    @functools.cached_property
    def _tool_role(self) -> _ToolRole:
        result = {"role": "tool", "content": _HEARD, "name": "tool", "tool_call_id": "call00000"}
        for role, render in (
            (_ToolRole.PLAIN, self._after_dummy),
            (_ToolRole.CALLED, self._render_after_call),
        ):
            try:
                if _HEARD in render([result]):
                    return role
            except RenderError:
                continue
        logger.warning("the chat template knows no tool role; tool answers go in as user messages")
        return _ToolRole.AS_USER

    def _ending_tokens(self) -> tuple[int, ...]:
        """Tokens from the end of an answer to the special token that ends its turn; empty without one."""
        tokens = self._tokens(self._ending_text)
        special = set(self.tokenizer.all_special_ids)
        special.update(i for i, token in self.tokenizer.added_tokens_decoder.items() if token.special)
        for index, token in enumerate(tokens):
            if token in special:
                return tokens[: index + 1]
        return ()

    def _render(
        self,
        dialogue: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None = None,
        generation_prompt: bool = False,
    ) -> str:
        try:
            text: str = self.tokenizer.apply_chat_template(
                dialogue,
                tools=tools,
                add_generation_prompt=generation_prompt,
                tokenize=False,
                **self._options,
            )
        except self._refusals as error:  # raised by the template, or by an expression in it
            roles = ", ".join(str(message.get("role")) for message in dialogue)
            raise RenderError(
                f"the tokenizer's chat template refuses a dialogue with the roles {roles}: {error}"
            ) from error
        return text

    def _tokens(self, text: str) -> tuple[int, ...]:
        if half := _HALF.search(text):
            raise RenderError(
                f"the messages have half of a surrogate, {half[0]!r}, which no tokenizer reads; take it out"
            )
        return tuple(self.tokenizer(text, add_special_tokens=False)["input_ids"])


def tools_as_user(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each run of tool messages, and a user message behind it, as one user message.

    >>> tools_as_user([{"role": "tool", "content": "4"}])
    [{'role': 'user', 'content': '<tool_response>\\n4\\n</tool_response>'}]
    """
    merged: list[dict[str, Any]] = []
    after_tool = False
    for message in messages:
        content = message["content"]
        if message["role"] == "tool":
            content = f"<tool_response>\n{content}\n</tool_response>"
        if after_tool and message["role"] in ("tool", "user"):
            merged[-1] = {"role": "user", "content": merged[-1]["content"] + "\n" + content}
        elif message["role"] == "tool":
            merged.append({"role": "user", "content": content})
        else:
            merged.append(message)
        after_tool = message["role"] == "tool" or (after_tool and message["role"] == "user")
    return merged
