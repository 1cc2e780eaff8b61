from __future__ import annotations

import re
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple


class Unit(NamedTuple):
    """The dimension and scale of a unit."""

    dimension: str  #: name of the dimension; for an unknown noun, the noun
    factor: Fraction = Fraction(1)  #: size, measured in the first unit of the dimension's table row
    known: bool = True  #: whether the table below has the unit


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
FILLERS = frozenset(
    str.split(
        "the a an is are was be exactly equal equals to of in total just simply only precisely value answer "
        "result therefore so thus hence we have get there it its square-free final that this for per each all "
        "st nd rd th"
    )
) - {"all", "per", "in"}
GENERIC = frozenset(
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
_WRITTEN_OUT = {
    "mph": "mi / h", "kmh": "km / h", "kph": "km / h", "mps": "m / s", "fps": "ft / s", "sqft": "ft ^2", "sqm": "m ^2",
    "cc": "cm ^3", "rpm": "revolution / min", "hz": "Hz",
}  # fmt: skip


@lru_cache(maxsize=256)
def read_unit(text: str) -> Unit | None:
    """Return the dimension and scale of a unit; ``None`` if the words name no unit ("exactly", "total").

    Args:
        text: Words and signs as in ``Quantity.unit``.

    Example:
        >>> read_unit("square cm").dimension
        'length^2'
    """
    words = [_WRITTEN_OUT.get(part.lower(), part) for part in _HYPHEN.sub(" -", text).split()]
    parts = [part for part in " ".join(words).split() if part.lower() not in FILLERS or part == "A"]
    dimensions: dict[str, int] = {}
    factor = Fraction(1)
    over, exponent, nouns, index = 1, 1, [], 0
    while index < len(parts):
        part = parts[index]
        index += 1
        if part in ("/", "per"):
            over = -1
            continue
        if part.lower() in ("square", "sq", "cubic"):
            exponent = 3 if part.lower() == "cubic" else 2
            continue
        if part.startswith("^"):
            continue
        unit = _look_up(part)
        if index < len(parts) and re.fullmatch(r"\^-?\d", parts[index]):
            exponent = int(parts[index][1:])
        elif index < len(parts) and parts[index].lower() in ("squared", "cubed"):
            exponent = 2 if parts[index].lower() == "squared" else 3
            index += 1
        if unit is None:
            if part.lower() not in GENERIC:
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
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
