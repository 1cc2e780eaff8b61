"""The agent's tools at the desk of a fictional airline. A desk is the toolset with which an agent serves customers.

The tools enforce what a database can check: seats, money, the route of a booking. The agent must obey all other rules
of the airline's policy (``airline_policy``) itself.
"""

from __future__ import annotations

from typing import Any, Literal

from turntree.envs.errors import ToolError
from turntree.envs.service.airline_world import BAG_PRICE, CITIES, TODAY
from turntree.envs.service.database import Record
from turntree.envs.service.desk import Desk
from turntree.envs.tools.tool import tool

Cabin = Literal["economy", "business"]


class AirlineDesk(Desk):
    people = ("customers", "customer_id")
    limited = ("gift_card", "voucher")

    @tool
    def find_customer_by_email(self, email: str) -> str:
        """Find a customer's id.

        Args:
            email: Email address
        """
        return self._id_by_email(email)

    @tool
    def get_customer(self, customer_id: str) -> dict[str, Any]:
        """Show a customer: tier, ways to pay, bookings.

        Args:
            customer_id: Id of the customer
        """
        return self._find("customers", customer_id)

    @tool
    def get_booking(self, booking_id: str) -> dict[str, Any]:
        """Show a booking, and the status of its flight.

        Args:
            booking_id: Id of the booking
        """
        booking = self._find("bookings", booking_id)
        return {**booking, "flight_status": self._day(booking["flight"]["number"], booking["flight"]["date"])["status"]}

    @tool
    def search_flights(self, origin: str, destination: str, date: str) -> list[dict[str, Any]]:
        """List the flights of a day with seats and prices.

        Args:
            origin: City or its code
            destination: City or its code
            date: As 2031-05-15
        """
        route = (_code(origin), _code(destination))
        found = [
            flight for _, flight in self.database.rows("flights") if (flight["origin"], flight["destination"]) == route
        ]
        days = [(flight, flight["dates"].get(date)) for flight in found]
        return [{"number": flight["number"], "departs": flight["departs"], **day} for flight, day in days if day]

    @tool
    def book_flight(
        self, customer_id: str, number: str, date: str, cabin: Cabin, passengers: list[str], payment_method_id: str
    ) -> dict[str, Any]:
        """Book a flight, with the fare flex and without bags.

        Args:
            customer_id: Who pays
            number: Flight number
            date: As 2031-05-15
            cabin: Where all passengers sit
            passengers: First and last name of each
            payment_method_id: One of the customer's
        """
        customer, flight = self._find("customers", customer_id), self._find("flights", number)
        if not passengers:
            raise ToolError("name at least one passenger")
        price = self._free_seats(number, date, cabin, len(passengers))["prices"][cabin]
        booking_id = f"B{9001 + sum(1 for _ in self.database.rows('bookings'))}"
        booking: Record = {
            "booking_id": booking_id,
            "customer_id": customer_id,
            "flight": {"number": number, "date": date, "price": price},
            "origin": flight["origin"],
            "destination": flight["destination"],
            "cabin": cabin,
            "fare": "flex",
            "passengers": list(passengers),
            "bags": 0,
            "insured": False,
            "booked_on": TODAY.isoformat(),
            "payment_history": [],
            "status": "confirmed",
        }
        self._check_funds(booking, payment_method_id, price * len(passengers))
        self.database.add("bookings", booking_id, booking)
        self.database.edit("customers", customer["customer_id"])["bookings"].append(booking_id)
        self._settle(booking, payment_method_id, price * len(passengers))
        self._seat(booking, -1)
        return booking

    @tool
    def cancel_booking(self, booking_id: str) -> dict[str, Any]:
        """Cancel a booking and refund all that was paid for it.

        Args:
            booking_id: Id of the booking
        """
        self._confirmed(booking_id)
        booking = self.database.edit("bookings", booking_id)
        for method_id, amount in _paid(booking).items():
            self._settle(booking, method_id, -amount)
        self._seat(booking, 1)
        booking["status"] = "cancelled"
        return booking

    @tool
    def change_flight(self, booking_id: str, number: str, date: str, payment_method_id: str) -> dict[str, Any]:
        """Move a booking to another flight of the same route.

        Args:
            booking_id: Id of the booking
            number: Number of the new flight
            date: Its date, as 2031-05-15
            payment_method_id: Pays or receives the difference
        """
        booking, flight = self._confirmed(booking_id), self._find("flights", number)
        if (flight["origin"], flight["destination"]) != (booking["origin"], booking["destination"]):
            raise ToolError(f"{number} does not go from {booking['origin']} to {booking['destination']}")
        return self._rebook(booking, number, date, booking["cabin"], payment_method_id)

    @tool
    def change_cabin(self, booking_id: str, cabin: Cabin, payment_method_id: str) -> dict[str, Any]:
        """Move all passengers of a booking to another cabin.

        Args:
            booking_id: Id of the booking
            cabin: The new one
            payment_method_id: Pays or receives the difference
        """
        booking = self._confirmed(booking_id)
        if booking["cabin"] == cabin:
            raise ToolError(f"the booking is in {cabin} already")
        return self._rebook(booking, booking["flight"]["number"], booking["flight"]["date"], cabin, payment_method_id)

    @tool
    def add_bags(self, booking_id: str, bags: int, paid_bags: int, payment_method_id: str) -> dict[str, Any]:
        """Add bags to a booking.

        Args:
            booking_id: Id of the booking
            bags: How many come to it
            paid_bags: How many of them are not free
            payment_method_id: Pays for those
        """
        booking = self._confirmed(booking_id)
        if bags < 1 or not 0 <= paid_bags <= bags:
            raise ToolError("at least one bag, and no more paid ones than bags")
        self._check_funds(booking, payment_method_id, BAG_PRICE * paid_bags)
        booking = self.database.edit("bookings", booking_id)
        booking["bags"] += bags
        self._settle(booking, payment_method_id, BAG_PRICE * paid_bags)
        return booking

    @tool
    def correct_name(self, booking_id: str, passenger: int, name: str) -> dict[str, Any]:
        """Correct the name of a passenger.

        Args:
            booking_id: Id of the booking
            passenger: Which one, counted from 1
            name: First and last name as they should be
        """
        booking = self._confirmed(booking_id)
        if not 1 <= passenger <= len(booking["passengers"]):
            raise ToolError(f"the booking has {len(booking['passengers'])} passengers, counted from 1")
        booking = self.database.edit("bookings", booking_id)
        booking["passengers"][passenger - 1] = name
        return booking

    @tool
    def send_voucher(self, customer_id: str, amount: int) -> dict[str, Any]:
        """Give a customer a voucher.

        Args:
            customer_id: Id of the customer
            amount: Dollars
        """
        if amount < 1:
            raise ToolError("the amount should be positive")
        self._find("customers", customer_id)
        methods = self.database.edit("customers", customer_id)["payment_methods"]
        voucher = {"id": f"voucher_{len(methods)}", "source": "voucher", "balance": amount}
        methods[voucher["id"]] = voucher
        return voucher

    def _confirmed(self, booking_id: str) -> Record:
        booking = self._find("bookings", booking_id)
        if booking["status"] != "confirmed":
            raise ToolError(f"the booking is {booking['status']}")
        return booking

    def _day(self, number: str, date: str) -> Record:
        day: Record | None = self._find("flights", number)["dates"].get(date)
        if day is None:
            raise ToolError(f"{number} does not go on {date}; a date is written as {TODAY.isoformat()}")
        return day

    def _free_seats(self, number: str, date: str, cabin: str, count: int) -> Record:
        day = self._day(number, date)
        if day["status"] != "on time":
            raise ToolError(f"{number} is {day['status']} on {date}")
        if day["seats"][cabin] < count:
            raise ToolError(f"{number} has {day['seats'][cabin]} seats left in {cabin} on {date}")
        return day

    def _rebook(self, booking: Record, number: str, date: str, cabin: str, method_id: str) -> Record:
        # Check everything before the first change, so that an error leaves the records unchanged.
        count = len(booking["passengers"])
        price = self._free_seats(number, date, cabin, count)["prices"][cabin]
        difference = (price - booking["flight"]["price"]) * count  # a negative difference is refunded
        self._check_funds(booking, method_id, difference)
        booking = self.database.edit("bookings", booking["booking_id"])
        self._settle(booking, method_id, difference)
        # Return the seats of the old flight while the booking still points to the old flight.
        self._seat(booking, 1)
        booking["flight"], booking["cabin"] = {"number": number, "date": date, "price": price}, cabin
        self._seat(booking, -1)
        return booking

    def _seat(self, booking: Record, change: int) -> None:
        # change is 1 to return the seats of the booking, -1 to take the seats.
        flight = self.database.edit("flights", booking["flight"]["number"])
        flight["dates"][booking["flight"]["date"]]["seats"][booking["cabin"]] += change * len(booking["passengers"])

    def _settle(self, booking: Record, method_id: str, amount: float) -> None:
        self._method(booking, method_id)
        if amount:
            self._pay(booking, method_id, amount)


def _code(city: str) -> str:
    # A text that is no known city is returned in upper case, as a code; an unknown code has no flights.
    by_name = {name.lower(): code for code, name in CITIES.items()}
    return by_name.get(city.lower(), city.upper())


def _paid(booking: Record) -> dict[str, float]:
    paid: dict[str, float] = {}
    for entry in booking["payment_history"]:
        sign = 1 if entry["transaction_type"] == "payment" else -1
        paid[entry["payment_method_id"]] = paid.get(entry["payment_method_id"], 0) + sign * entry["amount"]
    return paid
