from __future__ import annotations

import torch

from turntree.agents.verl.weights import _buckets


def test_weights_travel_in_buckets_and_all_of_them_do() -> None:
    named = [(str(i), torch.full((4,), float(i))) for i in range(7)]
    buckets = list(_buckets(iter(named), bucket_bytes=40))
    assert [list(bucket) for bucket in buckets] == [["0", "1", "2"], ["3", "4", "5"], ["6"]]
    assert all(torch.equal(bucket[name], tensor) for bucket in buckets for name, tensor in named if name in bucket)


def test_what_is_sent_no_longer_changes() -> None:
    weight = torch.zeros(2)
    (bucket,) = _buckets([("w", weight)], bucket_bytes=1 << 20)
    weight += 1
    assert bucket["w"].tolist() == [0.0, 0.0]
