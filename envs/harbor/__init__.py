"""Run tasks in Harbor's format as episodes: the folder of tasks, the container of an episode, the environment.

See ``envs/sandbox`` for running single pieces of code, and ``agents/harness`` for agent programs that act as policies.
"""

from turntree.envs.harbor.env import Harbor

__all__ = ["Harbor"]
