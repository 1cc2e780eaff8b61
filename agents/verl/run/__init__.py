"""The processes of ``turntree train``: starting them quickly, and going on after a stop.

Not here: the configuration (``config``) and ``launch`` itself, which stands in ``verl``.
"""
