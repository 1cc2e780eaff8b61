"""Integration with verl: the plugin, workarounds for verl's bugs, the CPU platform, and the launcher.

The sub-packages ``config``, ``records``, ``episodes``, ``playing``, ``serving`` and ``run`` hold the rest.
"""
