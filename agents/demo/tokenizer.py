"""The demo policy's tokenizer: one token per character of an expression, one per word of the dialogue.

Invariant: text made of ``WORDS`` and ``CHARACTERS`` is unchanged by encoding and decoding. A run of other text becomes
one unknown token, so every text can be encoded, but an unknown token cannot be decoded to its text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from turntree.agents.errors import MissingExtra

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, UNKNOWN, END = "<|pad|>", "<|unknown|>", "<|end|>"
ROLES = ("system", "user", "assistant", "tool")
WORDS = ("calculator", "####")
CHARACTERS = "0123456789+-*/().,= \n"
CHAT_TEMPLATE = (
    "{%- for message in messages %}"
    "{%- if message['role'] not in ['system', 'user', 'assistant', 'tool'] %}"
    "{{- raise_exception('no such role: ' + message['role']) }}"
    "{%- endif %}"
    "{{- '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>' }}{%- endif %}"
)


def vocabulary() -> dict[str, int]:
    return _numbered((*WORDS, *CHARACTERS))


def build_tokenizer() -> PreTrainedTokenizerFast:
    known = "|".join((*WORDS, *("\\" + c if c in "+-*/().#" else c for c in CHARACTERS)))
    return word_tokenizer((*WORDS, *CHARACTERS), known)


def word_tokenizer(words: Sequence[str], pattern: str) -> PreTrainedTokenizerFast:
    """Create a tokenizer of whole words, including the chat template.

    Args:
        words: Words with a token, after the special tokens.
        pattern: Regular expression of one word; other words become the unknown token.
    """
    try:
        from tokenizers import AddedToken, Regex, Tokenizer
        from tokenizers.decoders import Fuse
        from tokenizers.models import WordLevel
        from tokenizers.pre_tokenizers import Split
        from transformers import PreTrainedTokenizerFast
    except ImportError as error:
        raise MissingExtra("the demo policy", "local") from error

    backend = Tokenizer(WordLevel(_numbered(words), unk_token=UNKNOWN))
    backend.pre_tokenizer = Split(Regex(pattern), behavior="isolated")
    backend.decoder = Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        unk_token=UNKNOWN,
        eos_token=END,
        extra_special_tokens=[AddedToken(f"<|{role}|>", special=True) for role in ROLES],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )
    return tokenizer


def _numbered(words: Sequence[str]) -> dict[str, int]:
    special = (PAD, UNKNOWN, END, *(f"<|{role}|>" for role in ROLES))
    return {token: number for number, token in enumerate((*special, *words))}
