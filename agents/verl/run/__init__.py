"""The processes of ``turntree train``: starting them quickly, resuming after a stop, and the models that they leave.

Not here: the configuration (``config``) and ``launch`` itself, which is in ``verl``.
"""
