"""Parts that all engines share: the drafting session over the store, and draws that depend on a seed.

Not here: the store itself (``spec_tree``), and the form of an engine's requests and batches.
"""
