"""The eight APIs, one module each, and what they share: the base class, and the places between which one travels.

Not here: which of them a task uses, and how it is judged.
"""
