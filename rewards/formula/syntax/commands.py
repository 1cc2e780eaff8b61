"""Parser of commands: functions, roots, sums, matrices and everything else that begins with a backslash.

A command that is not listed is refused, never skipped.
"""

from __future__ import annotations

from fractions import Fraction

from turntree.rewards.formula.syntax.factors import ACCENTS, FUNCTIONS, GREEK, negated
from turntree.rewards.formula.syntax.nodes import (
    HALF,
    MINUS_ONE,
    Applied,
    Big,
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
    Rel,
    Sym,
    Undone,
    Words,
)
from turntree.rewards.formula.syntax.problems import Malformed
from turntree.rewards.formula.syntax.terms import Terms

_NAMED = frozenset(str.split("sup dim ker arg Re Im Pr deg hom rank tr trace sgn ord card Var Cov # argmax argmin dom"))
_CLOSERS = {"(": ")", "lfloor": "rfloor", "lceil": "rceil", "lvert": "rvert", "vert": "vert", "|": "|"}
_SYSTEMS = frozenset(str.split("cases aligned align gathered gather split eqnarray alignat alignedat dcases"))
_MATRICES = frozenset(str.split("matrix pmatrix bmatrix Bmatrix smallmatrix array vmatrix Vmatrix"))


class Commands(Terms):
    def enclosed(self, closer: str, name: str) -> Node:
        self.take()
        self.bars += 1
        with self.nested():
            node = self.relation()
        self.bars -= 1
        self.expect(closer)
        return Call(name, (node,))

    def command(self, name: str) -> Node:
        if name in ("frac", "dfrac", "tfrac", "cfrac", "nicefrac", "sfrac"):
            return self._fraction()
        if name == "sqrt":
            degree: Node | None = None
            if self.accept("["):
                degree = self.sum()
                self.expect("]")
            radicand = self.argument()
            return Pow(radicand, HALF if degree is None else Pow(degree, MINUS_ONE))
        if name in ("binom", "dbinom", "tbinom"):
            return Call("binom", (self.argument(one_digit=True), self.argument(one_digit=True)))
        if name in FUNCTIONS:
            return self._function(name)
        if name in ("pi", "infty", "inf"):
            return Const("pi" if name == "pi" else "inf")
        if name in ("sum", "prod"):
            return self._big(name)
        if name in ("int", "iint", "oint"):
            limits = self._limits()
            return Undone("int", (*limits, self.sum()))
        if name == "lim":
            return Undone("lim", (*self._limits(), self.product()))
        if name == "det":
            return Undone("det", (self.factor(),))
        if name in ("lfloor", "lceil", "lvert", "vert", "|"):
            self.position -= 1
            kind = {"lfloor": "floor", "lceil": "ceil", "|": "norm"}.get(name, "abs")
            return self.enclosed(_CLOSERS[name], kind)
        if name in _NAMED:
            return self._named(name)
        if name in ("mathbb", "Bbb"):
            return Const(self.argument_text())
        if name in ("R", "Z", "N", "Q"):
            return Const(name)
        if name in ("emptyset", "varnothing"):
            return Const("empty")
        if name in ACCENTS:
            return Sym(f"{name}({self.argument_text()})")
        if name in ("angle", "triangle") and self.next.kind == "sym":
            letters = ""
            while self.next.kind == "sym":
                letters += self.take().text
            return Sym(name + letters)
        if name in GREEK:
            return Sym(name)
        raise Malformed(f"unknown command {name!r}")

    def _fraction(self) -> Node:
        top, bottom = self.argument(one_digit=True), self.argument(one_digit=True)
        if top == Sym("d") and isinstance(bottom, Mul) and bottom.factors[0] == Sym("d"):
            return Undone("diff", (bottom, self.product()))
        if isinstance(top, Quantity) and isinstance(bottom, Words):
            return Quantity(top.value, f"{top.unit} / {' '.join(bottom.words)}")
        return Mul((top, Pow(bottom, MINUS_ONE)))

    def _named(self, name: str) -> Node:
        # Functions that stay symbolic: \sup S, \Re(z), \Pr[X=1]. Brackets that were refused as an argument are a
        # factor.
        node = self.application(Sym(name))
        if node is not None or self.position in self.bracketed_at:
            return node if node is not None else Applied(name, (self.factor(),))
        index = (Sym(self.argument_text()),) if self.accept("_") else ()
        return Applied(name, (*index, self.factor())) if self.starts_factor() else Sym(name)

    def _limits(self) -> tuple[Node, ...]:
        limits: list[Node] = []
        while self.at("_", "^"):
            self.take()
            limits.append(self.group() if self.at("{") else self.argument())
        return tuple(limits)

    def _big(self, kind: str) -> Node:
        low: Node | None = None
        high: Node | None = None
        while self.at("_", "^"):
            below = self.take().text == "_"
            limit = self.group() if self.at("{") else self.argument()
            low, high = (limit, high) if below else (low, limit)
        if not (isinstance(low, Rel) and low.signs == ("=",) and high is not None):
            return Undone(kind, tuple(part for part in (low, high, self.product()) if part is not None))
        index, first = low.terms
        name = index.name if isinstance(index, Sym | Const) else ""
        if not name or first is None:
            raise Malformed("a sum needs an index")
        self.bound.append(name)
        body = self.product()
        self.bound.pop()
        return Big(kind, name, first, high, body)

    def _function(self, name: str) -> Node:
        power: Node | None = None
        base: Node | None = None
        while self.at("^", "_"):
            if self.take().text == "^":
                power = self.argument()
            else:
                base = self.argument()
        inverse = power == MINUS_ONE
        if inverse and name in ("sin", "cos", "tan"):
            name, power = "arc" + name, None
        args = self._arguments(name)
        if name == "exp":
            node: Node = Pow(Const("e"), args[0])
        elif name == "lg":
            node = Call("log", (args[0], Num(Fraction(10))))
        elif name == "log":
            node = Call("log", (args[0], base if base is not None else Num(Fraction(10))))
        else:
            node = Call(name, args)
        return node if power is None else Pow(node, power)

    def _arguments(self, name: str) -> tuple[Node, ...]:
        with self.nested():
            if self.at("(", "[", "{"):
                inner = self.bracketed() if not self.at("{") else self.group()
                if isinstance(inner, Group):
                    if name in ("max", "min", "gcd", "lcm"):
                        return inner.items
                    raise Malformed(f"{name} takes one argument")
                if self.at("^") and name not in ("max", "min", "gcd", "lcm"):
                    return (inner,)
                return (inner,)
            negative = self.accept("-")
            factors = [self.factor()]
            while self.starts_factor() and not self._starts_function():
                factors.append(self.factor())
            node = factors[0] if len(factors) == 1 else Mul(tuple(factors))
            return (negated(node) if negative else node,)

    def _starts_function(self) -> bool:
        return self.next.kind in ("cmd", "word") and self.next.text.lower() in FUNCTIONS

    def _cases(self) -> Node:
        start = self.position
        while self.next.kind != "end" and not self.at("&"):
            self.take()
        by_cases, self.position = self.at("&"), start
        if not by_cases:
            return self.equations()
        rows: list[tuple[Node, Node]] = []
        while self.next.kind != "end":
            value = self.relation()
            self.accept(",", ";")
            self.expect("&")
            while self.next.kind == "word" and self.next.text.lower() in ("if", "for", "when", "where", "and"):
                self.take()
            rows.append((value, self.sequence()))
            if self.next.kind != "end":
                self.expect("\\", "cr")
        self.take()
        return Cases(tuple(rows))

    def matrix(self) -> Node:
        name = self.take().text
        if name in _SYSTEMS:
            return self.equations() if name != "cases" else self._cases()
        if name not in _MATRICES:
            raise Malformed(f"unknown environment {name!r}")
        rows: list[tuple[Node, ...]] = []
        entries: list[Node] = []
        with self.nested():
            while self.next.kind != "end":
                if self.at("hline"):
                    self.take()
                    continue
                entries.append(self.relation())
                if self.accept("&"):
                    continue
                rows.append(tuple(entries))
                entries = []
                if self.next.kind != "end":
                    self.expect("\\", "cr")
        self.take()
        if not rows or any(len(row) != len(rows[0]) for row in rows):
            raise Malformed("rows of unequal length")
        matrix = Matrix(tuple(rows))
        return Undone("det", (matrix,)) if name in ("vmatrix", "Vmatrix") else matrix
