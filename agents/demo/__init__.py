"""``make demo``: a small policy that learns on the CPU, and a page about the effect of speculation.

Not here: charts and dialogues of the page (``viewer``).
"""
