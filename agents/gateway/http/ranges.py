from __future__ import annotations

from typing import Annotated, Any

from pydantic import ValidationError, ValidatorFunctionWrapHandler, WrapValidator


def within(low: float, high: float, *, what: str = "a number", also: float | None = None) -> WrapValidator:
    """Return a validator whose error states the range and the value that came.

    Args:
        also: A value outside the range that is accepted.
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
    return within(low, high, what="an integer")


MOST = (1 << 31) - 1  #: engines hold these numbers in 32 bits

#: 0 is greedy; float32 cannot hold the scaled logits below 1e-4
Temperature = Annotated[float, within(0.0001, 100, also=0)]
TopP = Annotated[float, within(0.000001, 1)]
Penalty = Annotated[float, within(-2, 2)]
Figure = Annotated[float, within(-1_000_000, 1_000_000)]  #: a reward, a part of one, or a weight
Tokens = Annotated[int, whole(1, MOST)]
Token = Annotated[int, whole(0, MOST)]  #: a token id; the vocabulary size is checked by the engine
Top = Annotated[int, whole(0, 20)]  #: number of most probable tokens to return
