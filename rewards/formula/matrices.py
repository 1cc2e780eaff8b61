from __future__ import annotations

from fractions import Fraction

from turntree.rewards.formula.syntax.nodes import Add, Const, Group, Matrix, Mul, Node, Num, Sym
from turntree.rewards.formula.syntax.walk import free_variables

#: names of the unit vectors and the index of their axis
_AXES = {f"{accent}({name})": axis for accent in ("hat", "vec") for axis, name in enumerate("ijk")}


def as_matrix(node: Node) -> Matrix | None:
    """Compute the sums and products of matrices in a node; return ``None`` if the result is no matrix."""
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


_Entries = tuple[Node, ...]


def as_vectors(gold: Node, answer: Node) -> tuple[_Entries, _Entries] | None:
    r"""Return the entries of two vectors in different notations: column, tuple, ``\hat{i} + 2\hat{j}``.

    Returns:
        ``None`` unless both are vectors and at most one is a tuple.
    """
    known, other = isinstance(gold, Matrix | Group), isinstance(answer, Matrix | Group)
    if (known and type(gold) is type(answer)) or not (known or isinstance(gold, Add | Mul)):
        return None
    named = not (known and other) and not _AXES.keys().isdisjoint(free_variables(answer if known else gold))
    right, ours = _entries(gold, named=named), _entries(answer, named=named)
    if right is None or ours is None:
        return None
    if named:  # with named axes, an axis may be left out
        longest = max(len(right), len(ours))
        right, ours = (one + (Num(Fraction(0)),) * (longest - len(one)) for one in (right, ours))
    return right, ours


def _entries(node: Node, *, named: bool) -> _Entries | None:
    match node:
        case Matrix(rows) if all(len(row) == 1 for row in rows):
            return tuple(row[0] for row in rows)
        case Group(items, "(" | "langle", ")" | "rangle"):
            return items
    if not named:
        return None
    found: dict[int, Node] = {}
    for term in node.terms if isinstance(node, Add) else (node,):
        factors = term.factors if isinstance(term, Mul) else (term,)
        axes = [(index, axis) for index, one in enumerate(factors) if (axis := _axis(one)) is not None]
        if len(axes) != 1 or axes[0][1] in found:
            return None
        index, axis = axes[0]
        found[axis] = Mul((Num(Fraction(1)), *factors[:index], *factors[index + 1 :]))
    return tuple(found.get(axis, Num(Fraction(0))) for axis in range(max(found) + 1))


def _axis(node: Node) -> int | None:
    match node:
        case Sym(name) if name in _AXES:
            return _AXES[name]
        case Sym("j" | "k" as name) | Const("i" as name):
            return "ijk".index(name)
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
