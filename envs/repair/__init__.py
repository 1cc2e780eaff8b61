"""Small programs with a fault that the policy finds and repairs, with a shell in the sandbox.

Here live the programs, the workspace with its tools and the check by calls that the policy does not see. The sandbox
itself is ``turntree.envs.sandbox``.
"""
