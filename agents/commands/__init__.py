"""The ``turntree`` command: the options and output of each sub-command.

Not here: the work of the sub-commands (``evaluation``, ``scoring``, ``viewer``, ``demo``, ``verl``).
"""
