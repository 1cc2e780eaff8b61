"""Comparison of values with several parts: sets and intervals, lists, tuples, matrices, ratios.

A missing or an additional element is always a difference.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from fractions import Fraction
from itertools import combinations

from turntree.rewards.formula.equations import compare_relations
from turntree.rewards.formula.labels import as_range, labelled
from turntree.rewards.formula.lists import by_name, distinct, items_of
from turntree.rewards.formula.matrices import as_matrix
from turntree.rewards.formula.syntax.nodes import Applied, Const, Group, Mul, Node, Num, Ratio, Rel, SetOp, Sym
from turntree.rewards.formula.syntax.problems import CannotEvaluate, Suspect, Undefined
from turntree.rewards.formula.syntax.walk import free_variables, ordered
from turntree.rewards.formula.values.numeric import equal
from turntree.rewards.formula.values.realset import is_set_like, real_set, same_set
from turntree.rewards.reading import flags


class Parts(ABC):
    @abstractmethod
    def equal(self, gold: Node, answer: Node) -> bool | None:
        """Return whether an answer is right; ``None`` if neither right nor wrong could be shown."""

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
        if len(gold.items) == 2 and not answer.opening and {"[", "]"} & {gold.opening, gold.closing}:
            return False  # an interval
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
        # One different part makes the whole different. One ungraded part leaves the rest ungraded.
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
        if gold.opening or len(distinct(right)) == len(right):  # without brackets, a value named twice counts twice
            right, ours = distinct(right), distinct(ours)
        if len(right) != len(ours):
            if len(right) == 1:
                raise Suspect(flags.CANDIDATES)
            return False
        # Match each gold item with the first equal item; equality is nearly transitive, so greedy matching suffices.
        remaining = list(ours)
        for item in right:
            for index, other in enumerate(remaining):
                if self._same_item(item, other):
                    del remaining[index]
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
        sides = [node.items if isinstance(node, Ratio) else (node, Num(Fraction(1))) for node in (gold, answer)]
        right, ours = sides
        if len(right) != len(ours):
            return False
        # 0 : 0 is no ratio; by cross products, 0 : 0 would equal every ratio.
        if any(all(equal(part, Num(Fraction(0))) is True for part in side) for side in sides):
            return False
        if len(right) == 2 and equal(right[1], Num(Fraction(0))) is True:
            return isinstance(gold, Ratio) and self._in_order(right, ours)  # a time of the day
        return all(
            equal(Mul((right[one], ours[other])), Mul((right[other], ours[one]))) is True
            for one, other in combinations(range(len(right)), 2)
        )


def _is_member(relation: Rel) -> bool:
    return relation.terms[0] is None or isinstance(relation.terms[0], Sym | Applied)
