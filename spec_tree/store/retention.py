"""Retention of turns: quotas per state, second chances in the log, and cold turns.

A finished turn is in the log (indexed) or cold (packed, without an index). The log is a ring: its head, where new
turns are written, reaches the oldest turns. Such a turn is written again at the head if its state was visited since
the turn was written, unless such turns already fill half of the log. Otherwise the turn becomes cold. When a turn
begins in a state, the cold turns of that state are written back into the log.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from turntree.spec_tree.config import ForestConfig
from turntree.spec_tree.kernels.batch import LONGEST_PIECE
from turntree.spec_tree.kernels.layout import GRANULE, LiveTurns
from turntree.spec_tree.state import DialogueState
from turntree.spec_tree.store.cold import ColdTurns
from turntree.spec_tree.store.imported_turns import ImportedTurns
from turntree.spec_tree.store.turn_store import LogEntry, TurnStore, granules

_SPARE = 3 * GRANULE  #: positions that a turn may need in addition to its tokens


@dataclass(slots=True, eq=False)
class _State:
    exact: int  #: the first of the state's keys, see ``DialogueState.backoff_states``
    keys: NDArray[np.uint64]
    visited: int = 0  #: time when a turn last began or was added
    live: int = 0  #: number of live turns
    turns: deque[LogEntry] = field(default_factory=deque)  #: finished turns in the log, oldest first


class _Rewrite(NamedTuple):
    # A turn that the log's head reached and that is written again.

    state: _State
    sampled: NDArray[np.int32]
    row: int  #: row of the turn in ``LiveTurns``; -1 for a finished turn


class RetentionPolicy:
    """The turns of a forest by state. Not thread-safe."""

    def __init__(self, config: ForestConfig) -> None:
        self.quota = config.rollouts_per_state  #: maximum finished turns kept per state
        self.store = TurnStore(config.max_tokens)
        self.cold = ColdTurns(config.max_cold_tokens)
        self.tokens = 0  #: tokens of finished turns in the log
        self.by_state: dict[int, _State] = {}  #: states with turns in the log or live, by the first of their keys
        #: Live turns by row of ``LiveTurns``; the entry is ``None`` if the turn was too long for the log.
        self.by_row: dict[int, tuple[_State, LogEntry | None]] = {}
        self.imported = ImportedTurns()
        self._rewrites: list[_Rewrite] = []
        self._clock = 0
        self._over_quota = 0
        self.tokens_again = 0  #: tokens of turns that were written again when the head reached them

    @property
    def states(self) -> int:
        return len(self.by_state.keys() | set(self.cold.states()))

    @property
    def count(self) -> int:
        return sum(len(state.turns) for state in self.by_state.values()) + len(self.cold)

    @property
    def evicted(self) -> int:
        """Finished turns dropped for their state's quota or for lack of memory."""
        return self._over_quota + self.cold.dropped

    def open(self, rows: NDArray[np.int64], states: Sequence[DialogueState], live: LiveTurns) -> None:
        """Start a turn at each state in ``rows`` of ``live``; the keys of the rows must be set."""
        # Write parts of at most a quarter of the log: a write must not evict its own beginning.
        rows_per_part = max(1, self.store.capacity // 4 // _SPARE)
        for begin in range(0, len(rows), rows_per_part):
            part = rows[begin : begin + rows_per_part]
            opened = []
            for row, state in zip(part.tolist(), states[begin : begin + rows_per_part], strict=True):
                record = self._visit(state, live)
                record.live += 1  # first, because freeing positions forgets states without a turn
                self.by_row[row] = record, None
                opened.append((row, record))
            self._make_room(_SPARE * len(opened), live)
            turns = self.store.open([record.keys for _, record in opened], part, live)
            for (row, record), turn in zip(opened, turns, strict=True):
                self.by_row[row] = record, turn

    def make_room_for(self, lengths: NDArray[np.int64], begin: int, rows: NDArray[np.int64], live: LiveTurns) -> int:
        """Free positions for as many rows as fit, from ``begin`` on; return the index after the last such row.

        ``lengths`` are the tokens that each row adds, shape (rows,).
        """
        max_positions = self.store.capacity // 4
        needed, stop = 0, begin
        while stop < len(lengths):
            length = int(lengths[stop])
            positions = length + length // GRANULE + LONGEST_PIECE
            if positions > max_positions:
                self._drop_too_long(int(rows[stop]), live)
                positions = 0
            if needed + positions > max_positions:
                break
            needed += positions
            stop += 1
        self._make_room(needed, live)
        return stop

    def make_room_for_all(self, rows: int, tokens: int, live: LiveTurns) -> bool:
        """Free positions for all rows at once; ``False`` if the log is too small."""
        positions = tokens + tokens // GRANULE + rows * LONGEST_PIECE
        if positions > self.store.capacity // 4:
            return False
        self._make_room(positions, live)
        return True

    def close(self, rows: NDArray[np.int64], live: LiveTurns, *, keep: bool) -> None:
        dropped = []
        for row, length in zip(rows.tolist(), live.length[rows].tolist(), strict=True):
            state, turn = self.by_row.pop(row)
            state.live -= 1
            if turn is not None:
                turn.tokens = length
                self.store.finish(turn, live)
                if keep and length:
                    self._keep(state, turn)
                else:
                    dropped.append(turn)
            elif keep and length:
                self.cold.dropped += 1
            self._forget_empty(state)
        live.turn[rows] = 0
        self.store.drop_all(dropped)

    def add(self, state: DialogueState, sampled: NDArray[np.int32], live: LiveTurns) -> None:
        if len(sampled):
            record = self._visit(state, live)
            self._write(record, sampled, live)
            self._forget_empty(record)

    def add_all(
        self, states: Sequence[DialogueState], sampled: NDArray[np.int32], offsets: NDArray[np.int64], live: LiveTurns
    ) -> None:
        """Keep finished turns in this order: ``sampled[offsets[i]:offsets[i + 1]]`` at ``states[i]``."""
        lengths = np.diff(offsets)
        lengths[self._surplus(states, lengths)] = 0
        before = np.concatenate([[0], np.cumsum(np.where(lengths > 0, granules(lengths + 2), 0))])
        begin, max_positions = 0, self.store.capacity // 4
        while begin < len(states):
            stop = int(np.searchsorted(before, before[begin] + max_positions, "right")) - 1
            if stop == begin:
                self.add(states[begin], sampled[offsets[begin] : offsets[begin + 1]], live)
                begin += 1
                continue
            part = np.flatnonzero(lengths[begin:stop]) + begin
            visited = [self._visit(states[i], live) for i in part.tolist()]
            # `setdefault`, because freeing positions may forget visited states that have no turn yet.
            self._make_room(int(before[stop] - before[begin]), live)
            kept = [self.by_state.setdefault(state.exact, state) for state in visited]
            turns = self.store.write_all(sampled, offsets[part], lengths[part], [state.keys for state in kept])
            self._keep_all(kept, turns)
            begin = stop

    def _surplus(self, states: Sequence[DialogueState], lengths: NDArray[np.int64]) -> list[int]:
        # Indices of turns not worth writing, because later turns of the same call fill their state's quota.
        if len(states) <= self.quota:
            return []
        count = Counter(state.exact or 1 for state in states)
        full = {exact for exact, turns in count.items() if turns > self.quota}
        surplus = []
        unfilled = dict.fromkeys(full, self.quota)
        for i in range(len(states) - 1, -1, -1) if full else ():
            exact = states[i].exact or 1
            if exact in full and lengths[i]:
                unfilled[exact] -= 1
                if unfilled[exact] < 0:
                    surplus.append(i)
        self._over_quota += len(surplus)
        return surplus

    def _keep_all(self, states: Sequence[_State], turns: Sequence[LogEntry]) -> None:
        # Does `_keep` for each turn, but drops all turns over quota in one call.
        over, clock, quota = [], self._clock, self.quota
        for state, turn in zip(states, turns, strict=True):
            turn.seen = clock
            state.turns.append(turn)
            self.tokens += turn.tokens
            if len(state.turns) > quota and state.exact not in self.cold:
                over.append(state.turns.popleft())
            else:
                self._enforce_quota(state)
        for turn in over:
            self._uncount(turn)
        self._over_quota += len(over)
        self.store.drop_all(over)

    def add_imported(self, turns: Sequence[tuple[NDArray[np.uint64], NDArray[np.int32]]], live: LiveTurns) -> None:
        """Add turns of other runs with their back-off keys; they count as older than all other turns.

        Imports take at most half of the log. If there are more, the newest turns, which come last, are kept.
        """
        # A turn too long for the log has no log entry, in which its acceptance would be counted.
        turns = [turn for turn in turns if len(turn[1]) <= self.store.longest]
        sizes = np.array([granules(len(sampled) + 2) for _, sampled in turns], np.int64)
        first = int((sizes[::-1].cumsum() > self.store.capacity // 2)[::-1].sum())
        imported = []
        for backoff_states, sampled in turns[first:]:
            exact = int(backoff_states[0])
            state = self.by_state.setdefault(exact, _State(exact, backoff_states))
            self._write(state, sampled, live)
            imported.append(state.turns[-1])
        self.imported = ImportedTurns(imported)

    def drop_wrong_imports(self, tokens: int) -> bool:
        """Count sampled tokens; from time to time, drop imported turns whose drafts were wrong too often.

        Returns whether this call is the first after which more than half of the imported turns are gone.
        """
        if not self.imported.due(tokens):
            return False
        wrong = self.imported.take_wrong(self.store)
        for turn in wrong:
            state = self.by_state[int(turn.keys[0])]
            state.turns.remove(turn)
            self._uncount(turn)
            self._forget_empty(state)
        self.store.drop_all(wrong)
        dropped, count = self.imported.dropped, self.imported.count
        return 2 * (dropped - len(wrong)) <= count < 2 * dropped

    def known(self, state: DialogueState, live: LiveTurns) -> list[NDArray[np.int32]]:
        """Return the turns of a state, live turns last."""
        exact = state.backoff_states()[0]
        turns = self.cold.look(exact)
        record = self.by_state.get(exact)
        if record is not None:
            turns += [self.store.read(turn) for turn in record.turns]
            for row, (owner, turn) in self.by_row.items():
                if owner is record and turn is not None:
                    turns.append(self.sampled(row, live))
        return [turn for turn in turns if len(turn)]

    def sampled(self, row: int, live: LiveTurns) -> NDArray[np.int32]:
        turn = self.by_row[row][1]
        if turn is None:
            return np.zeros(0, np.int32)
        turn.tokens = int(live.length[row])
        return self.store.read(turn)

    def finished(self, state: DialogueState) -> int:
        exact = state.backoff_states()[0]
        record = self.by_state.get(exact)
        return self.cold.count(exact) + (len(record.turns) if record is not None else 0)

    def _visit(self, state: DialogueState, live: LiveTurns) -> _State:
        exact = state.exact or 1
        record = self.by_state.get(exact)
        if record is None:
            record = self.by_state[exact] = _State(exact, np.array(state.backoff_states(), np.uint64))
        self._clock += 1
        record.visited = self._clock
        # A turn begins here: write the state's cold turns back into the log, oldest first, before its hot turns.
        if exact in self.cold:
            for age, sampled in enumerate(self.cold.take(exact)):
                self._write(record, sampled, live, before=age)
        return record

    def _write(self, state: _State, sampled: NDArray[np.int32], live: LiveTurns, *, before: int | None = None) -> None:
        if len(sampled) > self.store.longest:
            self.cold.add(state.exact, state.keys, sampled)
            self._enforce_quota(state)
            return
        self._make_room(len(sampled) + _SPARE, live)
        self._keep(state, self.store.write(sampled, state.keys), before=before)

    def _keep(self, state: _State, turn: LogEntry, *, before: int | None = None) -> None:
        # Insert the turn after `before` older turns of the state; None makes it the newest turn.
        turn.seen = self._clock
        state.turns.insert(len(state.turns) if before is None else before, turn)
        self.by_state[state.exact] = state
        self.tokens += turn.tokens
        self._enforce_quota(state)

    def _enforce_quota(self, state: _State) -> None:
        while len(state.turns) + self.cold.count(state.exact) > self.quota:
            if state.exact in self.cold:
                self.cold.drop_oldest(state.exact)
            else:
                self._drop(state, state.turns[0])
            self._over_quota += 1

    def _make_room(self, positions: int, live: LiveTurns) -> None:
        def evict(turn: LogEntry) -> None:
            self._evict(turn, live)

        # Evicted turns worth keeping are written again, which needs more positions: repeat until that suffices.
        needed = -1
        while needed != (needed := positions + self._rewrite_positions()):
            self.store.make_room(needed, evict)
        rewrites, self._rewrites = self._rewrites, []
        # Evicted turns were the oldest turns of their states: insert them before the other turns, in their order.
        older: Counter[int] = Counter()
        for state, sampled, row in rewrites:
            turn = self.store.write(sampled, state.keys, live=row, turns=live)
            if row < 0:
                turn.again = True
                self.tokens_again += turn.tokens
                self._keep(state, turn, before=older[state.exact])
                older[state.exact] += 1
            else:
                self.by_row[row] = state, turn

    def _rewrite_positions(self) -> int:
        return sum(granules(len(turn.sampled) + _SPARE) for turn in self._rewrites)

    def _evict(self, turn: LogEntry, live: LiveTurns) -> None:
        row, state = turn.live, self.by_state[int(turn.keys[0])]
        if row >= 0:
            turn.tokens = int(live.length[row])
        sampled = self.store.read(turn)
        if row < 0:
            self._drop(state, turn)
        else:
            self.store.drop(turn)
        # Bound the tokens that are written again at once; otherwise freeing positions might never end.
        fits = self._rewrite_positions() + len(sampled) + _SPARE <= self.store.capacity // 4
        if row >= 0:
            live.turn[row] = 0
            self.by_row[row] = state, None
            if fits:
                self._rewrites.append(_Rewrite(state, sampled, row))
            return
        # Write the turn again only if its state was visited since, and if such turns fill at most half of the log.
        if fits and state.visited > turn.seen and 2 * (self.tokens_again + len(sampled)) <= self.store.capacity:
            self._rewrites.append(_Rewrite(state, sampled, -1))
        else:
            self.cold.add(state.exact, state.keys, sampled)
            self._forget_empty(state)

    def _drop(self, state: _State, turn: LogEntry) -> None:
        state.turns.remove(turn)
        self._uncount(turn)
        self.store.drop(turn)

    def _uncount(self, turn: LogEntry) -> None:
        self.tokens -= turn.tokens
        self.tokens_again -= turn.tokens if turn.again else 0

    def _drop_too_long(self, row: int, live: LiveTurns) -> None:
        # A turn too long for the log still gets drafts, but is not kept.
        state, turn = self.by_row[row]
        if turn is not None:
            self.store.drop(turn)
            live.turn[row] = 0
            self.by_row[row] = state, None

    def _forget_empty(self, state: _State) -> None:
        if not state.live and not state.turns:
            self.by_state.pop(state.exact, None)
