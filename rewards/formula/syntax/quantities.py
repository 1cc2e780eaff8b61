"""Parser of values with units and words. Every word belongs to the unit, scales the value, or ends the value."""

from __future__ import annotations

from fractions import Fraction

from turntree.rewards.formula.syntax.commands import Commands
from turntree.rewards.formula.syntax.factors import MODULO, negated
from turntree.rewards.formula.syntax.nodes import MINUS_ONE, Add, Call, Mul, Node, Num, Pow, Quantity, Rel, Words
from turntree.rewards.formula.syntax.problems import Malformed
from turntree.rewards.formula.syntax.walk import free_variables
from turntree.rewards.reading.scales import ASKING, CHANGING, OPERATIONS, SCALES, changes_unknown

RELATIONS = {
    "=": "=", "<": "<", ">": ">", "lt": "<", "gt": ">", "le": "<=", "leq": "<=", "leqslant": "<=", "ge": ">=",
    "geq": ">=", "geqslant": ">=", "ne": "!=", "neq": "!=", "in": "in",
    "approx": "approx", "sim": "approx", "simeq": "approx",
    "equiv": "~", "cong": "~", "to": "to", "rightarrow": "to", "Rightarrow": "to", "implies": "to",
    "subset": "subset", "subseteq": "subset", "propto": "~", "notin": "!=", "leqq": "<=", "geqq": ">=", "ni": "ni",
    "iff": "~",
}  # fmt: skip
_MONEY = {"$": "$", "euro": "\u20ac", "pounds": "\u00a3", "pound": "\u00a3", "cent": "\u00a2"}
CONDITIONS = ("for", "where", "when", "if", "with", "provided")
#: how a sign or a word of English, German or French joins two conditions
JOINS = dict.fromkeys(("land", "wedge", "&", "and", "und", "et"), "and") | dict.fromkeys(
    ("lor", "vee", "or", "oder", "ou"), "or"
)


class Quantities(Commands):
    def quantity(self) -> Node:
        before = self._words()
        if self._ends_quantity() and not (self.at("]") and not before and self.depth == 0):
            if not before:
                raise Malformed(f"expected a value, got {self.next.text!r}")
            return Words(tuple(before))
        negative = self.at("-") and self.ahead().text in _MONEY
        if negative:
            self.take()
        if self.next.kind in ("op", "cmd") and self.next.text in _MONEY:
            before.append(_MONEY[self.take().text])
        node = self.bracketed() if self.at("]") else self.sum()
        if negative:
            node = negated(node)
        after = self._unit()
        if not after:
            return worded(before, node, after) if before else node
        if [word.lower() for word in after] == ["out", "of"] and self.next.kind == "num":
            return worded(before, Mul((node, Pow(self.sum(), MINUS_ONE))), self._unit())
        found = worded(before, node, after)
        parts = [found]
        while isinstance(parts[-1], Quantity) and self.next.kind == "num" and isinstance(node, Num):
            node = self.factor()
            parts.append(worded([], node, self._unit()))
            if not isinstance(parts[-1], Quantity):
                raise Malformed("a number after words")
        return found if len(parts) == 1 else Add(tuple(parts))

    def _ends_quantity(self) -> bool:
        token = self.next
        if token.kind in ("end of text", "end") or self._at_word(*JOINS):
            return True
        return self.at(",", ";", ")", "]", "}", ".", ":", "&", "?", "\\", "mid") or self._relation_sign() is not None

    def _words(self) -> list[str]:
        words: list[str] = []
        while self.next.kind == "word" and not self._at_word(*JOINS) and not self.at_function():
            words.append(self.take().text.lower())
            while words and self.at(".", "'", '"', "?") and self.ahead().kind == "word":
                self.take()
        return words

    def _unit(self) -> list[str]:
        unit: list[str] = []
        while self.position < len(self.tokens):
            token = self.next
            if self._at_word(*JOINS) or self.at_function() or (self._at_word("to") and self.ahead().kind == "num"):
                return unit
            if token.text in MODULO or self._at_verb() or (self._at_word(*CONDITIONS) and self._at_condition()):
                return unit
            if token.kind == "word":
                unit.append(self.take().text)
            elif token.kind in ("op", "cmd") and token.text in _MONEY:
                unit.append(_MONEY[self.take().text])
            elif not unit and self.at_unit_fraction():
                self.take()
                unit += [*self._unit_part(), "/", *self._unit_part()]
            elif self.at("mu") and self.ahead().kind == "word":
                self.take()
                unit.append("\u00b5" + self.take().text)
            elif unit and self.at("^"):
                self.take()
                negative = self.at("{") and self.ahead().text == "-"
                unit.append("^" + ("-" if negative else "") + self.argument_text().lstrip("-"))
            elif unit and self.at("/") and self.ahead().kind in ("word", "sym"):
                self.take()
                unit += ["/", self.take().text]
            elif unit and (
                (self.at("cdot", "*", "-") and self.ahead().kind in ("word", "sym"))
                or (self.at(".", "'") and self.ahead().kind in ("word", "end of text"))
            ):
                self.take()
            elif unit and self.at("(") and self.ahead().kind == "word":
                self.take()
                unit += self._words()
                self.expect(")")
            else:
                return unit
        return unit

    def _unit_part(self) -> list[str]:
        self.expect("{")
        part = [self.take().text] if self.next.kind == "sym" and self.ahead().text == "}" else self._unit()
        self.expect("}")
        return part

    def _relation_sign(self) -> str | None:
        token = self.next
        if self._at_verb():
            return "="
        if token.kind not in ("op", "cmd"):
            return None
        if token.text in ("not", "lnot", "neg"):
            return "not"
        if token.text == "!" and self.ahead().text == "=":
            return "!="
        if token.text == ":" and self.ahead().text == "=" and not self.ahead().spaced:
            self.take()
            return "="
        if token.text == "~" and token.kind == "op":
            return "~"
        return RELATIONS.get(token.text)

    def _at_condition(self) -> bool:
        # Whether a condition follows: a relation in brackets, or after "for" or "where".
        if self.at("("):
            known = self.bracketed_at.get(self.position)
            return known is not None and isinstance(known[0], Rel)
        return self._at_word(*CONDITIONS) and self.ahead().kind in ("sym", "num", "cmd", "op")

    def _at_verb(self) -> bool:
        # Whether a verb follows that gives the words before it a value: half of 14 is 7.
        kinds = [token.kind for token in self.tokens[self.position + 1 : self.position + 3]]
        return self._at_word("is", "equals") and (kinds[:1] == ["num"] or kinds == ["end of text", "num"])

    def _accept_word(self, word: str) -> bool:
        if self._at_word(word):
            self.position += 1
            return True
        return False

    def _at_word(self, *words: str) -> bool:
        return self.next.kind == "word" and self.next.text.lower() in words


_EXPONENTS = {"square": "2", "cube": "3", "root": "1/2", "cube root": "1/3", "reciprocal": "-1"}
_OF_UNITS = frozenset(("square", "sq", "cubic"))
_CURRENCIES = frozenset("$\u20ac\u00a3")


def worded(before: list[str], node: Node, after: list[str]) -> Node:
    """Apply the words before and after a value.

    Raises:
        Malformed: A word may change the value in an unknown way.
    """
    if not free_variables(node):
        node, before = _operated(before, node)
        node, after = _scaled(node, after)
    unit = " ".join((*before, *after)).strip()
    return Quantity(node, unit) if unit else node


def _operated(before: list[str], node: Node) -> tuple[Node, list[str]]:
    signs = [word for word in before if word in _CURRENCIES]
    words = " ".join(word for word in before if word not in _CURRENCIES).removesuffix(" the")
    if words.split()[:1] and words.split()[0] in ASKING:
        raise Malformed("a question")
    while words:
        for pattern, operation in reversed(OPERATIONS):
            if (match := pattern.search(words)) is not None:
                words = words[: match.start()].strip().removesuffix(" the").removesuffix("the")
                node = _applied(operation, node)
                break
        else:
            break
    if changes_unknown(words):
        raise Malformed(f"words that may change a value: {words!r}")
    return node, [*words.split(), *signs]


def _applied(operation: str, node: Node) -> Node:
    if operation == "negated":
        return Mul((MINUS_ONE, node)) if not isinstance(node, Num) else Num(-node.value, node.decimals)
    if operation in _EXPONENTS:
        return Pow(node, Num(Fraction(_EXPONENTS[operation])))
    return Mul((Num(Fraction(operation)), node))


def _scaled(node: Node, after: list[str]) -> tuple[Node, list[str]]:
    rest = list(after)
    while rest:
        word = rest[0].lower()
        if word in SCALES:
            node = Mul((Num(SCALES[word]), node))
        elif word in ("squared", "cubed"):
            node = Pow(node, Num(Fraction(2 if word == "squared" else 3)))
        elif word == "factorial":
            node = Call("factorial", (node,))
        else:
            break
        del rest[0]
    lower = [word.lower() for word in rest]
    if lower != ["times"] and not all(_belongs(lower, index) for index in range(len(lower))):
        raise Malformed(f"words that may change a value: {' '.join(rest)!r}")
    return node, rest


def _belongs(words: list[str], index: int) -> bool:
    # Of the words that change a value, only power words (squared, cubic) can belong to the unit beside them.
    word = words[index]
    power = (word in _OF_UNITS and index + 1 < len(words)) or (word in ("squared", "cubed") and index > 0)
    return power or word not in CHANGING
