"""The ``turntree`` command: one module per sub-command, with its options and output.

Not here: the work of the sub-commands, in ``evaluation``, ``scoring``, ``viewer``, ``demo`` and ``verl``.
"""
