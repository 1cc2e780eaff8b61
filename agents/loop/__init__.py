"""The playing of one episode: the loop, the driver of the environment, the renderer of tokens.

Not here: the environment (``turntree.envs``) and the sampling of tokens (``engines``).
"""
