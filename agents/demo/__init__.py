"""``make demo``: a small policy that learns on the CPU, and a page about the effect of speculation. A model
to try other things with, from a package.

Not here: charts and dialogues of the page (``viewer``).
"""
