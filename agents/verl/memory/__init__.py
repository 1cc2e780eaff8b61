"""Memory of a GPU in a training by verl, estimated before anything is started.

Not here: measuring it. No figure is fitted to a device; constants that are assumed are named in ``phases``.
"""
