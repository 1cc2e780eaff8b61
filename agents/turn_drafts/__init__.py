"""Drafts of whole turns, from stored turns, precomputed turns and the last validation.

A draft of a whole turn (a turn-level draft) proposes all tokens of the model's next message. ``pipeline`` asks
the sources for a draft, the engine verifies the draft and generates the rest, and the turn is labelled with its
exactness level (A to D, ``spec_tree.rules.level``). The formulas of the acceptance rules are in ``spec_tree.rules``.
Drafts of the next few tokens, from the draft store's trees, are in ``engines.drafting``.
"""
