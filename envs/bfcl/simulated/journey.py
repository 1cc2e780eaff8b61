"""The way of a car: distances, navigation, the weather outside, and volumes of fuel."""

from __future__ import annotations

from turntree.envs.bfcl.simulated.places import distance, zip_code
from turntree.envs.bfcl.simulated.simulator import Simulator
from turntree.envs.errors import ToolError
from turntree.envs.tools.tool import tool

MILES_A_GALLON = 20.0
SHOP = "456 Oakwood Avenue, Rivermist, 83214"
"""Where the nearest tyre shop is."""
LITRES_A_GALLON, GALLONS_A_LITRE = 3.78541, 0.264172


class Journey(Simulator):
    """What a driver asks before and on the way."""

    initial = {"fuelLevel": 0.0, "destination": "None"}

    @tool
    def get_outside_temperature_from_google(self) -> dict[str, float]:
        """The temperature outside."""
        return {"outsideTemperature": 31.5}

    @tool
    def get_outside_temperature_from_weather_com(self) -> dict[str, float]:
        """The temperature outside, from a service that does not answer."""
        raise ToolError("the service does not answer")

    @tool
    def display_log(self, messages: list[str]) -> dict[str, list[str]]:
        """Show messages.

        Args:
            messages: The messages
        """
        return {"log": messages}

    @tool
    def estimate_drive_feasibility_by_mileage(self, distance: float) -> dict[str, bool]:
        """Whether the fuel lasts for a distance.

        Args:
            distance: Miles
        """
        return {"canDrive": distance <= self.state["fuelLevel"] * MILES_A_GALLON}

    @tool
    def estimate_distance(self, cityA: str, cityB: str) -> dict[str, float]:
        """The distance of two cities.

        Args:
            cityA: Zip code of the first
            cityB: Zip code of the second
        """
        return {"distance": distance(cityA, cityB)}

    @tool
    def get_zipcode_based_on_city(self, city: str) -> dict[str, str]:
        """The zip code of a city.

        Args:
            city: Its name
        """
        return {"zipcode": zip_code(city)}

    @tool
    def set_navigation(self, destination: str) -> dict[str, str]:
        """Navigate to an address.

        Args:
            destination: Street, city and state
        """
        self.state["destination"] = destination
        return {"status": f"navigating to {destination}"}

    @tool
    def find_nearest_tire_shop(self) -> dict[str, str]:
        """The address of the nearest tyre shop."""
        return {"shopLocation": SHOP}

    @tool
    def gallon_to_liter(self, gallon: float) -> dict[str, float]:
        """Convert gallons to litres.

        Args:
            gallon: Gallons
        """
        return {"liter": _volume(gallon) * LITRES_A_GALLON}

    @tool
    def liter_to_gallon(self, liter: float) -> dict[str, float]:
        """Convert litres to gallons.

        Args:
            liter: Litres
        """
        return {"gallon": _volume(liter) * GALLONS_A_LITRE}


def _volume(volume: float) -> float:
    if not 0 <= volume < 1e12:
        raise ToolError("a volume is not negative")
    return float(volume)
