from __future__ import annotations

from fractions import Fraction

from turntree.rewards.formula.syntax.application import OPERATIONS
from turntree.rewards.formula.syntax.factors import Factors, negated
from turntree.rewards.formula.syntax.nodes import (
    MINUS_ONE,
    Add,
    Applied,
    Call,
    Const,
    Mul,
    Node,
    Num,
    Pow,
    Quantity,
    Rel,
    Signed,
)
from turntree.rewards.formula.syntax.problems import Malformed


class Terms(Factors):
    def sum(self) -> Node:
        terms: list[Node] = []
        while True:
            sign = self._signs()
            if sign is None and terms:
                return terms[0] if len(terms) == 1 else Add(tuple(terms))
            term = self.product()
            if sign == "-":
                term = negated(term)
            elif sign in ("pm", "mp"):
                term = Signed(1 if sign == "pm" else -1, term)
            terms.append(term)

    def _signs(self) -> str | None:
        sign = None
        while self.at("+", "-", "pm", "mp"):
            text = self.take().text
            if sign in (None, "+"):
                sign = text
            elif sign == "-" and text in "+-":
                sign = "-" if text == "+" else "+"
            elif text != "+":
                raise Malformed("two signs in a row")
        return sign

    def product(self) -> Node:
        first = self.next
        factors = [self.factor()]
        while True:
            token = self.next
            if self.position >= len(self.tokens):
                return _product(factors)
            if self.accept("*", "cdot", "times", "ast", "cdotp", "bullet"):
                factors.append(self._signed_factor())
            elif self.at(*OPERATIONS):
                left = _product(factors)
                factors = [Applied(self.take().text, (left, self.factor()))]
            elif self.accept("bmod"):
                left = _product(factors)
                factors = [Call("mod", (left, self.factor()))]
            elif self.accept("/", "div"):
                factors.append(Pow(self._divisor(), MINUS_ONE))
            elif self.starts_factor():
                if token.kind == "num" and isinstance(factors[-1], Num):
                    factors = [self._mixed(factors)]
                    continue
                last = factors[-1]
                named = factors == [Const("pi")] or (isinstance(last, Quantity) and last.unit != "%")
                if token.kind == "num" and token.spaced and not named:
                    raise Malformed("two numbers side by side")
                whole = len(factors) == 1 and first.kind == "num" and self.tokens[self.position - 1] is first
                start = self.position
                factor = self.factor()
                if isinstance(factor, Rel):  # a condition in brackets
                    self.bracketed_at[start] = (factor, self.position)
                    self.position = start
                    return _product(factors)
                value = factor.value if isinstance(factor, Quantity) else factor
                part = _fraction(value) if whole else None
                doubtful = token.text == "{" or (first.text == "1" and token.text != "d")  # 1 d: an integral of 1
                if whole and part is None and token.spaced and doubtful:
                    raise Malformed("two values side by side")
                if part is not None:
                    if not 0 < part < 1 or not first.value or first.value.denominator != 1:
                        raise Malformed("neither a mixed number nor a product")
                    mixed = Add((factors[0], value))
                    factors = [Quantity(mixed, factor.unit) if isinstance(factor, Quantity) else mixed]
                else:
                    factors.append(factor)
            else:
                return _product(factors)

    def _mixed(self, factors: list[Node]) -> Node:
        # 2 1/3 is a mixed number. Any other two numbers in a row are refused.
        whole, top = factors[-1], self.take()
        if len(factors) == 1 and isinstance(whole, Num) and whole.decimals < 0 and top.spaced and self.accept("/"):
            bottom = self.take()
            values = (top.value, bottom.value)
            if values[0] is not None and values[1] is not None and 0 < values[0] < values[1]:
                return Add((whole, Mul((Num(values[0]), Pow(Num(values[1]), MINUS_ONE)))))
        raise Malformed("two numbers side by side")

    def _signed_factor(self) -> Node:
        if self.accept("-"):
            return negated(self.factor())
        self.accept("+")
        return self.factor()

    def _divisor(self) -> Node:
        # Letters after a slash without a blank between them form one divisor: t/RC.
        node = self._signed_factor()
        while self.next.kind == "sym" and not self.next.spaced and self.tokens[self.position - 1].kind == "sym":
            node = Mul((node, self.factor()))
        return node


def _product(factors: list[Node]) -> Node:
    return factors[0] if len(factors) == 1 else Mul(tuple(factors))


def _fraction(node: Node) -> Fraction | None:
    match node:
        case Mul((Num(top, -1), Pow(Num(bottom, -1), exponent))) if exponent == MINUS_ONE and bottom:
            return top / bottom
    return None
