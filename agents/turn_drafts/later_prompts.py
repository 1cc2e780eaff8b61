"""Prediction of the prompts of an episode's later turns from earlier episodes.

A later prompt consists of an earlier turn's prompt, the turn's tokens and the environment's answer (for example the
output of a tool). Answers are stored by the hash of all tokens before them. A chain of answers and stored turns
predicts a whole episode from its first turn.

Predictions decide which passes start early, never what is sampled. A forgotten answer costs only speed.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from turntree.spec_tree import DialogueState
from turntree.spec_tree.rules.ledger import StoredTurn

#: Returns the stored turns that could draft the turn after a prompt.
Waiting = Callable[[tuple[int, ...]], Sequence[StoredTurn]]
_MAX_ANSWERS = 4  #: most answers kept after one turn
_MAX_DEPTH = 64  #: most turns predicted ahead


class LaterPrompts:
    """The answers of the environment after up to ``most`` turns, and how often they repeat.

    Predicts prompts whose estimated probability is at least ``least_chance``, in (0, 1].
    """

    def __init__(self, *, most: int = 1 << 16, least_chance: float = 0.5) -> None:
        self._most = most
        self._least_chance = least_chance
        self._answers: OrderedDict[int, list[tuple[int, ...]]] = OrderedDict()  # by hash of all tokens before
        # Prompt and tokens of each finished turn whose next prompt has not come yet, by environment and task.
        self._open: defaultdict[tuple[str, str], list[bytes]] = defaultdict(list)
        # Decaying counts of predictions that came true, and of all predictions.
        self._confirmed = self._predicted = 1.0

    @property
    def depth(self) -> int:
        """Number of turns ahead worth predicting."""
        depth, chance = 0, self._confirmed / self._predicted
        while depth < _MAX_DEPTH and chance ** (depth + 1) >= self._least_chance:
            depth += 1
        return depth

    def reach(self, prompt: tuple[int, ...], state: DialogueState) -> None:
        """Learn from a requested turn's prompt which answer followed the turn before."""
        # Bytes compare fast. Several finished turns may be prefixes of the prompt; the longest is the turn just before.
        ends, whole = self._open.get((state.env, state.task), []), array("q", prompt).tobytes()
        end = max((end for end in ends if len(end) < len(whole) and whole.startswith(end)), key=len, default=None)
        if end is None:
            return
        ends.remove(end)
        length = len(end) // 8
        key, answer = _key(prompt[:length]), prompt[length:]
        known = self._answers.get(key)
        if known is not None:
            self._learn(answer in known)
        # Most recent answer first.
        self._answers[key] = [answer, *(older for older in known or () if older != answer)][:_MAX_ANSWERS]
        self._answers.move_to_end(key)
        if len(self._answers) > self._most:
            self._answers.popitem(last=False)

    def end(
        self, prompt: tuple[int, ...], sampled: Sequence[int], expected: Sequence[int], state: DialogueState
    ) -> None:
        """Record a finished turn; ``expected`` are the tokens of the stored turn that was its draft, if any."""
        # The turn differs from its draft, so the prompts predicted from the draft will not come: a wrong prediction.
        if len(expected) and tuple(sampled) != tuple(expected) and _key(prompt, expected) in self._answers:
            self._learn(False)
        self._open[state.env, state.task].append(array("q", [*prompt, *sampled]).tobytes())

    def after(
        self, prompt: tuple[int, ...], turn: StoredTurn, waiting: Waiting
    ) -> Iterator[tuple[tuple[int, ...], Sequence[StoredTurn]]]:
        """Yield later prompts, nearest first, and their stored turns, for an episode with ``turn`` after ``prompt``."""
        ends = [(*prompt, *turn.tokens.tolist())]
        for _ in range(self.depth):
            nearer, ends = ends, []
            for end in nearer:
                for answer in self._answers.get(_key(end), ()):
                    turns = waiting(later := (*end, *answer))
                    if turns:
                        yield later, turns
                        ends += dict.fromkeys((*later, *stored.tokens.tolist()) for stored in turns)

    def close_step(self) -> None:
        """Forget unfinished episodes: all episodes of the step have ended."""
        self._open.clear()

    def _learn(self, confirmed: bool) -> None:
        self._confirmed = 0.98 * self._confirmed + confirmed  # the last 50 or so turns dominate
        self._predicted = 0.98 * self._predicted + 1


def _key(*parts: Iterable[int]) -> int:
    return DialogueState.from_tokens([int(token) for part in parts for token in part]).exact
