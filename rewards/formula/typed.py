"""Comparison by type: sets by matching, tuples in order, intervals, matrices, ratios, units, equations, values.

Invariant: a type that cannot be the gold answer's is a difference, and an answer that names more values than
asked for is a suspicion, raised as ``Suspect``; neither ever reaches the comparison of values.
"""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

from turntree.rewards.formula.equations import compare_relations
from turntree.rewards.formula.labels import as_range, held_chain, labelled, same_name
from turntree.rewards.formula.lists import both_signs, by_name, distinct, items_of, without_domain
from turntree.rewards.formula.matrices import as_matrix, as_vectors
from turntree.rewards.formula.syntax.nodes import (
    Add,
    Applied,
    Based,
    Builder,
    Call,
    Cases,
    Const,
    Group,
    Matrix,
    Mul,
    Node,
    Num,
    Pow,
    Quantity,
    Ratio,
    Rel,
    Residue,
    SetOp,
    Sym,
    Words,
)
from turntree.rewards.formula.syntax.problems import CannotEvaluate, Suspect, Undefined
from turntree.rewards.formula.syntax.terms import MINUS_ONE
from turntree.rewards.formula.syntax.walk import children, free_variables, holds, is_undone, ordered, replaced, walk
from turntree.rewards.formula.tolerance import is_rounding
from turntree.rewards.formula.units import (
    check_label,
    check_words,
    in_one_unit,
    singular,
    spelled_out,
    unit_of,
    united,
    without_unit,
)
from turntree.rewards.formula.values.constants import renamed
from turntree.rewards.formula.values.numeric import equal
from turntree.rewards.formula.values.realset import is_set_like, real_set, same_set
from turntree.rewards.formula.values.undone import contradicts
from turntree.rewards.reading import flags

_ARTICLES = frozenset(str.split("the a an is are it in of to on"))
_KINDS = frozenset(("function", "number", "integer"))
"""What a word of an answer is about: an ``odd function`` is ``odd``."""
_NUMBER_WORDS = {
    word: number
    for number, word in enumerate(
        str.split(
            "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
            "sixteen seventeen eighteen nineteen twenty"
        )
    )
}
_DECIMAL = 10
_NO_SETS = frozenset(("=", "~", "approx", "to", "subset", "ni"))
"""Signs of relations that describe no set of numbers."""
_POINTS = frozenset("ABCDEFGHIKLMNOPQRSTUVWXYZ")
"""Names of points."""
_BRACKETS = str.maketrans({"]": ")", "[": "(", "<": "("})


_PHRASES: dict[str, Node] = {
    **dict.fromkeys(("does not exist", "doesn't exist", "do not exist", "no limit", "nonexistent"), Words(("dne",))),
    **dict.fromkeys(
        (
            "all real numbers",
            "all reals",
            "all real",
            "the real numbers",
            "the set of all real numbers",
            "real numbers",
        ),
        Const("R"),
    ),
    **dict.fromkeys(
        ("the empty set", "empty set", "no solution", "no solutions", "no real solution", "no real solutions"),
        Const("empty"),
    ),
    "infinity": Const("inf"),
}
"""Words that name a value, or say the same as others."""


def said(node: Node) -> Node:
    """What a phrase names, if it is known; any other node unchanged."""
    return _PHRASES.get(" ".join(node.words), node) if isinstance(node, Words) else node


class Comparison:
    """Compares one answer with one gold answer."""

    def __init__(self) -> None:
        """Start; ``method`` afterwards names the method that decided."""
        self.method = "typed"

    def equal(self, gold: Node, answer: Node) -> bool | None:
        """Whether an answer is right.

        Returns:
            ``None`` if neither could be shown.

        Raises:
            Suspect: The answer asks for credit without committing to one value.
            LimitExceeded: A value is too large.
            Undefined: The answer has no value.
            CannotEvaluate: An operation is not carried out here.
        """
        if ordered(gold) == ordered(answer):
            return True
        gold, answer = without_domain(gold, answer)
        if isinstance(gold, Words) or isinstance(answer, Words):
            return self._words(gold, answer)
        if isinstance(answer, Rel) and set(answer.signs) == {"="}:
            answer = _without_undone(answer)
        if is_undone(answer):
            if not is_undone(gold):
                raise Suspect(flags.RESTATED)
            return None
        if isinstance(gold, Residue) or isinstance(answer, Residue):
            return self._residues(gold, answer)
        if isinstance(gold, Builder) and isinstance(answer, Builder):
            answer = _named_as(gold, answer)
            if real_set(gold) is None:
                return self._in_order(children(gold), children(answer))
        if isinstance(gold, Cases) and isinstance(answer, Cases):
            return self._in_order(children(gold), children(answer))
        if isinstance(gold, Rel) or isinstance(answer, Rel):
            if is_set_like(gold) or (isinstance(answer, Rel) and not set(answer.signs) <= _NO_SETS):
                return self._sets(gold, answer)
            return self._relations(gold, answer)
        gold, answer = united(spelled_out(gold, answer)), united(spelled_out(answer, gold))
        if isinstance(gold, Quantity) or isinstance(answer, Quantity):
            return self._quantities(gold, answer)
        gold, answer = both_signs(gold), both_signs(answer)
        if (vectors := as_vectors(gold, answer)) is not None:
            return self._in_order(*vectors)
        if isinstance(gold, Group) and isinstance(answer, Applied) and answer.name in _POINTS and gold.opening == "(":
            answer = Group(answer.args, "(", ")")  # a point with its name
        if isinstance(gold, Group) and isinstance(answer, Group):
            return self._groups(gold, answer)
        if is_set_like(gold) or is_set_like(answer) or (isinstance(gold, Const) and gold.name == "empty"):
            return self._sets(gold, answer)
        if isinstance(gold, Group):
            once = distinct(gold.items) if gold.opening == "{" else gold.items
            return gold.opening in ("", "{") and len(once) == 1 and self.equal(gold.items[0], answer)
        if isinstance(answer, Group):
            if all(self.equal(gold, item) for item in answer.items) and answer.opening in ("", "{"):
                return True
            raise Suspect(flags.CANDIDATES)
        if holds(gold, Matrix) or holds(answer, Matrix):
            return self._matrices(gold, answer)
        if isinstance(gold, Ratio) or isinstance(answer, Ratio):
            return self._ratios(gold, answer)
        if isinstance(gold, Based):
            return _in_base(gold, answer)
        if isinstance(answer, Based) and answer.base != _DECIMAL:
            return False
        for part in walk(answer):
            if isinstance(part, Words):
                return False
            if isinstance(part, Quantity):
                check_words(part.unit)
        if isinstance(answer, Const) and answer.name not in ("pi", "e", "i", "inf"):
            return False
        self.method = "numeric"
        if not free_variables(gold) and free_variables(answer):
            return False  # a product with 0 among others
        verdict = equal(gold, answer)
        if verdict is False and any(equal(gold, other) for other in renamed(gold, answer)):
            return True
        return verdict

    def _residues(self, gold: Node, answer: Node) -> bool | None:
        if isinstance(gold, Residue) and isinstance(answer, Residue):
            known = gold.name is not None and answer.name is not None
            if known and ordered(gold.name or gold) != ordered(answer.name or answer):
                return False
            same = equal(gold.modulus, answer.modulus)
            turns = Mul((Add((gold.value, Mul((MINUS_ONE, answer.value)))), Pow(gold.modulus, MINUS_ONE)))
            return same and equal(turns, Call("floor", (turns,)))
        if not isinstance(answer, Residue) or not self.equal(gold, answer.value):
            return False
        return answer.name is not None or equal(answer.value, Call("mod", (answer.value, answer.modulus)))

    def _words(self, gold: Node, answer: Node) -> bool | None:
        gold, answer = said(_spelled(gold)), said(_spelled(answer))
        if not isinstance(gold, Words) and not isinstance(answer, Words):
            return self.equal(gold, answer)
        if isinstance(gold, Words) and isinstance(answer, Words):
            left, right = (
                tuple(singular(word) for word in node.words if word not in _ARTICLES) for node in (gold, answer)
            )
            return left == right or (len(right) == 2 and right[1] in _KINDS and left == right[:1])
        if isinstance(answer, Words):
            check_words(" ".join(answer.words))
            if len(answer.words) == 1 and (number := _NUMBER_WORDS.get(answer.words[0])) is not None:
                return self.equal(gold, Num(Fraction(number)))
        elif isinstance(gold, Words) and isinstance(answer, Quantity):
            return False
        return False

    def _relations(self, gold: Node, answer: Node) -> bool | None:
        if not isinstance(gold, Rel) and isinstance(answer, Rel):
            return self._against_chain(gold, answer)
        assert isinstance(gold, Rel)
        name, value = labelled(gold)
        if isinstance(answer, Rel):
            if value is not None:
                other_name, other_value = labelled(answer)
                named_alike = name is not None and other_name is not None and same_name(name, other_name)
                if other_value is not None and named_alike:
                    return self.equal(value, other_value)
            return compare_relations(gold, answer)
        return self.equal(value, answer) if value is not None else False

    def _against_chain(self, gold: Node, answer: Rel) -> bool | None:
        if answer.terms[0] is None:
            raise Suspect(flags.HEDGE)
        for side in answer.terms:
            if isinstance(side, Words):
                check_label(side.words)
        values = held_chain(answer, gold)
        if "approx" in answer.signs:
            exact = max(answer.signs.index("approx") + 1 - len(answer.terms) + len(values), 0)
            return self._rounded(gold, values[:exact], values[exact:])
        for other in values[1:]:
            if self.equal(values[0], other) is False:
                raise Suspect(flags.FALSE_CHAIN)
        return self.equal(gold, values[-1])

    def _rounded(self, gold: Node, exact: list[Node], rounded: list[Node]) -> bool | None:
        """Against what a value is, and what it is about: only a gold answer with decimals may be what it is about."""
        for other in exact[1:]:
            if self.equal(exact[0], other) is False:
                raise Suspect(flags.FALSE_CHAIN)
        if exact and not all(is_rounding(exact[-1], other) for other in rounded):
            raise Suspect(flags.FALSE_CHAIN)
        if exact and self.equal(gold, exact[-1]):
            return True
        if any(isinstance(part, Num) and part.decimals > 0 for part in walk(gold)):
            return self.equal(gold, rounded[-1])
        raise Suspect(flags.HEDGE)

    def _sets(self, gold: Node, answer: Node) -> bool | None:
        if not isinstance(gold, Rel) or not isinstance(answer, Rel):
            gold, answer = as_range(gold), as_range(answer)
        named = free_variables(gold), free_variables(answer)
        if all(len(names) == 1 for names in named) and named[0] != named[1]:
            return False
        right = real_set(gold)
        ours = real_set(answer)
        if right is not None and ours is not None and (is_set_like(gold) or isinstance(gold, Group | Const)):
            return same_set(right, ours)
        if is_set_like(answer) and not is_set_like(gold):
            if isinstance(answer, SetOp) and ours is not None and all(piece.low == piece.high for piece in ours):
                points = real_set(Group((gold,), "{", "}"))
                return points is not None and same_set(points, ours)
            if (
                isinstance(answer, Rel)
                and answer.signs[0] == "in"
                and _is_member(answer)
                and answer.terms[1] is not None
            ):
                return self.equal(gold, answer.terms[1])
            raise Suspect(flags.NEGATION if isinstance(answer, Rel) and "!=" in answer.signs else flags.CANDIDATES)
        if isinstance(gold, SetOp) and right is not None and all(piece.low == piece.high for piece in right):
            points = real_set(answer if isinstance(answer, Group) else Group((answer,), "{", "}"))
            return points is not None and same_set(points, right)
        if isinstance(gold, Rel) and isinstance(answer, Rel):
            if gold.signs == answer.signs == ("in",) and gold.terms[1] is not None and answer.terms[1] is not None:
                same = gold.terms[0] is not None and answer.terms[0] is not None
                same = same and ordered(gold.terms[0] or gold) == ordered(answer.terms[0] or answer)
                return same and self.equal(gold.terms[1], answer.terms[1])
            if right is None and ours is None:
                return compare_relations(gold, answer)
        if isinstance(gold, Rel) and gold.signs == ("in",) and gold.terms[1] is not None:
            return self.equal(gold.terms[1], answer)
        if isinstance(answer, Rel) and answer.signs == ("in",) and _is_member(answer) and answer.terms[1] is not None:
            return self.equal(gold, answer.terms[1])
        if isinstance(gold, SetOp) and isinstance(answer, SetOp) and gold.sign == answer.sign:
            straight = self.equal(gold.left, answer.left) and self.equal(gold.right, answer.right)
            crossed = (
                gold.sign != "minus" and self.equal(gold.left, answer.right) and self.equal(gold.right, answer.left)
            )
            return bool(straight or crossed)
        if right is None and isinstance(gold, Group) and isinstance(answer, Group):
            return self._groups(gold, answer)
        return False

    def _groups(self, gold: Group, answer: Group) -> bool | None:
        if is_set_like(gold) and is_set_like(answer) and real_set(gold) is not None and real_set(answer) is not None:
            return self._sets(gold, answer)
        if gold.opening in ("", "{"):
            return self._unordered(gold, answer)
        if answer.opening == "{" or len(gold.items) != len(answer.items):
            return False
        answer = by_name(answer)
        if len(gold.items) == 2 and answer.opening:
            ends = [
                ("[" if group.opening == "[" else "(", "]" if group.closing == "]" else ")") for group in (gold, answer)
            ]
            if ends[0] != ends[1]:
                return False
        return self._in_order(gold.items, answer.items)

    def _in_order(self, gold: tuple[Node, ...], answer: tuple[Node, ...]) -> bool | None:
        if len(gold) != len(answer):
            return False
        verdicts = [self.equal(right, ours) for right, ours in zip(gold, answer, strict=True)]
        return False if False in verdicts else None if None in verdicts else True

    def _unordered(self, gold: Group, answer: Group) -> bool | None:
        right, ours = items_of(gold), items_of(answer)
        if answer.opening not in ("", "{"):
            return self._in_order(right, ours) if not gold.opening else False
        names = [labelled(item)[0] if isinstance(item, Rel) else None for item in right]
        others = [labelled(item)[0] if isinstance(item, Rel) else None for item in ours]
        if None not in names and len({ordered(name) for name in names if name}) == len(names) > 1 and None in others:
            return self._in_order(right, ours)
        if gold.opening or len(distinct(right)) == len(right):  # a bare list that names a value twice has it twice
            right, ours = distinct(right), distinct(ours)
        if len(right) != len(ours):
            if len(right) == 1:
                raise Suspect(flags.CANDIDATES)
            return False
        remaining = list(ours)
        for item in right:
            for place, other in enumerate(remaining):
                if self._same_item(item, other):
                    del remaining[place]
                    break
            else:
                return False
        return True

    def _same_item(self, gold: Node, answer: Node) -> bool:
        try:
            return self.equal(gold, answer) is True
        except (Suspect, Undefined, CannotEvaluate):
            return False

    def _matrices(self, gold: Node, answer: Node) -> bool | None:
        right, ours = as_matrix(gold), as_matrix(answer)
        if right is None or ours is None:
            return False if (right is None) != (ours is None) else None
        if len(right.rows) != len(ours.rows) or len(right.rows[0]) != len(ours.rows[0]):
            return False
        flat = [tuple(entry for row in matrix.rows for entry in row) for matrix in (right, ours)]
        return self._in_order(flat[0], flat[1])

    def _ratios(self, gold: Node, answer: Node) -> bool | None:
        sides = []
        for node in (gold, answer):
            if isinstance(node, Ratio):
                sides.append(node.items)
            else:
                sides.append((node, Num(Fraction(1))))
        right, ours = sides
        if len(right) != len(ours):
            return False
        if any(all(equal(part, Num(Fraction(0))) is True for part in side) for side in sides):
            return False
        if len(right) == 2 and equal(right[1], Num(Fraction(0))) is True:
            return isinstance(gold, Ratio) and self._in_order(right, ours)  # a time of the day
        return all(
            equal(Mul((right[one], ours[other])), Mul((right[other], ours[one]))) is True
            for one, other in combinations(range(len(right)), 2)
        )

    def _quantities(self, gold: Node, answer: Node) -> bool | None:
        right, ours = without_unit(gold), without_unit(answer)
        dimensions = [unit.dimension if (unit := unit_of(node)) is not None else "" for node in (gold, answer)]
        values = in_one_unit(gold, answer)
        if values is None:
            return self._angles(right, ours, *dimensions)
        verdict = self.equal(*values)
        if verdict is True or all(dimensions):
            return verdict
        if "percent" in dimensions:
            bare, marked = (ours, right) if dimensions[0] else (right, ours)
            return self.equal(bare, Mul((marked, Num(Fraction(1, 100)))))
        if "angle" in dimensions:
            return self._angles(right, ours, *(dimension or "radian" for dimension in dimensions))
        return verdict

    def _angles(self, gold: Node, answer: Node, unit: str, other: str) -> bool | None:
        if {unit, other} != {"angle", "radian"}:
            return False
        turn = Mul((Const("pi"), Num(Fraction(1, 180))))
        plain = answer if other == "radian" else gold
        if not any(isinstance(part, Const) and part.name == "pi" for part in walk(plain)):
            return False
        return self.equal(
            Mul((gold, turn)) if unit == "angle" else gold, Mul((answer, turn)) if other == "angle" else answer
        )


def _without_undone(relation: Rel) -> Node:
    """A chain without what is left undone before its last side: ``\\int_0^1 x\\,dx = 1/2`` is ``1/2`` with a label."""
    kept = tuple(side for side in relation.terms[:-1] if side is None or not is_undone(side))
    last = relation.terms[-1]
    if last is None or is_undone(last) or len(kept) == len(relation.terms) - 1:
        return relation
    if any(side is not None and is_undone(side) and contradicts(side, last) for side in relation.terms[:-1]):
        raise Suspect(flags.FALSE_CHAIN)
    return Rel((*kept, last), ("=",) * len(kept)) if kept else last


def _named_as(gold: Node, answer: Node) -> Node:
    """A set builder of one variable with the variable of another one."""
    names = free_variables(gold), free_variables(answer)
    if len(names[0]) != 1 or len(names[1]) != 1:
        return answer
    return replaced(answer, {next(iter(names[1])): Sym(next(iter(names[0])))})


def _spelled(node: Node) -> Node:
    """Letters side by side as the word that they spell; any other node unchanged."""
    letters = [one.name for one in node.factors if isinstance(one, Sym | Const)] if isinstance(node, Mul) else []
    whole = isinstance(node, Mul) and len(letters) == len(node.factors) and all(len(one) == 1 for one in letters)
    return Words(("".join(letters).lower(),)) if whole else node


def _is_member(relation: Rel) -> bool:
    """Whether the left side of a membership is a variable alone, so that the right side is its range."""
    return relation.terms[0] is None or isinstance(relation.terms[0], Sym | Applied)


def _in_base(gold: Based, answer: Node) -> bool:
    if isinstance(answer, Based):
        return gold.base == answer.base and gold.value == answer.value
    return isinstance(answer, Num) and answer.decimals < 0 and str(answer.value) == gold.digits.lstrip("0")
