"""Letters after a number that are a noun or a unit, not a product of variables: ``18 eggs``, ``3 lbs``."""

from __future__ import annotations

#: unit abbreviations of two or three letters
ABBREVIATIONS = frozenset(
    str.split(
        "lb lbs oz mi gal gals yd yds hr hrs pt pts qt qts ft in cm mm km kg ml cl dl mL cL dL sec secs min mins mph "
        "usd USD eur EUR gbp GBP rs Rs pcs pc hp rpm kWh kW Hz kHz MHz Pa kPa kJ eV deg rad am pm dB sq cu"
    )
)
#: nouns whose letters are in alphabetical order, as the variables of a product usually are
_SORTED = frozenset(
    str.split(
        "ant boy box cow guy lot fox cop fort knot cost film belt host mop gin hit dip dot elf elm art bin bit bow act "
        "air inn hint gift clip chip chin cent city hop egg bee door floor foot loop hill hoop boot boots book deer "
        "beer ace bill"
    )
)


def can_be_noun(run: str) -> bool:
    """Return whether letters after a number and a blank can be a noun or a unit.

    Letters that may as well be variables (``5 ab``, ``7 xy``) are never a noun.

    Example:
        >>> can_be_noun("eggs"), can_be_noun("lbs"), can_be_noun("xy"), can_be_noun("abc")
        (True, True, False, False)
    """
    if run in ABBREVIATIONS:
        return True
    lower = run.lower()
    if len(run) < 3 or not any(vowel in lower for vowel in "aeiouy") or (not run.islower() and not run[1:].islower()):
        return False
    if list(lower) != sorted(lower):
        return not set(lower) <= set("xyzabc")
    return lower in _SORTED or lower.removesuffix("s") in _SORTED
