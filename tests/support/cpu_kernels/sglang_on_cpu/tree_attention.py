import torch
from torch.nn.functional import scaled_dot_product_attention


def forward_extend(original, backend, q, k, v, layer, forward_batch, save_kv_cache=True, **options):
    """Attend like the original; in tree verification, each node sees the prefix and its ancestors.

    The mask has (width, length + width) flags per row, or (width, width) without the part that is all true.
    """
    if not forward_batch.forward_mode.is_target_verify():
        return original(backend, q, k, v, layer, forward_batch, save_kv_cache=save_kv_cache, **options)
    pool, slots = forward_batch.token_to_kv_pool, forward_batch.req_to_token_pool.req_to_token
    pool.set_kv_buffer(layer, forward_batch.out_cache_loc, k, v)
    keys, values = pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)
    width, rows = forward_batch.spec_info.draft_token_num, forward_batch.batch_size
    mask = forward_batch.spec_info.custom_mask.view(torch.bool)
    trees_only = mask.numel() == rows * width * width
    queries = q.view(rows, width, layer.tp_q_head_num, layer.qk_head_dim).transpose(1, 2)
    out = torch.empty(rows, layer.tp_q_head_num, width, layer.v_head_dim, dtype=q.dtype)
    begin = 0
    for row in range(rows):
        length = int(forward_batch.seq_lens[row])
        if trees_only:
            tree = mask[row * width * width : (row + 1) * width * width].view(width, width)
            seen = torch.cat([torch.ones(width, length, dtype=torch.bool), tree], 1)
        else:
            seen = mask[begin : begin + width * (length + width)].view(width, length + width)
            begin += width * (length + width)
        at = slots[forward_batch.req_pool_indices[row], : length + width]
        out[row] = scaled_dot_product_attention(
            queries[row][None],
            keys[at].transpose(0, 1)[None].to(q.dtype),
            values[at].transpose(0, 1)[None].to(q.dtype),
            attn_mask=seen,
            scale=layer.scaling,
            enable_gqa=layer.tp_q_head_num != layer.tp_k_head_num,
        )[0]
    return out.transpose(1, 2).reshape(q.shape[0], -1)
