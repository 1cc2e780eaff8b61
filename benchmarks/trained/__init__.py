"""Policies that are trained a little between epochs, and vLLM stepped by hand to play them."""
