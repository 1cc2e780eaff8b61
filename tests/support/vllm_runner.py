"""A stand-in for vLLM's model runner: the parts that a drafter uses, and steps that verify drafts against a script."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from turntree.agents.engines.vllm.drafter import ForestDrafter
from turntree.agents.engines.vllm.settings import DrafterSettings

CONTEXT = 64
END = 2
BEHIND = 3  #: sampled after a turn whose last token was drafted


VOCABULARY = 1 << 20


def vllm_config(settings: DrafterSettings, depth: int) -> Any:
    return SimpleNamespace(
        additional_config=settings.to_additional_config(),
        model_config=SimpleNamespace(
            max_model_len=CONTEXT,
            get_vocab_size=lambda: VOCABULARY,
            tokenizer="",
            tokenizer_revision=None,
            try_get_generation_config=lambda: {"eos_token_id": END},
            hf_text_config=SimpleNamespace(eos_token_id=END),
        ),
        speculative_config=SimpleNamespace(num_speculative_tokens=depth),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=512),
    )


def parameters(**given: Any) -> Any:
    ends = {"stop": [], "stop_token_ids": [], "ignore_eos": False, "eos_token_id": END}
    return SimpleNamespace(**{**ends, "extra_args": None, "min_tokens": 0, "max_tokens": 20, **given})


class ScriptedRunner:
    def __init__(self, settings: DrafterSettings | None = None, *, depth: int = 4, leads: bool = True) -> None:
        self.device = SimpleNamespace(type="cuda")
        self.max_model_len = CONTEXT
        self.effective_drafter_max_model_len = CONTEXT
        self.requests: dict[str, Any] = {}
        self.input_batch = SimpleNamespace(req_ids=[])
        self.tokens = np.zeros((16, CONTEXT + depth), np.int32)
        self.ends = np.zeros(16, np.int32)
        self.scripts: dict[str, list[int]] = {}
        self.drafts: dict[str, list[int]] = {}
        self.proposed: list[dict[str, list[int]]] = []
        settings = settings or DrafterSettings(adaptive=False, min_probability=0.0)
        self.drafter = ForestDrafter(vllm_config(settings, depth))
        self.drafter.bind(self, leads=leads)
        self.drafter.load_model()

    def add(self, name: str, prompt: Sequence[int], script: Sequence[int], **given: Any) -> None:
        request = SimpleNamespace(
            prompt_token_ids=list(prompt),
            sampling_params=parameters(**given),
            output_token_ids=[],
            num_computed_tokens=0,
        )
        self.requests[name] = request
        self.scripts[name] = list(script)
        self.drafts[name] = []
        row = len(self.input_batch.req_ids)
        self.input_batch.req_ids.append(name)
        self.tokens[row, : len(prompt)] = prompt
        self.ends[row] = len(prompt)

    def remove(self, name: str) -> None:
        # As in vLLM, the last row moves to the free index.
        names = self.input_batch.req_ids
        row, last = names.index(name), len(names) - 1
        self.tokens[row], self.ends[row] = self.tokens[last], self.ends[last]
        names[row] = names[last]
        names.pop()
        del self.requests[name]

    def step(self, *, reading: Sequence[str] = (), ask: bool = True) -> dict[str, list[int]]:
        """Verify the drafts of all requests but those in ``reading``; return the next proposals."""
        sampled = []
        for row, name in enumerate(self.input_batch.req_ids):
            said = self.requests[name].output_token_ids
            rest = self.scripts[name][len(said) :]
            hits = 0
            while hits < min(len(self.drafts[name]), len(rest)) and self.drafts[name][hits] == rest[hits]:
                hits += 1
            new = [] if name in reading else rest[: hits + 1]
            said += list(new)
            if new and hits == len(rest):
                new = [*new, BEHIND]  # as vLLM does, which ends the turn only afterwards
            self.tokens[row, self.ends[row] : self.ends[row] + len(new)] = new
            self.ends[row] += len(new)
            sampled.append(new)
        if not ask:
            self.drafts = {name: [] for name in self.input_batch.req_ids}
            return self.drafts
        self.draft_token_ids = self.drafter.propose(sampled, self.ends, self.tokens)
        for new in sampled:
            new.clear()  # vLLM's scheduler shortens them once it has read them
        self.drafts = dict(zip(self.input_batch.req_ids, self.take_draft_token_ids(), strict=True))
        self.proposed.append(self.drafts)
        return self.drafts

    def take_draft_token_ids(self) -> list[list[int]]:
        return self.draft_token_ids

    def say(self, name: str, prompt: Sequence[int], script: Sequence[int], **given: Any) -> int:
        self.add(name, prompt, script, **given)
        return self.play(name)

    def play(self, name: str) -> int:
        steps = 0
        while len(self.requests[name].output_token_ids) < len(self.scripts[name]):
            self.step()
            steps += 1
        self.remove(name)
        return steps
