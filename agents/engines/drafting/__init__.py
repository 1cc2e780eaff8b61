"""What all engines share: the drafting session over the store, and draws that depend on a seed.

Not here: the store itself (``spec_tree``), and what an engine calls its requests and batches.
"""
