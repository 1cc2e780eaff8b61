"""The agent's tools at the desk of tau-bench's airline. A desk is the toolset with which an agent serves customers.

Names, arguments and effects equal those of tau-bench's airline domain, so tau-bench's schemas and tasks can be used.
The tools do not enforce all rules: the agent itself must check, for example, who may cancel and which bags are free.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from turntree.envs.errors import ToolError
from turntree.envs.service.database import Record
from turntree.envs.service.desk import Desk
from turntree.envs.service.tau_flights import CITIES, Fields, Leg, complete, direct, offered, one_stop, take_seats
from turntree.envs.tools.tool import tool

TABLES = ("users", "reservations", "flights")
Cabin = Literal["basic_economy", "economy", "business"]
_NOW = "2024-05-15T15:00:00"
_BAG, _INSURANCE = 50, 30
"""Dollars per bag beyond the free bags, and per passenger for insurance."""
_LEG: Fields = {"flight_number": str, "date": str}
_PASSENGER: Fields = {"first_name": str, "last_name": str, "dob": str}
_PAYMENT: Fields = {"payment_id": str, "amount": (int, float)}


class TauAirlineDesk(Desk):
    @tool
    def get_user_details(self, user_id: str) -> dict[str, Any]:
        """Show a customer's profile and reservations.

        Args:
            user_id: Id of the customer
        """
        return self._find("users", user_id)

    @tool
    def get_reservation_details(self, reservation_id: str) -> dict[str, Any]:
        """Show a reservation.

        Args:
            reservation_id: Id of the reservation
        """
        return self._find("reservations", reservation_id)

    @tool
    def list_all_airports(self) -> dict[str, str]:
        """List the airports and their cities."""
        return CITIES

    @tool
    def search_direct_flight(self, origin: str, destination: str, date: str) -> list[dict[str, Any]]:
        """List the flights of a day that can be booked.

        Args:
            origin: Airport of departure, three letters
            destination: Airport of arrival
            date: As 2024-05-20
        """
        return list(direct(self.database, origin, destination, date))

    @tool
    def search_onestop_flight(self, origin: str, destination: str, date: str) -> list[list[dict[str, Any]]]:
        """List the pairs of flights with one stop that can be booked.

        Args:
            origin: Airport of departure, three letters
            destination: Airport of arrival
            date: Of the first flight, as 2024-05-20
        """
        return list(one_stop(self.database, origin, destination, date))

    @tool
    def book_reservation(
        self,
        user_id: str,
        origin: str,
        destination: str,
        flight_type: Literal["one_way", "round_trip"],
        cabin: Cabin,
        flights: list[dict[str, Any]],
        passengers: list[dict[str, Any]],
        payment_methods: list[dict[str, Any]],
        total_baggages: int,
        nonfree_baggages: int,
        insurance: Literal["yes", "no"],
    ) -> dict[str, Any]:
        """Book a reservation.

        Args:
            user_id: Who pays
            origin: Airport of departure, three letters
            destination: Airport of arrival
            flight_type: One way or there and back
            cabin: Where all passengers sit
            flights: Number and date of each
            passengers: Name and date of birth of each
            payment_methods: Id and amount of each
            total_baggages: All bags
            nonfree_baggages: Those that are paid
            insurance: Whether the passengers are insured
        """
        user = self._find("users", user_id)
        legs, people = complete(flights, _LEG, "flights"), complete(passengers, _PASSENGER, "passengers")
        payments = complete(payment_methods, _PAYMENT, "payment methods")
        segments = [self._segment(leg, cabin, len(people)) for leg in legs]
        _check_bags(total_baggages, nonfree_baggages)
        price = sum(segment["price"] for segment in segments) * len(people) + _BAG * nonfree_baggages
        price += _INSURANCE * len(people) * (insurance == "yes")
        for payment in payments:
            self._check_purse(user, payment["payment_id"], payment["amount"])
        amounts = {payment["payment_id"]: payment["amount"] for payment in payments}
        if len(amounts) < len(payments) or min(amounts.values()) <= 0 or sum(amounts.values()) != price:
            raise ToolError(f"the payments should be positive, of different methods, and sum up to {price:g}")
        reservation_id = f"NEW{1 + sum(1 for _ in self.database.rows('reservations')):04d}"
        reservation: Record = {
            **{"reservation_id": reservation_id, "user_id": user_id, "origin": origin, "destination": destination},
            **{"flight_type": flight_type, "cabin": cabin, "flights": segments, "passengers": people},
            **{"payment_history": payments, "created_at": _NOW, "total_baggages": total_baggages},
            **{"nonfree_baggages": nonfree_baggages, "insurance": insurance},
        }
        for payment in payments:
            self._spend(user_id, payment["payment_id"], payment["amount"])
        self.database.add("reservations", reservation_id, reservation)
        self.database.edit("users", user_id)["reservations"].append(reservation_id)
        take_seats(self.database, segments, cabin, len(people))
        return reservation

    @tool
    def cancel_reservation(self, reservation_id: str) -> dict[str, Any]:
        """Cancel a reservation; all that was paid goes back in some days.

        Args:
            reservation_id: Id of the reservation
        """
        reservation = self._standing(reservation_id)
        history = reservation["payment_history"]
        history.extend([{**entry, "amount": -entry["amount"]} for entry in history])
        reservation["status"] = "cancelled"
        take_seats(self.database, reservation["flights"], reservation["cabin"], -len(reservation["passengers"]))
        return reservation

    @tool
    def update_reservation_flights(
        self, reservation_id: str, cabin: Cabin, flights: list[dict[str, Any]], payment_id: str
    ) -> dict[str, Any]:
        """Change the flights or the cabin of a reservation; a flight that stays in its cabin keeps its price.

        Args:
            reservation_id: Id of the reservation
            cabin: Where all passengers sit
            flights: Number and date of every flight, those that stay too
            payment_id: Pays or receives the difference
        """
        # Check everything on the original record; _standing makes the editable copy only after all checks.
        old = self._find("reservations", reservation_id)
        legs, count = complete(flights, _LEG, "flights"), len(old["passengers"])
        segments = [self._kept(old, leg, cabin) or self._segment(leg, cabin, count) for leg in legs]
        before, after = (sum(leg["price"] for leg in some) * count for some in (old["flights"], segments))
        self._check_change(old, payment_id, after - before)
        reservation = self._standing(reservation_id)
        take_seats(self.database, reservation["flights"], reservation["cabin"], -count)
        take_seats(self.database, segments, cabin, count)
        self._settle(reservation, payment_id, after - before)
        reservation.update(flights=segments, cabin=cabin)
        return reservation

    @tool
    def update_reservation_baggages(
        self, reservation_id: str, total_baggages: int, nonfree_baggages: int, payment_id: str
    ) -> dict[str, Any]:
        """Change the bags of a reservation.

        Args:
            reservation_id: Id of the reservation
            total_baggages: All bags
            nonfree_baggages: Those that are paid
            payment_id: Pays for further ones
        """
        old = self._find("reservations", reservation_id)
        _check_bags(total_baggages, nonfree_baggages)
        price = _BAG * max(0, nonfree_baggages - old["nonfree_baggages"])
        self._check_change(old, payment_id, price)
        reservation = self._standing(reservation_id)
        self._settle(reservation, payment_id, price)
        reservation.update(total_baggages=total_baggages, nonfree_baggages=nonfree_baggages)
        return reservation

    @tool
    def update_reservation_passengers(self, reservation_id: str, passengers: list[dict[str, Any]]) -> dict[str, Any]:
        """Change the passengers of a reservation, as many as before.

        Args:
            reservation_id: Id of the reservation
            passengers: Name and date of birth of each
        """
        people = complete(passengers, _PASSENGER, "passengers")
        if len(people) != len(self._find("reservations", reservation_id)["passengers"]):
            raise ToolError("the number of passengers stays the same")
        reservation = self._standing(reservation_id)
        reservation["passengers"] = people
        return reservation

    @tool
    def send_certificate(self, user_id: str, amount: float) -> str:
        """Give a customer a certificate.

        Args:
            user_id: Id of the customer
            amount: Dollars
        """
        self._find("users", user_id)
        if not 0 < amount < 1e6:
            raise ToolError("the amount should be positive")
        methods = self.database.edit("users", user_id)["payment_methods"]
        number = next(n for n in range(len(methods) + 1) if f"certificate_new_{n}" not in methods)
        certificate = {"source": "certificate", "amount": amount, "id": f"certificate_new_{number}"}
        methods[certificate["id"]] = certificate
        return f"Certificate {certificate['id']} added to user {user_id} with amount {amount:g}."

    def _standing(self, reservation_id: str) -> Record:
        if self._find("reservations", reservation_id).get("status") == "cancelled":
            raise ToolError("the reservation is cancelled")
        return self.database.edit("reservations", reservation_id)

    def _segment(self, leg: Leg, cabin: str, seats: int) -> Record:
        flight, price = offered(self.database, leg, cabin, seats)
        return {**leg, "origin": flight["origin"], "destination": flight["destination"], "price": price}

    def _kept(self, reservation: Record, leg: Leg, cabin: str) -> Record | None:
        held: Sequence[Record] = reservation["flights"] if reservation["cabin"] == cabin else ()
        return next((dict(flight) for flight in held if all(flight[key] == leg[key] for key in _LEG)), None)

    def _check_purse(self, user: Record, payment_id: str, amount: float) -> Record:
        method: Record | None = user["payment_methods"].get(payment_id)
        if method is None:
            raise ToolError("payment method not found")
        if method["source"] != "credit_card" and method["amount"] < amount:
            raise ToolError(f"there is not enough on the {method['source'].replace('_', ' ')}")
        return method

    def _check_change(self, reservation: Record, payment_id: str, amount: float) -> None:
        user = self._find("users", reservation["user_id"])
        if self._check_purse(user, payment_id, amount)["source"] == "certificate":
            raise ToolError("a certificate cannot pay for a change")

    def _settle(self, reservation: Record, payment_id: str, amount: float) -> None:
        if amount:
            self._spend(reservation["user_id"], payment_id, amount)
            reservation["payment_history"].append({"payment_id": payment_id, "amount": amount})

    def _spend(self, user_id: str, payment_id: str, amount: float) -> None:
        # One payment uses up a certificate, even if the amount is smaller than the certificate's.
        methods = self.database.edit("users", user_id)["payment_methods"]
        if methods[payment_id]["source"] == "certificate":
            del methods[payment_id]
        elif methods[payment_id]["source"] == "gift_card":
            methods[payment_id]["amount"] -= amount


def _check_bags(total: int, paid: int) -> None:
    if not 0 <= paid <= total < 1_000:
        raise ToolError("the number of bags is not negative, and no more are paid than there are")
