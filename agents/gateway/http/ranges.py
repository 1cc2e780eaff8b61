"""The ranges of the numbers in requests.

Invariant: whatever is wrong with a number, the refusal states its range, and what came.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ValidationError, ValidatorFunctionWrapHandler, WrapValidator


def within(low: float, high: float, *, what: str = "a number", also: float | None = None) -> WrapValidator:
    """The check of a field.

    Args:
        also: A value outside the range that it may have.
    """
    other = "" if also is None else f"{also} or "

    def check(value: Any, valid: ValidatorFunctionWrapHandler) -> Any:
        try:
            found = valid(value)
        except ValidationError:
            found = None
        if found is None or not (low <= found <= high or found == also):
            raise ValueError(f"expected {other}{what} from {low} to {high}, got {_shown(value)}")
        return found

    return WrapValidator(check)


def _shown(value: Any) -> str:
    try:
        return f"{value!r:.80}"
    except ValueError:  # Python writes no integer of thousands of digits
        return f"one of {value.bit_length()} bits"


def whole(low: int, high: int) -> WrapValidator:
    """The check of a field for an integer."""
    return within(low, high, what="an integer")


MOST = (1 << 31) - 1
"""What the engines hold in 32 bits."""

Temperature = Annotated[float, within(0.0001, 100, also=0)]
"""0 is greedy; with one below 1e-4 float32 cannot hold what is drawn from."""
TopP = Annotated[float, within(0.000001, 1)]
"""Nucleus mass."""
Penalty = Annotated[float, within(-2, 2)]
"""Presence or frequency penalty."""
Figure = Annotated[float, within(-1_000_000, 1_000_000)]
"""A reward, one of its parts, or a weight."""
Tokens = Annotated[int, whole(1, MOST)]
"""A number of tokens."""
Token = Annotated[int, whole(0, MOST)]
"""A token's id; which ones there are the model says."""
Top = Annotated[int, whole(0, 20)]
"""How many of the most probable tokens a client may ask for."""
