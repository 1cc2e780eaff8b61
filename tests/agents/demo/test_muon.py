import pytest
import torch

from turntree.agents.demo.muon import Muon, orthogonal


@pytest.mark.parametrize("shape", [(16, 16), (8, 32), (32, 8)])
def test_singular_values_come_near_one_and_their_directions_stay(shape):
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    left, values, right = torch.linalg.svd(orthogonal(matrix), full_matrices=False)
    assert values.min() > 0.6
    assert values.max() < 1.3
    ours, theirs = left @ right, torch.linalg.svd(matrix, full_matrices=False)
    torch.testing.assert_close(ours, theirs.U @ theirs.Vh, atol=1e-3, rtol=0)
    assert torch.linalg.svdvals(matrix).max() / torch.linalg.svdvals(matrix).min() > 2, "they were not near one before"


def test_it_goes_where_pytorchs_own_goes():
    start = torch.randn(24, 16, generator=torch.Generator().manual_seed(1))
    ends = []
    for of in (
        lambda p: Muon(p, lr=0.1, weight_decay=0.1),
        lambda p: torch.optim.Muon(p, lr=0.1, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
        lambda p: torch.optim.SGD(p, lr=0.1),
    ):
        matrix = torch.nn.Parameter(start.clone())
        optimizer = of([matrix])
        for _ in range(5):
            optimizer.zero_grad()
            (matrix @ matrix.T - torch.eye(24)).square().sum().backward()
            optimizer.step()
        ends.append(matrix.detach())
    ours, theirs, other = ends
    moved = (theirs - start).norm()
    assert (ours - theirs).norm() < 0.05 * moved, "bfloat16's rounding apart"
    assert not (other - theirs).norm() < 0.5 * moved
