"""Parser of answers: lists, relations, sets, and quantities.

Text that is not a well-formed answer raises ``Malformed``. The parser never guesses what it might mean.
"""

from __future__ import annotations

import re
from functools import lru_cache

from turntree.rewards.formula.syntax.bases import read_based
from turntree.rewards.formula.syntax.characters import HALF_OF_DAY
from turntree.rewards.formula.syntax.factors import MODULO
from turntree.rewards.formula.syntax.nodes import (
    MINUS_ONE,
    Add,
    Builder,
    Call,
    Const,
    Group,
    Mul,
    Node,
    Num,
    Ratio,
    Rel,
    Residue,
    SetOp,
    Words,
)
from turntree.rewards.formula.syntax.nouns import can_be_noun
from turntree.rewards.formula.syntax.problems import Malformed
from turntree.rewards.formula.syntax.quantities import CONDITIONS, JOINS, RELATIONS, Quantities, worded
from turntree.rewards.formula.syntax.tokens import tokenize
from turntree.rewards.limits import MAX_ELEMENTS, LimitExceeded
from turntree.rewards.reading.scales import numeral

_SETS = {"cup": "cup", "cap": "cap", "setminus": "minus", "backslash": "minus", "bigcup": "cup"}
_WORDS = re.compile(r"\s*(?:\\text(?:bf|it|rm)?\s*\{)?\s*([A-Za-z][a-z -]{1,80}?)\s*\}?\s*\.?\s*")
_ARTICLE = re.compile(
    r"the (?=(?:positive |principal |square |cube )*root\b|"
    r"(?:square|cube|reciprocal|negative|opposite|(?:additive |multiplicative )?inverse) of\b)"
)
_FEET = re.compile(r"""\s*(\d+)\s*'\s*(\d+(?:\.\d+)?)\s*(?:"|'')\s*""")
_ORDINAL = re.compile(r"(?<=\d)(?:st|nd|rd|th)s?(?![A-Za-z])")
_HALF_LINE = re.compile(r"\\mathbb\s*\{?R\}?\s*(?:\^|_)\s*\{?\s*(\+|-|>\s*0|<\s*0|\\geq?\s*0|\\leq?\s*0)\s*\}?")
_HALVES = {
    **dict.fromkeys(("+", ">0"), r"(0,\infty)"), **dict.fromkeys(("-", "<0"), r"(-\infty,0)"),
    **dict.fromkeys((r"\ge0", r"\geq0"), r"[0,\infty)"), **dict.fromkeys((r"\le0", r"\leq0"), r"(-\infty,0]"),
}  # fmt: skip
_AND_PART = re.compile(r"(?<![\d.,/])(\d+) and (?:a |one[ -])(half|third|quarter|fourth|fifth|sixth|eighth|tenth)\b")
_PARTS = {"half": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "eighth": 8, "tenth": 10}
_LONGEST_UNIT = 2  #: words after a number in words
_BRACKETS = {"(": ")", "[": "]", "{": "}", "langle": "rangle", "]": "["}


@lru_cache(maxsize=256)  # the gold answer is parsed again for every answer of its task
def parse(text: str, *, thousands: bool = True, letters: bool = False) -> Node:
    """Parse an answer into a syntax tree.

    Args:
        text: The answer, LaTeX or plain, without the box.
        thousands: Parse ``1,234`` as one number outside of brackets.
        letters: Parse letters outside of text commands as products, functions and names, never as words or units.

    Raises:
        LimitExceeded: The answer is too large.
        Suspect: The answer contains hidden text.
        Malformed: The answer is not well-formed.
    """
    text = _ORDINAL.sub("", HALF_OF_DAY.sub(r"\1m", text))
    if "mathbb" in text:
        text = _HALF_LINE.sub(lambda match: _HALVES[match[1].replace(" ", "")], text)
    if "'" in text and (feet := _FEET.fullmatch(text)) is not None:
        text = f"{feet[1]} ft {feet[2]} in"
    if text.startswith("the "):
        text = _ARTICLE.sub("", text)
    if " and " in text:
        text = _AND_PART.sub(lambda match: f"{match[1]} 1/{_PARTS[match[2]]}", text)
    if (words := _WORDS.fullmatch(text)) and (value := _worded_numeral(words[1])) is not None:
        return value
    if (numeral_in_base := read_based(text)) is not None:
        return numeral_in_base
    parser = Parser(tokenize(text, thousands=thousands, letters=letters))
    node = parser.sequence()
    while parser.accept(".", ",", ";", ":"):
        pass
    if parser.position < len(parser.tokens):
        raise Malformed(f"unexpected {parser.next.text!r}")
    return node


def _worded_numeral(text: str) -> Node | None:
    # A number in words, with a noun or a unit: five thousand dollars.
    words = text.split()
    for end in range(len(words), max(len(words) - _LONGEST_UNIT, 1) - 1, -1):
        if (number := numeral(" ".join(words[:end]))) is not None:
            after = words[end:]
            return worded([], Num(number), after) if all(map(can_be_noun, after)) else None
    return None


class Parser(Quantities):
    _congruent = False

    def sequence(self) -> Node:
        items = [self.relation()]
        word = ""
        while True:
            separated = self._at_condition()
            while self.at(",", ";", "&", "land", "lor", "wedge", "vee") or self._at_word(*JOINS):
                separated = True
                word = JOINS.get(self.take().text.lower(), word)
            if not separated or self.position >= len(self.tokens):
                break
            while self.next.kind == "word" and self.next.text.lower() in CONDITIONS:
                self.take()
            items.append(self.relation())
            if len(items) > MAX_ELEMENTS:
                raise LimitExceeded(f"more than {MAX_ELEMENTS} elements")
        return items[0] if len(items) == 1 else Group(congruent(items), word=word)

    def relation(self) -> Node:
        first = None if self._relation_sign() else self.set()
        # In ":=", the colon is no ratio but defines a name. In braces, ":" begins a condition.
        proportion = self.at(":") and self.ahead().text not in ("", "=") and not self.in_braces
        proportion = proportion or self._at_word("to")
        terms: list[Node | None] = [first]
        signs: list[str] = []
        if proportion and isinstance(first, Words) and self.accept(":"):
            terms.append(self._side())
            signs.append("=")
        elif proportion and first is not None:
            terms = [self._ratio(first)]
        while (sign := self._relation_sign()) is not None:
            self._congruent = self.take().text == "equiv"
            if sign == "not":
                sign = "!="
                if self._relation_sign() is None:
                    terms.append(self.set())
                    signs.append(sign)
                    continue
                self.take()
            if sign in ("<", ">") and self.accept("="):
                sign += "="
            elif sign == "!=" and self.at("="):
                self.take()
            signs.append(sign)
            terms.append(self._side())
        if (modulus := self._modulus()) is not None:
            return residue(terms, signs, modulus)
        # In "x \equiv a mod m" the modulus belongs to the congruence, not to a.
        if signs and isinstance(last := terms[-1], Call) and last.name == "mod" and self._congruent:
            return residue([*terms[:-1], last.args[0]], signs, last.args[1])
        if not signs:
            assert terms[0] is not None
            return terms[0]
        if terms[0] is None and signs == ["="]:
            value = terms[1]
            assert value is not None
            return value
        return Rel(tuple(terms), tuple(signs))

    def _modulus(self) -> Node | None:
        # Notations: \pmod 5, (mod 5), mod 5.
        opened = self.at("(") and self.ahead().text in MODULO
        if not opened and self.next.text not in MODULO:
            return None
        self.position += 2 if opened else 1
        modulus = self.sum() if opened else self.factor()
        if opened:
            self.expect(")")
        return modulus

    def _side(self) -> Node:
        side = self.set()
        return self._ratio(side) if self.at(":") and not self.in_braces else side

    def _ratio(self, first: Node) -> Node:
        items = [first]
        while self.accept(":") or self._accept_word("to"):
            items.append(self.set())
        return Ratio(tuple(items))

    def set(self) -> Node:
        node = without_elements(self.quantity())
        while self.next.kind == "cmd" and self.next.text in _SETS:
            sign = _SETS[self.take().text]
            node = SetOp(sign, node, self.quantity())
        return node

    def equations(self) -> Node:
        self._join_lines()
        items = [self.relation()]
        while self.next.kind != "end":
            self.expect("\\", "cr", ",", ";")
            if self.next.kind != "end":
                items.append(self.relation())
        self.take()
        return Group(tuple(items), word="and") if len(items) > 1 else items[0]

    def _join_lines(self) -> None:
        # A line that begins with a relation continues the line before it.
        end = next(
            (at for at in range(self.position, len(self.tokens)) if self.tokens[at].kind == "end"), len(self.tokens)
        )
        line = [token for token in self.tokens[self.position : end] if token.text != "&" or token.kind != "op"]
        kept = [
            token
            for at, token in enumerate(line)
            if not (token.text in ("\\", "cr") and (at + 1 == len(line) or line[at + 1].text in RELATIONS))
        ]
        self.tokens[self.position : end] = kept

    def bracketed(self) -> Node:
        if self.at("{") and self.ahead().kind == "begin":
            self.position += 2
            lines = self.equations()
            self.accept("}")
            return lines
        opening = self.take().text
        bars, self.bars = self.bars, 0
        in_braces, self.in_braces = self.in_braces, opening == "{"
        conditional, self.conditional = self.conditional and opening != "{", False
        with self.nested():
            if opening == "{" and self.accept("}"):
                self.bars, self.in_braces, self.conditional = bars, in_braces, conditional
                return Const("empty")
            self.conditional = conditional or opening == "{"
            items = [self.relation()]
            words = ""
            condition: Node | None = None
            while not self.at(")", "]", "}", "rangle", "["):
                if opening == "{" and self.accept("mid", "|", ":"):
                    condition = self.sequence()
                    break
                if self.accept("mid") or (conditional and self.accept("|", "vert")):
                    words = "mid"
                elif self._at_word(*JOINS):
                    words = JOINS[self.take().text.lower()]
                else:
                    self.expect(",", ";")
                    if self._at_word(*JOINS):
                        self.take()
                items.append(self.relation())
                if len(items) > MAX_ELEMENTS:
                    raise LimitExceeded(f"more than {MAX_ELEMENTS} elements")
            closing = self.take().text
        self.bars, self.in_braces, self.conditional = bars, in_braces, conditional
        if closing not in (")", "]", "}", "rangle", "["):
            raise Malformed(f"expected a closing bracket, got {closing!r}")
        if condition is not None:
            return Builder(items[0] if len(items) == 1 else Group(tuple(items), "(", ")"), condition)
        if opening == "{" and items and isinstance(items[0], Ratio) and len(items) == 1:
            return Group(tuple(items), "{", "}")
        paired = _BRACKETS[opening] == closing
        if len(items) == 1:
            if not paired:
                raise Malformed("brackets of two kinds around one value")
            return Group(tuple(items), "{", "}") if opening == "{" else items[0]
        if opening in ("{", "langle") and not paired:
            raise Malformed("brackets of two kinds")
        return Group(tuple(items), opening, closing, words)


def residue(terms: list[Node | None], signs: list[str], modulus: Node) -> Node:
    value = terms[-1]
    assert value is not None
    if isinstance(value, Residue) or not set(signs) <= {"~", "="}:
        raise Malformed("a modulus after something that is no congruence")
    return Residue(terms[0] if signs else None, value, modulus)


def congruent(items: list[Node]) -> tuple[Node, ...]:
    # A modulus after the last item applies to all items before it that have none.
    last = items[-1]
    if not isinstance(last, Residue) or any(isinstance(item, Residue) for item in items[:-1]):
        return tuple(items)
    name, values = last.name, []
    for item in items[:-1]:
        if isinstance(item, Rel) and len(item.signs) == 1 and item.signs[0] in "=~":
            name, item = item.terms[0], item.terms[1] or item
        values.append(item)
    return tuple(Residue(name, value, last.modulus) for value in (*values, last.value))


def without_elements(node: Node) -> Node:
    # Turn R - {2}, parsed as a difference of numbers, into a difference of sets.
    match node:
        case Add((Const("R" | "Z" | "N" | "Q" | "C") as left, Mul((minus, Group(_, "{", "}", _) as right)))):
            return SetOp("minus", left, right) if minus == MINUS_ONE else node
    return node
