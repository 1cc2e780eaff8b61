"""Adapters between turntree environments and other libraries. Each module imports its library only when used."""
