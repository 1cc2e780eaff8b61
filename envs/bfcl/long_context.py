"""Worlds that are much larger than a task needs: the set with long contexts.

The set's own additions are not among its rows, but its paths show them: the text behind every file, which the paths
quote, and the names of further files, which they list or remove. All other additions are made up here.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Configuration = Mapping[str, Any]
_NAME = re.compile(r"image_\d+\.jpg")
_LONG = 1_000
"""Least characters of a text that stands behind the files."""
_MORE = 60
"""Further records of each kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """What every file system of the set has more than its rows say."""

    text: str
    """Stands behind the content of every file."""
    names: tuple[str, ...]
    """Further, empty files of every directory."""


def padding_of(rows: Iterable[tuple[Configuration, Sequence[str]]]) -> Padding:
    """What the paths of a set quote beyond its rows.

    Args:
        rows: Configuration and all text arguments of the path of each row.
    """
    texts, names = [], dict[str, None]()
    for configuration, arguments in rows:
        contents = list(_contents(configuration.get("GorillaFileSystem", {}).get("root", {})))
        for argument in arguments:
            names.update(dict.fromkeys(_NAME.findall(argument)))
            texts += [argument.partition(content)[2] for content in contents if content and content in argument]
    return Padding(text=min((text for text in texts if len(text) > _LONG), key=len, default=""), names=tuple(names))


def lengthened(configuration: Configuration, arguments: Sequence[str], padding: Padding) -> dict[str, Any]:
    """A larger world in which a path works as before.

    Args:
        arguments: All text arguments of its path; the files that they name are the only further ones.
    """
    larger: dict[str, Any] = copy.deepcopy(dict(configuration))
    own = tuple(dict.fromkeys(name for argument in arguments for name in _NAME.findall(argument)))
    _fill(larger.get("GorillaFileSystem", {}).get("root", {}), own or padding.names[:_MORE], padding.text)
    if "TradingBot" in larger:
        market = larger["TradingBot"]
        symbols = [f"TX{number:03d}" for number in range(_MORE)]
        market["stocks"] = {**market.get("stocks", {}), **{symbol: _stock(n) for n, symbol in enumerate(symbols)}}
        market["listed"] = {"Technology": symbols}
    if "VehicleControlAPI" in larger:
        larger["VehicleControlAPI"]["car_info"] = {f"sensor_{n:03d}": f"{n * 37 % 101}.{n % 10}" for n in range(_MORE)}
    if "TravelAPI" in larger:
        account = larger["TravelAPI"]
        account["booking_record"] = {
            **account.get("booking_record", {}),
            **{f"past_{n:03d}": _trip(n) for n in range(_MORE)},
        }
    return larger


def _contents(directory: Mapping[str, Any]) -> Iterator[str]:
    for node in directory.values():
        yield from _contents(node["contents"]) if node["type"] == "directory" else (str(node["content"]),)


def _fill(directory: dict[str, Any], names: Sequence[str], text: str) -> None:
    """Lengthen all files below a directory, and add to each directory in it."""
    for node in directory.values():
        if node["type"] == "file":
            node["content"] = f"{node['content']}{text}"
        else:
            _fill(node["contents"], names, text)
            node["contents"].update((name, {"type": "file", "content": ""}) for name in names)


def _stock(number: int) -> dict[str, float]:
    price = 20.0 + 3.5 * number
    return {"price": price, "percent_change": 0.01 * (number % 9), "volume": 1.0, "MA(5)": price, "MA(20)": price - 1}


def _trip(number: int) -> dict[str, Any]:
    day = f"2025-{number % 12 + 1:02d}-{number % 28 + 1:02d}"
    route = {"travel_date": day, "travel_from": "SFO", "travel_to": "LAX", "travel_class": "economy"}
    return {**route, "travel_cost": 200.0, "transaction_id": f"{number:07d}"}
