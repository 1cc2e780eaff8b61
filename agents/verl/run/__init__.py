"""The processes of ``turntree train``: starting them quickly, and resuming after a stop.

Not here: the configuration (``config``) and ``launch`` itself, which is in ``verl``.
"""
