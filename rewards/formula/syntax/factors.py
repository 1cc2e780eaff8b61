r"""Parser of factors: numbers, letters and groups with their powers, indices, marks and arguments.

A function without brackets applies to the product that follows.
"""

from __future__ import annotations

from abc import abstractmethod
from fractions import Fraction

from turntree.rewards.formula.syntax.application import CONDITIONAL, function_name, is_application
from turntree.rewards.formula.syntax.bases import based
from turntree.rewards.formula.syntax.cursor import Cursor
from turntree.rewards.formula.syntax.nodes import (
    MINUS_ONE,
    Add,
    Applied,
    Call,
    Const,
    Group,
    Mul,
    Node,
    Num,
    Pow,
    Quantity,
    Sym,
)
from turntree.rewards.formula.syntax.problems import Malformed
from turntree.rewards.formula.syntax.tokens import Token

MODULO = ("mod", "pmod", "bmod", "Mod")
FUNCTIONS = frozenset(
    str.split(
        "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh coth sech csch arcsinh arccosh arctanh "
        "ln log lg exp max min gcd lcm"
    )
)
GREEK = frozenset(
    str.split(
        "alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi rho "
        "varrho sigma tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Sigma Upsilon Phi Psi "
        "Omega ell hbar aleph angle triangle parallel perp prime nabla star ldots dots cdots"
    )
)
ACCENTS = frozenset(
    str.split("overline bar hat vec tilde overrightarrow widehat dot mathcal mathscr mathfrak underbrace")
)
#: units that may follow a micro sign
_MICRO = frozenset(["F", "C", "A", "V", "W", "H", "m", "s", "g", "L", "l", "J", "N", "T", "Hz", "Pa", "mol"])
_NO_FACTOR = frozenset("+-*/^_=<>)]},;:!%'&.?~\"#@`")
_FACTOR_COMMANDS = (
    frozenset(
        str.split(
            "frac dfrac tfrac cfrac nicefrac sfrac sqrt binom dbinom tbinom choose pi infty sum prod int lim det { "
            "langle lfloor lceil lvert | mathbb Bbb emptyset varnothing operatorname over "
            "sup dim ker arg Re Im Pr deg #"
        )
    )
    - {"choose", "over"}
    | FUNCTIONS
    | GREEK
    | ACCENTS
)


class Factors(Cursor):
    """Parses factors; ``bracketed`` parses the contents of brackets."""

    @abstractmethod
    def bracketed(self) -> Node:
        """A construct in brackets that may hold several items."""

    @abstractmethod
    def equations(self) -> Node:
        """Lines of a system of equations, after its opening command."""

    @abstractmethod
    def command(self, name: str) -> Node:
        """The node of a command or function and its arguments."""

    @abstractmethod
    def matrix(self) -> Node:
        """An environment: a matrix, or a system."""

    @abstractmethod
    def enclosed(self, closer: str, name: str) -> Node:
        """The expression between two equal signs (such as bars), as the argument of a function."""

    @abstractmethod
    def sequence(self) -> Node:
        """A list."""

    @abstractmethod
    def relation(self) -> Node:
        """A chain of relations, or an expression without one."""

    def starts_factor(self) -> bool:
        token = self.next
        if token.kind in ("num", "sym", "begin"):
            return True
        if token.kind == "word":
            return self.at_function()
        if token.kind == "op":
            if token.text == "|" and (self.bars > 0 or self.conditional or self.ahead().text == "_"):
                return False
            if token.text == "(" and self.ahead().text in MODULO:
                return False
            if token.text == "[" and self.ahead().text in ("", ",", "cup", "cap"):  # the end of ``]0,1[``
                return False
            return token.text not in _NO_FACTOR and token.text != "$"
        if token.kind != "cmd" or token.text not in _FACTOR_COMMANDS:
            return False
        if token.text in ("|", "lvert", "vert") and (self.bars > 0 or self.ahead().text == "_"):
            return False
        if token.text in ("frac", "dfrac", "tfrac") and self.at_unit_fraction():
            return False
        return not (token.text == "mu" and self.ahead().kind == "word" and self.ahead().text in _MICRO)

    def at_unit_fraction(self) -> bool:
        # Whether a unit that is a fraction follows: \frac{\text{mi}}{\text{h}}.
        braced = self.at("frac", "dfrac", "tfrac") and self.ahead().text == "{"
        return braced and self.ahead(2).kind == "word" and not self.at_function(2)

    def at_function(self, distance: int = 0) -> bool:
        # min and sec are units if no argument follows.
        token = self.ahead(distance)
        name = token.text.lower()
        if token.kind != "word":
            return False
        if name in ("min", "max", "gcd", "lcm", "sec"):
            return self.ahead(distance + 1).text in ("(", "{", "^", "_")
        return name in FUNCTIONS or token.text in ("sqrt", "pi")

    def factor(self) -> Node:
        token = self.next
        with self.nested():
            node = self.atom()
        while self.position < len(self.tokens):
            if (applied := self.application(node)) is not None:
                node = applied
            elif self.at("^"):
                node = self._power(node)
            elif self.at("_"):
                self.take()
                node = _indexed(node, token, self.argument_text())
            elif self.at("!") and (self.ahead().text != "=" or self._is_factorial(node)):
                self.take()
                node = Call("factorial", (node,))
            elif self.at("%"):
                self.take()
                return Quantity(node, "%")
            elif self.at("circ") and isinstance(node, Sym) and self.ahead().kind == "sym":
                node = Applied(self.take().text, (node, self.factor()))
            elif self.accept("circ", "degree"):
                node = self._degrees(node)
            elif self.at("|", "vert") and self.ahead().text == "_":
                self.position += 2
                node = Applied("at", (node, Sym(self.argument_text())))
            elif self.at("'") and isinstance(node, Sym):
                self.take()
                node = Sym(node.name + "'")
            elif self.next.kind == "word" and self.next.text in ("deg", "degrees", "degree"):
                self.take()
                node = self._degrees(node)
            else:
                return node
        return node

    def _is_factorial(self, node: Node) -> bool:
        # In "5!=120" and "n!=..." the mark is a factorial; elsewhere != is a relation.
        known = isinstance(node, Num) or node == Sym("n")
        return known and not self.next.spaced and self.tokens[self.position - 1].kind in ("num", "sym")

    def _degrees(self, whole: Node) -> Node:
        # Arc minutes and seconds may follow.
        parts = [whole]
        for size, marks in ((60, 1), (3600, 2)):
            token, start = self.next, self.position
            if token.kind != "num" or token.value is None:
                break
            self.take()
            primes = self._primes()
            if primes != marks:
                self.position = start
                break
            parts.append(Num(token.value / size))
        return Quantity(whole if len(parts) == 1 else Add(tuple(parts)), "deg")

    def _primes(self) -> int:
        count = 0
        while True:
            if self.at("'"):
                self.position += 1
                count += 1
            elif self.at('"'):
                self.position += 1
                count += 2
            elif self.at("^") and self.ahead().text == "prime":
                self.position += 2
                count += 1
            elif self.at("^") and self.ahead().text == "{" and self.ahead(2).text == "prime":
                self.position += 2
                while self.accept("prime"):
                    count += 1
                self.expect("}")
            else:
                return count

    def application(self, node: Node) -> Node | None:
        # Brackets are parsed once and the result kept for either reading: parsing twice would take exponential time.
        name = function_name(node)
        braced = self.next.kind == "op" and self.at("{") and self.ahead().text == "("
        if not name or not (braced or self.at("(", "[")) or self.position in self.bracketed_at:
            return None
        if self.at("[") and name not in CONDITIONAL:
            return None
        start, beside = self.position, self.position > 1 and self.tokens[self.position - 2].kind == "sym"
        conditional, self.conditional = self.conditional, name in CONDITIONAL
        with self.nested():
            inner = self.group() if braced else self.bracketed()
        self.conditional = conditional
        if braced or self.tokens[self.position - 1].text in (")", "]"):
            args = inner.items if isinstance(inner, Group) and inner.opening in ("(", "[") else (inner,)
            if name in self.functions or is_application(name, args, beside=beside):
                return Applied(name, args)
        self.bracketed_at[start] = (inner, self.position)
        self.position = start
        return None

    def _power(self, base: Node) -> Node:
        self.take()
        if self.at("prime") or (self.at("{") and self.ahead().text == "prime"):
            self.position -= 1
            primes = self._primes()
            return Sym(base.name + "'" * primes) if isinstance(base, Sym) else Quantity(base, "deg")
        if self.accept("circ", "degree"):
            return self._degrees(base)
        if self.at("{") and self.ahead().text == "circ" and self.ahead(2).text == "}":
            self.position += 3
            return self._degrees(base)
        braced = self.at("{") and self.ahead(2).text == "}"
        ends = self.ahead().text in ("", "=", "<", ">", ")", ",", "}", "le", "ge")
        if isinstance(base, Sym) and self.ahead(int(braced)).text == "*" and (braced or ends):
            self.position += 3 if braced else 1
            return Sym(f"{base.name}*")
        with self.nested():
            exponent = self.argument()
            if self.at("^"):
                exponent = self._power(exponent)
            elif self.accept("!"):
                exponent = Call("factorial", (exponent,))
        return Pow(base, exponent)

    def argument(self, *, one_digit: bool = False) -> Node:
        if self.at("{"):
            return self.group()
        if self.accept("-"):
            return negated(self.argument())
        token = self.next
        # TeX takes a single digit as an argument: \frac12 is 1/2, so the token is split.
        if one_digit and token.kind == "num" and len(token.text) > 1 and token.text.isdigit():
            self.tokens[self.position] = Token("num", token.text[1:], False, Fraction(int(token.text[1:])))
            return Num(Fraction(int(token.text[0])))
        with self.nested():
            return self.atom()

    def argument_text(self) -> str:
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
        token = self.next
        if token.kind == "num":
            self.take()
            assert token.value is not None
            return Num(token.value, token.decimals)
        if token.kind == "sym":
            self.take()
            return Const(token.text) if token.text in ("e", "i") and token.text not in self.bound else Sym(token.text)
        if token.kind == "begin":
            return self.matrix()
        if self.at_function():
            return self.command(self.take().text.lower())
        if token.kind == "op":
            # ``application`` has parsed these brackets already.
            if (known := self.bracketed_at.pop(self.position, None)) is not None:
                self.position = known[1]
                return known[0]
            if token.text == "{":
                return self.group()
            if token.text in "([":
                return self.bracketed()
            if token.text == "|":
                return self.enclosed("|", "abs")
        if token.kind == "cmd":
            if token.text in ("{", "langle"):
                return self.bracketed()
            return self.command(self.take().text)
        raise Malformed(f"expected a value, got {token.text!r}")


def negated(node: Node) -> Node:
    if isinstance(node, Num):
        return Num(-node.value, node.decimals)
    if isinstance(node, Quantity):
        return Quantity(negated(node.value), node.unit)
    return Mul((MINUS_ONE, node))


def _indexed(node: Node, token: Token, index: str) -> Node:
    if isinstance(node, Num):
        return based(token.text.replace(",", "").lower(), index)
    if isinstance(node, Sym | Const):
        return Sym(f"{node.name}_{index}")
    raise Malformed("an index after something that takes none")
