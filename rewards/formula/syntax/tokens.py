r"""Tokenizer of LaTeX and plain text, in linear time.

Hidden text (phantoms, white ink, zero-width characters, comments) is refused, not skipped.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from turntree.rewards.formula.syntax.characters import normalized
from turntree.rewards.formula.syntax.nouns import ABBREVIATIONS, can_be_noun
from turntree.rewards.formula.syntax.problems import Malformed, Suspect
from turntree.rewards.limits import MAX_ANSWER, MAX_DIGITS, MAX_TOKENS, LimitExceeded
from turntree.rewards.reading import flags


class Token(NamedTuple):
    kind: str  #: ``num``, ``sym`` (one letter), ``word``, ``cmd`` (without backslash), ``op``, ``begin`` or ``end``
    text: str  #: as written
    spaced: bool = False  #: whether a blank precedes the token
    value: Fraction | None = None  #: value of a number
    decimals: int = -1  #: digits of a number after the point


_DOT = r"\\dot\s*(?:\{(\d)\}|(\d))"
_DOTTED = re.compile(rf"(\d*)\.(\d*){_DOT}(\d*){_DOT}")
_REPEATING = re.compile(r"(\d*)\.(\d*)(?:\\(?:overline|bar|dot)\s*(?:\{(\d+)\}|(\d))|\((\d+)\))")
_ELLIPSIS = re.compile(r"(\d*)\.(\d*?)((\d{1,6}?)\4{2,}|(\d{2,6})\5)(?:\\[cl]?dots|\.\.\.)")
_THOUSANDS = re.compile(r"(?!0)(?:\d{1,3}(?:,(?:\\,)?\d{3})+|\d{1,2}(?:,\d{2})+,\d{3})(?![\d,]\d|\d)(?:\.\d+)?")
_GROUPED = re.compile(r"(?!0)\d{1,3}(?:( )\d{3}(?: \d{3})*|(')\d{3}(?:'\d{3})*)(?![\d']|\s*[/\d]|\s*\\frac)(?:\.\d+)?")
_NUMBER = re.compile(r"\d+\.\d+|\.\d+|\d+\.(?![.\d])|\d+")
_SCIENTIFIC = re.compile(r"(\d+(?:\.\d+)?|\.\d+)[eE]([+-]?\d{1,6})(?![\d.A-Za-z])")
_TEXT = re.compile(
    r"\\(?:text(?:bf|it|rm|normal|sf|tt|up|md|sc|sl)?|mbox|hbox|mathrm|operatorname\*?|rm|bf)\s*"
    r"\{((?:[^{}]|\{[^{}]*\})*)\}"
)
_TEXT_SPACING = re.compile(r"~|\\(?:[,;:! ]|q?quad(?![a-zA-Z]))|\\")
_COMMAND = re.compile(r"\\([a-zA-Z]+)\*?|\\(.)", re.DOTALL)
_ENVIRONMENT = re.compile(r"\\(begin|end)\s*\{([a-zA-Z]+)\*?\}(?:\s*(?:\{[lcr|\s]*\}|\[[lcr]\]))*")
_UNIT_LETTERS = frozenset("msghNJWVKLlAFCT")
_LETTERS = re.compile(r"[A-Za-z]+")
_SPACING = frozenset(
    str.split(
        "quad qquad left right bigm Bigm Big big bigg Bigg bigl bigr Bigl Bigr biggl biggr Biggl Biggr displaystyle "
        "textstyle limits nolimits mathstrut strut left. right. space enspace thinspace medspace thickspace "
        "negthinspace negmedspace negthickspace "
        "large Large LARGE huge Huge small normalsize "
        "nonumber middle mathit mathbf boldsymbol bm mathsf mathtt mathnormal pmb underline boxed bold rm bf "
        "it tt sf emph scriptstyle allowbreak nobreak hfill relax therefore because"
    )
)
#: commands that stand for a sign or a letter
_SAME = {
    "lbrace": "{", "rbrace": "}", "Vert": "|", "lVert": "|", "rVert": "|", "colon": ":", "lbrack": "[", "rbrack": "]",
    "lparen": "(", "rparen": ")", "mathord": "", "imath": "i", "jmath": "j",
}  # fmt: skip
#: function names as sympy prints them or other countries write them
_PRINTED = {
    "asin": "arcsin", "acos": "arccos", "atan": "arctan", "tg": "tan", "ctg": "cot", "cosec": "csc", "arctg": "arctan",
    "sh": "sinh", "ch": "cosh", "th": "tanh", "asinh": "arcsinh", "acosh": "arccosh", "atanh": "arctanh",
    "arsinh": "arcsinh", "arcosh": "arccosh", "artanh": "arctanh", "oo": "infty", "inf": "infty", "infinity": "infty",
}  # fmt: skip
KNOWN_WORDS = frozenset(
    str.split(
        "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh coth sech csch ln log exp sqrt max min gcd lcm "
        "det arcsinh arccosh arctanh lim "
        "and or deg mod pi infty inf cm mm km kg mg ml hz pm am mph kmh kph units unit ways degrees dollars "
        "cents to ft in hr min sec"
    )
)


#: the next function or letter in a run of letters
_INSIDE = re.compile(
    "(arc(?:sinh?|cosh?|tanh?)|a(?:sinh?|cosh?|tanh?)|(?:sin|cos|tan|cot)h?|sech|csch|sqrt|log|exp|ln)|([A-Za-z])"
)
_GREEK_WORDS = frozenset(
    str.split(
        "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi rho sigma tau phi chi psi omega pi "
        "Gamma Delta Theta Lambda Sigma Phi Psi Omega"
    )
)
_LONGEST_PRODUCT = 5  #: a longer run of letters is a word


def tokenize(text: str, *, thousands: bool = True, letters: bool = False) -> list[Token]:
    """Split an answer into tokens.

    Args:
        text: The answer.
        thousands: Read ``1,234`` as one number outside of brackets.
        letters: Read letters outside of text commands as products, functions and names: ``hr``, ``xsinx``, ``theta``.

    Raises:
        LimitExceeded: The text has too many characters, tokens or digits.
        Suspect: The text contains hidden text.
        Malformed: A character is not mathematics.
    """
    if len(text) > MAX_ANSWER:
        raise LimitExceeded(f"{len(text)} characters")
    text = text.strip()
    if flags.HIDDEN.search(text) or flags.PHANTOM_COMMAND.search(text):
        raise Suspect(flags.PHANTOM)
    text = _without_math_signs(normalized(text))
    tokens: list[Token] = []
    _read(text, tokens, thousands, in_text=False, letters=letters)
    if not letters:
        _name_unit(tokens)
    if len(tokens) > MAX_TOKENS:
        raise LimitExceeded(f"{len(tokens)} tokens")
    return tokens


def _name_unit(tokens: list[Token]) -> None:
    # A letter at the end, after a number, is a unit: 0.64N, 5 m.
    if len(tokens) > 1 and tokens[-1][:3] == ("word", "mg", False) and tokens[-2].kind != "word":
        tokens[-1:] = [Token("sym", "m"), Token("sym", "g")]  # mass times gravity, not milligrams
    if len(tokens) < 2 or tokens[-1].kind != "sym":
        if len(tokens) > 3 and tokens[-1].kind == "word":
            _name_larger_units(tokens)
        return
    before, (_, letter, spaced, _, _) = tokens[:-1], tokens[-1]
    alone = all(token.kind != "sym" for token in before)
    exponent = len(before) > 1 and before[-2].text == "^"
    measured = alone if exponent or before[-1].text == "}" else before[-1].kind == "num"
    if measured and letter in ("mgLNJWVKtsh" if spaced else "NJWV" if before[-1].decimals > 0 else ""):
        tokens[-1] = Token("word", letter, spaced)


def _name_larger_units(tokens: list[Token]) -> None:
    # A letter between two numbers is a unit if the last number has a unit: 1 h 30 min.
    for index in range(1, len(tokens) - 2):
        letter, after = tokens[index], tokens[index + 1]
        beside = tokens[index - 1].kind == after.kind == "num" and letter.spaced and after.spaced
        if beside and letter.kind == "sym" and letter.text in "hmsgL":
            tokens[index] = letter._replace(kind="word")


def _without_math_signs(text: str) -> str:
    # Pairs of dollar signs delimit mathematics; a single dollar sign is money.
    for sign in ("\\(", "\\)", "\\["):
        text = text.replace(sign, " ")
    text = re.sub(r"(?<!\\)\\\](?!\s*\d)", " ", text)
    bare = re.findall(r"(?<!\\)\$", text)
    if bare and len(bare) % 2 == 0 and not re.match(r"-?\$\d[\d,.]*\s*(?:,|and|or)", text):
        text = re.sub(r"(?<!\\)\$", " ", text)
    return text


def _read(text: str, tokens: list[Token], thousands: bool, *, in_text: bool, letters: bool = False) -> None:
    position, depth, spaced, end = 0, 0, False, len(text)
    while position < end:
        character = text[position]
        if character.isspace():
            spaced, position = True, position + 1
            continue
        if character.isascii() and (
            character.isdigit() or (character == "." and text[position + 1 : position + 2].isdigit())
        ):
            position = _read_number(text, position, tokens, spaced, thousands and depth == 0)
        elif character == "\\":
            position = _read_command(text, position, tokens, spaced, thousands)
        elif letters and character.isalpha() and character.isascii():
            position = _read_product(text, position, tokens, spaced)
        elif character.isalpha() and character.isascii():
            position = _read_letters(text, position, tokens, spaced, in_text)
        elif character in "+-*/^_=<>()[]{}|,;:!%'&.$?~\"#@`":
            depth += (character in "([{") - (character in ")]}")
            if character == "." and text.startswith("...", position):
                tokens.append(Token("cmd", "ldots", spaced))
                position += 3
            elif character == "*" and text.startswith("**", position):
                tokens.append(Token("op", "^", spaced))
                position += 2
            else:
                if character == "%" and text[position + 1 : position + 2].isalnum():  # a comment to LaTeX
                    raise Suspect(flags.PHANTOM)
                if character != "~":
                    tokens.append(Token("op", character, spaced))
                position += 1
        else:
            raise Malformed(f"unexpected character {character!r}")
        spaced = character == "~"


def _read_number(text: str, position: int, tokens: list[Token], spaced: bool, thousands: bool) -> int:
    for pattern in (_DOTTED, _REPEATING, _ELLIPSIS):
        if match := pattern.match(text, position):
            whole, fixed, *cycles = match.groups(default="")
            cycle = "".join(cycles if pattern is not _ELLIPSIS else cycles[1:])
            _check_digits(match[0])
            value = Fraction(int(whole + fixed + cycle) - int(whole + fixed), 10 ** len(fixed) * (10 ** len(cycle) - 1))
            tokens.append(Token("num", match[0], spaced, value))
            return match.end()
    if scientific := _SCIENTIFIC.match(text, position):
        _check_digits(scientific[0])
        exponent = int(scientific[2])
        if abs(exponent) > MAX_DIGITS:
            raise LimitExceeded(f"exponent {exponent}")
        decimals = len(scientific[1].partition(".")[2])
        value = Fraction(scientific[1]) * Fraction(10) ** exponent
        tokens.append(Token("num", scientific[0], spaced, value, max(decimals - exponent, 0)))
        return scientific.end()
    # After an index or exponent sign, 1,234 is a list and not one number.
    indexed = bool(tokens) and tokens[-1].text in ("_", "^")
    patterns = (_THOUSANDS, _GROUPED, _NUMBER) if thousands and not indexed else (_NUMBER,)
    match = next(filter(None, (pattern.match(text, position) for pattern in patterns)), None)
    assert match is not None
    _check_digits(match[0])
    digits = re.sub(r"[^\d.]", "", match[0])
    point = digits.find(".")
    decimals = len(digits) - point - 1 if point >= 0 else -1
    tokens.append(Token("num", match[0], spaced, Fraction(digits.rstrip(".")), decimals))
    return match.end()


def _check_digits(digits: str) -> None:
    if len(digits) > MAX_DIGITS:
        raise LimitExceeded(f"a number of {len(digits)} digits")


def _read_command(text: str, position: int, tokens: list[Token], spaced: bool, thousands: bool) -> int:
    if written := _TEXT.match(text, position):
        content = _PRINTED.get(written[1], written[1]) if "operator" in written[0] else written[1]
        if "math" in written[0][:7] and content in _UNIT_LETTERS and tokens and tokens[-1].kind == "num":
            tokens.append(Token("word", content, spaced))
        elif "operator" in written[0] and content in ("lim", "det"):
            tokens.append(Token("cmd", content, spaced))
        elif len(content.strip()) == 1 and content.strip().isalpha() and "math" in written[0][:7]:
            tokens.append(Token("sym", content.strip(), spaced))
        else:
            if "\\" in content or "~" in content:
                content = _TEXT_SPACING.sub(" ", _TEXT.sub(r" \1 ", content))
            _read(content, tokens, thousands, in_text=True)
        return written.end()
    if environment := _ENVIRONMENT.match(text, position):
        tokens.append(Token(environment[1], environment[2], spaced))
        return environment.end()
    match = _COMMAND.match(text, position)
    if match is None:
        raise Malformed("a backslash at the end")
    name = match[1] or match[2]
    # "\\left." is an invisible bracket; its dot must not become a token.
    if name in _SPACING:
        if name in ("left", "right", "middle") and text.startswith(".", match.end()):
            return match.end() + 1
        return match.end()
    if name in ",;:! \n>" or name == "/":
        return match.end()
    name = _SAME.get(name, name)
    kind = "op" if name in (":", "[", "]", "(", ")") else "sym" if name in ("i", "j") and match[1] else "cmd"
    tokens.append(Token(kind, name, spaced))
    return match.end()


def _read_letters(text: str, position: int, tokens: list[Token], spaced: bool, in_text: bool) -> int:
    match = _LETTERS.match(text, position)
    assert match is not None
    run, end = match[0], match.end()
    named = run.lower() in KNOWN_WORDS or _is_word(run) or (spaced and _names_counted(tokens, run))
    if in_text or (named and not (run == "hr" and _is_height_times_radius(tokens, text[end : end + 1]))):
        if text[end : end + 2] in ("'t", "'s"):
            run, end = text[position : end + 2], end + 2
        tokens.append(Token("word", run, spaced))
        return end
    for letter in run:
        tokens.append(Token("sym", letter, spaced))
        spaced = False
    return match.end()


def _is_height_times_radius(tokens: list[Token], following: str) -> bool:
    # After pi, or with a power, hr are variables and not hours: 2\pi hr, 3hr^2.
    if not tokens:
        return following == "^"
    return tokens[-1].text == "pi" or (tokens[-1].kind == "num" and following == "^")


def _read_product(text: str, position: int, tokens: list[Token], spaced: bool) -> int:
    match = _LETTERS.match(text, position)
    assert match is not None
    run = match[0]
    if run in _GREEK_WORDS or run.lower() in ("oo", "inf", "infinity"):
        tokens.append(Token("cmd", _PRINTED.get(run.lower(), run), spaced))
        return match.end()
    parts = [(found[1], found[2]) for found in _INSIDE.finditer(run)]
    # A long run of letters is a word. If it were a product of letters, its anagrams would be equal.
    if sum(bool(letter) for _, letter in parts) > _LONGEST_PRODUCT or run in ("mm", "cc"):
        raise Malformed(f"{run!r} is a word")
    for function, letter in parts:
        name = _PRINTED.get(function, function)
        tokens.append(Token("cmd", name, spaced) if name else Token("sym", letter, spaced))
        spaced = False
    return match.end()


def _names_counted(tokens: list[Token], run: str) -> bool:
    before = tokens[-1] if tokens else None
    if before is None or (before.kind == "word" and before.text.lower() in KNOWN_WORDS - ABBREVIATIONS):
        return False
    return (before.kind in ("num", "word") or before.text in ("}", "$")) and (
        can_be_noun(run) or (before.kind == "word" and len(run) > 1)
    )


def _is_word(run: str) -> bool:
    return len(run) >= 4 and list(run) != sorted(run) and any(vowel in run.lower() for vowel in "aeiou")
