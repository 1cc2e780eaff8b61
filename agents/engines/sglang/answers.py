"""Conversion of SGLang's answers to completions and scores.

SGLang reports log-probabilities of sampled tokens at the request's temperature, before top-k, top-p and min-p (the
cuts). These are ``Completion.logprobs``. The distribution after the cuts is computed here from the recorded most
probable tokens, if they include every token that the cuts keep.
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
_LOG_ZERO = -1e30  #: SGLang writes the smallest number of the dtype for log(0)
_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}


def forget_aborted(manager: Any, answer: Mapping[str, Any]) -> None:
    # SGLang 0.5.12 never removes a request that was aborted while queued from `TokenizerManager.rid_to_state`.
    if (answer["meta_info"].get("finish_reason") or {}).get("type") == "abort":
        for name, state in list(manager.rid_to_state.items()):  # also requests whose answer nobody awaits
            if state.finished:
                manager.rid_to_state.pop(name, None)


def completion(answer: Mapping[str, Any], sampling: Sampling, *, vocabulary: int | None = None) -> Completion:
    """Return a sampled turn; ``vocabulary`` is the size of the model's vocabulary, ``None`` if unknown."""
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
    flags = _accepted_flags(info, len(tokens))
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
    """Return the tokens drawn at the last ``count`` positions of the prompt.

    ``None`` if the server does not re-verify drafts (``drawing.reverify``).
    """
    info = answer["meta_info"]
    reason, cached = _reason(info, (), sampling), info.get("cached_tokens") or 0
    if reason is FinishReason.ABORT:
        return Completion(token_ids=(), logprobs=(), finish_reason=reason)
    rows = (info.get("input_top_logprobs") or [])[-count:]
    # SGLang's two most probable tokens always differ, so equal ids show that turntree's hooks wrote this row.
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
    """Return whether top-p, top-k or min-p change the distribution."""
    return sampling.top_p < 1 or sampling.top_k != -1 or sampling.min_p > 0


def scored(answer: Mapping[str, Any], count: int, width: int) -> TokenLogprobs:
    """Return log-probabilities at temperature 1 of the last ``count`` tokens of the prompt and of the next token.

    ``width`` is the number of most probable tokens that were requested at each position.
    """
    info = answer["meta_info"]
    given = _chosen(info["input_token_logprobs"][-count:] if count else [])
    after = _chosen(info["output_token_logprobs"][:1])
    rows = [*(info["input_top_logprobs"][-count:] if count else []), *info["output_top_logprobs"][:1]] if width else []
    empty = TokenLogprobs(np.zeros(0), np.zeros((count + 1, 0), np.int32), np.zeros((count + 1, 0)))
    table = _table(rows) if width else empty
    return table._replace(chosen=np.concatenate([given, after]))


def draft_stats(info: Mapping[str, Any], tokens: int) -> DraftStats:
    drafted, accepted = info.get(DRAFTED), info.get(ACCEPTED)
    if drafted is None or accepted is None:
        # Plain decoding, or SGLang's own drafts, for which SGLang reports verify steps but no drafted tokens.
        steps = info.get("spec_verify_ct") or max(tokens - 1, 0)
        return DraftStats(verify_steps=min(tokens, 1) + steps, accepted=max(tokens - 1 - steps, 0))
    return DraftStats(
        verify_steps=min(tokens, 1) + len(drafted), drafted=int(sum(drafted)), accepted=int(sum(accepted))
    )


def _reason(info: Mapping[str, Any], tokens: Sequence[int], sampling: Sampling) -> FinishReason:
    # SGLang checks the length before stop tokens. Report a stop token at the last allowed position as a stop.
    reason = info.get("finish_reason") or {}
    if reason.get("type") == "length" and tokens and tokens[-1] in sampling.stop_token_ids:
        return FinishReason.STOP
    return _REASONS.get(reason.get("type", ""), FinishReason.ABORT)


def _accepted_flags(info: Mapping[str, Any], tokens: int) -> tuple[bool, ...]:
    accepted = info.get(ACCEPTED)
    if accepted is None:
        return ()
    flags = [False]  # the pass over the prompt samples the first token
    for count in accepted:
        flags += [True] * int(count) + [False]  # each step ends with a token that was not drafted
    return tuple(flags[:tokens]) if len(flags) >= tokens else ()


def _chosen(entries: Sequence[Sequence[Any]]) -> Floats:
    return _numbers([entry[0] for entry in entries])


def _table(rows: Sequence[Sequence[Sequence[Any]]], width: int | None = None) -> TokenLogprobs:
    # An entry is (log-probability, token id, text); the most probable token comes first.
    logprobs = _numbers([[entry[0] for entry in row[:width]] for row in rows])
    ids = np.array([[entry[1] for entry in row[:width]] for row in rows], np.int32)
    shape = (len(rows), -1) if len(rows) else (0, width or 0)
    return TokenLogprobs(np.zeros(len(rows)), ids.reshape(shape), logprobs.reshape(shape))


def _numbers(values: Sequence[Any]) -> Floats:
    numbers = np.array(values, np.float64)
    return np.where(numbers <= _LOG_ZERO, -np.inf, numbers)


def _greedy_top(tokens: Sequence[int], width: int) -> TokenLogprobs:
    # The sampled token has probability 1; the other columns hold arbitrary other tokens with probability 0.
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
    # Return empty arrays and None unless the recorded tokens cover all tokens that the cuts keep.
    p = np.exp(table.logprobs)
    keep = p >= sampling.min_p * p[:, :1]
    if sampling.top_k != -1:
        keep &= np.arange(p.shape[1]) < sampling.top_k
    complete = p.shape[1] == vocabulary
    # Top-p is a fraction of the mass after min-p and top-k. Without these two cuts, that mass is 1.
    uncut = sampling.min_p == 0 and sampling.top_k == -1
    mass = np.ones((len(p), 1)) if uncut else (p * keep).sum(1, keepdims=True)
    covered = ~keep.all(1) | uncut | complete
    if sampling.top_p < 1:
        kept_mass = p * keep
        keep &= np.cumsum(kept_mass, 1) - kept_mass < sampling.top_p * mass  # the token that crosses top_p is kept
    # If the least probable recorded token is kept, unrecorded tokens may be kept too.
    covered &= ~keep.all(1) | complete
    if not covered.all():
        return np.zeros(0), None
    sums = (p * keep).sum(1)
    logprobs = np.where(keep, table.logprobs - np.log(sums)[:, None], -np.inf)
    width = sampling.top_logprobs
    return chosen - np.log(sums), TokenLogprobs(table.chosen, table.ids[:, :width], logprobs[:, :width])
