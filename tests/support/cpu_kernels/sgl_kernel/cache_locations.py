"""Where keys and values lie: the small index kernels that SGLang compiles for its cache."""

from __future__ import annotations

import ctypes

import torch


def assign_extend_cache_locs_cpu(req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, pool_len):
    """Read the places of each request's positions start to end, one request after the other."""
    begin = 0
    for row, start, end in _spans(req_pool_indices, start_offset, end_offset):
        out_cache_loc[begin : begin + end - start] = req_to_token[row, start:end]
        begin += end - start


def assign_req_to_token_pool_cpu(req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, pool_len):
    """Write the places of each request's positions start to end."""
    begin = 0
    for row, start, end in _spans(req_pool_indices, start_offset, end_offset):
        req_to_token[row, start:end] = out_cache_loc[begin : begin + end - start].to(req_to_token.dtype)
        begin += end - start


def fill_accept_out_cache_loc_cpu(accept_index, out_cache_loc, accept_out_cache_loc):
    """The places of the accepted nodes, packed."""
    kept = accept_index.reshape(-1)
    kept = kept[kept >= 0].long()
    accept_out_cache_loc[: len(kept)] = out_cache_loc[kept]


def fill_bonus_tokens_cpu(accept_tokens, accept_lens, bonus_tokens, accept_stride):
    """The last token that each request emitted."""
    rows = torch.arange(len(accept_lens))
    by_row = accept_tokens.view(len(accept_lens), accept_stride)
    bonus_tokens[: len(rows)] = by_row[rows, accept_lens.long() - 1].to(bonus_tokens.dtype)


def copy_all_layer_kv_cache_cpu(data_ptrs, strides, tgt_loc, src_loc):
    """Copy places ``src_loc`` to ``tgt_loc`` in each buffer, all read before any is written."""
    for base, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(base + place * stride, stride) for place in src_loc.tolist()]
        for place, row in zip(tgt_loc.tolist(), rows, strict=True):
            ctypes.memmove(base + place * stride, row, stride)


def _spans(rows: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor) -> list[tuple[int, int, int]]:
    return list(zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True))
