"""A stock market with one account: orders, money, a watchlist. It is always the same minute."""

from __future__ import annotations

from typing import Any

from turntree.envs.bfcl.simulated.simulator import Simulator, found, one_of, positive
from turntree.envs.errors import ToolError
from turntree.envs.tools.tool import tool

_DAY, _TIME = "2024-11-01", "10:30 AM"
_SECTORS = {
    "Technology": ("AAPL", "GOOG", "MSFT", "NVDA"),
    "Automobile": ("TSLA", "F", "GM"),
    "Healthcare": ("JNJ", "PFE", "MRK"),
    "Finance": ("JPM", "BAC", "GS"),
    "Energy": ("XOM", "CVX", "BP"),
}
_SYMBOLS = {
    **{"Apple": "AAPL", "Google": "GOOG", "Tesla": "TSLA", "Microsoft": "MSFT", "Nvidia": "NVDA", "Amazon": "AMZN"},
    **{"Zeta Corp": "ZETA", "Alpha Tech": "ALPH", "Omega Industries": "OMEG", "Quasar Ltd.": "QUAS"},
    **{"Neptune Systems": "NEPT", "Synex Solutions": "SYNX"},
}


def _order(id: int, order_type: str, symbol: str, price: float, amount: int, status: str) -> dict[str, Any]:
    kind = {"id": id, "order_type": order_type, "symbol": symbol}
    return {**kind, "price": price, "amount": amount, "status": status}


class Trading(Simulator):
    """The account, its orders and the market. Money and orders need a login, what is only looked at does not."""

    initial = {
        "orders": {
            "12345": _order(12345, "Buy", "AAPL", 210.65, 10, "Completed"),
            "12446": _order(12446, "Sell", "GOOG", 2840.34, 5, "Pending"),
        },
        "account_info": {"account_id": 12345, "balance": 10000.0, "binding_card": 1974202140965533},
        "authenticated": False,
        "market_status": "Closed",
        "order_counter": 12446,
        "stocks": {},
        "watch_list": [],
        "transaction_history": [],
    }

    @tool
    def trading_login(self, username: str, password: str) -> dict[str, str]:
        """Log in.

        Args:
            username: Name of the user
            password: Password of the user
        """
        if not username or not password:
            raise ToolError("a login needs a name and a password")
        if self.state["authenticated"]:
            return {"status": "logged in before"}
        self.state["authenticated"] = True
        return {"status": "logged in"}

    @tool
    def trading_get_login_status(self) -> dict[str, bool]:
        """Whether the user is logged in."""
        return {"status": bool(self.state["authenticated"])}

    @tool
    def trading_logout(self) -> dict[str, str]:
        """Log out."""
        was, self.state["authenticated"] = self.state["authenticated"], False
        return {"status": "logged out" if was else "nobody was logged in"}

    @tool
    def get_current_time(self) -> dict[str, str]:
        """The time of the day."""
        return {"current_time": _TIME}

    @tool
    def get_symbol_by_name(self, name: str) -> dict[str, str]:
        """Find a company's stock symbol.

        Args:
            name: Name of the company
        """
        wanted = name.strip().rstrip(".").lower()
        hits = [symbol for company, symbol in _SYMBOLS.items() if company.rstrip(".").lower() == wanted]
        return {"symbol": hits[0] if hits else "Stock not found"}

    @tool
    def get_stock_info(self, symbol: str) -> dict[str, Any]:
        """Price, change and volume of a stock.

        Args:
            symbol: Its symbol
        """
        return dict(found(self.state["stocks"], symbol, "stock"))

    @tool
    def get_available_stocks(self, sector: str) -> dict[str, list[str]]:
        """List the stocks of a sector.

        Args:
            sector: As Technology
        """
        listed = list(_SECTORS.get(sector.strip().title(), ()))
        return {"stock_list": listed + self.state.get("listed", {}).get(sector.strip().title(), [])}

    @tool
    def filter_stocks_by_price(self, stocks: list[str], min_price: float, max_price: float) -> dict[str, list[str]]:
        """Leave those of some stocks whose price lies in a range.

        Args:
            stocks: Their symbols
            min_price: Least price
            max_price: Highest price
        """
        prices = {symbol: found(self.state["stocks"], symbol, "stock")["price"] for symbol in stocks}
        return {"filtered_stocks": [symbol for symbol in stocks if min_price <= prices[symbol] <= max_price]}

    @tool
    def notify_price_change(self, stocks: list[str], threshold: float) -> dict[str, str]:
        """Name the stocks that changed by more than a threshold.

        Args:
            stocks: Their symbols
            threshold: Percent
        """
        changes = {symbol: found(self.state["stocks"], symbol, "stock")["percent_change"] for symbol in stocks}
        moved = [symbol for symbol in stocks if abs(changes[symbol]) > threshold]
        return {"notification": f"changed: {', '.join(moved)}" if moved else "no stock changed as much"}

    @tool
    def get_watchlist(self) -> dict[str, list[str]]:
        """Show the watchlist."""
        return {"watchlist": self.state["watch_list"]}

    @tool
    def add_to_watchlist(self, stock: str) -> dict[str, list[str]]:
        """Add a stock to the watchlist.

        Args:
            stock: Its symbol
        """
        found(self.state["stocks"], stock, "stock")
        if stock not in self.state["watch_list"]:
            self.state["watch_list"].append(stock)
        return {"watchlist": self.state["watch_list"]}

    @tool
    def remove_stock_from_watchlist(self, symbol: str) -> dict[str, str]:
        """Remove a stock from the watchlist.

        Args:
            symbol: Its symbol
        """
        if symbol not in self.state["watch_list"]:
            raise ToolError(f"{symbol} is not in the watchlist")
        self.state["watch_list"].remove(symbol)
        return {"status": f"{symbol} is removed"}

    @tool
    def place_order(self, order_type: str, symbol: str, price: float, amount: int) -> dict[str, Any]:
        """Place an order.

        Args:
            order_type: Buy or Sell
            symbol: Of the stock
            price: For one share
            amount: How many shares
        """
        self._check_login()
        found(self.state["stocks"], symbol, "stock")
        one_of(order_type, ("Buy", "Sell"), "order_type")
        positive(price, "price")
        positive(amount, "amount")
        number = self.state["order_counter"]
        while str(number) in self.state["orders"]:
            number += 1
        self.state["orders"][str(number)] = _order(number, order_type, symbol, price, amount, "Open")
        self.state["order_counter"] = number + 1
        return {"order_id": number, "order_type": order_type, "status": "Pending", "price": price, "amount": amount}

    @tool
    def get_order_details(self, order_id: int) -> dict[str, Any]:
        """Show an order.

        Args:
            order_id: Id of the order
        """
        return dict(found(self.state["orders"], order_id, "order"))

    @tool
    def get_order_history(self) -> dict[str, list[int]]:
        """List the ids of all orders."""
        return {"order_history": [int(number) for number in self.state["orders"] if number.isdecimal()]}

    @tool
    def cancel_order(self, order_id: int) -> dict[str, Any]:
        """Cancel an order.

        Args:
            order_id: Id of the order
        """
        order = found(self.state["orders"], order_id, "order")
        if order.get("status") in ("Completed", "Cancelled"):
            raise ToolError(f"order {order_id} is {order['status'].lower()}")
        order["status"] = "Cancelled"
        return {"order_id": order_id, "status": "Cancelled"}

    @tool
    def get_account_info(self) -> dict[str, Any]:
        """Show the account."""
        self._check_login()
        return dict(self.state["account_info"])

    @tool
    def fund_account(self, amount: float) -> dict[str, Any]:
        """Pay money in.

        Args:
            amount: How much
        """
        return {"status": "paid in", "new_balance": self._transfer(amount, 1, "deposit")}

    @tool
    def withdraw_funds(self, amount: float) -> dict[str, Any]:
        """Take money out.

        Args:
            amount: How much
        """
        return {"status": "taken out", "new_balance": self._transfer(amount, -1, "withdrawal")}

    @tool
    def get_transaction_history(self, start_date: str | None = None, end_date: str | None = None) -> dict[str, Any]:
        """Show what was paid in and taken out.

        Args:
            start_date: First day, as 2024-11-01; without it from the beginning
            end_date: Last day; without it to the end
        """
        self._check_login()
        first, last = start_date or "", end_date or "9999"
        entries = self.state["transaction_history"]
        return {"transaction_history": [e for e in entries if first <= str(e.get("timestamp", ""))[:10] <= last]}

    def _transfer(self, amount: float, sign: int, kind: str) -> float:
        self._check_login()
        account = self.state["account_info"]
        balance = float(round(account["balance"] + sign * positive(amount, "amount"), 2))
        if balance < 0:
            raise ToolError("the account holds less than that")
        account["balance"] = balance
        entry = {"type": kind, "amount": amount, "timestamp": f"{_DAY} 10:30:00"}
        self.state["transaction_history"].append(entry)
        return balance

    def _check_login(self) -> None:
        if not self.state["authenticated"]:
            raise ToolError("nobody is logged in")
