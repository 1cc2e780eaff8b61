from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

CORPUS = [
    "What is 12 + 34? The answer is 46. Natalia sold clips to 48 of her friends in April.",
    '<tool_call>\n{"name": "calculator", "arguments": {"expression": "12 + 34"}}\n</tool_call>',
    "the answer answer answer #### 46 tool user assistant system calculator question",
] * 4

CHATML, LLAMA3 = (
    Path(__file__).with_name(f"{name}.jinja").read_text().removesuffix("\n") for name in ("chatml", "llama3")
)


def chatml_tokenizer() -> Any:
    return make_tokenizer(CHATML, special=["<|endoftext|>", "<|im_start|>", "<|im_end|>"], eos="<|endoftext|>")


def make_tokenizer(template: str, *, special: list[str], eos: str, bos: str | None = None) -> Any:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    bpe.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=400,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            special_tokens=[AddedToken(t, special=True, normalized=False) for t in special],
            show_progress=False,
        ),
    )
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, eos_token=eos, bos_token=bos)
    tokenizer.chat_template = template
    return tokenizer


def byte_fallback_tokenizer() -> Any:
    """Build a tokenizer that encodes unknown characters as byte tokens, like Llama 2's and Gemma's."""
    special = ["<unk>", "<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    characters = ["▁", "\n", *map(chr, range(0x21, 0x7F)), *"的不éи한"]
    words = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), *characters]
    bpe = Tokenizer(
        models.BPE(dict(zip(words, range(len(words)), strict=True)), [], byte_fallback=True, unk_token="<unk>")
    )
    bpe.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    bpe.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    bpe.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=bpe, unk_token="<unk>", eos_token="<|endoftext|>")
    tokenizer.chat_template = CHATML
    return tokenizer
