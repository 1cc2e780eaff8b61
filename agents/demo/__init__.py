"""``make demo``: a small policy that learns on the CPU, and the page that says what speculation did.

Not here: charts and dialogues of the page, which are the ``viewer``'s.
"""
