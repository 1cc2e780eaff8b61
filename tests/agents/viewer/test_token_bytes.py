from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from turntree.agents.viewer.token_bytes import token_bytes

TEXT = "naïve café: 日本語 🙂\n\ttab"


def test_the_bytes_of_a_byte_level_text_join_to_the_text_even_where_tokens_split_characters(chatml: Any) -> None:
    ids = chatml.encode(TEXT, add_special_tokens=False)
    assert b"".join(token_bytes(chatml, ids)[number] for number in ids).decode() == TEXT
    # The control: decoded token by token the text is broken.
    assert "".join(chatml.decode([number]) for number in ids) != TEXT
    end = chatml.convert_tokens_to_ids("<|im_end|>")
    assert token_bytes(chatml, [end]) == {end: b"<|im_end|>"}


def test_sentencepiece_spaces_and_byte_tokens_are_read() -> None:
    words = {"<unk>": 0, "▁the": 1, "▁": 2, "<0xE2>": 3, "<0x82>": 4, "<0xAC>": 5}
    backend = Tokenizer(models.BPE(words, [], unk_token="<unk>", byte_fallback=True))
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    known = token_bytes(tokenizer, range(6))
    assert b"".join(known[number] for number in (1, 2, 3, 4, 5)).decode() == " the €"
    backend = Tokenizer(models.WordLevel({"<unk>": 0, "12": 1, "+": 2}, unk_token="<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    tokenizer.add_special_tokens({"eos_token": AddedToken("<end>", special=True)})
    assert token_bytes(tokenizer, [1, 2, 3]) == {1: b"12", 2: b"+", 3: b"<end>"}


@pytest.mark.parametrize("number", [-1, 10**9])
def test_ids_that_the_tokenizer_does_not_have_are_left_out(chatml: Any, number: int) -> None:
    assert token_bytes(chatml, [number]) == {}
