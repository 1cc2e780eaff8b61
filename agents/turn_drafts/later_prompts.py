"""What the prompts of an episode's later turns will be, if its turns and their answers are those of earlier episodes.

A prompt follows the end of the turn before it: the turn's prompt and its tokens.
The tokens between that end and the prompt, the environment's answer, are kept by
the end. A chain of such answers and of stored turns is a whole episode, known when
its first turn is requested.

Nothing here decides what is sampled, so that what is forgotten costs speed alone.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence

from turntree.spec_tree import DialogueState
from turntree.spec_tree.rules.ledger import StoredTurn

Waiting = Callable[[tuple[int, ...]], Sequence[StoredTurn]]
"""The stored turns that a prompt's request may begin with."""
_ANSWERS = 4
"""Most answers kept of one turn."""
_DEEPEST = 64
"""Most turns that are foreseen."""


class LaterPrompts:
    """The answers that followed turns, and how often they do so again.

    Args:
        most: Most turns whose answers are kept; those that came longest ago go first.
        least_chance: A turn is foreseen if its prompt is at least so probable to come, in (0, 1].
    """

    def __init__(self, *, most: int = 1 << 16, least_chance: float = 0.5) -> None:
        self._most = most
        self._least_chance = least_chance
        self._answers: OrderedDict[int, list[tuple[int, ...]]] = OrderedDict()
        self._open: defaultdict[tuple[str, str], list[bytes]] = defaultdict(list)
        self._came = self._expected = 1.0

    @property
    def depth(self) -> int:
        """Number of turns that are worth to be foreseen."""
        depth, chance = 0, self._came / self._expected
        while depth < _DEEPEST and chance ** (depth + 1) >= self._least_chance:
            depth += 1
        return depth

    def reach(self, prompt: tuple[int, ...], state: DialogueState) -> None:
        """A turn is requested: learn which turn its prompt follows."""
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
        self._answers[key] = [answer, *(other for other in known or () if other != answer)][:_ANSWERS]
        self._answers.move_to_end(key)
        if len(self._answers) > self._most:
            self._answers.popitem(last=False)

    def end(
        self, prompt: tuple[int, ...], sampled: Sequence[int], expected: Sequence[int], state: DialogueState
    ) -> None:
        """A turn has ended.

        Args:
            prompt: Token ids before it, shape (prompt,).
            sampled: Its token ids, shape (tokens,).
            expected: Those of the stored turn that it began with; empty without one.
        """
        if len(expected) and tuple(sampled) != tuple(expected) and _key(prompt, expected) in self._answers:
            self._learn(False)
        self._open[state.env, state.task].append(array("q", [*prompt, *sampled]).tobytes())

    def after(
        self, prompt: tuple[int, ...], turn: StoredTurn, waiting: Waiting
    ) -> Iterator[tuple[tuple[int, ...], Sequence[StoredTurn]]]:
        """Later prompts of the episode if ``turn`` follows ``prompt``, with their stored turns, nearest first."""
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
        """No turn so far is followed by another: its episode has ended."""
        self._open.clear()

    def _learn(self, came: bool) -> None:
        self._came = 0.98 * self._came + came
        self._expected = 0.98 * self._expected + 1


def _key(*parts: Iterable[int]) -> int:
    return DialogueState.from_tokens([int(token) for part in parts for token in part]).exact
