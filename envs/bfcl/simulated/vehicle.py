"""A car: doors, engine, brakes, fuel, climate, tyres, cruise control."""

from __future__ import annotations

from typing import Any

from turntree.envs.bfcl.simulated.journey import Journey
from turntree.envs.bfcl.simulated.simulator import one_of
from turntree.envs.errors import ToolError
from turntree.envs.tools.tool import tool

TANK = 50.0
"""Gallons that the tank holds."""
_HEALTHY = (30.0, 35.0)
"""Mean pressure of healthy tyres, psi, the bounds included and excluded."""
_DOORS = ("driver", "passenger", "rear_left", "rear_right")
_TYRES = ("frontLeftTirePressure", "frontRightTirePressure", "rearLeftTirePressure", "rearRightTirePressure")
_SHOWN = {
    "fuel": {"fuelLevel": "fuelLevel"},
    "battery": {"batteryVoltage": "batteryVoltage"},
    "doors": {"doorStatus": "doorStatus"},
    "climate": {
        "currentACTemperature": "acTemperature",
        "fanSpeed": "fanSpeed",
        "climateMode": "acMode",
        "humidityLevel": "humidityLevel",
    },
    "headlights": {"headlightStatus": "headLightStatus"},
    "parkingBrake": {
        "parkingBrakeStatus": "parkingBrakeStatus",
        "parkingBrakeForce": "parkingBrakeForce",
        "slopeAngle": "slopeAngle",
    },
    "brakePedal": {"brakePedalStatus": "brakePedalStatus", "brakePedalForce": "brakePedalForce"},
    "engine": {"engineState": "engineState"},
}
"""What each option shows: name in the result -> name in the state."""


class Vehicle(Journey):
    """One car. Its engine starts with all doors locked, the brake pedal fully pressed and fuel in the tank."""

    initial = {
        **Journey.initial,
        **{"batteryVoltage": 12.6, "engineState": "stopped", "currentSpeed": 0.0},
        **{"doorStatus": dict.fromkeys(_DOORS, "unlocked"), "headLightStatus": "off"},
        **{"acTemperature": 25.0, "fanSpeed": 50, "acMode": "auto", "humidityLevel": 50.0},
        **{"brakePedalStatus": "released", "brakePedalForce": 0.0},
        **{"parkingBrakeStatus": "released", "parkingBrakeForce": 0.0, "slopeAngle": 0.0},
        **{"cruiseStatus": "inactive", "distanceToNextVehicle": 50.0},
        **dict.fromkeys(_TYRES, 32.0),
    }

    @tool
    def startEngine(self, ignitionMode: str) -> dict[str, Any]:
        """Start or stop the engine.

        Args:
            ignitionMode: START or STOP
        """
        if one_of(ignitionMode, ("START", "STOP"), "ignitionMode") == "START":
            if self._unlocked():
                raise ToolError(f"lock all doors first; unlocked are {', '.join(self._unlocked())}")
            if self.state["brakePedalForce"] < 1000.0:
                raise ToolError("press the brake pedal fully first")
            if self.state["fuelLevel"] <= 0:
                raise ToolError("the tank is empty")
        self.state["engineState"] = "running" if ignitionMode == "START" else "stopped"
        return {key: self.state[key] for key in ("engineState", "fuelLevel", "batteryVoltage")}

    @tool
    def fillFuelTank(self, fuelAmount: float) -> dict[str, float]:
        """Fill fuel into the tank, which holds 50 gallons.

        Args:
            fuelAmount: Gallons that are added
        """
        level = self.state["fuelLevel"] + fuelAmount if 0 <= fuelAmount <= TANK else TANK + 1
        if level > TANK:
            raise ToolError(f"the tank holds {TANK:g} gallons and has {self.state['fuelLevel']:g}")
        self.state["fuelLevel"] = float(level)
        return {"fuelLevel": float(level)}

    @tool
    def lockDoors(self, unlock: bool, door: list[str]) -> dict[str, Any]:
        """Lock or unlock doors.

        Args:
            unlock: Whether they are unlocked
            door: Of driver, passenger, rear_left, rear_right
        """
        for name in door:
            one_of(name, _DOORS, "door")
        self.state["doorStatus"].update(dict.fromkeys(door, "unlocked" if unlock else "locked"))
        return {"lockStatus": "unlocked" if unlock else "locked", "remainingUnlockedDoors": len(self._unlocked())}

    @tool
    def adjustClimateControl(
        self, temperature: float, unit: str = "celsius", fanSpeed: int = 50, mode: str = "auto"
    ) -> dict[str, Any]:
        """Set the climate.

        Args:
            temperature: Degrees
            unit: celsius or fahrenheit
            fanSpeed: From 0 to 100
            mode: auto, cool, heat or defrost
        """
        one_of(mode, ("auto", "cool", "heat", "defrost"), "mode")
        if not 0 <= fanSpeed <= 100 or not -100 < temperature < 250:
            raise ToolError("the fan goes from 0 to 100, and the temperature must be one that a car can have")
        warm = one_of(unit, ("celsius", "fahrenheit"), "unit") == "celsius"
        degrees = float(temperature) if warm else (temperature - 32) * 5 / 9
        self.state.update(acTemperature=degrees, fanSpeed=fanSpeed, acMode=mode)
        return {"currentTemperature": degrees, "climateMode": mode, "humidityLevel": self.state["humidityLevel"]}

    @tool
    def setHeadlights(self, mode: str) -> dict[str, str]:
        """Set the headlights.

        Args:
            mode: on, off or auto
        """
        self.state["headLightStatus"] = "off" if one_of(mode, ("on", "off", "auto"), "mode") == "off" else "on"
        return {"headlightStatus": self.state["headLightStatus"]}

    @tool
    def displayCarStatus(self, option: str) -> dict[str, Any]:
        """Show a part of the car.

        Args:
            option: fuel, battery, doors, climate, headlights, parkingBrake, brakePedal or engine
        """
        shown = {name: self.state[key] for name, key in _SHOWN[one_of(option, _SHOWN, "option")].items()}
        return {"status": shown | self._about()}

    @tool
    def activateParkingBrake(self, mode: str) -> dict[str, Any]:
        """Engage or release the parking brake.

        Args:
            mode: engage or release
        """
        engaged = one_of(mode, ("engage", "release"), "mode") == "engage"
        force = 500.0 if engaged else 0.0
        self.state.update(parkingBrakeStatus="engaged" if engaged else "released", parkingBrakeForce=force)
        return {
            "parkingBrakeStatus": self.state["parkingBrakeStatus"],
            "_parkingBrakeForce": force,
            "_slopeAngle": self.state["slopeAngle"],
        }

    @tool
    def pressBrakePedal(self, pedalPosition: float) -> dict[str, Any]:
        """Press the brake pedal, which stays pressed until it is released.

        Args:
            pedalPosition: From 0 to 1, fully pressed
        """
        if not 0 <= pedalPosition <= 1:
            raise ToolError("the position is from 0 to 1")
        return self._brake(1000.0 * pedalPosition)

    @tool
    def releaseBrakePedal(self) -> dict[str, Any]:
        """Release the brake pedal."""
        return self._brake(0.0)

    @tool
    def setCruiseControl(self, speed: float, activate: bool, distanceToNextVehicle: float) -> dict[str, Any]:
        """Set the cruise control.

        Args:
            speed: Miles an hour, from 0 to 120 and a multiple of 5
            activate: Whether it goes on
            distanceToNextVehicle: Metres
        """
        if activate:
            if self.state["engineState"] != "running":
                raise ToolError("start the engine first")
            if not 0 <= speed <= 120 or speed % 5:
                raise ToolError("the speed is from 0 to 120 and a multiple of 5")
            if not 0 <= distanceToNextVehicle < 1e6:
                raise ToolError("the distance is some metres")
            self.state.update(currentSpeed=float(speed), distanceToNextVehicle=float(distanceToNextVehicle))
        self.state["cruiseStatus"] = "active" if activate else "inactive"
        return {key: self.state[key] for key in ("cruiseStatus", "currentSpeed", "distanceToNextVehicle")}

    @tool
    def get_current_speed(self) -> dict[str, float]:
        """The speed of the car."""
        return {"currentSpeed": self.state["currentSpeed"]}

    @tool
    def check_tire_pressure(self) -> dict[str, Any]:
        """Check the pressure of the tyres."""
        pressures = {tyre: self.state[tyre] for tyre in _TYRES}
        healthy = _HEALTHY[0] <= sum(pressures.values()) / len(pressures) < _HEALTHY[1]
        return {"tirePressure": {**pressures, "healthy_tire_pressure": healthy, "car_info": self._about()}}

    def _unlocked(self) -> list[str]:
        return [door for door, status in self.state["doorStatus"].items() if status == "unlocked"]

    def _brake(self, force: float) -> dict[str, Any]:
        self.state.update(brakePedalStatus="pressed" if force else "released", brakePedalForce=force)
        return {key: self.state[key] for key in ("brakePedalStatus", "brakePedalForce")}

    def _about(self) -> dict[str, Any]:
        about: dict[str, Any] = self.state.get("car_info", {})
        return about
