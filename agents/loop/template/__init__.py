"""What a model's chat template needs, and messages in the form that it takes.

Not here: token ids that are kept from turn to turn (``renderer``).
"""
