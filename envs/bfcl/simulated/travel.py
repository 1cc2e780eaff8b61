"""Flights: what they cost, bookings, invoices and insurance of one traveller."""

from __future__ import annotations

from typing import Any

from turntree.envs.bfcl.simulated.account import Account, day_of
from turntree.envs.bfcl.simulated.places import AIRPORTS, airport, fare
from turntree.envs.bfcl.simulated.simulator import found, positive
from turntree.envs.errors import ToolError
from turntree.envs.tools.tool import tool


class Travel(Account):
    """One traveller's flights."""

    initial = {**Account.initial, "booking_record": {}, "insurances": {}}

    @tool
    def get_flight_cost(
        self, travel_from: str, travel_to: str, travel_date: str, travel_class: str
    ) -> dict[str, list[float]]:
        """What a flight costs in dollars.

        Args:
            travel_from: Airport of departure, three letters
            travel_to: Airport of arrival
            travel_date: As 2026-11-15
            travel_class: economy, business or first
        """
        day_of(travel_date)
        return {"travel_cost_list": [fare(travel_from, travel_to, travel_class)]}

    @tool
    def book_flight(
        self, access_token: str, card_id: str, travel_date: str, travel_from: str, travel_to: str, travel_class: str
    ) -> dict[str, Any]:
        """Book a flight.

        Args:
            access_token: The traveller's token
            card_id: The card that pays
            travel_date: As 2026-11-15
            travel_from: Airport of departure, three letters
            travel_to: Airport of arrival
            travel_class: economy, business or first
        """
        self._check_token(access_token)
        day_of(travel_date)
        cost = fare(travel_from, travel_to, travel_class)
        self._pay(card_id, cost)
        booking_id, transaction_id = self._id(7), self._id(7)
        self.state["booking_record"][booking_id] = {
            "card_id": card_id,
            "travel_date": travel_date,
            "travel_from": travel_from,
            "travel_to": travel_to,
            "travel_class": travel_class,
            "travel_cost": cost,
            "transaction_id": transaction_id,
        }
        return {
            "booking_id": booking_id,
            "transaction_id": transaction_id,
            "booking_status": True,
            "booking_history": {},
        }

    @tool
    def cancel_booking(self, access_token: str, booking_id: str) -> dict[str, bool]:
        """Cancel a booking; what it cost goes back to its card.

        Args:
            access_token: The traveller's token
            booking_id: Id of the booking
        """
        self._check_token(access_token)
        booking = self._booking(booking_id)
        card = self.state["credit_card_list"].get(booking.get("card_id"))
        if card:
            card["balance"] += booking.get("travel_cost", 0.0)
        del self.state["booking_record"][booking_id]
        return {"cancel_status": True}

    @tool
    def get_booking_history(self, access_token: str) -> dict[str, Any]:
        """Show all bookings.

        Args:
            access_token: The traveller's token
        """
        self._check_token(access_token)
        return {"booking_history": self.state["booking_record"]}

    @tool
    def retrieve_invoice(
        self, access_token: str, booking_id: str | None = None, insurance_id: str | None = None
    ) -> dict[str, Any]:
        """The invoice of a booking or an insurance.

        Args:
            access_token: The traveller's token
            booking_id: Id of the booking
            insurance_id: Id of the insurance
        """
        self._check_token(access_token)
        invoice: dict[str, Any] = {}
        if booking_id and booking_id != "None":
            invoice |= {"booking_id": booking_id, **self._booking(booking_id)}
        if insurance_id and insurance_id != "None":
            invoice |= {"insurance_id": insurance_id, **found(self.state["insurances"], insurance_id, "insurance")}
        if not invoice:
            raise ToolError("give the id of a booking or of an insurance")
        return {"invoice": invoice}

    @tool
    def purchase_insurance(
        self, access_token: str, insurance_type: str, insurance_cost: float, booking_id: str, card_id: str
    ) -> dict[str, Any]:
        """Insure a booking.

        Args:
            access_token: The traveller's token
            insurance_type: What is insured
            insurance_cost: Dollars
            booking_id: Id of the booking
            card_id: The card that pays
        """
        self._check_token(access_token)
        self._booking(booking_id)
        self._pay(card_id, positive(insurance_cost, "insurance_cost"))
        insurance_id = self._id(9)
        self.state["insurances"][insurance_id] = {
            "booking_id": booking_id,
            "insurance_type": insurance_type,
            "insurance_cost": insurance_cost,
            "card_id": card_id,
        }
        return {"insurance_id": insurance_id, "insurance_status": True}

    @tool
    def list_all_airports(self) -> dict[str, list[str]]:
        """List the airports."""
        return {"airports": list(AIRPORTS)}

    @tool
    def get_nearest_airport_by_city(self, location: str) -> dict[str, str]:
        """The airport of a city.

        Args:
            location: Name of the city
        """
        return {"nearest_airport": airport(location)}

    @tool
    def contact_customer_support(self, booking_id: str, message: str) -> dict[str, str]:
        """Write to customer support about a booking.

        Args:
            booking_id: Id of the booking
            message: What to say
        """
        self._booking(booking_id)
        return {"customer_support_message": f"Thank you for writing about {booking_id}. We look into it."}

    def _booking(self, booking_id: str) -> dict[str, Any]:
        booking: dict[str, Any] = found(self.state["booking_record"], booking_id, "booking")
        return booking
