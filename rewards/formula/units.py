"""Units of quantities: which agree, which contradict, which differ by a factor.

Invariant: a unit may be added or dropped, never contradicted. Words without meaning ("exactly", "total") are
not units; words that negate or blur a value are suspect.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import NamedTuple

from turntree.rewards.formula.syntax.problems import Suspect
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
    "1000 km kilometer kilometre; "
    "0.3048 ft foot feet; 0.0254 in inch inches; 0.9144 yd yard; 1609.344 mi mile",
    "time": "s sec second; 60 min minute; 3600 h hr hour; 86400 day; 604800 week; 1/1000 ms millisecond",
    "month": "month; 12 year yr",
    "mass": "g gram; 1000 kg kilogram; 1/1000 mg milligram; 453.59237 lb lbs pound; "
    "28.349523125 oz ounce; 1000000 ton tonne",
    "volume": "l liter litre; 1/1000 ml milliliter millilitre; "
    "3.785411784 gallon gal; 0.946352946 quart; 0.473176473 pint",
    "money": "$ dollar usd; 1/100 cent",
    "euro": "\u20ac euro eur",
    "pound sterling": "\u00a3 gbp",
    "speed": "mph; 1.609344000000 kmh kph",
    "force": "N newton newtons",
    "energy": "J joule; 1000 kJ kilojoule; eV",
    "power": "W watt; 1000 kW kilowatt",
    "voltage": "V volt",
    "frequency": "Hz hertz",
    "pressure": "Pa pascal",
    "temperature": "K kelvin",
    "angle": "deg degree \u00b0",
    "radian": "rad radian",
    "percent": "% percent percentage pct",
}
_EXACT_CASE = frozenset(str.split("N J W V K Pa Hz eV kJ kW"))
_FILLERS = frozenset(
    str.split(
        "the a an is are was be exactly equal equals to of in total just simply only precisely value answer "
        "result therefore so thus hence we have get there it its square-free final that this for per each all"
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


def check_words(text: str) -> None:
    """Refuse words that negate a value or blur it.

    Raises:
        Suspect: There is one.
    """
    for word in re.findall(r"[A-Za-z']+", text.lower()):
        if word in flags.NEGATIVE_WORDS:
            raise Suspect(flags.NEGATION)
        if word in flags.HEDGING_WORDS:
            raise Suspect(flags.HEDGE)


def read_unit(text: str) -> Unit | None:
    """The dimension and scale of a unit as written; ``None`` if it has no meaning.

    Args:
        text: Words and signs, as ``Quantity.unit`` holds them.

    Example:
        >>> read_unit("square cm").dimension
        'length^2'
    """
    parts = [part for part in text.replace("-", " -").split() if part.lower() not in _FILLERS]
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
