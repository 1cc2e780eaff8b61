"""The verl integration: the plugin, patches for verl's defects, the CPU platform and ``launch``.

Not here: configuration, records, episodes, playing, serving and run, which are sub-packages.
"""
