r"""Translation of characters outside ASCII to LaTeX: ``⅚`` becomes ``\frac{5}{6}``, ``2¹⁰`` becomes ``2^{10}``.

Unknown characters stay unchanged, and the tokenizer refuses them.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

_SIGNS = {
    "\u2212": "-", "\u2010": "-", "\u2011": "-", "\u2013": "-", "\u2014": "-", "\ufe63": "-",
    "\uff0c": ",", "\u3001": ",", "\uff1b": ";", "\u3002": ".", "\uff61": ".",
    "\u00d7": r"\times ", "\u2715": r"\times ", "\u00f7": r"\div ", "\u22c5": r"\cdot ", "\u00b7": r"\cdot ",
    "\u2219": r"\cdot ", "\u2022": r"\cdot ", "\u2217": "*", "\u2264": r"\le ", "\u2a7d": r"\le ", "\u2266": r"\le ",
    "\u2265": r"\ge ", "\u2a7e": r"\ge ", "\u2267": r"\ge ", "\u2260": r"\ne ", "\u2248": r"\approx ",
    "\u2243": r"\approx ", "\u2245": r"\approx ", "\u2261": r"\equiv ", "\u2254": "=", "\u221e": r"\infty ",
    "\u222a": r"\cup ", "\u2229": r"\cap ", "\u2216": r"\setminus ", "\u2208": r"\in ", "\u2209": r"\notin ",
    "\u2205": r"\emptyset ", "\u00d8": r"\emptyset ", "\u2286": r"\subseteq ", "\u2282": r"\subset ",
    "\u211d": r"\mathbb{R}", "\u2124": r"\mathbb{Z}", "\u2115": r"\mathbb{N}", "\u211a": r"\mathbb{Q}",
    "\u2102": r"\mathbb{C}", "\u00b1": r"\pm ", "\u2213": r"\mp ", "\u2227": r"\land ", "\u2228": r"\lor ",
    "\u2295": r"\oplus ", "\u2297": r"\otimes ", "\u2218": r"\circ ", "\u27e8": r"\langle ", "\u27e9": r"\rangle ",
    "\u230a": r"\lfloor ", "\u230b": r"\rfloor ", "\u2308": r"\lceil ", "\u2309": r"\rceil ", "\u2016": r"\| ",
    "\u00b0": r"^\circ ", "\u00ba": r"^\circ ", "\u02da": r"^\circ ", "\u2103": r"^\circ C", "\u2109": r"^\circ F",
    "\u2032": "'", "\u2019": "'", "\u02b9": "'", "\u2033": "''", "\u2211": r"\sum ", "\u220f": r"\prod ",
    "\u222b": r"\int ", "\u221a": r"\sqrt ", "\u221b": r"\sqrt[3]", "\u221c": r"\sqrt[4]", "\u00b5": r"\mu ",
    "\u2126": r"\Omega ", "\u2113": r"\ell ", "\u210f": r"\hbar ", "\u03d5": r"\phi ", "\u03f5": r"\epsilon ",
    "\u03d1": r"\vartheta ", "\u2026": r"\ldots ", "\u22ef": r"\cdots ", "\u2223": "|", "\u20ac": r"\euro ",
    "\u00a5": r"\text{ yen }", "\uffe5": r"\text{ yen }", "\u20b9": r"\text{ rupee }",
    "\u00a3": r"\pounds ", "\u2220": r"\angle ", "\u25b3": r"\triangle ", "\u2236": ":", "\u2044": "/", "\u2215": "/",
    "\u2192": r"\to ", "\u21d2": r"\Rightarrow ", "\u00a2": r"\cent ", "\uffe0": r"\cent ",
    "\u00c5": "angstrom", "\u212b": "angstrom",
}  # fmt: skip
HALF_OF_DAY = re.compile(r"\b([ap])\.\s?m\b\.?", re.IGNORECASE)  #: ``a.m.`` and ``p.m.``; their first letter is kept.
_GREEK_CAPITALS = frozenset(str.split("Gamma Delta Theta Lambda Xi Sigma Upsilon Phi Psi Omega"))
_LATIN = dict(
    zip(str.split("Alpha Beta Epsilon Zeta Eta Iota Kappa Mu Nu Omicron Rho Tau Chi"), "ABEZHIKMNOPTX", strict=True)
)
_RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱ", "0123456789+-=()ni", strict=True))
_LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₐₑₒₓₙₘₖᵢⱼ", "0123456789+-=()aeoxnmkij", strict=True))
_RUN = re.compile(f"([{''.join(_RAISED)}]+)|([{''.join(_LOWERED)}]+)")
#: Units, counters and conjunctions in Chinese, Japanese, Korean and Russian; a counter changes nothing.
_FOREIGN = {
    word: english
    for english, words in {
        "": "个 個 只 条 条 本 张 張 支 名 位 件 块 棵 头 头 辆 种 次 組 组 匹 朵 枚 つ 개 명 штук шт",
        "yuan": "元 块钱 人民币", "yen": "円 日元", "ruble": "руб рублей рубля рубль",  # noqa: RUF001
        "m": "米 м метр метра метров メートル", "cm": "厘米 公分 см", "mm": "毫米 мм", "dm": "分米 дм",
        "km": "千米 公里 км", "square m": "平方米 平米", "square cm": "平方厘米", "square km": "平方千米 平方公里",
        "square dm": "平方分米", "cubic m": "立方米", "cubic cm": "立方厘米", "cubic dm": "立方分米",
        "g": "克 г", "kg": "千克 公斤 кг", "ton": "吨 т", "l": "升 л", "ml": "毫升 мл", "sec": "秒 с сек секунд",  # noqa: RUF001
        "min": "分钟 мин минут минуты", "hour": "小时 时 ч час часа часов 時間", "day": "天 日 дней дня день",
        "week": "周 星期 недель", "month": "个月 月", "year": "年 岁 лет", "deg": "度", "people": "人",
        " or ": "或 或者 или", " and ": "和 与 и",
    }.items()
    for word in words.split()
}  # fmt: skip
#: multipliers after digits: ``5万``
_THOUSANDS_IN_CHINESE = {"千": r"\cdot1000 ", "万": r"\cdot10000 ", "亿": r"\cdot100000000 "}
_FOREIGN_RUN = re.compile("[\u0400-\u04ff]+|[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]+")
#: characters that are a number, as used in lists
_ENCLOSED = (
    "CIRCLED DIGIT ", "CIRCLED NUMBER ", "PARENTHESIZED DIGIT ", "PARENTHESIZED NUMBER ", "DINGBAT ",
    "NEGATIVE CIRCLED ", "DOUBLE CIRCLED ",
)  # fmt: skip
_OTHER = re.compile(r"[^\x00-\x7f]")
_DOT_ABOVE = re.compile("([0-9])\u0307")
_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|,\\! ?|\\,|\\ |~|\\;|\\:|\\!)(?=\d{3}(?!\d))")
_DECIMAL_COMMA = re.compile(r"(?<=\d)\{,\}(?=\d)")
#: Unit vectors in bold type.
_AXIS = re.compile(
    r"\\(?:mathbf|boldsymbol|bm|(?:hat|vec)\s*\{\s*\\(?:mathbf|boldsymbol|bm))\s*\{\s*(?:\\(?:hat|vec)\s*\{?\s*)?\\?([ijk])"
    r"(?:math)?\s*\}+"
)
#: binomial coefficients with a C between the numbers: ``^5C_2``
_CHOSEN = re.compile(
    r"(?<![\w)}\]])(?:\{\})?[\^_](?:\{(\w{1,9})\}|(\w))\s*(?:C|\\(?:text|mathrm)\{C\})\s*_(?:\{(\w{1,9})\}|(\w))"
)
#: Indian grouping, 1,50,000. "1,50,100" may be a list, unless rupees are named.
_INDIAN = re.compile(r"(?<![\d,.])\d{1,2}(?:,\d{2})+,\d{3}(?![\d,])")
_RUPEES = re.compile(r"\brupees?\b|\bRs\b\.?|\bINR\b")
_CODES = re.compile(r"\b(?:JPY|USD|EUR|GBP|CNY|INR)\b")  #: currencies
#: a duration in hours and minutes, where m is not the metre
_HOURS = re.compile(
    r"(?<![\w.])(\d{1,2})(?:\s|\\text\s*\{|\})*h(?:rs?|ours?)?\b(?:\s|\}|\\[,; ])*"
    r"(\d{1,2})(?:\s|\}|\\[,; ]|\\text\s*\{)*m\b\}?"
)
_ROW_SPACING = re.compile(r"(\\\\|\\cr)\s*\[\s*-?[\d.]+\s*(?:pt|em|ex|mm|cm|in|mu)\s*\]")


def normalized(text: str) -> str:
    r"""Translate known characters to ASCII, and remove separators inside numbers.

    Example:
        >>> normalized("2\u00b9\u2070"), normalized("\u215a"), normalized(r"1\,000{,}000")
        ('2^{10}', '\\frac{5}{6}', '1000000')
    """
    if not text.isascii():
        text = _DOT_ABOVE.sub(r"\\dot{\1}", text)
        text = _FOREIGN_RUN.sub(lambda match: _translated(match[0]), text)
        text = _RUN.sub(_raised_or_lowered, text)
        text = _OTHER.sub(lambda match: _sign(match[0]), text)
    if "," in text and (_RUPEES.search(text) or ",000" in text):
        text = _INDIAN.sub(lambda match: match[0].replace(",", ""), _RUPEES.sub(" rupee ", text))
    if "\\text" not in text:
        text = _CODES.sub(r"\\text{ \g<0> }", text)
    if "h" in text and "m" in text:
        text = _HOURS.sub(r"\1\\text{ h } \2\\text{ min }", text)
    if "\\" in text or "{,}" in text or "~" in text:
        text = _ROW_SPACING.sub(r"\1 ", text)
        text = _DECIMAL_COMMA.sub(".", _THOUSANDS.sub("", text))
    if "\\mathbf" in text or "\\b" in text:
        text = _AXIS.sub(r"\\hat{\1}", text)
    if "C" in text and "_" in text:
        text = _CHOSEN.sub(lambda match: rf"\binom{{{match[1] or match[2]}}}{{{match[3] or match[4]}}}", text)
    return text


def _raised_or_lowered(match: re.Match[str]) -> str:
    if match[1]:
        return "^{" + "".join(_RAISED[character] for character in match[1]) + "}"
    return "_{" + "".join(_LOWERED[character] for character in match[2]) + "}"


def _translated(run: str) -> str:
    english = _FOREIGN.get(run)
    if english is None:
        number, rest = read_chinese(run)
        if number:
            return f" {number} " + (_translated(rest) if rest else "")
        if run in _THOUSANDS_IN_CHINESE:
            return _THOUSANDS_IN_CHINESE[run]
    return run if english is None else rf"\text{{ {english} }}" if english else " "


def _sign(character: str) -> str:
    if (sign := _SIGNS.get(character)) is not None:
        return sign
    name = unicodedata.name(character, "")
    if (decimal := unicodedata.decimal(character, None)) is not None:
        return str(decimal)
    if name.startswith("GREEK ") and " LETTER " in name:
        return _greek(character, name)
    if name.startswith("VULGAR FRACTION ") and "NUMERATOR" not in name:
        value = Fraction(str(unicodedata.numeric(character))).limit_denominator(10)
        return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
    if name.startswith(_ENCLOSED):
        return f" {unicodedata.numeric(character, character)} ".replace(".0 ", " ")
    if unicodedata.category(character) == "Zs":
        return " "
    if name.startswith(("MATHEMATICAL ", "FULLWIDTH ", "ROMAN NUMERAL ")):
        plain = unicodedata.normalize("NFKC", character)
        return plain if plain.isascii() or len(plain) > 1 or plain == character else _sign(plain)
    return character


def _greek(character: str, name: str) -> str:
    # A Greek capital that looks like a Latin letter becomes the Latin letter.
    size, letter = name.split()[1], name.split()[-1].lower().replace("lamda", "lambda")
    if letter == "final" or "WITH" in name:
        return character
    if size == "SMALL":
        return rf"\{letter} "
    capital = letter.capitalize()
    return rf"\{capital} " if capital in _GREEK_CAPITALS else _LATIN.get(capital, character)


_CHINESE_DIGITS = dict(zip("零〇一二两兩三四五六七八九", (0, 0, 1, 2, 2, 2, 3, 4, 5, 6, 7, 8, 9), strict=True))
_CHINESE_SMALL = {"十": 10, "百": 100, "千": 1000}
_CHINESE_LARGE = {"万": 10**4, "萬": 10**4, "亿": 10**8, "億": 10**8}
_CHINESE_NUMBER = re.compile(f"负?[{''.join((*_CHINESE_DIGITS, *_CHINESE_SMALL, *_CHINESE_LARGE))}]+")
_CHINESE_FRACTION = re.compile(f"({_CHINESE_NUMBER.pattern})分之({_CHINESE_NUMBER.pattern})")


def read_chinese(text: str) -> tuple[str, str]:
    r"""Return the Chinese number at the beginning of a text as LaTeX, and the rest of the text.

    Example:
        >>> [read_chinese(text) for text in ("三十五", "五分之三", "一千二百零五米", "十个", "个")]
        [('35', ''), ('\\frac{3}{5}', ''), ('1205', '米'), ('10', '个'), ('', '个')]
    """
    if (parted := _CHINESE_FRACTION.match(text)) is not None:
        below, above = _chinese_number(parted[1]), _chinese_number(parted[2])
        if below is not None and above is not None and below > 0:
            value = rf"{above}\%" if parted[1] == "百" else rf"\frac{{{above}}}{{{below}}}"
            return value, text[parted.end() :]
    if (run := _CHINESE_NUMBER.match(text)) is not None and (named := _chinese_number(run[0])) is not None:
        return str(named), text[run.end() :]
    return "", text


def _chinese_number(run: str) -> int | None:
    # Returns None for characters that name no whole number, such as 二三 or 十百.
    if run.startswith("负"):
        value = _chinese_number(run[1:])
        return None if value is None else -value
    total, group, digit = 0, 0, None
    last_small, last_large = 10**4, 10**12
    for character in run:
        if character in _CHINESE_DIGITS:
            if digit:
                return None
            digit = _CHINESE_DIGITS[character]
        elif character in _CHINESE_SMALL:
            size = _CHINESE_SMALL[character]
            if size >= last_small or digit == 0:
                return None
            group, digit, last_small = group + (digit or 1) * size, None, size
        else:
            size = _CHINESE_LARGE[character]
            if size >= last_large or not group + (digit or 0):
                return None
            total, group, digit = total + (group + (digit or 0)) * size, 0, None
            last_small, last_large = 10**4, size
    return total + group + (digit or 0)
