"""Tasks in Harbor's format as episodes: what a folder of tasks says, the container of an episode, the environment.

Not here: isolation of single pieces of code (``envs/sandbox``), programs that act as the policy (``agents/harness``).
"""

from turntree.envs.harbor.env import Harbor

__all__ = ["Harbor"]
