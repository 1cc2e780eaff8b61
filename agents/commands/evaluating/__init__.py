"""The commands ``turntree eval``, ``compare`` and ``bench``.

Not here: playing tasks and aggregating results (``evaluation``).
"""
