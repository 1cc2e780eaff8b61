"""Tool calls carried out: threads, deadlines, remembered results, time.

Not here: what a tool is (``tools``).
"""
