"""Flights, credit cards, insurance and a budget of one traveller.

Ids are drawn from a generator of the episode, in the order of the calls; with ``SEED`` they are those of the published
paths. The generator is not part of what is judged.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import date
from typing import Any

from turntree.envs.bfcl.simulated.places import AIRPORTS, airport, fare
from turntree.envs.bfcl.simulated.simulator import Simulator, found, one_of, positive
from turntree.envs.errors import ToolError
from turntree.envs.tools.tool import tool

SEED = 141053
_TODAY = date(2026, 1, 1)
_ADULT = 18
_LIFE = 3600
"""Seconds for which a token is good; no time passes."""
_NEW_CARD = 10_000.0
"""Dollars on a card that is registered."""
_RATES = {
    **{"USD": 1.0, "RMB": 7.0, "EUR": 0.8, "JPY": 110.0, "GBP": 0.7, "CAD": 1.3, "AUD": 1.4, "INR": 75.0, "RUB": 80.0},
    **{"BRL": 5.0, "MXN": 20.0},
}
"""A dollar in each currency."""


class Travel(Simulator):
    """One traveller's account."""

    initial = {
        "credit_card_list": {},
        "booking_record": {},
        "insurances": {},
        **{"access_token": None, "token_type": None, "token_expires_in": None, "token_scope": None},
        **{"user_first_name": None, "user_last_name": None, "budget_limit": None},
    }

    def load(self, configuration: Mapping[str, Any]) -> None:
        """Begin with a task's account, and ids from the first on."""
        super().load(configuration)
        self._random = random.Random(SEED)

    @tool
    def authenticate_travel(
        self,
        client_id: str,
        client_secret: str,
        refresh_token: str,
        grant_type: str,
        user_first_name: str,
        user_last_name: str,
    ) -> dict[str, Any]:
        """Log the traveller in.

        Args:
            client_id: Id of the application
            client_secret: Its secret
            refresh_token: Token of the first login
            grant_type: read_write, read or write
            user_first_name: First name of the traveller
            user_last_name: Last name
        """
        one_of(grant_type, ("read_write", "read", "write"), "grant_type")
        token = self._id(6)
        self.state.update(access_token=token, token_type="Bearer", token_expires_in=_LIFE, token_scope=grant_type)
        self.state.update(user_first_name=user_first_name, user_last_name=user_last_name)
        return {"expires_in": _LIFE, "access_token": token, "token_type": "Bearer", "scope": grant_type}

    @tool
    def travel_get_login_status(self) -> dict[str, bool]:
        """Whether the traveller is logged in."""
        return {"status": bool(self.state["access_token"])}

    @tool
    def get_budget_fiscal_year(
        self, lastModifiedAfter: str | None = None, includeRemoved: str | None = None
    ) -> dict[str, str]:
        """The fiscal year of the budget.

        Args:
            lastModifiedAfter: Only years changed after it, as 2016-03-29T16:12:20
            includeRemoved: Whether removed years count
        """
        return {"budget_fiscal_year": str(_TODAY.year)}

    @tool
    def register_credit_card(
        self,
        access_token: str,
        card_number: str,
        expiration_date: str,
        cardholder_name: str,
        card_verification_number: int,
    ) -> dict[str, str]:
        """Register a credit card.

        Args:
            access_token: The traveller's token
            card_number: Number of the card
            expiration_date: As 12/2028
            cardholder_name: Who owns it
            card_verification_number: On its back
        """
        self._check_token(access_token)
        card_id = self._id(12)
        self.state["credit_card_list"][card_id] = {
            "card_number": card_number,
            "expiration_date": expiration_date,
            "cardholder_name": cardholder_name,
            "card_verification_number": card_verification_number,
            "balance": _NEW_CARD,
        }
        return {"card_id": card_id}

    @tool
    def get_all_credit_cards(self) -> dict[str, Any]:
        """Show all cards."""
        return {"credit_card_list": self.state["credit_card_list"]}

    @tool
    def get_credit_card_balance(self, access_token: str, card_id: str) -> dict[str, float]:
        """What is on a card.

        Args:
            access_token: The traveller's token
            card_id: Id of the card
        """
        self._check_token(access_token)
        return {"card_balance": self._card(card_id)["balance"]}

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
        _day(travel_date)
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
        _day(travel_date)
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
    def set_budget_limit(self, access_token: str, budget_limit: float) -> dict[str, float]:
        """Set the budget. A booking is not refused for it.

        Args:
            access_token: The traveller's token
            budget_limit: Dollars
        """
        self._check_token(access_token)
        self.state["budget_limit"] = float(positive(budget_limit, "budget_limit"))
        return {"budget_limit": self.state["budget_limit"]}

    @tool
    def compute_exchange_rate(self, base_currency: str, target_currency: str, value: float) -> dict[str, float]:
        """Convert money.

        Args:
            base_currency: As USD
            target_currency: As EUR
            value: How much
        """
        rate = found(_RATES, target_currency, "currency") / found(_RATES, base_currency, "currency")
        return {"exchanged_value": round(positive(value, "value") * rate, 2)}

    @tool
    def verify_traveler_information(
        self, first_name: str, last_name: str, date_of_birth: str, passport_number: str
    ) -> dict[str, Any]:
        """Compare a traveller with the account; who is no adult or has no passport is not verified.

        Args:
            first_name: First name
            last_name: Last name
            date_of_birth: As 1985-03-15
            passport_number: Letters and digits
        """
        born = _day(date_of_birth)
        years = _TODAY.year - born.year - ((_TODAY.month, _TODAY.day) < (born.month, born.day))
        reason = ""
        if (first_name, last_name) != (self.state["user_first_name"], self.state["user_last_name"]):
            reason = "the name is not that of the account"
        elif years < _ADULT:
            reason = f"the traveller is younger than {_ADULT}"
        elif not passport_number.isalnum():
            reason = "this is no number of a passport"
        return {"verification_status": not reason} | ({"verification_failure": reason} if reason else {})

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

    def _id(self, digits: int) -> str:
        return str(self._random.randint(10 ** (digits - 1), 10**digits - 1))

    def _check_token(self, token: str) -> None:
        if token != self.state["access_token"]:
            raise ToolError("the access token is not valid")

    def _card(self, card_id: str) -> dict[str, Any]:
        card: dict[str, Any] = found(self.state["credit_card_list"], card_id, "card")
        return card

    def _booking(self, booking_id: str) -> dict[str, Any]:
        booking: dict[str, Any] = found(self.state["booking_record"], booking_id, "booking")
        return booking

    def _pay(self, card_id: str, amount: float) -> None:
        card = self._card(card_id)
        if card["balance"] < amount:
            raise ToolError(f"the card has {card['balance']} dollars")
        card["balance"] -= amount


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise ToolError(f"a date is written as {_TODAY.isoformat()}, got {text!r:.40}") from error
