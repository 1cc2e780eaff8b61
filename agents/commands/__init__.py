"""The ``turntree`` command: one module a sub-command, what it prints and asks.

Not here: what the sub-commands do, which stands in ``evaluation``, ``scoring``, ``viewer``, ``demo`` and ``verl``.
"""
