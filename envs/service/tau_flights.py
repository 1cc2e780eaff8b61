"""The flights of tau-bench's airline: search, prices and seats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import Any

from turntree.envs.errors import ToolError
from turntree.envs.service.database import Database, Record

CITIES = {
    **{"ATL": "Atlanta", "BOS": "Boston", "CLT": "Charlotte", "DEN": "Denver", "DFW": "Dallas", "DTW": "Detroit"},
    **{"EWR": "Newark", "IAH": "Houston", "JFK": "New York", "LAS": "Las Vegas", "LAX": "Los Angeles"},
    **{"LGA": "New York", "MCO": "Orlando", "MIA": "Miami", "MSP": "Minneapolis", "ORD": "Chicago"},
    **{"PHL": "Philadelphia", "PHX": "Phoenix", "SEA": "Seattle", "SFO": "San Francisco"},
}
_NEXT_DAY = "+1"  #: suffix of the arrival time of a flight that lands after midnight
Leg = Mapping[str, Any]  #: one flight of a reservation: ``flight_number`` and ``date``
Fields = Mapping[str, type | tuple[type, ...]]  #: required fields of a record in a call: name -> type


def direct(database: Database, origin: str, destination: str, day: str) -> Iterator[Record]:
    """Iterate over the flights of a day that can be booked, with seats and prices."""
    for _, flight in database.rows("flights"):
        if flight["origin"] == origin and flight["destination"] == destination:
            offer = flight["dates"].get(day, {})
            if offer.get("status") == "available":
                yield {**{key: value for key, value in flight.items() if key != "dates"}, **offer}


def one_stop(database: Database, origin: str, destination: str, day: str) -> Iterator[list[Record]]:
    """Iterate over pairs of connecting flights with dates; the second flight leaves after the first arrives."""
    for stop in CITIES:
        for first in direct(database, origin, stop, day):
            arrival = first["scheduled_arrival_time_est"]
            next_day = (date.fromisoformat(day) + timedelta(days=1)).isoformat()
            then = next_day if arrival.endswith(_NEXT_DAY) else day
            for second in direct(database, stop, destination, then):
                # All times are HH:MM:SS in one time zone (EST), so comparing the texts compares the times.
                if arrival.removesuffix(_NEXT_DAY) <= second["scheduled_departure_time_est"]:
                    yield [{**first, "date": day}, {**second, "date": then}]


def offered(database: Database, leg: Leg, cabin: str, seats: int) -> tuple[Record, float]:
    """Return a flight with enough seats, and the price of one seat.

    Raises:
        ToolError: If there is no such flight, or it has too few seats.
    """
    flight = database.read("flights", str(leg["flight_number"]))
    if flight is None:
        raise ToolError(f"flight {leg['flight_number']} not found")
    offer = flight["dates"].get(leg["date"], {})
    if offer.get("status") != "available":
        raise ToolError(f"flight {leg['flight_number']} cannot be booked on {leg['date']}")
    if offer["available_seats"][cabin] < seats:
        raise ToolError(f"flight {leg['flight_number']} has not enough seats in {cabin} on {leg['date']}")
    return flight, float(offer["prices"][cabin])


def take_seats(database: Database, legs: Sequence[Leg], cabin: str, seats: int) -> None:
    """Take seats on flights, or return seats if ``seats`` is negative; flights that have left are not changed."""
    for leg in legs:
        flight = database.read("flights", str(leg["flight_number"]))
        if flight is not None and flight["dates"].get(leg["date"], {}).get("status") == "available":
            dates = database.edit("flights", str(leg["flight_number"]))["dates"]
            dates[leg["date"]]["available_seats"][cabin] -= seats


def complete(records: Sequence[Any], fields: Fields, what: str) -> list[Record]:
    """Return the arguments of a call as records with exactly the required fields.

    Raises:
        ToolError: If there are no records, or a field is missing.
    """
    if not records:
        raise ToolError(f"name at least one of the {what}")
    for record in records:
        if not isinstance(record, dict) or not all(isinstance(record.get(name), kind) for name, kind in fields.items()):
            raise ToolError(f"each of the {what} needs {', '.join(fields)}, got {record!r:.80}")
    return [{name: record[name] for name in fields} for record in records]
