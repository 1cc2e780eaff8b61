from pathlib import Path
from typing import Any

from chat_tokenizers import CHATML, make_tokenizer

from turntree.agents.engines.drafting.tokenizer_hash import hash_of, tokenizer_hash


def made(*special: str) -> Any:
    return make_tokenizer(CHATML, special=list(special), eos=special[0])


def test_the_hash_is_of_what_ids_mean_and_of_nothing_else(tmp_path: Path) -> None:
    one = made("<|im_end|>", "<|im_start|>")
    one.save_pretrained(tmp_path)
    first = hash_of(one)
    assert len(first) == 32
    assert tokenizer_hash(str(tmp_path)) == first
    one.chat_template, one.eos_token = "{{ messages }}", "<|im_start|>"
    assert hash_of(one) == first
    assert hash_of(made("<|im_start|>", "<|im_end|>")) != first, "two ids have changed places"
    assert hash_of(made("<|im_end|>", "<|im_start|>", "<|x|>")) != first
    one.add_tokens(["<tool_call>"])
    plain = hash_of(one)
    special = made("<|im_end|>", "<|im_start|>")
    special.add_tokens(["<tool_call>"], special_tokens=True)
    assert len({first, plain, hash_of(special)}) == 3


def test_a_model_without_a_tokenizer_has_no_hash(tmp_path: Path) -> None:
    assert tokenizer_hash("") == tokenizer_hash(str(tmp_path)) == ""
