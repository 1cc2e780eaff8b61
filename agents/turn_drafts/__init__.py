"""Drafts of whole turns, from stored turns, precomputed turns and the last validation.

A pipeline asks these sources for a draft, the engine generates once, and the turn is labelled with its exactness level.
The acceptance rules as formulas are in ``spec_tree.rules``, drafts from trees in ``engines.drafting``.
"""
