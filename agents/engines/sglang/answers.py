"""Conversion of SGLang's answers to completions and scores.

SGLang's log-probabilities of sampled tokens are those at the request's
temperature before top-k, top-p and min-p, as ``Completion.logprobs`` needs. The
distribution after these is computed from the recorded tokens where they cover it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turntree.agents.engines.protocol import Completion, DraftStats, FinishReason, Sampling, TopLogprobs
from turntree.agents.engines.sglang.wire import ACCEPTED, DRAFTED
from turntree.agents.engines.token_logprobs import TokenLogprobs

Floats = NDArray[np.float64]
_NOTHING = -1e30
"""SGLang writes the smallest number of the dtype for the logarithm of 0."""
_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


def forget_aborted(manager: Any, answer: Mapping[str, Any]) -> None:
    """Let SGLang's ``TokenizerManager`` forget requests that were aborted in its queue: 0.5.12 keeps them for ever.

    Args:
        answer: The latest answer; unless it is of an aborted request there is nothing to do.
    """
    if (answer["meta_info"].get("finish_reason") or {}).get("type") == "abort":
        for name, state in list(manager.rid_to_state.items()):  # also those for whose answer nobody waits
            if state.finished:
                manager.rid_to_state.pop(name, None)


def completion(answer: Mapping[str, Any], sampling: Sampling, *, vocabulary: int | None = None) -> Completion:
    """A sampled turn.

    Args:
        answer: SGLang's answer, with log-probabilities.
        vocabulary: Size of the model's vocabulary; ``None`` if unknown.
    """
    info = answer["meta_info"]
    tokens = tuple(answer["output_ids"])
    logprobs = _chosen(info["output_token_logprobs"])[: len(tokens)]
    rows = (info.get("output_top_logprobs") or [])[: len(tokens)]
    top_known = None
    if sampling.temperature == 0:
        behaviour = np.zeros(len(tokens))
        top_known = _greedy_top(tokens, sampling.top_logprobs)
    elif not cuts(sampling):
        behaviour = logprobs
        top_known = _table(rows, sampling.top_logprobs)
    else:
        behaviour, top_known = _cut_top(_table(rows), logprobs, sampling, vocabulary) if rows else (np.zeros(0), None)
    top = None
    if sampling.top_logprobs and top_known is not None:
        top = TopLogprobs(ids=top_known.ids, logprobs=top_known.logprobs.astype(np.float32))
    flags = _flags(info, len(tokens))
    return Completion(
        token_ids=tokens,
        logprobs=tuple(logprobs.tolist()),
        finish_reason=_reason(info, tokens, sampling),
        draft=draft_stats(info, len(tokens)),
        accepted=flags,
        cached_tokens=info.get("cached_tokens") or 0,
        behaviour_logprobs=tuple(behaviour.tolist()),
        top=top,
    )


def reverified(answer: Mapping[str, Any], count: int, sampling: Sampling) -> Completion | None:
    """The tokens drawn at the positions of a draft; ``None`` if SGLang drew none (``drawing.reverify``).

    Args:
        answer: SGLang's answer to ``SglangDialect.reverify``.
    """
    info = answer["meta_info"]
    reason, cached = _reason(info, (), sampling), info.get("cached_tokens") or 0
    if reason is FinishReason.ABORT:
        return Completion(token_ids=(), logprobs=(), finish_reason=reason)
    rows = (info.get("input_top_logprobs") or [])[-count:]
    if len(rows) != count or not all(row and len(row) == 2 and row[0][1] == row[1][1] for row in rows):
        return None
    table = _table(rows)
    before, after = table.logprobs.T.tolist()
    return Completion(
        token_ids=tuple(table.ids[:, 0].tolist()),
        logprobs=tuple(before),
        finish_reason=reason,
        cached_tokens=cached,
        behaviour_logprobs=tuple(after),
    )


def cuts(sampling: Sampling) -> bool:
    """Whether the distribution differs from the model's at its temperature."""
    return sampling.top_p < 1 or sampling.top_k != -1 or sampling.min_p > 0


def scored(answer: Mapping[str, Any], count: int, width: int) -> TokenLogprobs:
    """The model's log-probabilities at temperature 1 at each of the ``count`` last tokens and after them.

    Args:
        answer: SGLang's answer to ``SglangDialect.scoring`` of ``width`` most probable tokens.
        width: Most probable tokens at each position.
    """
    info = answer["meta_info"]
    given = _chosen(info["input_token_logprobs"][-count:] if count else [])
    behind = _chosen(info["output_token_logprobs"][:1])
    rows = [*(info["input_top_logprobs"][-count:] if count else []), *info["output_top_logprobs"][:1]] if width else []
    table = (
        _table(rows)
        if width
        else TokenLogprobs(np.zeros(0), np.zeros((count + 1, 0), np.int32), np.zeros((count + 1, 0)))
    )
    return table._replace(chosen=np.concatenate([given, behind]))


def draft_stats(info: Mapping[str, Any], tokens: int) -> DraftStats:
    """Draft counters of a turn.

    Args:
        info: SGLang's ``meta_info``.
    """
    drafted, accepted = info.get(DRAFTED), info.get(ACCEPTED)
    if drafted is None or accepted is None:
        # Plain decoding, or drafts of SGLang's own, whose tokens it does not report.
        steps = info.get("spec_verify_ct") or max(tokens - 1, 0)
        return DraftStats(verify_steps=min(tokens, 1) + steps, accepted=max(tokens - 1 - steps, 0))
    return DraftStats(
        verify_steps=min(tokens, 1) + len(drafted), drafted=int(sum(drafted)), accepted=int(sum(accepted))
    )


def _reason(info: Mapping[str, Any], tokens: Sequence[int], sampling: Sampling) -> FinishReason:
    reason = info.get("finish_reason") or {}
    if reason.get("type") == "length" and tokens and tokens[-1] in sampling.stop_token_ids:
        return FinishReason.STOP
    return _REASONS.get(reason.get("type", ""), FinishReason.ABORT)


def _flags(info: Mapping[str, Any], tokens: int) -> tuple[bool, ...]:
    """Whether each token was drafted and accepted: the first comes from the prompt's pass, and each step ends with
    one that was not drafted."""
    accepted = info.get(ACCEPTED)
    if accepted is None:
        return ()
    flags = [False]
    for count in accepted:
        flags += [True] * int(count) + [False]
    return tuple(flags[:tokens]) if len(flags) >= tokens else ()


def _chosen(entries: Sequence[Sequence[Any]]) -> Floats:
    return _numbers([entry[0] for entry in entries])


def _table(rows: Sequence[Sequence[Sequence[Any]]], width: int | None = None) -> TokenLogprobs:
    """Rows of entries (log-probability, token, text), most probable first."""
    logprobs = _numbers([[entry[0] for entry in row[:width]] for row in rows])
    ids = np.array([[entry[1] for entry in row[:width]] for row in rows], np.int32)
    shape = (len(rows), -1) if len(rows) else (0, width or 0)
    return TokenLogprobs(np.zeros(len(rows)), ids.reshape(shape), logprobs.reshape(shape))


def _numbers(values: Sequence[Any]) -> Floats:
    numbers = np.array(values, np.float64)
    return np.where(numbers <= _NOTHING, -np.inf, numbers)


def _greedy_top(tokens: Sequence[int], width: int) -> TokenLogprobs:
    """All mass on the sampled tokens; the other columns are tokens without any."""
    ids = np.tile(np.arange(width, dtype=np.int32), (len(tokens), 1))
    sampled = np.array(tokens, np.int32)[:, None]
    ids = np.where(ids == sampled, ids[:, :1], ids)
    logprobs = np.full(ids.shape, -np.inf)
    if width:
        ids[:, 0], logprobs[:, 0] = sampled[:, 0], 0.0
    return TokenLogprobs(np.zeros(len(tokens)), ids, logprobs)


def _cut_top(
    table: TokenLogprobs, chosen: Floats, sampling: Sampling, vocabulary: int | None
) -> tuple[Floats, TokenLogprobs | None]:
    """Log-probability of each chosen token after min-p, top-k and top-p, and the distribution there; empty and
    ``None`` if the recorded tokens do not cover all that are kept."""
    p = np.exp(table.logprobs)
    keep = p >= sampling.min_p * p[:, :1]
    if sampling.top_k != -1:
        keep &= np.arange(p.shape[1]) < sampling.top_k
    all_of_it = p.shape[1] == vocabulary
    whole = sampling.min_p == 0 and sampling.top_k == -1
    mass = np.ones((len(p), 1)) if whole else (p * keep).sum(1, keepdims=True)
    covered = ~keep.all(1) | whole | all_of_it
    if sampling.top_p < 1:
        kept = p * keep
        keep &= np.cumsum(kept, 1) - kept < sampling.top_p * mass
    covered &= ~keep.all(1) | all_of_it
    if not covered.all():
        return np.zeros(0), None
    sums = (p * keep).sum(1)
    logprobs = np.where(keep, table.logprobs - np.log(sums)[:, None], -np.inf)
    width = sampling.top_logprobs
    return chosen - np.log(sums), TokenLogprobs(table.chosen, table.ids[:, :width], logprobs[:, :width])
