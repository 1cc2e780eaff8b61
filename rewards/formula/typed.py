"""Comparison by type: sets by matching, tuples in order, intervals, matrices, ratios, units, equations, values.

An answer of a type that the gold answer cannot have is wrong. An answer with more values than asked for raises
``Suspect``.
"""

from __future__ import annotations

from fractions import Fraction

from turntree.rewards.formula.equations import compare_relations
from turntree.rewards.formula.labels import held_chain, labelled, same_name
from turntree.rewards.formula.lists import both_signs, distinct, without_domain
from turntree.rewards.formula.matrices import as_vectors
from turntree.rewards.formula.parts import Parts
from turntree.rewards.formula.quantities import in_one_unit, spelled_out, unit_of, united, without_unit
from turntree.rewards.formula.syntax.nodes import (
    MINUS_ONE,
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
    Sym,
    Words,
)
from turntree.rewards.formula.syntax.problems import Suspect
from turntree.rewards.formula.syntax.walk import children, free_variables, holds, is_undone, ordered, replaced, walk
from turntree.rewards.formula.tolerance import is_rounding
from turntree.rewards.formula.units import singular
from turntree.rewards.formula.values.numeric import equal, renamed
from turntree.rewards.formula.values.realset import is_set_like, real_set
from turntree.rewards.formula.values.undone import contradicts
from turntree.rewards.formula.words import check_label, check_words
from turntree.rewards.reading import flags
from turntree.rewards.reading.scales import numeral

_ARTICLES = frozenset(str.split("the a an is are it there in of to on"))
_KINDS = frozenset(("function", "number", "integer"))  #: nouns that an answer may add: an ``odd function`` is ``odd``
_DECIMAL = 10
_NO_SETS = frozenset(("=", "~", "approx", "to", "subset", "ni"))  #: relation signs that describe no set of numbers
_POINTS = frozenset("ABCDEFGHIKLMNOPQRSTUVWXYZ")  #: Names of points.
_BRACKETS = str.maketrans({"]": ")", "[": "(", "<": "("})


#: phrases that name a value, and synonyms
_PHRASES: dict[str, Node] = {
    **dict.fromkeys(("does not exist", "doesn't exist", "do not exist", "no limit", "nonexistent"), Words(("dne",))),
    **dict.fromkeys(
        ("all real numbers", "all reals", "all real", "real numbers", "set of all real numbers"), Const("R")
    ),
    **dict.fromkeys(
        ("empty set", "no solution", "no solutions", "no real solution", "no real solutions"), Const("empty")
    ),
    "infinity": Const("inf"),
}
_BY_WORDS = {tuple(word for word in phrase.split() if word not in _ARTICLES): node for phrase, node in _PHRASES.items()}


def named_by_phrase(node: Node) -> Node:
    """Return the node that a phrase names; any other node unchanged."""
    return _BY_WORDS.get(_content(node.words), node) if isinstance(node, Words) else node


def _content(words: tuple[str, ...]) -> tuple[str, ...]:
    # An answer that consists only of articles and the like keeps its words.
    return tuple(word for word in words if word not in _ARTICLES) or words


def check_labels(gold: Node, answer: Node) -> None:
    """Raise ``Suspect`` for labels that change the answer's value, unless the gold answer has them too."""
    known = {part.words for part in walk(gold) if isinstance(part, Words)}
    for relation in walk(answer):
        for side in relation.terms if isinstance(relation, Rel) else ():
            if isinstance(side, Words) and side.words not in known:
                check_label(side.words)
            elif isinstance(side, Quantity):
                check_words(side.unit)


class Comparison(Parts):
    """Compares one answer with one gold answer; ``method`` then names the method that decided."""

    def __init__(self) -> None:
        self.method = "typed"

    def equal(self, gold: Node, answer: Node) -> bool | None:
        """Return whether an answer is right; ``None`` if neither right nor wrong could be shown.

        Raises:
            Suspect: The answer does not commit to one value.
            LimitExceeded: A value is too large.
            Undefined: The answer has no value.
            CannotEvaluate: The answer has an operation that this package does not compute.
        """
        if ordered(gold) == ordered(answer):
            return True
        gold, answer = without_domain(gold, answer)
        if isinstance(gold, Words) or isinstance(answer, Words):
            return self._words(gold, answer)
        if isinstance(answer, Rel) and set(answer.signs) == {"="}:
            answer = _without_undone(answer)
        # The answer may leave an operation such as an integral unevaluated only if the gold answer does.
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
        if isinstance(gold, Group) or isinstance(answer, Group):
            return self._group_and_value(gold, answer)
        if holds(gold, Matrix) or holds(answer, Matrix):
            return self._matrices(gold, answer)
        if isinstance(gold, Ratio) or isinstance(answer, Ratio):
            return self._ratios(gold, answer)
        return self._values(gold, answer)

    def _group_and_value(self, gold: Node, answer: Node) -> bool | None:
        if isinstance(gold, Group):
            once = distinct(gold.items) if gold.opening == "{" else gold.items
            return gold.opening in ("", "{") and len(once) == 1 and self.equal(gold.items[0], answer)
        assert isinstance(answer, Group)
        if all(self.equal(gold, item) for item in answer.items) and answer.opening in ("", "{"):
            return True
        raise Suspect(flags.CANDIDATES)

    def _values(self, gold: Node, answer: Node) -> bool | None:
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
            return False  # for example a product with the factor 0
        verdict = equal(gold, answer)
        if verdict is False and any(equal(gold, other) for other in renamed(gold, answer)):
            return True
        return verdict

    def _residues(self, gold: Node, answer: Node) -> bool | None:
        if isinstance(gold, Residue) and isinstance(answer, Residue):
            known = gold.name is not None and answer.name is not None
            if known and ordered(gold.name or gold) != ordered(answer.name or answer):
                return False
            # Congruent values differ by a multiple of the modulus.
            same = equal(gold.modulus, answer.modulus)
            turns = Mul((Add((gold.value, Mul((MINUS_ONE, answer.value)))), Pow(gold.modulus, MINUS_ONE)))
            return same and equal(turns, Call("floor", (turns,)))
        if not isinstance(answer, Residue) or not self.equal(gold, answer.value):
            return False
        return answer.name is not None or equal(answer.value, Call("mod", (answer.value, answer.modulus)))

    def _words(self, gold: Node, answer: Node) -> bool | None:
        gold, answer = named_by_phrase(_word_of_letters(gold)), named_by_phrase(_word_of_letters(answer))
        if not isinstance(gold, Words) and not isinstance(answer, Words):
            return self.equal(gold, answer)
        if isinstance(gold, Words) and isinstance(answer, Words):
            left, right = (tuple(map(singular, _content(node.words))) for node in (gold, answer))
            return left == right or (len(right) == 2 and right[1] in _KINDS and left == right[:1])
        if isinstance(answer, Words):
            check_words(" ".join(answer.words))
            if (number := numeral(" ".join(answer.words))) is not None:
                return self.equal(gold, Num(number))
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
        values = held_chain(answer, gold)
        if "approx" in answer.signs:
            exact = max(answer.signs.index("approx") + 1 - len(answer.terms) + len(values), 0)
            return self._rounded(gold, values[:exact], values[exact:])
        for other in values[1:]:
            if self.equal(values[0], other) is False:
                raise Suspect(flags.FALSE_CHAIN)
        return self.equal(gold, values[-1])

    def _rounded(self, gold: Node, exact: list[Node], rounded: list[Node]) -> bool | None:
        # In "5 is about 5.03", the approximation may be the answer only if the gold answer has decimals.
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

    def _quantities(self, gold: Node, answer: Node) -> bool | None:
        right, ours = without_unit(gold), without_unit(answer)
        dimensions = [unit.dimension if (unit := unit_of(node)) is not None else "" for node in (gold, answer)]
        values = in_one_unit(gold, answer)
        if values is None:
            return self._angles(right, ours, *dimensions)
        marked = right if dimensions[0] == "angle" else ours
        if "" in dimensions and "angle" in dimensions and Const("pi") in walk(marked):
            # A degree mark on a multiple of pi: only the same angle is equal, not the same number.
            return self._angles(right, ours, *(dimension or "radian" for dimension in dimensions))
        verdict = self.equal(*values)
        if verdict is True or all(dimensions):
            return verdict
        # One side has no percent sign: 25 % may be written as 0.25.
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
        # A bare number without pi is ambiguous: 3 may be degrees or radians.
        if not any(isinstance(part, Const) and part.name == "pi" for part in walk(plain)):
            return False
        return self.equal(
            Mul((gold, turn)) if unit == "angle" else gold, Mul((answer, turn)) if other == "angle" else answer
        )


def _without_undone(relation: Rel) -> Node:
    # A side with an unevaluated operation only labels the last side: \int_0^1 x\,dx = 1/2 is the value 1/2.
    kept = tuple(side for side in relation.terms[:-1] if side is None or not is_undone(side))
    last = relation.terms[-1]
    if last is None or is_undone(last) or len(kept) == len(relation.terms) - 1:
        return relation
    if any(side is not None and is_undone(side) and contradicts(side, last) for side in relation.terms[:-1]):
        raise Suspect(flags.FALSE_CHAIN)
    return Rel((*kept, last), ("=",) * len(kept)) if kept else last


def _named_as(gold: Node, answer: Node) -> Node:
    names = free_variables(gold), free_variables(answer)
    if len(names[0]) != 1 or len(names[1]) != 1:
        return answer
    return replaced(answer, {next(iter(names[1])): Sym(next(iter(names[0])))})


def _word_of_letters(node: Node) -> Node:
    letters = [one.name for one in node.factors if isinstance(one, Sym | Const)] if isinstance(node, Mul) else []
    whole = isinstance(node, Mul) and len(letters) == len(node.factors) and all(len(one) == 1 for one in letters)
    return Words(("".join(letters).lower(),)) if whole else node


def _in_base(gold: Based, answer: Node) -> bool:
    if isinstance(answer, Based):
        return gold.base == answer.base and gold.value == answer.value
    return isinstance(answer, Num) and answer.decimals < 0 and str(answer.value) == gold.digits.lstrip("0")
