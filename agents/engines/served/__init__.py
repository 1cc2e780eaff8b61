"""What vLLM and SGLang have in common as engines: requests checked, verified again, scored, and precomputed behind others; the
store of drafts in their processes, its settings, and how much a step drafts.

Nothing here imports either of them, as their own processes import it. What is particular to one of them (how a request
is written, what is changed inside it) stands in its own room.
"""
