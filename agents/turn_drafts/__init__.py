"""What a turn may begin with: drafts of its tokens, from stored turns, precomputed ones and the last validation.

One pipeline asks the sources for a draft, the engine generates once, and the turn is labelled with its exactness.
Not here: the rules of acceptance as formulas (``spec_tree.rules``) and drafts from trees (``engines.drafting``).
"""
