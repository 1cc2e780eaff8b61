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
from collections.abc import Mapping, Sequence
from typing import Any

from turntree.agents.errors import RenderError
from turntree.agents.loop.chat_template import ChatTemplate, ChatTokenizer

_CACHED = 4096
AS_TOKENS = "as_tokens"
"""Key of a message, not the template's, whose marks are tokens: a turn written as the policy writes its own."""


class Renderer:
    """Turns messages into token ids with the chat template of ``tokenizer``.

    Messages are put into the form that the template takes (``ChatTemplate``): without a ``tool`` role, tool answers
    become one user message, each between ``<tool_response>`` tags; without a ``system`` role its text leads the first
    user message; each is logged once. What looks like a token of the template in a message is text. Renderings are
    cached, so samples of one prompt and repeated observations cost a dictionary look-up.

    Args:
        tokenizer: A Hugging Face tokenizer with a chat template.
        stop_token_ids: Tokens that end a turn besides the template's own end, ``eos_token_id`` and those that the
            model's ``generation_config.json`` names.
        template_options: Variables for the template, such as ``{"enable_thinking": False}``.
        max_thinking_tokens: Tokens of a turn after which a thought that has not ended is closed, see
            ``ThinkingBudget``; ``None`` is no bound.
        cached: Renderings that are kept, of beginnings and of what is added each.

    Raises:
        RenderError: If the template is missing, fails on a two-message dialogue, shows no token that ends a turn,
            or does not read one of the variables; or if thoughts are bounded that it does not have.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        *,
        stop_token_ids: Sequence[int] = (),
        template_options: Mapping[str, Any] | None = None,
        max_thinking_tokens: int | None = None,
        cached: int = _CACHED,
    ) -> None:
        self.template = ChatTemplate(tokenizer, template_options)
        """What the tokenizer's chat template needs."""
        self.tokenizer = tokenizer
        if max_thinking_tokens is not None and (max_thinking_tokens < 1 or self.template.thought is None):
            has = "has no thoughts" if self.template.thought is None else "needs at least 1"
            raise RenderError(f"max_thinking_tokens={max_thinking_tokens}: the chat template {has}; leave it out")
        self.max_thinking_tokens = max_thinking_tokens
        """Tokens of a turn after which a thought is closed."""
        self._initial = functools.lru_cache(maxsize=cached)(self._render_initial)
        self._addition = functools.lru_cache(maxsize=cached)(self._render_addition)
        self._ending = self.template.ending_tokens
        self.stop_token_ids = tuple(dict.fromkeys((*self.template.end_tokens, *stop_token_ids)))
        """Tokens that end the policy's turn; the template's own end of turn comes first."""
        if not self.stop_token_ids:
            raise RenderError(
                "nothing ends a turn: the chat template puts no special token after an assistant message and "
                "the tokenizer has no eos_token; set tokenizer.eos_token or pass stop_token_ids"
            )

    @property
    def options(self) -> dict[str, Any]:
        """What a run records of it: variables of the template, and the bound of thoughts."""
        return {"template": self.template.variables, "max_thinking_tokens": self.max_thinking_tokens}

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
        self, prompt_ids: Sequence[int], response_ids: Sequence[int], messages: Sequence[Mapping[str, Any]]
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
        if end and response_ids and response_ids[-1] in self.template.own_ends:
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

    def turn_text(self, token_ids: Sequence[int], *, special_tokens: bool = False) -> str:
        """A turn as the model's whole message: what the prompt opened of a thought, then the text of ``token_ids``."""
        return self.template.opened + self.decode(token_ids, special_tokens=special_tokens)

    def _render_initial(self, messages: str, tools: str) -> tuple[int, ...]:
        text = self.template.beginning(self._quoted(messages), self.template.marks.quoted(json.loads(tools)))
        return self.template.tokens(text)

    def _render_addition(self, messages: str) -> tuple[int, ...]:
        added = self.template.tokens(self.template.after_answer(self._quoted(messages)))
        if added[: len(self._ending)] != self._ending:
            raise RenderError(
                f"the chat template ends an assistant turn with tokens {self._ending} when it is the last, "
                f"with {added[: len(self._ending)]} when a message follows; it cannot be extended "
                "token by token"
            )
        if not added:
            raise RenderError(f"the chat template rendered nothing for {messages}")
        return added

    def _quoted(self, messages: str) -> list[dict[str, Any]]:
        """The messages, each mark in a text of others broken up."""
        quoted = []
        for message in json.loads(messages):
            if "content" in message:
                message["content"] = content = _one_text(message["content"])
            if not message.pop(AS_TOKENS, False):
                message = self.template.marks.quoted(message)
                if message["role"] == "assistant" and "content" in message:
                    message["content"] = self.template.answer_marks.quoted(content)
            quoted.append(message)
        return quoted


def _one_text(content: Any) -> Any:
    """The parts of a text as one: a mark may begin in one and end in the next."""
    if not isinstance(content, list) or not all(isinstance(part, dict) and "text" in part for part in content):
        return content
    return "".join(str(part["text"]) for part in content)
