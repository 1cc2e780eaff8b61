"""SGLang's kernels of tree verification, as loops.

A tree of ``width`` nodes per row lies in flat arrays: node 0 is the row's last sampled token; ``next_token`` is a
node's first child, ``next_sibling`` the next child of its parent, -1 for none; ``retrive_index`` is the node's index in
the batch. Argument names, including misspelt ones, are the original's.
"""

import torch


def reconstruct_indices_from_tree_mask(
    tree_mask: torch.Tensor,
    verified_seq_len: torch.Tensor,
    positions: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Compute children, siblings and positions from the mask; writes all but the first two arguments."""
    node = torch.arange(draft_token_num)
    above = tree_mask.view(torch.bool).reshape(batch_size, draft_token_num, draft_token_num) & (
        node[None, :] < node[:, None]
    )
    parent = torch.where(above, node[None, :], -1).amax(-1)
    positions.copy_((above.sum(-1) + verified_seq_len[:batch_size, None].long()).reshape(-1))
    retrive_index.copy_(torch.arange(batch_size * draft_token_num).view(batch_size, draft_token_num))
    child = torch.where(above, node[:, None], draft_token_num).amin(1)
    retrive_next_token.copy_(torch.where(child < draft_token_num, child, -1))
    later = (parent[:, :, None] == parent[:, None, :]) & (node[:, None] > node[None, :])
    sibling = torch.where(later, node[:, None], draft_token_num).amin(1)
    retrive_next_sibling.copy_(torch.where((parent >= 0) & (sibling < draft_token_num), sibling, -1))


def verify_tree_greedy(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Walk down each tree along children that equal their parent's ``target_predict``.

    Writes the first three arguments; ``accept_token_num`` does not count the root.
    """
    said = target_predict.reshape(-1).tolist()
    rows, depth = accept_index.shape
    child, sibling = retrive_next_token.tolist(), retrive_next_sibling.tolist()
    index, token = retrive_index.tolist(), candidates.tolist()
    for row in range(rows):
        at, accepted = 0, 0
        accept_index[row, 0] = index[row][0]
        while accepted < depth - 1:
            below = child[row][at]
            while below != -1 and token[row][below] != said[index[row][at]]:
                below = sibling[row][below]
            if below == -1:
                break
            predicts[index[row][at]] = said[index[row][at]]
            at, accepted = below, accepted + 1
            accept_index[row, accepted] = index[row][at]
        accept_token_num[row] = accepted
        predicts[index[row][at]] = said[index[row][at]]


def tree_speculative_sampling_target_only(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    uniform_samples: torch.Tensor,
    uniform_samples_for_final_sampling: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
) -> None:
    """Accept the first child at which the siblings' summed probabilities reach their parent's coin.

    Otherwise draw the last token from what was not rejected. A token that occurs twice among siblings counts twice, as
    in the original.
    """
    rows, depth = accept_index.shape
    child, sibling = retrive_next_token.tolist(), retrive_next_sibling.tolist()
    index, token = retrive_index.tolist(), candidates.tolist()
    for row in range(rows):
        at, accepted = 0, 0
        accept_index[row, 0] = index[row][0]
        while accepted < depth - 1:
            coin, passed = float(uniform_samples[row, at]), 0.0
            below = child[row][at]
            while below != -1:
                p = float(target_probs[row, at, token[row][below]])
                passed += p
                if coin <= passed / max(threshold_acc, 1e-9) or p >= threshold_single:
                    break
                draft_probs[row, at, token[row][below]] = p
                below = sibling[row][below]
            if below == -1:
                break
            predicts[index[row][at]] = token[row][below]
            at, accepted = below, accepted + 1
            accept_index[row, accepted] = index[row][at]
        accept_token_num[row] = accepted
        rest = target_probs[row, at]
        if accepted < depth - 1:
            rest = (rest - draft_probs[row, at]).clamp_min(0)
        predicts[index[row][at]] = _inverse(rest, float(uniform_samples_for_final_sampling[row]))


def _inverse(weights: torch.Tensor, coin: float) -> int:
    below = weights.double().cumsum(-1)
    drawn = int(torch.searchsorted(below, coin * below[-1], right=True))
    return min(drawn, len(weights) - 1)


def top_k_renorm_prob(probs: torch.Tensor, top_k: torch.Tensor | int) -> torch.Tensor:
    ordered, at = probs.sort(dim=-1, descending=True, stable=True)
    most = torch.as_tensor(top_k).reshape(-1, 1)
    return _kept(ordered, at, torch.arange(probs.shape[-1])[None] < most)


def top_p_renorm_prob(probs: torch.Tensor, top_p: torch.Tensor | float) -> torch.Tensor:
    ordered, at = probs.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    return _kept(ordered, at, before < torch.as_tensor(top_p).reshape(-1, 1))


def _kept(ordered: torch.Tensor, at: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
    kept = torch.where(keep, ordered, 0.0)
    law = torch.zeros_like(ordered).scatter_(-1, at, kept)
    return law / law.sum(-1, keepdim=True)
