"""How many tokens a dialogue had from a state on, remembered by state.

A state that is new, or came seldom, is expected to be as wider rungs of its ladder are: the
same task after the same tool calls, the task, the environment. Nothing here decides what
is sampled: it says what to begin with, where not all can be begun at once.
"""

from __future__ import annotations

from collections import OrderedDict

from turntree.spec_tree.state import DialogueState

_WIDER = 1.0
"""Times that a wider rung's length counts among those of a rung."""
_MEMORY = 16.0
"""Lengths of a rung after which older ones fade: the policy changes."""


class LengthsByState:
    """Mean lengths of what came from dialogue states on. Not thread-safe.

    Args:
        most: Most keys of states that are remembered; those that came longest ago go first.

    Example:
        >>> lengths = LengthsByState()
        >>> lengths.learn(DialogueState(exact=1, task="long", env="e"), 300)
        >>> lengths.learn(DialogueState(exact=2, task="short", env="e"), 20)
        >>> seen, new = (lengths.expect(DialogueState(exact=9, task=task, env="e")) for task in ("long", "new"))
        >>> seen > new > 20
        True
    """

    def __init__(self, *, most: int = 1 << 17) -> None:
        self._most = most
        self._sums: OrderedDict[int, tuple[float, float]] = OrderedDict()

    def learn(self, state: DialogueState, tokens: int) -> None:
        """A dialogue had ``tokens`` tokens from ``state`` on, those of its present turn and of the later ones."""
        for key in dict.fromkeys(state.ladder()):
            count, total = self._sums.pop(key, (0.0, 0.0))
            fade = min(1.0, _MEMORY / (count + 1))
            self._sums[key] = fade * count + 1, fade * total + tokens
        while len(self._sums) > self._most:
            self._sums.popitem(last=False)

    def expect(self, state: DialogueState) -> float:
        """Tokens that a dialogue will have from ``state`` on; 0 where nothing like it was seen."""
        expected, before = 0.0, 0.0
        for key in reversed(state.ladder()):
            count, total = self._sums.get(key, (0.0, 0.0))
            if count:
                expected = (total + before * expected) / (count + before)
                before = _WIDER
        return expected
