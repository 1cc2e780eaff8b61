from __future__ import annotations

from collections.abc import Container
from typing import Any

#: field of OpenAI's, vLLM's or Anthropic's API -> values that change nothing, which clients send by default; null is
#: neutral for every field, and any other value is refused because it cannot be honoured
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,),
    "add_special_tokens": (False,),
    "allowed_token_ids": ([],),
    "audio": (),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template_kwargs": ({},),
    "container": (),
    "context_management": ({}, {"edits": []}),
    "continue_final_message": (False,),
    "documents": ([],),
    "early_stopping": (False,),
    "echo": (False,),
    "function_call": ("auto", "none"),
    "functions": ([],),
    "ignore_eos": (False,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1.0,),
    "logits_processors": ([],),
    "mcp_servers": ([],),
    "min_tokens": (0,),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "output_config": ({},),
    "prediction": (),
    "priority": (0,),
    "reasoning_effort": ("none",),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "speed": ("standard",),
    "spaces_between_special_tokens": (True,),
    "thinking": ({"type": "disabled"},),
    "typical_p": (1.0,),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}


def without_neutral(body: Any, fields: Container[str]) -> Any:
    """Return the body without neutral fields; ``fields`` are the ones that the server reads itself."""
    if not isinstance(body, dict):
        return body
    return {
        name: value
        for name, value in body.items()
        if value is not None and (name in fields or not any(_same(value, one) for one in NEUTRAL.get(name, ())))
    }


def _same(value: Any, other: Any) -> bool:
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)
