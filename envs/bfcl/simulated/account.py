"""A traveller's account: the login, credit cards, a budget, and who the traveller is.

Ids are drawn from a generator of the episode, in the order of the calls; with ``SEED`` they are those of the published
paths. The generator is not part of what is judged.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from datetime import date
from typing import Any

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


class Account(Simulator):
    """The account that every flight is booked with."""

    initial = {
        "credit_card_list": {},
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
        born = day_of(date_of_birth)
        years = _TODAY.year - born.year - ((_TODAY.month, _TODAY.day) < (born.month, born.day))
        reason = ""
        if (first_name, last_name) != (self.state["user_first_name"], self.state["user_last_name"]):
            reason = "the name is not that of the account"
        elif years < _ADULT:
            reason = f"the traveller is younger than {_ADULT}"
        elif not passport_number.isalnum():
            reason = "this is no number of a passport"
        return {"verification_status": not reason} | ({"verification_failure": reason} if reason else {})

    def _id(self, digits: int) -> str:
        return str(self._random.randint(10 ** (digits - 1), 10**digits - 1))

    def _check_token(self, token: str) -> None:
        if token != self.state["access_token"]:
            raise ToolError("the access token is not valid")

    def _card(self, card_id: str) -> dict[str, Any]:
        card: dict[str, Any] = found(self.state["credit_card_list"], card_id, "card")
        return card

    def _pay(self, card_id: str, amount: float) -> None:
        card = self._card(card_id)
        if card["balance"] < amount:
            raise ToolError(f"the card has {card['balance']} dollars")
        card["balance"] -= amount


def day_of(text: str) -> date:
    """A day as it is written in a call.

    Raises:
        ToolError: If it is none.
    """
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise ToolError(f"a date is written as {_TODAY.isoformat()}, got {text!r:.40}") from error
