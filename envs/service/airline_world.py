"""A fictional airline: its policy, and flights, customers and bookings from one seed. Amounts are whole dollars."""

from __future__ import annotations

import random
from datetime import date, timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

from turntree.envs.service.database import Record, Tables

TODAY = date(2031, 5, 15)  #: the date of all episodes
CITIES = {"ARD": "Ardol", "BEL": "Belmar", "CAS": "Castero", "DUN": "Dunmere", "ELV": "Elvast", "FOR": "Forwell"}
CABINS = ("economy", "business")
TIERS = ("regular", "silver", "gold")
_FIRST = ("Ada", "Bruno", "Celia", "Dario", "Edith", "Felix", "Greta", "Hugo", "Irene", "Jonas", "Klara", "Leo")
_LAST = ("Abel", "Brandt", "Corso", "Duval", "Egger", "Farkas", "Gallo", "Hansen", "Ibsen", "Jansen", "Kovac", "Lund")
_CUSTOMERS = 48
_DAYS = range(-3, 11)  #: days relative to ``TODAY`` that have flights


class MadeTables(Tables):
    # A pickle holds no records: another process generates the tables again.

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return airline, ()


@lru_cache(maxsize=1)
def airline() -> MadeTables:
    """Return the airline's records: tables ``flights``, ``customers`` and ``bookings``."""
    chance = random.Random("turntree/airline/world")
    flights = _flights(chance)
    customers: dict[str, Record] = {}
    bookings: dict[str, Record] = {}
    for number in range(_CUSTOMERS):
        customer = _customer(chance, number)
        customers[customer["customer_id"]] = customer
        for _ in range(chance.randint(1, 3)):
            booking = _booking(chance, customer, flights, len(bookings))
            bookings[booking["booking_id"]] = booking
            customer["bookings"].append(booking["booking_id"])
    records = {"flights": flights, "customers": customers, "bookings": bookings}
    return MadeTables(folder=Path(), domain="airline", records=records)


def _flights(chance: random.Random) -> dict[str, Record]:
    flights = {}
    pairs = [(origin, destination) for origin in CITIES for destination in CITIES if origin != destination]
    for index, (origin, destination) in enumerate(pairs):
        for departs in (chance.randint(6, 10), chance.randint(15, 20)):
            number = f"TT{101 + 2 * index + (departs > 12)}"
            flights[number] = {
                "number": number,
                "origin": origin,
                "destination": destination,
                "departs": f"{departs:02d}:{chance.choice(('05', '20', '35', '50'))}",
                "dates": {(TODAY + timedelta(days=day)).isoformat(): _day(chance) for day in _DAYS},
            }
    return flights


def _day(chance: random.Random) -> Record:
    economy = chance.randrange(60, 240, 3)
    return {
        "status": "cancelled" if chance.random() < 0.12 else "on time",
        "seats": {"economy": chance.randint(0, 12), "business": chance.randint(0, 5)},
        "prices": {"economy": economy, "business": 2 * economy + chance.randrange(40, 160)},
    }


def _customer(chance: random.Random, number: int) -> Record:
    first, last = chance.choice(_FIRST), chance.choice(_LAST)
    key = f"{first}_{last}_{number}".lower()
    methods = {
        f"card_{number}": {
            "id": f"card_{number}",
            "source": "credit_card",
            "last_four": f"{chance.randrange(10000):04d}",
        },
        f"gift_{number}": {"id": f"gift_{number}", "source": "gift_card", "balance": chance.randrange(20, 400, 10)},
    }
    return {
        "customer_id": key,
        "first_name": first,
        "last_name": last,
        "email": f"{first}.{last}{number}@post.example".lower(),
        "tier": chance.choice(TIERS),
        "payment_methods": methods,
        "bookings": [],
    }


def _booking(chance: random.Random, customer: Record, flights: dict[str, Record], count: int) -> Record:
    flight = flights[chance.choice(sorted(flights))]
    cabin = chance.choice((*CABINS, "economy"))
    day = (TODAY + timedelta(days=chance.randint(1, 6))).isoformat()
    price = flight["dates"][day]["prices"][cabin] + chance.randrange(-20, 21)
    passengers = [f"{customer['first_name']} {customer['last_name']}"]
    passengers += [f"{chance.choice(_FIRST)} {customer['last_name']}" for _ in range(chance.choice((0, 0, 1, 2)))]
    card = next(iter(customer["payment_methods"]))
    paid = {"transaction_type": "payment", "amount": price * len(passengers), "payment_method_id": card}
    return {
        "booking_id": f"B{1001 + 7 * count}",
        "customer_id": customer["customer_id"],
        "flight": {"number": flight["number"], "date": day, "price": price},
        "origin": flight["origin"],
        "destination": flight["destination"],
        "cabin": cabin,
        "fare": chance.choice(("light", "flex")),
        "passengers": passengers,
        "bags": 0,
        "insured": chance.random() < 0.3,
        "booked_on": (TODAY - timedelta(days=chance.choice((0, 1, 3, 9, 20)))).isoformat(),
        "payment_history": [paid],
        "status": "confirmed",
    }


BAG_PRICE = 40  #: dollars per bag beyond the free bags
VOUCHER = 80  #: dollars per passenger if the airline cancelled the flight
FREE_BAGS = {"regular": 0, "silver": 1, "gold": 2}  #: per passenger, by tier; one more in business

AIRLINE_POLICY = f"""You work at the service desk of Turntree Air. Today is {TODAY.isoformat()}.

Find the customer by email first. Look up what you do not know; make nothing up. Before you change anything, say what \
you are about to do and ask whether that is right. Do only what the customer asks for.

Cancelling. A booking may be cancelled if it was booked today or yesterday, if the airline cancelled its flight, if it \
is in business, or if it is insured. Any other is not cancelled, whatever the customer says. All that was paid goes \
back where it came from; tell the customer how many dollars.
Changing the flight. Only with the fare flex; a light booking keeps its flight, unless the airline cancelled it. The \
route stays the same. The difference in price is paid or given back for every passenger; tell the customer the number \
of the new flight.
Changing the cabin. Always possible while there are seats, for all passengers together, at today's prices.
Bags. Each passenger has {FREE_BAGS["regular"]} bags free as a regular customer, {FREE_BAGS["silver"]} with silver and \
{FREE_BAGS["gold"]} with gold, and one more in business. Every other bag costs {BAG_PRICE} dollars. Tell the customer \
what the new bags cost.
Names. A misspelt name is corrected free. The number of passengers stays the same.
Vouchers. If the airline cancelled the flight of a booking and the customer has silver or gold, or the booking is \
insured, a customer who asks for it is given {VOUCHER} dollars for each passenger. Nobody else is.
Paying. A gift card or voucher has to cover an amount in full.
Hand the customer over to a person only where no tool does what the policy allows."""
