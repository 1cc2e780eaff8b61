"""Turns and episodes that a weight update interrupts: re-verified by the new policy, or kept.

Not here: verl's trainers and workers (``verl.playing``), reuse of earlier epochs' turns (``turn_drafts``).
"""
