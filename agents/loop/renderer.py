"""Converts dialogues to token ids, and keeps sampled tokens unchanged.

Invariant: ``extend(prompt, response, messages)`` begins with ``prompt`` and ``response`` unchanged. Sampled tokens are
never tokenised or rendered again. Only new messages pass through the chat template, which renders them after a dummy
dialogue. Even if a template rewrites earlier turns, for example to drop reasoning, the policy sees its own tokens.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from turntree.agents.errors import RenderError
from turntree.agents.loop.chat_template import ChatTemplate, ChatTokenizer

_CACHED = 4096
#: key of a message that is written as the policy writes its turns, so special tokens in it are not escaped
AS_TOKENS = "as_tokens"


class Renderer:
    """Turns messages into token ids with the chat template of ``tokenizer``.

    The renderer converts messages to the form that the template supports (``ChatTemplate``). If the template has no
    ``tool`` role, tool answers become one user message, each answer between ``<tool_response>`` tags. If the template
    has no ``system`` role, the system text is put before the first user message. Each conversion is logged once.
    Message text that looks like a special token stays text. Results are cached.

    Args:
        tokenizer: A Hugging Face tokenizer with a chat template.
        stop_token_ids: Tokens that end a turn, in addition to the template's end tokens, ``eos_token_id`` and the
            end tokens in the model's ``generation_config.json``.
        template_options: Variables for the template, such as ``{"enable_thinking": False}``.
        max_thinking_tokens: Number of tokens after which an open thought is closed (``ThinkingBudget``); ``None`` sets
            no limit.
        cached: Size of each of the two caches, one for first prompts and one for additions to prompts.

    Raises:
        RenderError: If the template is missing, fails on a two-message dialogue, has no token that ends a turn, or does
            not read one of the variables; or if ``max_thinking_tokens`` is set and the model writes no thoughts.
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
        self.tokenizer = tokenizer
        if max_thinking_tokens is not None and (max_thinking_tokens < 1 or self.template.thought is None):
            problem = "the model has no thoughts" if self.template.thought is None else "it must be at least 1"
            raise RenderError(f"max_thinking_tokens={max_thinking_tokens}: {problem}; remove it")
        self.max_thinking_tokens = max_thinking_tokens
        self._initial = functools.lru_cache(maxsize=cached)(self._render_initial)
        self._addition = functools.lru_cache(maxsize=cached)(self._render_addition)
        self._ending = self.template.ending_tokens
        #: the template's own end token comes first
        self.stop_token_ids = tuple(dict.fromkeys((*self.template.end_tokens, *stop_token_ids)))
        if not self.stop_token_ids:
            raise RenderError(
                "nothing ends a turn: the chat template puts no special token after an assistant message and "
                "the tokenizer has no eos_token; set tokenizer.eos_token or pass stop_token_ids"
            )

    @property
    def options(self) -> dict[str, Any]:
        """Settings that a run records: template variables, and the token limit of thoughts."""
        return {"template": self.template.variables, "max_thinking_tokens": self.max_thinking_tokens}

    def initial(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[int, ...]:
        """Return the token ids of the first prompt, including the generation prompt, shape (prompt,).

        Args:
            messages: OpenAI messages.
            tools: OpenAI tool schemas; ignored by templates that do not render tools.

        Raises:
            RenderError: If the template refuses the messages.
        """
        return self._initial(json.dumps(list(messages)), json.dumps(list(tools)))

    def extend(
        self, prompt_ids: Sequence[int], response_ids: Sequence[int], messages: Sequence[Mapping[str, Any]]
    ) -> tuple[int, ...]:
        """Return the token ids of the next prompt: ``prompt_ids``, ``response_ids``, then only new tokens.

        The new tokens are the observation and the next generation prompt. If the response was cut off, the end of the
        turn comes first.

        Args:
            prompt_ids: The policy's prompt, shape (prompt,).
            response_ids: The sampled tokens, shape (response,).
            messages: The observation as OpenAI messages.

        Raises:
            RenderError: If the template refuses the messages.
        """
        added = self._addition(json.dumps(list(messages)))
        end = len(self._ending)
        if end and response_ids and response_ids[-1] in self.template.own_ends:
            added = added[end:]
        elif not end and response_ids and response_ids[-1] == added[0]:
            # Some templates end a turn by opening the next message; the policy has sampled that token.
            added = added[1:]
        return (*prompt_ids, *response_ids, *added)

    def decode(self, token_ids: Sequence[int], *, special_tokens: bool = False) -> str:
        """Return the text of ``token_ids`` with unchanged spaces; omit special tokens by default."""
        return self.tokenizer.decode(
            list(token_ids), skip_special_tokens=not special_tokens, clean_up_tokenization_spaces=False
        )

    def turn_text(self, token_ids: Sequence[int], *, special_tokens: bool = False) -> str:
        """Return the model's whole message: the thought marker from the prompt, if any, then ``token_ids``."""
        return self.template.opened + self.decode(token_ids, special_tokens=special_tokens)

    def _render_initial(self, messages: str, tools: str) -> tuple[int, ...]:
        text = self.template.beginning(self._escaped(messages), self.template.marks.escaped(json.loads(tools)))
        return self.template.tokens(text)

    def _render_addition(self, messages: str) -> tuple[int, ...]:
        added = self.template.tokens(self.template.after_answer(self._escaped(messages)))
        if added[: len(self._ending)] != self._ending:
            raise RenderError(
                f"the chat template ends a last assistant turn with tokens {self._ending}, but an earlier one with "
                f"{added[: len(self._ending)]}, so the prompt cannot be extended token by token"
            )
        if not added:
            raise RenderError(f"the chat template rendered nothing for {messages}")
        return added

    def _escaped(self, messages: str) -> list[dict[str, Any]]:
        escaped = []
        for message in json.loads(messages):
            if "content" in message:
                message["content"] = content = _join_parts(message["content"])
            if not message.pop(AS_TOKENS, False):
                message = self.template.marks.escaped(message)
                if message["role"] == "assistant" and "content" in message:
                    message["content"] = self.template.answer_marks.escaped(content)
            escaped.append(message)
        return escaped


def _join_parts(content: Any) -> Any:
    # Join the parts, because a special token may begin in one part and end in the next.
    if not isinstance(content, list) or not all(isinstance(part, dict) and "text" in part for part in content):
        return content
    return "".join(str(part["text"]) for part in content)
