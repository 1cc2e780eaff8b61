"""Matrices, and scalars times matrices."""

from __future__ import annotations

from turntree.rewards.formula.nodes import Matrix, Mul, Node


def as_matrix(node: Node) -> Matrix | None:
    """A matrix whose scalar factors are multiplied in; ``None`` where a node is none."""
    if isinstance(node, Matrix):
        return node
    if isinstance(node, Mul):
        matrices = [factor for factor in node.factors if isinstance(factor, Matrix)]
        scalars = tuple(factor for factor in node.factors if not isinstance(factor, Matrix))
        if len(matrices) == 1:
            return Matrix(tuple(tuple(Mul((*scalars, entry)) for entry in row) for row in matrices[0].rows))
    return None
