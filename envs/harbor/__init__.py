"""Run tasks in Harbor's format as episodes: the folder of tasks, the container of an episode, the environment.

Isolation of single pieces of code is in ``envs/sandbox``; programs that act as the policy are in ``agents/harness``.
"""

from turntree.envs.harbor.env import Harbor

__all__ = ["Harbor"]
