"""Units of quantities: which agree, which contradict, which differ by a factor.

Invariant: a unit may be added or dropped, never contradicted. Words without meaning ("exactly", "total") are
not units; words that negate or blur a value are suspect.
"""

from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from turntree.rewards.formula.syntax.nodes import Add, Group, Mul, Node, Num, Pow, Quantity, Sym
from turntree.rewards.formula.syntax.nouns import ABBREVIATIONS
from turntree.rewards.formula.syntax.problems import Suspect
from turntree.rewards.formula.syntax.walk import free_variables
from turntree.rewards.reading import flags


class Unit(NamedTuple):
    """The dimension and scale of a unit."""

    dimension: str
    """Name of the dimension; for unknown nouns, the noun itself."""
    factor: Fraction = Fraction(1)
    """Size of the unit in the dimension's first unit."""
    known: bool = True
    """Whether it is in the table below."""


_TABLE = {
    "length": "m meter metre; 1/100 cm centimeter centimetre; 1/1000 mm millimeter millimetre; "
    "1000 km kilometer kilometre; 1/10 dm decimeter decimetre; 1/1000000 \u00b5m micrometer; "
    "1/1000000000 nm nanometer; 1/10000000000 angstrom AA; "
    "0.3048 ft foot feet; 0.0254 in inch inches; 0.9144 yd yard; 1609.344 mi mile; 1852 nmi",
    "time": "s sec second; 60 min minute; 3600 h hr hour; 86400 day; 604800 week; 1/1000 ms millisecond; "
    "1/1000000 \u00b5s microsecond; 1/1000000000 ns nanosecond",
    "month": "month; 12 year yr; 120 decade; 1200 century centuries",
    "mass": "g gram; 1000 kg kilogram; 1/1000 mg milligram; 1/1000000 \u00b5g microgram; 453.59237 lb lbs pound; "
    "28.349523125 oz ounce; 1000000 t ton tonne",
    "volume": "l liter litre; 1/1000 ml milliliter millilitre; 1/100 cl centiliter centilitre; "
    "1/10 dl deciliter decilitre; "
    "3.785411784 gallon gal; 0.946352946 quart qt; 0.473176473 pint pt",
    "money": "$ dollar usd buck; 1/100 cent \u00a2",
    "euro": "\u20ac euro eur",
    "yuan": "yuan rmb cny",
    "yen": "yen jpy",
    "rupee": "rupee rs inr",
    "ruble": "ruble rub",
    "pound sterling": "\u00a3 gbp",
    "force": "N newton newtons; 1000 kN kilonewton",
    "energy": "J joule; 1000 kJ kilojoule; 1000000 MJ; 1/1000 mJ; 0.0000000000000000001602176634 eV; "
    "0.0000000000000001602176634 keV; 0.0000000000001602176634 MeV; 0.0000000001602176634 GeV; 1/10000000 erg",
    "power": "W watt; 1000 kW kilowatt; 1000000 MW megawatt; 1/1000 mW milliwatt",
    "voltage": "V volt; 1000 kV kilovolt; 1/1000 mV millivolt",
    "current": "A amp ampere; 1/1000 mA milliamp; 1/1000000 \u00b5A microamp",
    "capacitance": "F farad; 1/1000000 \u00b5F microfarad; "
    "1/1000000000 nF nanofarad; 1/1000000000000 pF picofarad; 1/1000 mF",
    "resistance": "ohm \u03a9; 1000 k\u03a9 kilohm",
    "charge": "C coulomb; 1/1000000 \u00b5C microcoulomb",
    "frequency": "Hz hertz; 1000 kHz kilohertz; 1000000 MHz megahertz; 1000000000 GHz",
    "pressure": "Pa pascal; 1000 kPa kilopascal; 1000000 MPa; 1000000000 GPa; 101325 atm",
    "temperature": "K kelvin",
    "celsius": "\u00b0C celsius",
    "fahrenheit": "\u00b0F fahrenheit",
    "angle": "deg degree \u00b0; 1/60 arcmin arcminute; 1/3600 arcsec arcsecond",
    "radian": "rad radian",
    "percent": "% percent percentage pct",
    "substance": "mol mole; 1/1000 mmol",
}
_EXACT_CASE = frozenset(str.split("N J W V K A F C Pa Hz eV kJ kW MJ mJ MW mW kV mV mA mF nF pF kHz MHz GHz kPa kN"))
_FILLERS = frozenset(
    str.split(
        "the a an is are was be exactly equal equals to of in total just simply only precisely value answer "
        "result therefore so thus hence we have get there it its square-free final that this for per each all "
        "st nd rd th"
    )
) - {"all", "per", "in"}
_GENERIC = frozenset(
    str.split("unit units way ways item items person people time times number numbers thing things value")
)


def _known_units() -> dict[str, Unit]:
    units = {}
    for dimension, row in _TABLE.items():
        for entry in row.split(";"):
            first, *names = entry.split()
            factor = Fraction(first) if first[0].isdigit() else Fraction(1)
            for name in names if first[0].isdigit() else [first, *names]:
                units[name] = Unit(dimension, factor)
    return units


_UNITS = _known_units()
_HYPHEN = re.compile(r"(?<!\^)-")
_COMPARED = re.compile(r"^(?:more|fewer|extra) (?=[a-z]{3})(?!than\b|or\b|and\b)")
"""``5 more pages`` is a number of pages, ``5 more than`` that is not."""
_NAME = re.compile(r"(?:^|\s)([A-Z][a-z]+)(?<!s)\.?$")
_NO_NAMES = frozenset(
    str.split(
        "people men women children feet teeth geese mice fish sheep deer left remaining altogether overall january "
        "february march april may june july august september october november december"
    )
)
"""Words behind a number that are no names although they may begin with a capital and have no ``s``."""
_ANSWERS = re.compile(r"\b(?:even|odd|yes|true|false)$", re.IGNORECASE)
_WRITTEN_OUT = {
    "mph": "mi / h", "kmh": "km / h", "kph": "km / h", "mps": "m / s", "fps": "ft / s", "sqft": "ft ^2", "sqm": "m ^2",
    "cc": "cm ^3", "rpm": "revolution / min", "hz": "Hz",
}  # fmt: skip
_AXES = tuple(
    {word: pole for pole, words in enumerate(row.split(" / ")) for word in words.split()}
    for row in """am morning / pm afternoon evening night
noon / midnight
north northward / south southward / east eastward / west westward / northeast / northwest / southeast / southwest
left leftward leftwards / right rightward rightwards
up upward upwards upstairs uphill / down downward downwards downstairs downhill
high higher / deep deeper low lower
early earlier before ago prior / late later after afterwards hence
profit gain gained surplus won win credit earned ahead / loss lost lose deficit debt debit owed behind
increase increased rise rose growth grew more / decrease decreased fall fell drop dropped decline less fewer
clockwise cw / counterclockwise anticlockwise ccw counter-clockwise anti-clockwise
bc bce / ad ce
inside within / outside
fast faster / slow slower
old older / young younger
tall taller long longer / short shorter
heavy heavier / light lighter
forward forwards / backward backwards back
upstream / downstream
deposit deposited received / withdrawal withdrawn paid spent
hot hotter warm warmer / cold colder cool cooler
odd / even
positive / negative
boys boy men man male males sons / girls girl women woman female females daughters
heads head / tails tail
celsius \u00b0c / fahrenheit \u00b0f / kelvin
red / blue / green / yellow / black / white / orange / purple / pink / brown
monday / tuesday / wednesday / thursday / friday / saturday / sunday
maximum / minimum
simple / compound
in entering / out leaving""".splitlines()
)
"""Words that oppose each other, a row an axis."""


def opposed(unit: str, other: str) -> bool:
    """Whether the words around two values oppose each other: ``km east`` and ``km west``.

    Example:
        >>> opposed("km east", "km west"), opposed("km east", "km")
        (True, False)
    """
    one, two = (set(words.lower().replace(".", "").split()) for words in (unit, other))
    for axis in _AXES:
        poles = [{axis[word] for word in words if word in axis} for words in (one, two)]
        if all(poles) and not poles[0] & poles[1]:
            return True
    return False


def spelled_out(node: Node, other: Node) -> Node:
    """A quantity as a product where the letters of its unit are the other's variables, ``4V`` beside ``4 V``."""
    if isinstance(node, Quantity) and not isinstance(other, Quantity):
        letters = [letter for word in node.unit.split() for letter in word]
        if letters and len(set(letters)) == len(letters) and set(letters) == free_variables(other):
            return Mul((node.value, *map(Sym, letters)))
    if isinstance(other, Quantity) and isinstance(node, Mul):
        return _as_quantity(node)
    return node


def _as_quantity(product: Mul) -> Node:
    r"""A number times a quotient of letters that is a known unit, ``5\frac{m}{s}``; any other product unchanged."""
    values: list[Node] = []
    above: list[str] = []
    below: list[str] = []
    stack = [*product.factors]
    while stack:
        match factor := stack.pop(0):
            case Mul(inner):
                stack[:0] = inner
            case Sym(name):
                above.append(name)
            case Pow(Mul(inner), Num(exponent)) if exponent == -1:
                stack[:0] = [Pow(one, Num(exponent)) for one in inner]
            case Pow(Pow(Sym() as base, Num(inner_exponent)), Num(exponent)) if exponent == -1:
                stack.insert(0, Pow(base, Num(-inner_exponent)))
            case Pow(Sym(name), Num(exponent)) if exponent.denominator == 1:
                (above if exponent > 0 else below).extend([name, f"^{abs(exponent)}"] if abs(exponent) > 1 else [name])
            case _:
                values.append(factor)
    unit = " ".join([*above, "/", *below])
    known = read_unit(unit) if above and below and values else None
    if known is None or not known.known or any(map(free_variables, values)):
        return product
    return Quantity(values[0] if len(values) == 1 else Mul(tuple(values)), unit)


def united(node: Node) -> Node:
    """A quantity that is written in several units as one: ``1 hour 30 minutes`` is 90 minutes.

    Only units of one dimension, each smaller than the one before it, belong together.
    """
    if not isinstance(node, Add | Group):
        return node
    parts = (
        node.terms if isinstance(node, Add) else node.items if isinstance(node, Group) and node.word == "and" else ()
    )
    units = [read_unit(part.unit) for part in parts if isinstance(part, Quantity)]
    if len(units) < 2 or len(units) < len(parts):
        return node
    known = [unit for unit in units if unit is not None and unit.known]
    falling = all(one.factor > other.factor for one, other in pairwise(known))
    if len(known) < len(units) or len({unit.dimension for unit in known}) > 1 or not falling:
        return node
    last = parts[-1]
    assert isinstance(last, Quantity)
    values = tuple(part.value for part in parts if isinstance(part, Quantity))
    sizes = [Num(unit.factor / known[-1].factor) for unit in known]
    return Quantity(Add(tuple(Mul((size, value)) for size, value in zip(sizes, values, strict=True))), last.unit)


def unit_of(node: Node) -> Unit | None:
    """The unit of a quantity; ``None`` for any other node, and for a unit that has no meaning."""
    return read_unit(node.unit) if isinstance(node, Quantity) else None


def without_unit(node: Node) -> Node:
    """The value of a quantity; any other node unchanged."""
    return node.value if isinstance(node, Quantity) else node


def in_one_unit(gold: Node, answer: Node) -> tuple[Node, Node] | None:
    """The values of two quantities in the first one's unit; ``None`` where words of one contradict the other's.

    Raises:
        Suspect: Words of the answer negate or blur it, or name a second answer.
    """
    words, ours = (node.unit if isinstance(node, Quantity) else "" for node in (gold, answer))
    check_words(ours)
    if is_second_answer(ours, beside=words):
        raise Suspect(flags.CANDIDATES)
    unit, other = unit_of(gold), unit_of(answer)
    if opposed(words, ours) or (unit and other and unit.dimension != other.dimension):
        return None
    values = without_unit(gold), without_unit(answer)
    if unit is None or other is None or unit.factor == other.factor:
        return values
    return values[0], Mul((Num(other.factor / unit.factor), values[1]))


def check_words(text: str) -> None:
    """Refuse words that negate a value or blur it.

    Raises:
        Suspect: There is one.
    """
    for word in re.findall(r"[A-Za-z']+", _COMPARED.sub("", text.lower())):
        if word in flags.NEGATIVE_WORDS:
            raise Suspect(flags.NEGATION)
        if word in flags.HEDGING_WORDS:
            raise Suspect(flags.HEDGE)


def check_label(words: tuple[str, ...]) -> None:
    """Refuse words before a sign of equality that turn it into another relation: ``not = 7``, ``less than = 7``.

    Raises:
        Suspect: They do.
    """
    rest = [word for word in words if word not in _FILLERS and word not in flags.PLACEHOLDERS]
    if rest and (rest[-1] in ("not", "never") or flags.NEGATIVE_WORDS.issuperset(rest)):
        raise Suspect(flags.NEGATION)
    if rest and (rest[-1] == "than" or flags.HEDGING_WORDS.issuperset(rest)):
        raise Suspect(flags.HEDGE)


def is_second_answer(unit: str, *, beside: str) -> bool:
    """Whether the last word behind a number answers by itself, unless the other value has it too.

    A name is one, a capitalised plural none: nouns and units of titles.

    Example:
        >>> [is_second_answer(word, beside="") for word in ("Evelyn", "Eggs", "Celsius", "even")]
        [True, False, False, True]
    """
    if _ANSWERS.search(unit):
        return not _ANSWERS.search(beside)
    named = _NAME.search(unit)
    if named is None or named[1].lower() in {*_NO_NAMES, *_FILLERS, *_GENERIC, *beside.lower().split()}:
        return False
    known = read_unit(named[1])
    return named[1].lower() not in ABBREVIATIONS and (known is None or not known.known)


@lru_cache(maxsize=256)
def read_unit(text: str) -> Unit | None:
    """The dimension and scale of a unit as written; ``None`` if it has no meaning.

    Args:
        text: Words and signs, as ``Quantity.unit`` holds them.

    Example:
        >>> read_unit("square cm").dimension
        'length^2'
    """
    words = [_WRITTEN_OUT.get(part.lower(), part) for part in _HYPHEN.sub(" -", text).split()]
    parts = [part for part in " ".join(words).split() if part.lower() not in _FILLERS or part == "A"]
    dimensions: dict[str, int] = {}
    factor = Fraction(1)
    over, exponent, nouns, place = 1, 1, [], 0
    while place < len(parts):
        part = parts[place]
        place += 1
        if part in ("/", "per"):
            over = -1
            continue
        if part.lower() in ("square", "sq", "cubic"):
            exponent = 3 if part.lower() == "cubic" else 2
            continue
        if part.startswith("^"):
            continue
        unit = _look_up(part)
        if place < len(parts) and re.fullmatch(r"\^-?\d", parts[place]):
            exponent = int(parts[place][1:])
        elif place < len(parts) and parts[place].lower() in ("squared", "cubed"):
            exponent = 2 if parts[place].lower() == "squared" else 3
            place += 1
        if unit is None:
            if part.lower() not in _GENERIC:
                nouns.append(singular(part.lower()))
        else:
            dimensions[unit.dimension] = dimensions.get(unit.dimension, 0) + over * exponent
            factor *= unit.factor ** (over * exponent)
        exponent = 1
    if dimensions:
        name = " ".join(f"{key}^{power}" if power != 1 else key for key, power in sorted(dimensions.items()) if power)
        return Unit(name, factor)
    return Unit(" ".join(nouns), known=False) if nouns else None


def _look_up(word: str) -> Unit | None:
    if word in _UNITS:
        return _UNITS[word]
    lower = word.lower().rstrip(".")
    for name in (lower, singular(lower)):
        if name in _UNITS and name not in _EXACT_CASE:
            return _UNITS[name]
    return None


def singular(word: str) -> str:
    """A noun without the ``s`` of its plural."""
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
