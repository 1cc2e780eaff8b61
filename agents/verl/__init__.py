"""verl with turntree in it: the plugin, verl's defects and the CPU as a platform, and ``launch``.

Not here: what has a room below: ``config``, ``records``, ``episodes``, ``playing``, ``serving``, ``run``.
"""
