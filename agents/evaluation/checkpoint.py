"""The parts of a Hugging Face checkpoint that are needed before an engine starts."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turntree.agents.errors import AgentError, MissingExtra
from turntree.envs.data.hub import hub_asked_once


class CheckpointError(AgentError):
    """A model cannot be found or loaded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    name: str  #: folder or Hugging Face id
    tokenizer: Any
    max_positions: int | None  #: context length; None if the configuration does not state it

    @classmethod
    def open(cls, name: str) -> Checkpoint:
        """Read the tokenizer and configuration.

        Args:
            name: A folder with ``config.json``, or a Hugging Face id.

        Raises:
            CheckpointError: If there is no such model, or its files are damaged.
            MissingExtra: If transformers is not installed.
        """
        if _is_path(name) and not (Path(name) / "config.json").is_file():
            raise CheckpointError(
                f"{name!r} is not a model folder: expected config.json, weights and tokenizer in it; "
                "check the path, or give a Hugging Face id"
            )
        try:
            from transformers import AutoConfig, AutoTokenizer
        except ImportError as error:
            raise MissingExtra("reading a model", "local") from error
        # Damaged weights fail here, not minutes later inside the engine.
        if _is_path(name):
            check_weights(Path(name))
        config = None
        with nullcontext() if _is_path(name) else hub_asked_once() as unreachable:
            try:
                config = AutoConfig.from_pretrained(name)
                tokenizer = AutoTokenizer.from_pretrained(name)
            except (OSError, ValueError, KeyError) as error:
                reason = str(error).partition("\n")[0]
                if config is not None and _is_path(name) and not any(Path(name).glob("*token*")):
                    reason = "it has no tokenizer; expected tokenizer.json next to the weights"
                if unreachable is not None:
                    reason = f"{unreachable}, and the model is not in the cache; give a model folder"
                raise CheckpointError(f"the model {name!r} cannot be loaded: {reason}") from error
        return cls(name=name, tokenizer=tokenizer, max_positions=getattr(config, "max_position_embeddings", None))


def check_weights(folder: Path) -> None:
    """Check the headers of the safetensors files, which state each file's length."""
    from safetensors import SafetensorError, safe_open

    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, "numpy"):
                pass
        except SafetensorError as error:
            raise CheckpointError(f"the weights in {file} are damaged ({error}); copy the file again") from error


def _is_path(name: str) -> bool:
    # Hugging Face ids are `name` or `owner/name`.
    path = Path(name)
    outside = path.is_absolute() or name.startswith((".", "~")) or len(path.parts) != 2
    return path.exists() or outside or path.parent.is_dir()
