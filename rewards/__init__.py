"""Answers and their equality."""

from turntree.rewards.answer import final_answer, parse_number, same_number

__all__ = ["final_answer", "parse_number", "same_number"]
