"""Matrices, their sums and products, and scalars times matrices."""

from __future__ import annotations

from turntree.rewards.formula.syntax.nodes import Add, Matrix, Mul, Node


def as_matrix(node: Node) -> Matrix | None:
    """A matrix with its sums and products carried out; ``None`` if a node is not a matrix."""
    if isinstance(node, Matrix):
        return node
    if isinstance(node, Add):
        terms = [as_matrix(term) for term in node.terms]
        known = [term for term in terms if term is not None]
        shape = (len(known[0].rows), len(known[0].rows[0])) if known else (0, 0)
        if len(known) < len(terms) or any((len(one.rows), len(one.rows[0])) != shape for one in known):
            return None
        return Matrix(
            tuple(
                tuple(Add(tuple(one.rows[row][column] for one in known)) for column in range(shape[1]))
                for row in range(shape[0])
            )
        )
    if isinstance(node, Mul):
        scalars = tuple(factor for factor in node.factors if as_matrix(factor) is None)
        matrices = [matrix for matrix in map(as_matrix, node.factors) if matrix is not None]
        product = matrices[0] if matrices else None
        for other in matrices[1:]:
            product = _product(product, other) if product is not None else None
        if product is not None:
            return Matrix(tuple(tuple(Mul((*scalars, entry)) for entry in row) for row in product.rows))
    return None


def _product(left: Matrix, right: Matrix) -> Matrix | None:
    if len(left.rows[0]) != len(right.rows):
        return None
    columns = list(zip(*right.rows, strict=True))
    return Matrix(
        tuple(
            tuple(Add(tuple(Mul((one, other)) for one, other in zip(row, column, strict=True))) for column in columns)
            for row in left.rows
        )
    )
