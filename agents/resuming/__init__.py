"""Turns and episodes that an update of the weights overtakes: verified again by the new policy with their own noise, or kept.

Not here: verl's trainers and workers (``verl.playing``), turns of earlier epochs (``reuse``).
"""
