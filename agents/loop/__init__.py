"""The loop that plays one episode, the code that calls the environment, and the renderer of messages to tokens.

Not here: the environment (``turntree.envs``) and the sampling of tokens (``engines``).
"""
