"""The integration with verl: the plugin, patches of verl's defects, the CPU as a platform, and ``launch``.

Not here: what is in the sub-packages ``config``, ``records``, ``episodes``, ``playing``, ``serving``, ``run``.
"""
