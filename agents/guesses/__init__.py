"""Reuse of earlier turns: stored, verified, cut and continued, or sampled ahead of their step.

Not here: the rules of acceptance as formulas (``spec_tree.rules``) and drafts from trees (``engines.drafting``).
"""
