"""Isolation of untrusted code. ``python_sandbox`` describes what is covered and what is not."""

from turntree.envs.errors import SandboxError
from turntree.envs.sandbox.docker_sandbox import DockerSandbox
from turntree.envs.sandbox.python_sandbox import IsolationWarning, PythonSandbox
from turntree.envs.sandbox.python_tool import PythonTool
from turntree.envs.sandbox.settings import CodeResult, CodeStatus, Isolation, SandboxLimits

__all__ = [
    "CodeResult",
    "CodeStatus",
    "DockerSandbox",
    "Isolation",
    "IsolationWarning",
    "PythonSandbox",
    "PythonTool",
    "SandboxError",
    "SandboxLimits",
]
