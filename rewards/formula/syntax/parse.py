"""Parser of answers: lists, relations, sets, quantities, words around expressions of ``terms`` and ``commands``.

Invariant: reading is bounded by the limits and runs nothing. A text that is no well-formed answer raises
``Malformed``; it is never read as something similar.
"""

from __future__ import annotations

import re

from turntree.rewards.formula.syntax.commands import Commands
from turntree.rewards.formula.syntax.nodes import Based, Const, Group, Node, Num, Ratio, Rel, SetOp, Words
from turntree.rewards.formula.syntax.plain import HALF_OF_DAY
from turntree.rewards.formula.syntax.problems import Malformed
from turntree.rewards.formula.syntax.terms import negated
from turntree.rewards.formula.syntax.tokens import tokenize
from turntree.rewards.formula.syntax.worded import worded
from turntree.rewards.limits import MAX_ELEMENTS, LimitExceeded
from turntree.rewards.reading.scales import numeral

_RELATIONS = {
    "=": "=", "<": "<", ">": ">", "lt": "<", "gt": ">", "le": "<=", "leq": "<=", "leqslant": "<=", "ge": ">=",
    "geq": ">=", "geqslant": ">=", "ne": "!=", "neq": "!=", "approx": "~", "sim": "~", "simeq": "~", "in": "in",
    "equiv": "~", "cong": "~", "to": "~", "rightarrow": "~", "Rightarrow": "~", "implies": "~", "subset": "~",
    "subseteq": "~", "propto": "~", "notin": "!=",
}  # fmt: skip
_SETS = {"cup": "cup", "cap": "cap", "setminus": "minus", "backslash": "minus", "bigcup": "cup"}
_MONEY = {"$": "$", "euro": "\u20ac", "pounds": "\u00a3", "pound": "\u00a3"}
_LETTER_DIGITS = re.compile(r"\s*([0-9A-Za-z]{1,60})_\{?\s*(?:\\text\s*\{\s*)?([0-9]{1,2})\s*\}{0,2}\s*")
_WORDS = re.compile(r"\s*(?:\\text(?:bf|it|rm)?\s*\{)?\s*([A-Za-z][a-z -]{1,80}?)\s*\}?\s*\.?\s*")
_BRACKETS = {"(": ")", "[": "]", "{": "}", "langle": "rangle", "]": "["}


def parse(text: str, *, thousands: bool = True) -> Node:
    """The syntax tree of an answer.

    Args:
        text: The answer, LaTeX or plain, without the box.
        thousands: Read ``1,234`` as one number where no bracket is open.

    Raises:
        LimitExceeded: The answer is too large.
        Suspect: The answer hides something.
        Malformed: The answer is not well-formed.
    """
    text = HALF_OF_DAY.sub(r"\1m", text)
    if (words := _WORDS.fullmatch(text)) and (number := numeral(words[1])) is not None:
        return Num(number)
    if (match := _LETTER_DIGITS.fullmatch(text)) and not match[1].isdigit() and match[1][0].isdigit():
        base = int(match[2])
        if 11 <= base <= 36 and all(int(digit, 36) < base for digit in match[1]):
            return Based(match[1].lower(), base)
    parser = Parser(tokenize(text, thousands=thousands))
    node = parser.sequence()
    while parser.accept(".", ",", ";", ":"):
        pass
    if parser.place < len(parser.tokens):
        raise Malformed(f"unexpected {parser.next.text!r}")
    return node


class Parser(Commands):
    """Parses whole answers."""

    def sequence(self) -> Node:
        """A list with commas, "and" or "or" between its items."""
        items = [self.relation()]
        word = ""
        while True:
            separated = False
            while self.at(",", ";", "&", "land", "lor", "wedge", "vee") or self._at_word("and", "or"):
                text = self.take().text.lower()
                separated = True
                word = {"land": "and", "wedge": "and", "&": "and", "lor": "or", "vee": "or"}.get(
                    text, text if text in ("and", "or") else word
                )
            if not separated or self.place >= len(self.tokens):
                break
            items.append(self.relation())
            if len(items) > MAX_ELEMENTS:
                raise LimitExceeded(f"more than {MAX_ELEMENTS} elements")
        return items[0] if len(items) == 1 else Group(tuple(items), word=word)

    def relation(self) -> Node:
        """A chain of relations, a proportion, or an expression without one."""
        first = None if self._relation_sign() else self.set()
        proportion = (self.at(":") and self.place + 1 < len(self.tokens) and not self.in_braces) or self._at_word("to")
        if proportion and first is not None:
            first = self._ratio(first)
        terms: list[Node | None] = [first]
        signs: list[str] = []
        while (sign := self._relation_sign()) is not None:
            self.take()
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
            right = self.set()
            terms.append(self._ratio(right) if self.at(":") else right)
        if not signs:
            assert first is not None
            return first
        if terms[0] is None and signs == ["="]:
            value = terms[1]
            assert value is not None
            return value
        return Rel(tuple(terms), tuple(signs))

    def _relation_sign(self) -> str | None:
        token = self.next
        if token.kind not in ("op", "cmd"):
            return None
        if token.text in ("not", "lnot", "neg"):
            return "not"
        if token.text == "!" and self.ahead().text == "=":
            return "!="
        if token.text == "~" and token.kind == "op":
            return "~"
        return _RELATIONS.get(token.text)

    def _ratio(self, first: Node) -> Node:
        items = [first]
        while self.accept(":") or self._accept_word("to"):
            items.append(self.set())
        return Ratio(tuple(items))

    def set(self) -> Node:
        """Unions, intersections and differences, or an expression without one."""
        node = self.quantity()
        while self.next.kind == "cmd" and self.next.text in _SETS:
            sign = _SETS[self.take().text]
            node = SetOp(sign, node, self.quantity())
        return node

    def quantity(self) -> Node:
        """A value with its unit and the words around it, or words alone."""
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
        return worded(before, node, after) if before or after else node

    def _ends_quantity(self) -> bool:
        token = self.next
        if token.kind in ("end of text", "end") or self._at_word("and", "or"):
            return True
        return self.at(",", ";", ")", "]", "}", ".", ":", "&", "?", "\\") or self._relation_sign() is not None

    def _words(self) -> list[str]:
        words: list[str] = []
        while self.next.kind == "word" and not self._at_word("and", "or") and not self.at_function():
            words.append(self.take().text.lower())
            while words and self.at(".", "'", '"', "?") and self.ahead().kind == "word":
                self.take()
        return words

    def _unit(self) -> list[str]:
        unit: list[str] = []
        while True:
            token = self.next
            if self._at_word("and", "or") or self.at_function() or (self._at_word("to") and self.ahead().kind == "num"):
                return unit
            if token.kind == "word":
                unit.append(self.take().text)
            elif token.kind in ("op", "cmd") and token.text in _MONEY:
                unit.append(_MONEY[self.take().text])
            elif self.at("mu") and self.ahead().kind == "word":
                self.take()
                unit.append("\u00b5")
            elif unit and self.at("^"):
                self.take()
                negative = self.at("{") and self.ahead().text == "-"
                unit.append("^" + ("-" if negative else "") + self.argument_text().lstrip("-"))
            elif unit and self.at("/") and self.ahead().kind in ("word", "sym"):
                self.take()
                unit += ["/", self.take().text]
            elif unit and self.at("cdot", "*", "-") and self.ahead().kind in ("word", "sym"):
                self.take()
            elif unit and token.kind == "num" and token.decimals < 0 and self.tokens[self.place - 1].kind == "word":
                raise Malformed("a number behind words")
            elif unit and self.at(".", "'") and self.ahead().kind in ("word", "end of text"):
                self.take()
            elif unit and self.at("(") and self.ahead().kind == "word":
                self.take()
                unit += self._words()
                self.expect(")")
            else:
                return unit

    def _accept_word(self, word: str) -> bool:
        if self._at_word(word):
            self.place += 1
            return True
        return False

    def _at_word(self, *words: str) -> bool:
        return self.next.kind == "word" and self.next.text.lower() in words

    def equations(self) -> Node:
        """Lines of a system of equations, after its opening command."""
        items = [self.relation()]
        while self.next.kind != "end":
            self.expect("\\", "cr", "&", ",", ";")
            if self.next.kind != "end":
                items.append(self.relation())
        self.take()
        return Group(tuple(items), word="and")

    def bracketed(self) -> Node:
        """The contents of brackets: one expression, or a tuple, an interval, a set."""
        if self.at("{") and self.ahead().kind == "begin":
            self.place += 2
            lines = self.equations()
            self.accept("}")
            return lines
        opening = self.take().text
        bars, self.bars = self.bars, 0
        in_braces, self.in_braces = self.in_braces, opening == "{"
        with self.nested():
            if opening == "{" and self.accept("}"):
                self.bars, self.in_braces = bars, in_braces
                return Const("empty")
            items = [self.relation()]
            words = ""
            condition: Node | None = None
            while not self.at(")", "]", "}", "rangle", "["):
                if opening == "{" and self.accept("mid", "|", ":"):
                    condition = self.sequence()
                    break
                if self._at_word("and", "or"):
                    words = self.take().text
                else:
                    self.expect(",", ";")
                    if self._at_word("and", "or"):
                        self.take()
                items.append(self.relation())
                if len(items) > MAX_ELEMENTS:
                    raise LimitExceeded(f"more than {MAX_ELEMENTS} elements")
            closing = self.take().text
        self.bars, self.in_braces = bars, in_braces
        if closing not in (")", "]", "}", "rangle", "["):
            raise Malformed(f"expected a closing bracket, got {closing!r}")
        if condition is not None:
            return condition
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
