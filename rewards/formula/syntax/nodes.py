"""The syntax tree of an answer. Nodes are immutable and hashable; ``values.evaluate`` computes them."""

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
    decimals: int = -1  #: digits after the point; -1 without a point


@dataclass(frozen=True, slots=True)
class Sym(Node):
    """A variable with its subscript."""

    name: str  #: for example ``x`` or ``a_1``


@dataclass(frozen=True, slots=True)
class Const(Node):
    name: str  #: ``pi``, ``e``, ``i``, ``inf``, or a set: ``R``, ``Z``, ``N``, ``Q``, ``C``, ``empty``


@dataclass(frozen=True, slots=True)
class Add(Node):
    terms: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Mul(Node):
    factors: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Pow(Node):
    """A power; a quotient is a factor to the power -1, a root a power with a fraction as exponent."""

    base: Node
    exponent: Node


@dataclass(frozen=True, slots=True)
class Signed(Node):
    """A term after a plus-minus or minus-plus sign."""

    sign: int  #: 1 for plus-minus, -1 for minus-plus
    term: Node


@dataclass(frozen=True, slots=True)
class Call(Node):
    name: str  #: without backslash
    args: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Applied(Node):
    r"""A function or operation that stays symbolic: ``f(x)``, ``P(A | B)``, ``3 \oplus 4``."""

    name: str
    args: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Big(Node):
    """A big operator: a sum or product over an index."""

    kind: str  #: ``sum`` or ``prod``
    index: str  #: the running variable
    low: Node  #: first value of the index
    high: Node  #: last value of the index
    body: Node


@dataclass(frozen=True, slots=True)
class Undone(Node):
    """An unevaluated operation, which this package does not compute: an integral, a limit, a determinant."""

    kind: str  #: ``int``, ``lim``, ``det`` or ``diff``
    parts: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Group(Node):
    """Several items in brackets (tuple, interval, set), or a list without brackets."""

    items: tuple[Node, ...]
    opening: str = ""  #: ``(``, ``[``, ``]``, ``{``, ``<``, or empty for a list without brackets
    closing: str = ""
    word: str = ""  #: ``and`` or ``or`` if the word joins a list without brackets


@dataclass(frozen=True, slots=True)
class Rel(Node):
    """A chain of relations."""

    terms: tuple[Node | None, ...]  #: the sides; the first is ``None`` if the chain begins with a sign
    #: signs between the sides: ``=``, ``<``, ``<=``, ``>``, ``>=``, ``!=``, ``in``, ``ni``, ``subset``, ``to``,
    #: ``approx``, ``~``
    signs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Residue(Node):
    """A congruence."""

    name: Node | None  #: the left side; ``None`` if only the right side is written
    value: Node  #: the right side
    modulus: Node


@dataclass(frozen=True, slots=True)
class Builder(Node):
    """A set defined by a condition."""

    element: Node  #: a variable, an expression, a tuple, or a relation ``in`` that names the domain
    condition: Node


@dataclass(frozen=True, slots=True)
class Cases(Node):
    rows: tuple[tuple[Node, Node], ...]  #: values, each with its condition


@dataclass(frozen=True, slots=True)
class SetOp(Node):
    sign: str  #: ``cup``, ``cap`` or ``minus``
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Matrix(Node):
    rows: tuple[tuple[Node, ...], ...]  #: rows of equal length


@dataclass(frozen=True, slots=True)
class Words(Node):
    words: tuple[str, ...]  #: lower case


@dataclass(frozen=True, slots=True)
class Ratio(Node):
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Quantity(Node):
    """A value with a unit."""

    value: Node
    unit: str  #: as written, words joined by blanks; ``%`` and ``deg`` are units


@dataclass(frozen=True, slots=True)
class Based(Node):
    """A number in a base."""

    digits: str  #: as written, lower case, with at most one point
    base: int

    @property
    def value(self) -> Fraction:
        whole, _, part = self.digits.partition(".")
        return Fraction(int(whole + part, self.base), self.base ** len(part))


MINUS_ONE = Num(Fraction(-1))
HALF = Num(Fraction(1, 2))
