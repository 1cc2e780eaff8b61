"""Requests of customers of the fictional airline, with the calls that fulfil them.

Split and index determine a task. The task's calls comply with the airline's policy. If the policy forbids the
customer's wish, the request also names an allowed alternative, so an agent that does nothing never wins.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from datetime import date, timedelta
from typing import Any, NamedTuple

from turntree.envs.service.airline_world import BAG_PRICE, CITIES, FREE_BAGS, TODAY, VOUCHER, airline
from turntree.envs.service.database import Record
from turntree.envs.task import Task


class Wish(NamedTuple):
    text: str
    actions: list[dict[str, Any]]  #: calls that change the database
    outputs: list[str]  #: values that the agent must tell the customer


class _Case(NamedTuple):
    customer: Record
    booking: Record
    rng: random.Random

    @property
    def about(self) -> str:
        return f"booking {self.booking['booking_id']}"

    @property
    def card(self) -> str:
        return str(next(iter(self.customer["payment_methods"])))

    @property
    def passengers(self) -> int:
        return len(self.booking["passengers"])

    @property
    def grounded(self) -> bool:
        return bool(_day(self.booking["flight"]["number"], self.booking["flight"]["date"])["status"] == "cancelled")

    @property
    def free_bags(self) -> int:
        each = FREE_BAGS[self.customer["tier"]] + (self.booking["cabin"] == "business")
        return int(each * self.passengers)

    @property
    def may_cancel(self) -> bool:
        fresh = date.fromisoformat(self.booking["booked_on"]) >= TODAY - timedelta(days=1)
        return fresh or self.grounded or self.booking["cabin"] == "business" or bool(self.booking["insured"])


def airline_task(split: str, index: int) -> Task:
    # Python hashes a text seed with SHA-512, so it gives the same draws in every process.
    rng = random.Random(f"turntree/airline/{split}/{index}")
    kind = rng.choice(sorted(_WISHES))
    wish = _first(_WISHES[kind], rng)
    customer, request = wish
    prompt = f"Your email is {customer['email']}. {request.text}"
    return Task(
        id=f"airline/{split}/{index}/{kind}",
        prompt=prompt,
        answer=json.dumps(request.actions),
        data_source="turntree/airline",
        metadata={"actions": request.actions, "outputs": request.outputs},
    )


def _first(make: Callable[[_Case], Wish | None], rng: random.Random) -> tuple[Record, Wish]:
    for case in _cases(rng):
        wish = make(case)
        if wish is not None:
            return case.customer, wish
    raise AssertionError("every wish fits some booking of the airline")


def _cases(rng: random.Random) -> Iterator[_Case]:
    records = airline().records
    bookings = list(records["bookings"].values())
    rng.shuffle(bookings)
    for booking in bookings:
        yield _Case(records["customers"][booking["customer_id"]], booking, rng)


def _cancel(case: _Case) -> Wish | None:
    if not case.may_cancel:
        return None
    text = f"You want to cancel {case.about} and to know how many dollars you get back."
    paid = sum(entry["amount"] for entry in case.booking["payment_history"])
    return Wish(text, [_call("cancel_booking", case)], [str(paid)])


def _cancel_or_bags(case: _Case) -> Wish | None:
    if case.may_cancel:
        return None
    bags = case.free_bags + case.rng.randint(1, 2)
    text = (
        f"You want to cancel {case.about}. If that cannot be done, you will fly after all, and want {bags} bags added "
        f"to it, paid by {case.card}, and to know what they cost."
    )
    paid = bags - case.free_bags
    call = _call("add_bags", case, bags=bags, paid_bags=paid, payment_method_id=case.card)
    return Wish(text, [call], [str(BAG_PRICE * paid)])


def _bags(case: _Case) -> Wish | None:
    if case.grounded:
        return None
    bags = case.free_bags + case.rng.randint(1, 3)
    cost = BAG_PRICE * (bags - case.free_bags)
    text = f"You want {bags} bags added to {case.about}, and to know what they cost. Pay with {case.card}."
    call = _call("add_bags", case, bags=bags, paid_bags=bags - case.free_bags, payment_method_id=case.card)
    return Wish(text, [call], [str(cost)])


def _change(case: _Case) -> Wish | None:
    if case.booking["fare"] != "flex" and not case.grounded:
        return None
    day = (date.fromisoformat(case.booking["flight"]["date"]) + timedelta(days=case.rng.randint(1, 3))).isoformat()
    number = _cheapest(case.booking, day, case.passengers)
    if number is None:
        return None
    text = (
        f"You want to move {case.about} to the cheapest flight on {day} in the same cabin, with {case.card} for the "
        "difference, and to know the number of the new flight."
    )
    call = _call("change_flight", case, number=number, date=day, payment_method_id=case.card)
    return Wish(text, [call], [number])


def _upgrade(case: _Case) -> Wish | None:
    flight = case.booking["flight"]
    day = _day(flight["number"], flight["date"])
    if case.booking["cabin"] != "economy" or case.grounded or day["seats"]["business"] < case.passengers:
        return None
    difference = (day["prices"]["business"] - flight["price"]) * case.passengers
    text = (
        f"You want everybody on {case.about} to sit in business. Pay with {case.card}; you want to know what it costs."
    )
    call = _call("change_cabin", case, cabin="business", payment_method_id=case.card)
    return Wish(text, [call], [str(difference)])


def _name(case: _Case) -> Wish | None:
    position = case.rng.randint(1, case.passengers)
    wrong = case.booking["passengers"][position - 1]
    first, last = wrong.split()
    right = f"{first}{case.rng.choice('aeiou')} {last}"
    text = f"On {case.about} the name {wrong} of passenger {position} is misspelt: it should be {right}."
    return Wish(text, [_call("correct_name", case, passenger=position, name=right)], [])


def _voucher(case: _Case) -> Wish | None:
    if not case.grounded or not (case.customer["tier"] in ("silver", "gold") or case.booking["insured"]):
        return None
    amount = VOUCHER * case.passengers
    text = f"The flight of {case.about} was cancelled. You want a voucher for the trouble, and to know its amount."
    call = {"name": "send_voucher", "kwargs": {"customer_id": case.customer["customer_id"], "amount": amount}}
    return Wish(text, [call], [str(amount)])


def _book(case: _Case) -> Wish | None:
    booking, rng = case.booking, case.rng
    day = (TODAY + timedelta(days=rng.randint(1, 8))).isoformat()
    number = _cheapest(booking, day, 1)
    if number is None:
        return None
    name = f"{case.customer['first_name']} {case.customer['last_name']}"
    price = _day(number, day)["prices"][booking["cabin"]]
    text = (
        f"You want to book the cheapest flight in {booking['cabin']} from {CITIES[booking['origin']]} to "
        f"{CITIES[booking['destination']]} on {day} for yourself, {name}, paid by {case.card}, and to know the price."
    )
    arguments = {"customer_id": case.customer["customer_id"], "number": number, "date": day, "cabin": booking["cabin"]}
    call = {"name": "book_flight", "kwargs": {**arguments, "passengers": [name], "payment_method_id": case.card}}
    return Wish(text, [call], [str(price)])


_WISHES: dict[str, Callable[[_Case], Wish | None]] = {
    "bags": _bags,
    "book": _book,
    "cancel": _cancel,
    "cancel_or_bags": _cancel_or_bags,
    "change": _change,
    "name": _name,
    "upgrade": _upgrade,
    "voucher": _voucher,
}


def _call(tool: str, case: _Case, /, **arguments: Any) -> dict[str, Any]:
    return {"name": tool, "kwargs": {"booking_id": case.booking["booking_id"], **arguments}}


def _day(number: str, day: str) -> Record:
    found: Record = airline().records["flights"][number]["dates"][day]
    return found


def _cheapest(booking: Record, day: str, seats: int) -> str | None:
    # Returns the cheapest flight. None if there is no flight, or if two are equally cheap: a task has one solution.
    cabin = booking["cabin"]
    prices = sorted(
        (flight["dates"][day]["prices"][cabin], number)
        for number, flight in airline().records["flights"].items()
        if (flight["origin"], flight["destination"]) == (booking["origin"], booking["destination"])
        and day in flight["dates"]
        and flight["dates"][day]["status"] == "on time"
        and flight["dates"][day]["seats"][cabin] >= seats
    )
    if not prices or (len(prices) > 1 and prices[0][0] == prices[1][0]):
        return None
    return prices[0][1]
