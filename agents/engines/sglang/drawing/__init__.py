"""Sampling of turntree's requests inside SGLang."""
