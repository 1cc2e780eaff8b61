"""The cities that cars drive and planes fly between: zip codes, airports, distances, fares.

Those that the published paths use are what their later calls assume; all others are made up, and the same every time.
"""

from __future__ import annotations

from typing import NamedTuple

from turntree.envs.bfcl.simulated.simulator import found, one_of


class Place(NamedTuple):
    """A city."""

    zip: str
    """Zip code."""
    airport: str
    """Three letters."""


PLACES = {
    "Rivermist": Place("83214", "RMS"),
    "Stonebrook": Place("74532", "SBK"),
    "Maplecrest": Place("30215", "MPC"),
    "Silverpine": Place("62947", "SVP"),
    "Shadowridge": Place("41862", "SDR"),
    "Sunset Valley": Place("56108", "SVV"),
    "Oakendale": Place("47329", "OKD"),
    "Willowbend": Place("53684", "WLB"),
    "Crescent Hollow": Place("69238", "CRH"),
    "Autumnville": Place("51479", "AUV"),
    "Pinehaven": Place("27953", "PHV"),
    "Greenfield": Place("35476", "GFD"),
    "San Francisco": Place("94016", "SFO"),
    "Los Angeles": Place("90001", "LAX"),
    "New York": Place("10001", "JFK"),
    "Chicago": Place("60601", "ORD"),
    "Boston": Place("02101", "BOS"),
    "London": Place("20101", "LHR"),
    "Paris": Place("75001", "CDG"),
    "Beijing": Place("10009", "PEK"),
    "Hong Kong": Place("99907", "HKG"),
    "Rome": Place("00184", "CIA"),
    "Tokyo": Place("14400", "HND"),
}
AIRPORTS = tuple(place.airport for place in PLACES.values())
_ZIPS = {place.zip: name for name, place in PLACES.items()}
_DISTANCES = {
    frozenset(("83214", "94016")): 980.0,
    frozenset(("74532", "83214")): 750.0,
    frozenset(("51479", "69238")): 630.0,
    frozenset(("62947", "94016")): 780.0,
}
_FARES = {
    frozenset(("LAX", "SFO")): 200.0,
    frozenset(("JFK", "RMS")): 420.0,
    frozenset(("JFK", "LAX")): 1200.0,
    frozenset(("CIA", "SFO")): 1400.0,
}
"""Dollars in economy."""
_CLASSES = {"economy": 1, "business": 2, "first": 5}
"""How often a fare in economy is paid."""


def zip_code(city: str) -> str:
    """The zip code of a city.

    Raises:
        ToolError: If the city is unknown.
    """
    return str(found(PLACES, city, "city").zip)


def airport(city: str) -> str:
    """The airport nearest to a city.

    Raises:
        ToolError: If the city is unknown.
    """
    return str(found(PLACES, city, "city").airport)


def distance(first: str, second: str) -> float:
    """The distance of two cities by their zip codes; nothing says in which unit, and the published paths use both.

    Raises:
        ToolError: If there is no such zip code.
    """
    for code in (first, second):
        found(_ZIPS, code, "city with the zip code")
    made_up = float(abs(int(first) - int(second)) // 250 * 10)
    return _DISTANCES.get(frozenset((first, second)), made_up)


def fare(origin: str, destination: str, cabin: str) -> float:
    """What a flight costs in dollars, on any day.

    Raises:
        ToolError: If an airport or the class is unknown.
    """
    first, second = (AIRPORTS.index(one_of(code, AIRPORTS, "an airport")) for code in (origin, destination))
    made_up = 100.0 + 10 * ((first - second) ** 2 % 71)
    return _FARES.get(frozenset((origin, destination)), made_up) * _CLASSES[one_of(cabin, _CLASSES, "a class")]
