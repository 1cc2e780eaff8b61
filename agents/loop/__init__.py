"""How one episode is played: the loop, the driver of the environment, the renderer of tokens.

Not here: the environment (``turntree.envs``) and what samples (``engines``).
"""
