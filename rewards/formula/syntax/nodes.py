"""The syntax tree of an answer.

Invariant: nodes are values: frozen, hashable, built by the parser alone. They do no arithmetic; see ``evaluate``.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class Node:
    """Base of all nodes."""


@dataclass(frozen=True, slots=True)
class Num(Node):
    """A number as written."""

    value: Fraction
    """Its exact value."""
    decimals: int = -1
    """Digits after the point; -1 where it has none."""


@dataclass(frozen=True, slots=True)
class Sym(Node):
    """A variable, with its subscript."""

    name: str
    """For example ``x`` or ``a_1``."""


@dataclass(frozen=True, slots=True)
class Const(Node):
    """A named constant or set."""

    name: str
    """``pi``, ``e``, ``i``, ``inf``, or a set: ``R``, ``Z``, ``N``, ``Q``, ``C``, ``empty``."""


@dataclass(frozen=True, slots=True)
class Add(Node):
    """A sum."""

    terms: tuple[Node, ...]
    """Summands."""


@dataclass(frozen=True, slots=True)
class Mul(Node):
    """A product."""

    factors: tuple[Node, ...]
    """Factors."""


@dataclass(frozen=True, slots=True)
class Pow(Node):
    """A power; quotients are powers of -1, roots powers of a fraction."""

    base: Node
    """Base."""
    exponent: Node
    """Exponent."""


@dataclass(frozen=True, slots=True)
class Signed(Node):
    """A term after a double sign."""

    sign: int
    """1 for plus-minus, -1 for minus-plus."""
    term: Node
    """The term that has both signs."""


@dataclass(frozen=True, slots=True)
class Call(Node):
    """A function of arguments."""

    name: str
    """Its name, without backslash."""
    args: tuple[Node, ...]
    """Arguments."""


@dataclass(frozen=True, slots=True)
class Applied(Node):
    """A function or an operation that is only named: ``f(x)``, ``P(A | B)``, ``3 \\oplus 4``."""

    name: str
    """Its name."""
    args: tuple[Node, ...]
    """Arguments."""


@dataclass(frozen=True, slots=True)
class Big(Node):
    """A sum or product over an index."""

    kind: str
    """``sum`` or ``prod``."""
    index: str
    """The running variable."""
    low: Node
    """First index."""
    high: Node
    """Last index."""
    body: Node
    """The term."""


@dataclass(frozen=True, slots=True)
class Undone(Node):
    """An operation that is not carried out here: an integral, a limit, a determinant."""

    kind: str
    """``int``, ``lim``, ``det`` or ``diff``."""
    parts: tuple[Node, ...]
    """Its operands."""


@dataclass(frozen=True, slots=True)
class Group(Node):
    """Several items in brackets: tuple, interval, set; or a bare list."""

    items: tuple[Node, ...]
    """The items."""
    opening: str = ""
    """``(``, ``[``, ``]``, ``{``, ``<``, or nothing for a bare list."""
    closing: str = ""
    """The other bracket."""
    word: str = ""
    """``and`` or ``or`` if it joins a bare list."""


@dataclass(frozen=True, slots=True)
class Rel(Node):
    """A chain of relations."""

    terms: tuple[Node | None, ...]
    """Sides; the first is ``None`` if the chain begins with its sign."""
    signs: tuple[str, ...]
    """``=``, ``<``, ``<=``, ``>``, ``>=``, ``!=``, ``in``, ``ni``, ``subset``, ``to``, ``approx``, ``~``;
    one fewer than sides."""


@dataclass(frozen=True, slots=True)
class Residue(Node):
    """A congruence."""

    name: Node | None
    """The modulus, if one is given."""
    value: Node
    """To what."""
    modulus: Node
    """The modulus."""


@dataclass(frozen=True, slots=True)
class Builder(Node):
    """A set by its condition."""

    element: Node
    """The general element: a variable, an expression, a tuple, or a membership that names the domain."""
    condition: Node
    """What holds for its variables."""


@dataclass(frozen=True, slots=True)
class Cases(Node):
    """A function by cases."""

    rows: tuple[tuple[Node, Node], ...]
    """Values, each with its condition."""


@dataclass(frozen=True, slots=True)
class SetOp(Node):
    """Union, intersection or difference."""

    sign: str
    """``cup``, ``cap`` or ``minus``."""
    left: Node
    """Left operand."""
    right: Node
    """Right operand."""


@dataclass(frozen=True, slots=True)
class Matrix(Node):
    """Rows of entries."""

    rows: tuple[tuple[Node, ...], ...]
    """Rows of equal length."""


@dataclass(frozen=True, slots=True)
class Words(Node):
    """Plain words."""

    words: tuple[str, ...]
    """Lower case."""


@dataclass(frozen=True, slots=True)
class Ratio(Node):
    """A proportion."""

    items: tuple[Node, ...]
    """Its terms."""


@dataclass(frozen=True, slots=True)
class Quantity(Node):
    """A value with a unit."""

    value: Node
    """The value."""
    unit: str
    """The unit as written, words joined by blanks; ``%`` and ``deg`` are units."""


@dataclass(frozen=True, slots=True)
class Based(Node):
    """A number written in a base."""

    digits: str
    """Digits as written, lower case, with at most one point."""
    base: int
    """The base."""

    @property
    def value(self) -> Fraction:
        """Its exact value."""
        whole, _, part = self.digits.partition(".")
        return Fraction(int(whole + part, self.base), self.base ** len(part))


MINUS_ONE = Num(Fraction(-1))
HALF = Num(Fraction(1, 2))
