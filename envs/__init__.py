"""Environments, tasks, tools and limits: everything that a policy interacts with.

Importing this package registers its environments with Gymnasium. After the import,
``gymnasium.make("turntree/Arithmetic-v0")`` works. Without an import of your own, use
``gymnasium.make("turntree.envs:turntree/Arithmetic-v0")``.
"""

from turntree.envs.checking.conformance import check_environment, require_conformance
from turntree.envs.env import Env
from turntree.envs.errors import (
    ConformanceError,
    DataError,
    EnvError,
    MissingExtra,
    OptionsError,
    ResetNeeded,
    SnapshotError,
    TaskIndexError,
    ToolDefinitionError,
    ToolError,
    UnknownEnvironment,
    UnknownParser,
)
from turntree.envs.limits import Limits
from turntree.envs.message import Message, Reply, Role, ToolCall
from turntree.envs.parsers import (
    CompactParser,
    HarmonyParser,
    HermesParser,
    Llama3JsonParser,
    ParsedTurn,
    TagsParser,
    ToolParser,
    get_parser,
)
from turntree.envs.progress import EnvStop
from turntree.envs.registry import list_envs, make, register, register_with_gymnasium
from turntree.envs.running.executor import ToolExecutor
from turntree.envs.running.memo import ResultMemo
from turntree.envs.running.worker_pool import WorkerPool
from turntree.envs.spaces import Unicode
from turntree.envs.task import Context, Task
from turntree.envs.tools.tool import Tool, tool
from turntree.envs.tools.toolset import Toolset

register_with_gymnasium()

__all__ = [
    "CompactParser",
    "ConformanceError",
    "Context",
    "DataError",
    "Env",
    "EnvError",
    "EnvStop",
    "HarmonyParser",
    "HermesParser",
    "Limits",
    "Llama3JsonParser",
    "Message",
    "MissingExtra",
    "OptionsError",
    "ParsedTurn",
    "Reply",
    "ResetNeeded",
    "ResultMemo",
    "Role",
    "SnapshotError",
    "TagsParser",
    "Task",
    "TaskIndexError",
    "Tool",
    "ToolCall",
    "ToolDefinitionError",
    "ToolError",
    "ToolExecutor",
    "ToolParser",
    "Toolset",
    "Unicode",
    "UnknownEnvironment",
    "UnknownParser",
    "WorkerPool",
    "check_environment",
    "get_parser",
    "list_envs",
    "make",
    "register",
    "register_with_gymnasium",
    "require_conformance",
    "tool",
]
