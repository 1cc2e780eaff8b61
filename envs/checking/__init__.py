"""What every environment must keep, checked by playing it.

Not here: what a tool call must look like (``tools``).
"""
