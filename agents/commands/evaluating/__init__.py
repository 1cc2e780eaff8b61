"""The commands that evaluate models: ``turntree eval``, ``compare`` and ``bench``.

Not here: how tasks are played and summed up, which is in ``evaluation``.
"""
