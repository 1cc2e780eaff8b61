"""Faster linear layers and norms on the CPU, for steps of few rows (tokens), in single precision.

``torch.nn.functional.linear`` is inefficient between 2 and about 16 rows, where it can take three times as long as for
one row. Here oneDNN's blocked layout lets a weight be read at memory speed. The queries, keys and values of a layer
are computed as one product, since their inputs are the same rows; so are both gates of an MLP. ``transformers``
computes a norm by six operations called from Python, a tenth of the time of a small step; here a norm is one loop. The
replacements sum the same numbers in another order, so results differ by rounding.

Not covered: small weights, where a call of oneDNN costs more than the product; other devices and precisions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from turntree.agents.engines.local.forward.compiled import kernel

BLOCKED = 100_000  #: elements of a weight from which the blocked layout is faster
_ROWS = 16  #: number of rows for which oneDNN chooses the block layout
#: names of layers that one module calls with the same rows, in this order
_SAME_ROWS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class Product:
    """Products of the same rows with several weights, stacked in one blocked weight.

    Calling ``part`` for each weight in order, with the same rows, computes the product only once.
    """

    def __init__(self, weights: Sequence[Tensor], bias: Tensor | None) -> None:
        """Copy ``weights``, shape (out, in) each; ``bias`` stays the caller's."""
        self._sizes = [len(weight) for weight in weights]
        self._bias = bias
        #: rows and products of the last ``part``, until the last weight's product is returned
        self._last: tuple[Tensor, Sequence[Tensor]] | None = None
        self._blocks = _blocks_of(weights[0] if len(weights) == 1 else torch.cat([one.detach() for one in weights]))

    def part(self, which: int, rows: Tensor) -> Tensor:
        """Return the product of ``rows``, shape (..., in), with weight number ``which``."""
        last, self._last = self._last, None
        if last is None or last[0] is not rows:
            product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._blocks, self._bias, "none", [], "")
            last = rows, product.split(self._sizes, -1) if len(self._sizes) > 1 else [product]
        if which + 1 < len(self._sizes):
            self._last = last
        return last[1][which]

    def fill(self, which: int, weight: Tensor) -> None:
        """Copy new values of weight number ``which``, shape (out, in)."""
        if len(self._sizes) > 1:
            weights = self._blocks.to_dense()
            weights.split(self._sizes)[which].copy_(weight)
            weight = weights
        self._blocks.copy_(_blocks_of(weight))  # in place: new blocks at each update would fragment the heap


class Blocked(nn.Module):
    """A linear layer that is a part of a ``Product``.

    Its dense weight is freed unless another layer shares it; the placeholder keeps the shape, reads as NaN and
    cannot be written to.
    """

    def __init__(self, layer: nn.Linear, product: Product, which: int, *, shared: bool) -> None:
        """Replace ``layer``; ``shared`` tells whether another layer has the same weight."""
        super().__init__()
        dense, self.bias, self._shared = layer.weight, layer.bias, shared
        self._product, self._which = product, which
        nothing = torch.full((1, 1), float("nan"), dtype=dense.dtype).expand(dense.shape)
        self.weight = dense if shared else nn.Parameter(nothing, requires_grad=False)

    def forward(self, rows: Tensor) -> Tensor:
        return self._product.part(self._which, rows)

    def fill(self, weight: Tensor) -> None:
        dense = weight.detach().to(self.weight)
        self._product.fill(self._which, dense)
        if self._shared:
            self.weight.copy_(dense)


def block(model: nn.Module) -> dict[str, list[Blocked]]:
    """Replace a model's large linear layers by ``Blocked``, if oneDNN is available.

    Only plain ``nn.Linear`` layers in single precision change; subclasses do not.

    Returns:
        The layers to fill when a weight is updated, by the weight's names in ``state_dict``.
    """
    names: dict[int, list[str]] = defaultdict(list)
    for name, weight in model.named_parameters(remove_duplicate=False):
        names[id(weight)].append(name)
    blocked: dict[str, list[Blocked]] = defaultdict(list)
    for old in [module for module in model.modules() if isinstance(module, Blocked)]:
        for name in names[id(old.weight)]:
            blocked[name].append(old)
    for paths in list(_products(model, names)):
        layers: list[nn.Linear] = [model.get_submodule(path) for path in paths]  # type: ignore[misc]
        product = Product([layer.weight for layer in layers], layers[0].bias)
        for which, (path, layer) in enumerate(zip(paths, layers, strict=True)):
            known = names[id(layer.weight)]
            new = Blocked(layer, product, which, shared=len(known) > 1)
            model.set_submodule(path, new)
            for name in known:
                blocked[name].append(new)
    if blocked:
        _copy_dense_weights(model)
    return dict(blocked)


def _products(model: nn.Module, names: dict[int, list[str]]) -> Iterator[list[str]]:
    plain = {path: layer for path, layer in model.named_modules() if type(layer) is nn.Linear}
    joined = set()
    for parent, _ in model.named_modules():
        for group in _SAME_ROWS:
            paths = [f"{parent}.{name}".lstrip(".") for name in group]
            layers = [plain[path] for path in paths if path in plain]
            alone = all(layer.bias is None and len(names[id(layer.weight)]) == 1 for layer in layers)
            if len(layers) == len(group) and alone and _worth_blocking(layers):
                joined.update(paths)
                yield paths
    for path, layer in plain.items():
        if path not in joined and _worth_blocking([layer]):
            yield [path]


def _blocks_of(weight: Tensor) -> Tensor:
    blocks: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), _ROWS)
    return blocks


def _copy_dense_weights(model: nn.Module) -> None:
    # Copy each remaining weight out of the memory-mapped file: one weight inside would keep the whole file in memory.
    for weight in model.parameters():
        if weight.is_contiguous():  # placeholders of freed weights are not
            weight.data = weight.data.clone()


def _worth_blocking(layers: Sequence[nn.Linear]) -> bool:
    single = all(layer.weight.dtype == torch.float32 for layer in layers)
    large = sum(layer.weight.numel() for layer in layers) >= BLOCKED
    return single and large and torch.backends.mkldnn.is_available()


class RmsNorm(nn.Module):
    """A root-mean-square norm by the compiled loop; a row's result depends on that row alone."""

    def __init__(self, weight: nn.Parameter, epsilon: float) -> None:
        """Share ``weight``, shape (size,), which takes no gradient; ``epsilon`` is added to the mean square."""
        super().__init__()
        self.weight, self._epsilon = weight, np.float32(epsilon)

    def forward(self, rows: Tensor) -> Tensor:
        scaled = torch.empty(rows.shape)
        size = len(self.weight)
        flat = (one.view(-1, size).numpy() for one in (rows.contiguous(), scaled))
        _scale(*flat, self.weight.numpy(), self._epsilon)
        return scaled


def join_norms(model: nn.Module) -> None:
    """Replace each norm of a model that ``RmsNorm`` reproduces on random rows and weights."""
    noise = torch.Generator().manual_seed(0)
    for path, layer in list(model.named_modules()):
        weight, epsilon = getattr(layer, "weight", None), getattr(layer, "variance_epsilon", None)
        if not isinstance(weight, nn.Parameter) or not isinstance(epsilon, float):
            continue
        if weight.dtype == torch.float32 and weight.dim() == 1:
            new = RmsNorm(weight, epsilon)
            rows = torch.randn(4, len(weight), generator=noise)
            old_rows, new_rows = (functional_call(one, {"weight": rows[0]}, (rows,)) for one in (layer, new))
            if torch.allclose(old_rows, new_rows, rtol=1e-4, atol=1e-6):
                model.set_submodule(path, new)


@kernel
def _scale(rows: Any, scaled: Any, weight: Any, epsilon: Any) -> None:
    size = rows.shape[1]
    for i in range(len(rows)):
        squares = rows.dtype.type(0)
        for d in range(size):
            squares += rows[i, d] * rows[i, d]
        factor = rows.dtype.type(1) / np.sqrt(squares / rows.dtype.type(size) + epsilon)
        for d in range(size):
            scaled[i, d] = rows[i, d] * factor * weight[d]
