"""Generate a fictional island: a corpus that no model has read, and questions about it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from functools import cache

from turntree.envs.lookup.corpus import Corpus, Document

_SEED = "turntree/island"
_TOWNS = 24
_STARTS = ("Ar", "Bel", "Cor", "Dun", "El", "Far", "Gal", "Hol", "Ist", "Jor", "Kel", "Lom")
_ENDS = ("dol", "mar", "ven", "tis", "wick", "gard", "ra", "by")
_FIRST_NAMES = ("Mira", "Tomas", "Ilse", "Bruno", "Nadia", "Oskar", "Petra", "Rufus", "Sylva", "Ulrich", "Vera", "Wim")
_LAST_NAMES = ("Tesk", "Arvo", "Blom", "Crane", "Dorn", "Esk", "Falk", "Grau")
_BUILDINGS = ("lighthouse", "town hall", "bridge", "theater", "library", "windmill")
_TRADES = ("shipbuilding", "salt", "wool", "glass", "honey", "copper", "paper", "cider")


@dataclass(frozen=True, slots=True, kw_only=True)
class Town:
    name: str
    building: str  #: best known building
    builder: str
    year: int  #: year in which the building was built
    birthplace: str  #: the builder's
    trade: str


@cache
def towns() -> tuple[Town, ...]:
    rng = random.Random(_SEED)
    names = rng.sample([start + end for start in _STARTS for end in _ENDS], _TOWNS)
    builders = rng.sample([f"{first} {last}" for first in _FIRST_NAMES for last in _LAST_NAMES], _TOWNS)
    return tuple(
        Town(
            name=name,
            building=rng.choice(_BUILDINGS),
            builder=builder,
            year=rng.randint(1650, 1930),
            birthplace=rng.choice([other for other in names if other != name]),
            trade=rng.choice(_TRADES),
        )
        for name, builder in zip(names, builders, strict=True)
    )


@cache
def island() -> Corpus:
    documents = []
    for number, town in enumerate(towns()):
        about = f"{town.name} is a town on the island. It lives on {town.trade}. "
        built = f"Its {town.building} was built in {town.year} by {town.builder}."
        documents.append(Document(id=f"town-{number}", title=town.name, text=about + built))
        life = f"{town.builder} was a master builder, born in {town.birthplace}, and worked in {town.name}."
        documents.append(Document(id=f"person-{number}", title=town.builder, text=life))
    return Corpus(documents)


def question(rng: random.Random) -> tuple[str, str, int]:
    """Return a question, its answer, and the number of texts needed to answer it."""
    known = {town.name: town for town in towns()}
    town = rng.choice(list(known.values()))
    birthplace = known[town.birthplace]
    return rng.choice(
        [
            (f"In which year was the {town.building} of {town.name} built?", str(town.year), 1),
            (f"What does the town of {town.name} live on?", town.trade, 1),
            (f"Where was the builder of the {town.building} of {town.name} born?", town.birthplace, 2),
            (f"What does the town live on where {town.builder} was born?", birthplace.trade, 2),
        ]
    )
