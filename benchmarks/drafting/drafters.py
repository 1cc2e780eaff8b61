"""turntree's store and the public drafters behind one face.

Each is driven as its engine drives it: the engine holds the token ids of every live request (``contexts``), calls
``draft`` and ``commit`` once a step for all of them, and each turn of a dialogue is a request of its own. What a
library returns is handed on as it is; ``rows`` unpacks it outside of the timers.

The public drafters go into an environment of their own (a C++ compiler is needed):

    python -m venv peers && . peers/bin/activate
    pip install numpy numba nanobind cmake ninja wheel "setuptools>=77" torch==2.13.0 apache-tvm-ffi==0.1.9
    pip install --no-deps sglang==0.5.12
    pip install --no-deps --no-build-isolation -e .
    CMAKE_ARGS=-DPython_EXECUTABLE=$(which python) MAX_JOBS=1 \
        pip install --no-deps --no-build-isolation arctic-inference==0.3.0

Of SGLang only the n-gram corpus is used, which runs without a GPU and is compiled at its first use (20 s).
Not covered: drafters with weights.
"""

from __future__ import annotations

import importlib.util
import itertools
import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from drafting.traces import Turn
from turntree.spec_tree import DialogueState, DraftBatch, ForestConfig, SpecForest

Tokens = NDArray[np.int32]
Row = tuple[list[int], list[int]]
"""Tokens of a drafted tree and their parents within the row, -1 at the root."""


class NotInstalled(ImportError):
    """A drafter that this environment does not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a drafter is made for."""

    budget: int = 16
    """Nodes a row and step at most."""
    end_tokens: frozenset[int] = frozenset()
    """Tokens that end a turn, for drafters that ask for them."""
    forest: dict[str, Any] = field(default_factory=dict)
    """Settings of ``ForestConfig``, for turntree."""


class Drafter(Protocol):
    """Proposes tokens for the live requests of an engine."""

    def begin(self, states: Sequence[DialogueState], prompts: Sequence[Tokens]) -> list[int]:
        """Start requests and return their handles."""

    def draft(self, handles: Sequence[int], contexts: Sequence[Tokens]) -> Any:
        """Propose continuations of ``contexts``: prompt and tokens sampled so far, one a row."""

    def rows(self, drafted: Any) -> list[Row]:
        """What ``draft`` returned, as one tree a row. Not timed."""

    def commit(self, handles: Sequence[int], said: Sequence[list[int]], contexts: Sequence[Tokens]) -> None:
        """Take the tokens sampled since the last call; ``contexts`` end with them."""

    def end(self, handles: Sequence[int]) -> None:
        """Finish requests."""

    def insert(self, turns: Sequence[Turn]) -> None:
        """Add finished turns."""

    def memory(self) -> int | None:
        """Bytes held, where the library tells."""


class Turntree:
    """``SpecForest``, as an engine of this project drives it."""

    def __init__(
        self,
        setup: Setup,
        *,
        min_probability: float = 0.0,
        chain: bool = False,
        width: Callable[[int], int] | None = None,
        forest: SpecForest | None = None,
    ) -> None:
        """Make one that drafts trees, or chains.

        Args:
            setup: What it is made for.
            min_probability: Least estimated probability of a node.
            chain: One child a node, as vLLM verifies.
            width: Nodes a row, given the number of rows; those of ``setup`` where it is ``None``.
            forest: A store that knows something; a new one where it is ``None``.
        """
        self.forest = forest or SpecForest(ForestConfig(end_tokens=setup.end_tokens, **setup.forest))
        self.width = width or (lambda rows: setup.budget)
        self.min_probability, self.chain = min_probability, chain

    def begin(self, states: Sequence[DialogueState], prompts: Sequence[Tokens]) -> list[int]:
        return self.forest.begin(states, contexts=prompts)

    def draft(self, handles: Sequence[int], contexts: Sequence[Tokens]) -> DraftBatch:
        most = self.width(len(handles))
        return self.forest.draft(
            handles,
            max_nodes=most,
            max_depths=[most] * len(handles),
            min_probability=self.min_probability,
            chain=self.chain,
        )

    def rows(self, drafted: DraftBatch) -> list[Row]:
        tokens, parents = drafted.tokens.tolist(), drafted.parents.tolist()
        return [(tokens[a:b], parents[a:b]) for a, b in pairwise(drafted.offsets.tolist())]

    def commit(self, handles: Sequence[int], said: Sequence[list[int]], contexts: Sequence[Tokens]) -> None:
        self.forest.commit(handles, said)

    def end(self, handles: Sequence[int]) -> None:
        self.forest.end(handles)

    def insert(self, turns: Sequence[Turn]) -> None:
        self.forest.insert_all([turn.state for turn in turns], [turn.tokens for turn in turns])  # type: ignore[misc]

    def memory(self) -> int | None:
        return self.forest.stats().bytes


class Arctic:
    """The suffix tree of arctic-inference, called as vLLM's suffix proposer calls it."""

    def __init__(
        self, setup: Setup, *, depth: int, factor: float, offset: float = 0.0, floor: float = 0.1, tree: bool = False
    ) -> None:
        try:
            from arctic_inference.suffix_decoding import SuffixDecodingCache
        except ImportError as error:
            raise NotInstalled(
                f"pip install --no-build-isolation --no-deps arctic-inference==0.3.0 ({error})"
            ) from error
        self.cache = SuffixDecodingCache(depth, -1)
        self.options = {
            "max_spec_tokens": setup.budget,
            "max_spec_factor": factor,
            "max_spec_offset": offset,
            "min_token_prob": floor,
            "use_tree_spec": tree,
        }
        self._handles = itertools.count()

    def begin(self, states: Sequence[DialogueState], prompts: Sequence[Tokens]) -> list[int]:
        handles = [next(self._handles) for _ in prompts]
        for handle, prompt in zip(handles, prompts, strict=True):
            self.cache.start_request(handle, prompt)
        return handles

    def draft(self, handles: Sequence[int], contexts: Sequence[Tokens]) -> list[Any]:
        speculate, options = self.cache.speculate, self.options
        return [speculate(handle, context, **options) for handle, context in zip(handles, contexts, strict=True)]

    def rows(self, drafted: list[Any]) -> list[Row]:
        return [(draft.token_ids, draft.parents) for draft in drafted]

    def commit(self, handles: Sequence[int], said: Sequence[list[int]], contexts: Sequence[Tokens]) -> None:
        for handle, tokens in zip(handles, said, strict=True):
            self.cache.add_active_response(handle, tokens)

    def end(self, handles: Sequence[int]) -> None:
        for handle in handles:
            self.cache.stop_request(handle)

    def insert(self, turns: Sequence[Turn]) -> None:
        """Into the tree that all requests share; a request of its own would insert twice."""
        for turn in turns:
            number = self.cache._generate_seq_id(next(self._handles))
            self.cache._global_tree.extend_ndarray(number, turn.tokens)

    def memory(self) -> int | None:
        return int(self.cache._global_tree.estimate_memory())


class SGLang:
    """SGLang's n-gram corpus, called as its worker calls it (0.5.12)."""

    def __init__(self, setup: Setup, *, match: str, depth: int = 18, capacity: int = 3_000_000) -> None:
        self.nodes = setup.budget + 1  # the last token counts as a node
        self.depth = depth
        self.corpus = _sglang_corpus()(
            max_trie_depth=depth, draft_token_num=self.nodes, match_type=match, capacity=capacity
        )
        self._handles = itertools.count()

    def begin(self, states: Sequence[DialogueState], prompts: Sequence[Tokens]) -> list[int]:
        return [next(self._handles) for _ in prompts]

    def draft(self, handles: Sequence[int], contexts: Sequence[Tokens]) -> tuple[Any, Any]:
        tails = [context[-self.depth :].tolist() for context in contexts]
        return self.corpus.batch_get(handles, tails, [len(context) for context in contexts])  # type: ignore[no-any-return]

    def rows(self, drafted: tuple[Any, Any]) -> list[Row]:
        n = self.nodes
        tokens = drafted[0].reshape(-1, n)
        above = drafted[1].reshape(-1, n, n) * np.tri(n, k=-1, dtype=np.int64)
        parents = n - 2 - np.argmax(above[:, :, ::-1], axis=2)  # the last ancestor; the last token is -1
        rows: list[Row] = []
        for said, over in zip(tokens[:, 1:].tolist(), parents[:, 1:].tolist(), strict=True):
            real = len(said)
            while real and said[real - 1] == 0 and over[real - 1] == -1:  # padding
                real -= 1
            rows.append((said[:real], over[:real]))
        return rows

    def commit(self, handles: Sequence[int], said: Sequence[list[int]], contexts: Sequence[Tokens]) -> None:
        self.corpus.batch_put([context[-self.depth :].tolist() for context in contexts])
        self.corpus.synchronize()  # its worker waits for the insertion before the next draft

    def end(self, handles: Sequence[int]) -> None:
        self.corpus.erase_match_state(handles)

    def insert(self, turns: Sequence[Turn]) -> None:
        for turn in turns:
            self.corpus.batch_put([np.concatenate([turn.prompt[-self.depth :], turn.tokens]).tolist()])
            self.corpus.synchronize()

    def memory(self) -> int | None:
        return None


class VLLMNgram:
    """vLLM's n-gram proposer: the longest earlier occurrence in the request itself."""

    def __init__(self, setup: Setup, *, shortest: int = 2, longest: int = 5) -> None:
        try:
            from vllm.v1.spec_decode import ngram_proposer
        except ImportError as error:
            raise NotInstalled(f"pip install vllm ({error})") from error
        self.propose = ngram_proposer._find_longest_matched_ngram_and_propose_tokens
        self.options = (shortest, longest, 1 << 30, setup.budget)

    def begin(self, states: Sequence[DialogueState], prompts: Sequence[Tokens]) -> list[int]:
        return [0] * len(prompts)

    def draft(self, handles: Sequence[int], contexts: Sequence[Tokens]) -> list[Tokens]:
        drafted = []
        for context in contexts:
            found = self.propose(context, *self.options)
            if isinstance(found, tuple):  # later versions: start and length
                found = context[found[0] : found[0] + found[1]]
            drafted.append(found)
        return drafted

    def rows(self, drafted: list[Tokens]) -> list[Row]:
        return [(tokens.tolist(), list(range(-1, len(tokens) - 1))) for tokens in drafted]

    def commit(self, handles: Sequence[int], said: Sequence[list[int]], contexts: Sequence[Tokens]) -> None: ...

    def end(self, handles: Sequence[int]) -> None: ...

    def insert(self, turns: Sequence[Turn]) -> None: ...

    def memory(self) -> int | None:
        return None


def _sglang_corpus() -> Callable[..., Any]:
    """SGLang's corpus without the rest of its package, which does not import where there is no GPU."""
    os.environ.setdefault("CXX", "c++ -include cstddef")  # 0.5.12 names size_t before any header that has it
    if "sglang" not in sys.modules:
        found = importlib.util.find_spec("sglang")
        if found is None or not found.submodule_search_locations:
            raise NotInstalled("pip install --no-deps sglang==0.5.12, pip install torch apache-tvm-ffi==0.1.9")
        root = found.submodule_search_locations[0]
        for name in ("sglang", "sglang.srt", "sglang.srt.speculative"):
            package = sys.modules[name] = ModuleType(name)
            package.__path__ = [root + name.removeprefix("sglang").replace(".", "/")]
        sys.modules["sglang.utils"] = _sglang_utilities()
        logging.getLogger("sglang.jit_kernel.utils").setLevel(logging.ERROR)  # it looks for a GPU
    try:
        from sglang.jit_kernel.ngram_corpus import get_ngram_corpus_cls
        from sglang.srt.speculative.cpp_ngram.ngram_corpus import NgramCorpus

        get_ngram_corpus_cls()
    except ImportError as error:
        raise NotInstalled(f"pip install torch apache-tvm-ffi==0.1.9, for SGLang's corpus ({error})") from error
    except (RuntimeError, OSError) as error:
        raise NotInstalled(f"SGLang's corpus needs a C++ compiler and ninja in PATH ({error})") from error
    return NgramCorpus  # type: ignore[no-any-return]


def _sglang_utilities() -> ModuleType:
    utilities = ModuleType("sglang.utils")
    utilities.is_in_ci = lambda: False  # type: ignore[attr-defined]  # all that the corpus asks of it
    return utilities


DRAFTERS: dict[str, Callable[[Setup], Drafter]] = {
    "turntree": Turntree,
    "arctic default": lambda setup: Arctic(setup, depth=24, factor=1.0),
    "arctic best": lambda setup: Arctic(setup, depth=64, factor=4.0, offset=4.0, floor=0.0, tree=True),
    "sglang bfs": lambda setup: SGLang(setup, match="BFS"),
    "sglang prob": lambda setup: SGLang(setup, match="PROB"),
    "vllm ngram": VLLMNgram,
}
"""By name. "arctic default" has vLLM's settings, "arctic best" those that draft best on the recorded traces."""

LEAN = "turntree lean"
"""turntree without what it holds less likely than 0.2, timed beside the others; "arctic default" drafts little, too."""
TIMED: dict[str, Callable[[Setup], Drafter]] = {
    **DRAFTERS,
    LEAN: lambda setup: Turntree(setup, min_probability=0.2),
}
"""What is timed, by name."""


def installed() -> tuple[list[str], dict[str, str]]:
    """Names of the drafters at hand, and why the others are not."""
    missing: dict[str, str] = {}
    for name, make in DRAFTERS.items():
        try:
            make(Setup())
        except NotInstalled as error:
            missing[name] = f"not installed: {error}"
    return [name for name in DRAFTERS if name not in missing], missing
