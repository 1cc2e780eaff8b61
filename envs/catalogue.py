"""The environments that come with the package. An environment's module is imported when it is first made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from turntree.envs.math.sets import MATH_SETS


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    id: str  #: ``turntree/Name-v0``
    entry_point: str  #: ``module:Class``
    summary: str  #: one-line description
    arguments: Mapping[str, Any] = field(default_factory=dict)  #: default arguments of the constructor
    needs_data: bool = False  #: tasks come from a file, a folder, the Hugging Face hub or a package (argument ``data``)


#: all built-in environments, in the order of the documentation
CATALOGUE: tuple[Entry, ...] = (
    Entry(
        id="turntree/Arithmetic-v0",
        entry_point="turntree.envs.math.arithmetic:Arithmetic",
        summary="Evaluate expressions such as 2+3*4-1, one operation a call.",
    ),
    Entry(
        id="turntree/GSM8K-v0",
        entry_point="turntree.envs.math.gsm8k:GSM8K",
        summary="Solve grade-school word problems with a calculator.",
        needs_data=True,
    ),
    Entry(
        id="turntree/Countdown-v0",
        entry_point="turntree.envs.procedural.countdown:Countdown",
        summary="Reach a target with the given numbers and + - * /.",
    ),
    Entry(
        id="turntree/Game24-v0",
        entry_point="turntree.envs.procedural.countdown:Countdown",
        summary="Make 24 of four numbers from 1 to 13, each used once.",
        arguments={"count": 4, "max_number": 13, "target": 24, "use_all": True},
    ),
    Entry(
        id="turntree/Equations-v0",
        entry_point="turntree.envs.procedural.equations:Equations",
        summary="Solve linear and quadratic equations and systems of two.",
    ),
    Entry(
        id="turntree/UnitConversion-v0",
        entry_point="turntree.envs.procedural.units:UnitConversion",
        summary="Convert quantities between units, exactly.",
    ),
    Entry(
        id="turntree/NumberGuessing-v0",
        entry_point="turntree.envs.procedural.guessing:NumberGuessing",
        summary="Guess a number from higher and lower.",
    ),
    Entry(
        id="turntree/Adventure-v0",
        entry_point="turntree.envs.procedural.adventure:Adventure",
        summary="Find the key, unlock the door, take the treasure.",
    ),
    Entry(
        id="turntree/KeyValue-v0",
        entry_point="turntree.envs.lookup.key_value:KeyValue",
        summary="Read and change numbers in a store, as asked.",
    ),
    Entry(
        id="turntree/Search-v0",
        entry_point="turntree.envs.lookup.search:Search",
        summary="Answer questions by searching a local corpus.",
    ),
    Entry(
        id="turntree/RetailService-v0",
        entry_point="turntree.envs.service.env:RetailService",
        summary="Serve a customer of a shop with sixteen tools over tau-bench's database.",
        needs_data=True,
    ),
    Entry(
        id="turntree/AirlineService-v0",
        entry_point="turntree.envs.service.env:AirlineService",
        summary="Serve a customer of a made-up airline with fourteen tools over its bookings.",
    ),
    Entry(
        id="turntree/TauAirline-v0",
        entry_point="turntree.envs.service.env:TauAirline",
        summary="Serve a customer of tau-bench's airline with fourteen tools over its bookings.",
        needs_data=True,
    ),
    Entry(
        id="turntree/BFCL-v0",
        entry_point="turntree.envs.bfcl.env:BFCL",
        summary="Do what a user asks for, turn after turn, with tools over eight simulated APIs.",
        needs_data=True,
    ),
    Entry(
        id="turntree/Repair-v0",
        entry_point="turntree.envs.repair.env:Repair",
        summary="Find and repair the fault of a small program with a shell, an editor and its tests.",
    ),
    *(
        Entry(
            id=id,
            entry_point="turntree.envs.math.env:Math",
            summary=summary,
            arguments={"dataset": math.name, **arguments},
            needs_data=True,
        )
        for math in MATH_SETS
        for id, summary, arguments in (
            (math.tools_id, f"{math.title}; Python and a calculator.", {"use": ("python", "calculator")}),
            (math.env_id, f"{math.title}.", {}),
        )
    ),
)


def find_entry(id: str) -> Entry | None:
    """Return the entry with this id; ``None`` if another package provides the environment."""
    return next((entry for entry in CATALOGUE if entry.id == id), None)
