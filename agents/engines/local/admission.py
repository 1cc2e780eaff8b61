"""Admission order of waiting requests, and which precomputed one gives way.

Requests precomputed for a later step give way to those needed now:
``to_preempt`` selects which of them end when a slot is missing.

Longest first: of the requests that wait, the one whose dialogue is expected to go on
longest takes the next slot, so that a batch does not end with it alone (list scheduling
in the order of processing times, Graham 1969). Among equals, and where nothing is
expected, arrival decides.

Leader-first: of the requests at a state where the store has no finished turn,
one goes ahead, and the others let requests at other states pass until it has
finished; then its whole turn drafts them. No slot stays idle for this: one
that only such siblings could take is given to them, since an idle slot saves
nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Sequence

from turntree.agents.engines.local.request import Request


def leaders_first(
    waiting: Sequence[Hashable], *, running: Collection[Hashable], known: Collection[Hashable]
) -> list[int]:
    """Order the waiting requests.

    Args:
        waiting: States of the waiting requests in the order of their arrival.
        running: States of the requests that are live.

    Returns:
        Indices of ``waiting``: requests at known states and one of each other state without a running request,
        then the rest, each part in the order of arrival.

    Example:
        >>> leaders_first(["a", "a", "b", "b", "c", "d"], running={"c"}, known={"b"})
        [0, 2, 3, 5, 1, 4]
    """
    led = set(running)
    ahead, held = [], []
    for index, state in enumerate(waiting):
        if state in known:
            ahead.append(index)
        elif state in led:
            held.append(index)
        else:
            led.add(state)
            ahead.append(index)
    return ahead + held


def longest_first(expected: Sequence[float]) -> list[int]:
    """Indices of the waiting requests, those with the most expected tokens first, then in the order of arrival.

    Example:
        >>> longest_first([5.0, 0.0, 7.0, 5.0])
        [2, 0, 3, 1]
    """
    return sorted(range(len(expected)), key=lambda index: -expected[index])


def to_preempt(live: Sequence[Request], *, missing: int) -> list[Request]:
    """The precomputed requests that give up their slots, those with the fewest sampled tokens first.

    Args:
        missing: Slots that requests needed now lack.
    """
    ahead = sorted((request for request in live if request.ahead), key=lambda request: request.sampled)
    return ahead[: max(0, missing)]
