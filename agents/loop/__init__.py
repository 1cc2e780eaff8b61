"""The loop that plays one episode, with the driver of the environment and the renderer of tokens.

Not here: the environment (``turntree.envs``) and the sampling of tokens (``engines``).
"""
