r"""Sums, products, powers and everything that has a value.

Invariant: the parser builds nodes and computes nothing. Implicit products bind like explicit ones, ``2\frac12``
is a mixed number, functions without brackets take the product that follows.
"""

from __future__ import annotations

from abc import abstractmethod
from fractions import Fraction

from turntree.rewards.formula.cursor import Cursor
from turntree.rewards.formula.nodes import (
    Add,
    Based,
    Big,
    Call,
    Const,
    Group,
    Matrix,
    Mul,
    Node,
    Num,
    Pow,
    Quantity,
    Rel,
    Signed,
    Sym,
    Undone,
)
from turntree.rewards.formula.problems import Malformed
from turntree.rewards.formula.tokens import Token

MINUS_ONE = Num(Fraction(-1))
HALF = Num(Fraction(1, 2))
FUNCTIONS = frozenset(
    str.split("sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh ln log lg exp max min gcd lcm")
)
_GREEK = frozenset(
    str.split(
        "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho "
        "varrho sigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Sigma Upsilon Phi Psi "
        "Omega ell hbar aleph angle triangle parallel perp prime nabla star ldots dots cdots"
    )
)
_ACCENTS = frozenset(
    str.split("overline bar hat vec tilde overrightarrow widehat dot mathcal mathscr mathfrak underbrace")
)
_CLOSERS = {"(": ")", "lfloor": "rfloor", "lceil": "rceil", "lvert": "rvert", "vert": "vert", "|": "|"}
_BASES = {"two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8, "nine": 9, "ten": 10}
_MATRICES = frozenset(str.split("matrix pmatrix bmatrix Bmatrix smallmatrix array vmatrix Vmatrix"))
_NO_FACTOR = frozenset(
    [
        "+",
        "-",
        "*",
        "/",
        "^",
        "_",
        "=",
        "<",
        ">",
        ")",
        "]",
        "}",
        ",",
        ";",
        ":",
        "!",
        "%",
        "'",
        "&",
        ".",
        "?",
        "~",
        '"',
        "#",
        "@",
        "`",
    ]
)
_FACTOR_COMMANDS = (
    frozenset(
        str.split(
            "frac dfrac tfrac cfrac nicefrac sfrac sqrt binom dbinom tbinom choose pi infty sum prod int lim det { "
            "langle lfloor lceil lvert | mathbb emptyset varnothing operatorname over"
        )
    )
    - {"choose", "over"}
    | FUNCTIONS
    | _GREEK
    | _ACCENTS
)


class Terms(Cursor):
    """Parses expressions; what stands in brackets is parsed by ``bracketed``."""

    @abstractmethod
    def bracketed(self) -> Node:
        """What begins with a bracket that may hold several things."""

    @abstractmethod
    def equations(self) -> Node:
        """Lines of a system of equations, after the command that begins it."""

    @abstractmethod
    def relation(self) -> Node:
        """A chain of relations, or what has none."""

    def sum(self) -> Node:
        """Terms with signs between them."""
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
        """Factors, written out or side by side."""
        first = self.next
        factors = [self.factor()]
        while True:
            token = self.next
            if self.accept("*", "cdot", "times", "ast", "cdotp", "bullet"):
                factors.append(self._signed_factor())
            elif self.accept("bmod", "mod", "pmod"):
                left = factors[0] if len(factors) == 1 else Mul(tuple(factors))
                factors = [Call("mod", (left, self.factor()))]
            elif self.accept("/", "div"):
                factors.append(Pow(self._signed_factor(), MINUS_ONE))
            elif self._starts_factor():
                if token.kind == "num" and isinstance(factors[-1], Num):
                    factors = [self._mixed(factors)]
                    continue
                whole = len(factors) == 1 and first.kind == "num" and self.tokens[self.place - 1] is first
                factor = self.factor()
                if whole and _is_part(factor) and first.value is not None and first.value.denominator == 1:
                    factors = [Add((factors[0], factor))]
                else:
                    factors.append(factor)
            else:
                return factors[0] if len(factors) == 1 else Mul(tuple(factors))

    def _mixed(self, factors: list[Node]) -> Node:
        """A number behind a number: ``2 1/3`` is a mixed number, anything else no value."""
        whole, top = factors[-1], self.take()
        if len(factors) == 1 and isinstance(whole, Num) and whole.decimals < 0 and top.spaced and self.accept("/"):
            bottom = self.take()
            values = (top.value, bottom.value)
            if values[0] is not None and values[1] is not None and 0 < values[0] < values[1]:
                return Add((whole, Num(values[0] / values[1])))
        raise Malformed("two numbers side by side")

    def _signed_factor(self) -> Node:
        if self.accept("-"):
            return negated(self.factor())
        self.accept("+")
        return self.factor()

    def _starts_factor(self) -> bool:
        token = self.next
        if token.kind in ("num", "sym", "begin"):
            return True
        if token.kind == "word":
            return self.at_function()
        if token.kind == "op":
            return token.text not in _NO_FACTOR and not (token.text == "|" and self.bars > 0) and token.text != "$"
        if token.kind == "cmd" and token.text in ("|", "lvert", "vert") and self.bars > 0:
            return False
        return token.kind == "cmd" and token.text in _FACTOR_COMMANDS

    def at_function(self) -> bool:
        """Whether a function without backslash is ahead; ``min`` and ``sec`` may be units."""
        token, name = self.next, self.next.text.lower()
        if token.kind != "word":
            return False
        if name in ("min", "max", "gcd", "lcm", "sec"):
            return self.ahead().text in ("(", "{", "^", "_")
        return name in FUNCTIONS or token.text in ("sqrt", "pi")

    def factor(self) -> Node:
        """One factor with its powers, indices, factorials and marks."""
        token = self.next
        with self.nested():
            node = self.atom()
        while True:
            if self.at("^"):
                node = self._power(node)
            elif self.at("_"):
                self.take()
                node = _indexed(node, token, self.argument_text())
            elif self.at("!") and self.ahead().text != "=":
                self.take()
                node = Call("factorial", (node,))
            elif self.at("%"):
                self.take()
                return Quantity(node, "%")
            elif self.accept("circ", "degree"):
                node = Quantity(node, "deg")
            elif self.at("'") and isinstance(node, Sym):
                self.take()
                node = Sym(node.name + "'")
            elif self.next.kind == "word" and self.next.text in ("deg", "degrees", "degree"):
                self.take()
                node = Quantity(node, "deg")
            else:
                return node

    def _power(self, base: Node) -> Node:
        self.take()
        if self.accept("circ", "prime", "degree"):
            return Quantity(base, "deg")
        if self.at("{") and self.ahead().text in ("circ", "prime") and self.ahead(2).text == "}":
            self.place += 3
            return Quantity(base, "deg")
        with self.nested():
            exponent = self.argument()
            if self.at("^"):
                exponent = self._power(exponent)
            elif self.accept("!"):
                exponent = Call("factorial", (exponent,))
        return Pow(base, exponent)

    def argument(self, *, one_digit: bool = False) -> Node:
        """What a command or an exponent takes: a group, or the next sign."""
        if self.at("{"):
            return self.group()
        if self.accept("-"):
            return negated(self.argument())
        token = self.next
        if one_digit and token.kind == "num" and len(token.text) > 1 and token.text.isdigit():
            self.tokens[self.place] = Token("num", token.text[1:], False, Fraction(int(token.text[1:])))
            return Num(Fraction(int(token.text[0])))
        with self.nested():
            return self.atom()

    def argument_text(self) -> str:
        """The letters and digits of an index."""
        if not self.accept("{"):
            return self.take().text.lower() if self.next.kind == "word" else self.take().text
        texts: list[str] = []
        level = 1
        while True:
            token = self.take()
            level += (token.text == "{") - (token.text == "}")
            if level == 0:
                return "".join(texts).strip("()")
            texts.append(token.text)

    def group(self) -> Node:
        """What stands in LaTeX braces."""
        self.expect("{")
        with self.nested():
            node = self.relation()
            if self.accept("over"):
                node = Mul((node, Pow(self.relation(), MINUS_ONE)))
            elif self.accept("choose"):
                node = Call("binom", (node, self.relation()))
            if self.at(","):
                items = [node]
                while self.accept(","):
                    items.append(self.relation())
                node = Group(tuple(items), "{", "}")
            self.expect("}")
        return node

    def atom(self) -> Node:
        """Something without marks behind it."""
        token = self.next
        if token.kind == "num":
            self.take()
            assert token.value is not None
            return Num(token.value, token.decimals)
        if token.kind == "sym":
            self.take()
            return Const(token.text) if token.text in ("e", "i") and token.text not in self.bound else Sym(token.text)
        if token.kind == "begin":
            return self._matrix()
        if self.at_function():
            return self._command(self.take().text.lower())
        if token.kind == "op":
            if token.text == "{":
                return self.group()
            if token.text in "([":
                return self.bracketed()
            if token.text == "|":
                return self._enclosed("|", "abs")
        if token.kind == "cmd":
            if token.text in ("{", "langle"):
                return self.bracketed()
            return self._command(self.take().text)
        raise Malformed(f"expected a value, got {token.text!r}")

    def _enclosed(self, closer: str, name: str) -> Node:
        self.take()
        self.bars += 1
        with self.nested():
            node = self.relation()
        self.bars -= 1
        self.expect(closer)
        return Call(name, (node,))

    def _command(self, name: str) -> Node:
        if name in ("frac", "dfrac", "tfrac", "cfrac", "nicefrac", "sfrac"):
            top, bottom = self.argument(one_digit=True), self.argument(one_digit=True)
            if top == Sym("d") and isinstance(bottom, Mul) and bottom.factors[0] == Sym("d"):
                return Undone("diff", (bottom, self.product()))
            return Mul((top, Pow(bottom, MINUS_ONE)))
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
            self.place -= 1
            kind = {"lfloor": "floor", "lceil": "ceil"}.get(name, "abs")
            return self._enclosed(_CLOSERS[name], kind)
        if name == "mathbb":
            return Const(self.argument_text())
        if name in ("emptyset", "varnothing"):
            return Const("empty")
        if name in _ACCENTS:
            return Sym(f"{name}({self.argument_text()})")
        if name in ("angle", "triangle") and self.next.kind == "sym":
            letters = ""
            while self.next.kind == "sym":
                letters += self.take().text
            return Sym(name + letters)
        if name in _GREEK:
            return Sym(name)
        raise Malformed(f"unknown command {name!r}")

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
        inverse = power == MINUS_ONE or power == Num(Fraction(-1)) or power == negated(Num(Fraction(1)))
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
            while self._starts_factor() and not self._starts_function():
                factors.append(self.factor())
            node = factors[0] if len(factors) == 1 else Mul(tuple(factors))
            return (negated(node) if negative else node,)

    def _starts_function(self) -> bool:
        return self.next.kind in ("cmd", "word") and self.next.text.lower() in FUNCTIONS

    def _matrix(self) -> Node:
        name = self.take().text
        if name == "cases":
            return self.equations()
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


def negated(node: Node) -> Node:
    """The node with a minus before it."""
    if isinstance(node, Num):
        return Num(-node.value, node.decimals)
    if isinstance(node, Quantity):
        return Quantity(negated(node.value), node.unit)
    return Mul((MINUS_ONE, node))


def _is_part(node: Node) -> bool:
    """Whether a node is a fraction below one, as stands behind the whole of a mixed number."""
    match node:
        case Mul((Num(top, -1), Pow(Num(bottom, -1), exponent))) if exponent == MINUS_ONE:
            return top.denominator == bottom.denominator == 1 and 0 < top < bottom
    return False


def _indexed(node: Node, token: Token, index: str) -> Node:
    if isinstance(node, Num):
        base = _BASES.get(index) or (int(index) if index.isdigit() and len(index) < 3 else 0)
        if not 2 <= base <= 36:
            raise Malformed(f"a number with the index {index!r}")
        digits = token.text.replace(",", "").lower()
        if any(not digit.isalnum() or int(digit, 36) >= base for digit in digits):
            raise Malformed(f"{digits} is no number in base {base}")
        return Based(digits, base)
    if isinstance(node, Sym | Const):
        return Sym(f"{node.name}_{index}")
    raise Malformed("an index behind something that takes none")
