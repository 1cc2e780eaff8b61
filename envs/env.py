"""The environment: a Gymnasium environment whose observations and actions are text.

Authors write ``task``, ``reply`` and, where the task's prompt is not the whole
opening, ``start``. The base class parses tool calls, runs the tools, enforces every
limit but those counted in tokens, and turns whatever a tool or ``reply`` raises,
but the user's Ctrl-C, into a truncated episode. Invariant: an episode ends exactly
once, as terminated (the task ended it) or as truncated (a limit, a failure), never
as both.
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any, ClassVar, TypeVar

import gymnasium

from turntree.envs.context import Context
from turntree.envs.errors import ResetNeeded
from turntree.envs.failure import FailureKind, describe, kind_of
from turntree.envs.limits import Limits
from turntree.envs.message import Message, Role, ToolCall
from turntree.envs.parsers import DEFAULT_FORMAT, ParsedTurn, ToolParser, get_parser, read_turn
from turntree.envs.progress import EnvStop, Progress
from turntree.envs.reply import Reply
from turntree.envs.running.containment import contain
from turntree.envs.running.executor import ToolExecutor
from turntree.envs.running.memo import ResultMemo, after_call, after_words, beginning
from turntree.envs.running.pure_calls import PureCall, PureCalls
from turntree.envs.running.snapshots import Snapshots
from turntree.envs.running.stopwatch import Stopwatch
from turntree.envs.spaces import Unicode
from turntree.envs.task import Task, chosen_task
from turntree.envs.tools.tool import Tool, with_methods
from turntree.envs.tools.tool_run import answer, prepare, prepare_ahead
from turntree.envs.tools.toolset import Toolset, all_tools, owners_of

logger = logging.getLogger(__name__)

_Toolset = TypeVar("_Toolset", bound=Toolset)

_FAILURE_LENGTH = 500


class Env(Snapshots, gymnasium.Env[str, str], ABC):
    """Base of all environments.

    ``info`` of ``reset`` and ``step`` always has the same keys, and is JSON:

    - ``messages``: OpenAI messages that are new in this step (the policy's own are not repeated)
    - ``history``: OpenAI messages from which the policy goes on instead, where ``compact`` has shortened the dialogue;
      else empty
    - ``tools``: OpenAI schemas of the tools
    - ``tool_calls``: OpenAI form of the calls parsed from the action
    - ``parse_error``: why a tool call of the action cannot be read, as the policy is told; else empty
    - ``task_id``, ``turn`` (turns of the policy so far)
    - ``rewards``: named components, summed over the episode so far
    - ``stop_reason``: empty while the episode runs, else ``done``, ``max_turns``, ``max_tool_calls``,
      ``max_seconds``, ``max_errors`` or ``failure``
    - ``failure``: one line, empty unless ``stop_reason`` is ``failure``
    - ``failure_kind``: the part that failed (``FailureKind``), empty likewise
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}
    tools: tuple[Tool, ...] = ()
    """Tools of the policy; methods decorated with ``@tool`` are added automatically."""
    toolsets: tuple[Toolset, ...] = ()
    """Prototypes of tools with state: every episode gets a copy of its own."""
    executor: ToolExecutor = ToolExecutor()
    """Runs the tools; this one sets no deadline. Environments may share one. Set it before ``reset``."""
    memo: ResultMemo | None = None
    """Cache of results of tools declared deterministic; ``None`` caches none. Set it before
    ``reset``."""
    num_tasks: int | None = None
    """Number of tasks; ``None`` is no bound."""
    default_limits: ClassVar[Limits] = Limits()
    """Bounds of an episode of which none were given."""
    step_seconds: float = 3600.0
    """Time after which ``reset`` or ``step`` of an episode counts as hung, unless ``step_inline``: then the episode fails."""
    step_inline: bool = False
    """The author's assertion that ``reset``, ``step`` and all tools take microseconds, so that an event loop may run
    them itself. Every class makes it for itself: a subclass may add code that blocks."""
    describes_tools: bool = False
    """The author's assertion that the messages of ``start`` or ``default_system_prompt`` say which tools there are and
    how to call them, so that the policy is not told again. A subclass that adds tools makes it for itself."""
    example_call: ClassVar[ToolCall | None] = None
    """The call that shows the policy how calls are written; ``None`` makes one up for the first tool."""
    static_attributes: ClassVar[frozenset[str]] = frozenset(
        {
            *("limits", "tool_format", "_model_format", "render_mode", "spec", "action_space", "observation_space"),
            *("step_inline", "forkable", "describes_tools", "step_seconds"),
            *("tools", "toolsets", "offered_tools", "executor", "parser", "memo", "_tools_json", "_schemas"),
            *("_system_prompt", "_early"),
        }
    )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.tools = with_methods(cls, cls.tools)
        if len(cls.tools) > len(super(cls, cls).tools):  # type: ignore[misc]  # Env is among them
            cls.describes_tools = vars(cls).get("describes_tools", False)
        cls.step_inline = vars(cls).get("step_inline", False)
        cls.forkable = vars(cls).get("forkable", False)

    def __init__(
        self,
        *,
        limits: Limits | None = None,
        tool_format: str | None = None,
        system_prompt: str | None = None,
        describes_tools: bool | None = None,
        step_seconds: float | None = None,
        render_mode: str | None = None,
    ) -> None:
        """Set up the state that all episodes share.

        Args:
            limits: Bounds of an episode; ``None`` takes ``default_limits``.
            tool_format: How the policy writes tool calls, see ``get_parser``; ``None`` follows the model's chat
                template, or ``hermes`` where the template writes none.
            system_prompt: First message; ``None`` uses the class's own, an empty text none.
            describes_tools: Whether the messages describe the tools, so that the policy is not told of them; ``None``
                takes the class's word where the class's own system prompt is used.
            step_seconds: Replaces the class's own; ``None`` keeps it.
            render_mode: ``ansi`` or ``None``.

        Raises:
            UnknownParser: If ``tool_format`` is unknown.
            ValueError: If ``render_mode`` is unknown, or ``step_seconds`` not positive.
        """
        if step_seconds is not None:
            if not step_seconds > 0:
                raise ValueError(f"step_seconds must be positive, got {step_seconds!r}")
            self.step_seconds = step_seconds
        if tool_format is not None:
            get_parser(tool_format)
        if render_mode is not None and render_mode not in self.metadata["render_modes"]:
            raise ValueError(f"render_mode must be 'ansi' or None, got {render_mode!r}")
        self.limits = limits or self.default_limits
        self.tool_format = tool_format
        self._model_format = DEFAULT_FORMAT
        self.render_mode = render_mode
        self.action_space = Unicode()
        self.observation_space = Unicode()
        self._system_prompt = system_prompt
        self.describes_tools = (
            type(self).describes_tools and system_prompt is None if describes_tools is None else describes_tools
        )
        self._schemas: tuple[str, list[Any]] = ("", [])
        self._progress: Progress | None = None
        self._early = PureCalls()

    @abstractmethod
    def task(self, index: int) -> Task:
        """The task with this index; the same one in every process."""

    def start(self, task: Task) -> Sequence[Message]:
        """Open the dialogue, after the system prompt; by default with ``task.prompt`` as the user's message."""
        return [Message(role=Role.USER, content=task.prompt)]

    @abstractmethod
    def reply(self, message: Message) -> Reply:
        """Answer a turn of the policy that calls no tool."""

    def compact(self) -> Sequence[Message] | None:
        """Shorten the dialogue before the policy's next turn; by default it stays as it is.

        Called after each turn that does not end the episode, a tool's answers included. ``self.dialogue`` is what the
        policy would see.

        Returns:
            The messages from which the policy goes on instead, system prompt included; ``None`` keeps the dialogue.
        """
        return None

    def solution(self) -> Sequence[str]:
        """Turns that earn the full reward of the current task, for ``turntree attack``; never shown to the policy.

        Empty, as here, where the task's ``answer``, in a form that the attack knows, is all that there is to say.
        """
        return ()

    def default_system_prompt(self) -> str:
        """The system prompt if the caller gives none; empty for none."""
        return ""

    @property
    def system_prompt(self) -> str:
        """The first message of every dialogue; empty for none."""
        return self.default_system_prompt() if self._system_prompt is None else self._system_prompt

    @property
    def call_format(self) -> str:
        """The format of tool calls: ``tool_format``, or the model's own where none was given."""
        return self.tool_format or self._model_format

    def prefer_format(self, name: str) -> None:
        """Read and write tool calls in a format of ``get_parser``, if ``tool_format`` was not given.

        ``rollout`` calls this before ``reset``, with the format that the model's chat template writes.

        Raises:
            UnknownParser: If there is no such format.
        """
        if name != self._model_format:
            get_parser(name)
            self._model_format = name
            vars(self).pop("parser", None)

    @cached_property
    def parser(self) -> ToolParser:
        """Reads and writes tool calls."""
        return get_parser(self.call_format, self.offered_tools)

    @property
    def wants_special_tokens(self) -> bool:
        """Whether ``step`` must be given the special tokens of a turn: some formats write calls with them."""
        return bool(getattr(self.parser, "special_tokens", False))

    @cached_property
    def offered_tools(self) -> tuple[Tool, ...]:
        """All tools that the model may call: ``tools`` and those of ``toolsets``."""
        return all_tools(self.tools, self.toolsets)

    @property
    def current_task(self) -> Task:
        """The task of the running episode.

        Raises:
            ResetNeeded: Before the first ``reset``.
        """
        return self._started().task

    @property
    def messages(self) -> tuple[Message, ...]:
        """The dialogue so far, the policy's turns included."""
        return tuple(self._started().messages)

    @property
    def dialogue(self) -> tuple[Message, ...]:
        """What the policy sees: ``messages``, or what ``compact`` left of them and all after that."""
        return self._started().seen

    @property
    def step_part(self) -> str:
        """What the running step is at, to name it in a failure: ``reply()``, or a tool; empty before the first."""
        return self._progress.doing if self._progress is not None else ""

    def toolset(self, kind: type[_Toolset]) -> _Toolset:
        """The running episode's instance of one of ``toolsets``.

        Raises:
            ResetNeeded: Before the first ``reset``.
            LookupError: If the environment has no such toolset.
        """
        for toolset in self._started().toolsets:
            if isinstance(toolset, kind):
                return toolset
        raise LookupError(f"{type(self).__name__} has no toolset {kind.__name__}")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begin an episode.

        Args:
            seed: Seeds ``self.np_random``.
            options: ``{"task": Task}`` or ``{"index": int}``; without either, ``self.np_random``
                draws the task.

        Returns:
            The opening as text, and ``info``.

        Raises:
            OptionsError: If an option is unknown or of the wrong type.
            TaskIndexError: If there is no task with the index.
        """
        super().reset(seed=seed)
        self.close_episode()
        return contain(partial(self._open_episode, options))

    def _open_episode(self, options: dict[str, Any] | None) -> tuple[str, dict[str, Any]]:
        progress = Progress(task=chosen_task(options or {}, self.task, self.num_tasks, self.np_random))
        if self.memo is not None:
            progress.history = beginning(f"{type(self).__module__}.{type(self).__qualname__}", progress.task)
        opening = list(self.start(progress.task))
        if self.system_prompt:
            opening.insert(0, Message(role=Role.SYSTEM, content=self.system_prompt))
        progress.messages.extend(opening)
        progress.toolsets = [toolset.fresh() for toolset in self.toolsets]
        if self.limits.max_seconds is not None:
            progress.clock = Stopwatch()
        self._progress = progress
        return _text(opening), self._info(progress, opening)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take one turn of the policy.

        Args:
            action: The raw text of the turn, tool calls included.

        Returns:
            The new messages as text, reward, terminated, truncated, ``info``.

        Raises:
            ResetNeeded: Before ``reset`` or after the end of the episode.
        """
        progress = self._started()
        if progress.stop:
            raise ResetNeeded(f"the episode has ended ({progress.stop}); call reset() before step()")
        if not isinstance(action, str):
            raise TypeError(f"an action is the text of one turn, got {type(action).__name__}: {action!r}")
        parsed = read_turn(action, self.parser, self.call_format, self.offered_tools)
        content = parsed.content if self.wants_special_tokens else action
        message = Message(role=Role.ASSISTANT, content=content, tool_calls=parsed.calls)
        progress.messages.append(message)
        progress.turn += 1
        history: list[Message] = []
        try:
            reply, history = contain(partial(self._answered, message, parsed, progress))
        except Exception as error:  # the one place where an infrastructure failure becomes a stop reason
            logger.warning("%s failed in task %s", progress.doing, progress.task.id, exc_info=True)
            progress.stop = EnvStop.FAILURE
            progress.failure = _one_line(f"{progress.doing} raised {describe(error)}")
            progress.failure_kind = kind_of(error, progress.failure_kind)
            reply = Reply()
        self._early.close_step()
        if progress.stop:
            progress.close()
        for name, value in reply.rewards.items():
            progress.rewards[name] = progress.rewards.get(name, 0.0) + float(value)
        info = self._info(progress, reply.messages, parsed, history)
        stop = progress.stop
        return _text(reply.messages), float(reply.reward), stop.terminated, stop.truncated, info

    def tool_calls_ahead(self, action: str) -> list[PureCall]:
        """The calls of a turn that may come, of tools that are ``pure`` and without those asked for before.

        Each is made by calling it once, in any thread. The first ``step`` that makes the very same call takes the
        result.

        Args:
            action: As of ``step``.

        Raises:
            ResetNeeded: Before the first ``reset``.
        """
        progress = self._started()
        calls = progress.allowed(self.parser.parse(action).calls, self.limits)
        owners = owners_of(self, self.tools, progress.toolsets)
        return prepare_ahead(calls, self.offered_tools, owners, self._early)

    def close(self) -> None:
        """End the running episode and release the resources of its tools; may be called again."""
        self.close_episode()
        super().close()

    def render(self) -> str | None:  # type: ignore[override]
        """The dialogue so far as text in mode ``ansi``; ``None`` without a render mode."""
        if self.render_mode is None:
            gymnasium.logger.warn("render() needs a mode: make the environment with render_mode='ansi'")
            return None
        messages = self._progress.messages if self._progress else []
        return "\n\n".join(f"[{message.role}] {message.content}" for message in messages)

    def _answered(self, message: Message, parsed: ParsedTurn, progress: Progress) -> tuple[Reply, list[Message]]:
        """The answer, and what ``compact`` puts in the place of the dialogue."""
        reply = self._answer(message, parsed, progress)
        progress.note_end(self.limits, done=reply.done)
        progress.messages.extend(reply.messages)
        return reply, self._shorten(progress)

    def _answer(self, message: Message, parsed: ParsedTurn, progress: Progress) -> Reply:
        if parsed.error:
            progress.errors += 1
            return Reply(messages=[Message(role=Role.TOOL, content=f"Error: {parsed.error}")])
        if parsed.calls:
            return Reply(messages=self._run_tools(parsed.calls, progress))
        if progress.history:
            progress.history = after_words(progress.history, message.content)
        progress.errors = 0
        progress.doing = "reply()"
        reply = self.reply(message)
        if not isinstance(reply, Reply):
            raise TypeError(f"reply() must return a Reply, got {type(reply).__name__}")
        return reply

    def _run_tools(self, calls: Sequence[ToolCall], progress: Progress) -> list[Message]:
        allowed = progress.allowed(calls, self.limits)
        owners = owners_of(self, self.tools, progress.toolsets)
        context = Context(task=progress.task, np_random=self.np_random, turn=progress.turn, state=progress.tool_state)
        self._early.seconds = self.executor.seconds
        jobs = []
        for call in allowed:
            if progress.history:
                progress.history = after_call(progress.history, call)
            job = prepare(
                call,
                self.offered_tools,
                owners=owners,
                context=context,
                memo=self.memo,
                point=progress.history,
                early=self._early,
            )
            jobs.append(job)
        progress.doing = " and ".join(f"tool {name!r}" for name in dict.fromkeys(job.name for job in jobs))
        outcomes = self.executor.run(jobs, seconds=progress.seconds_left(self.limits))
        progress.tool_calls += len(outcomes)
        messages: list[Message] = []
        for call, outcome in zip(allowed, outcomes, strict=False):  # after a failure there are fewer outcomes
            if outcome.late and progress.seconds_left(self.limits) == 0:
                progress.stop = EnvStop.MAX_SECONDS
                return messages
            if outcome.error is not None and outcome.failed:
                progress.doing, progress.failure_kind = f"tool {call.name!r}", FailureKind.TOOL
                raise outcome.error
            messages.append(answer(call, outcome))
        if len(allowed) < len(calls):
            progress.stop = EnvStop.MAX_TOOL_CALLS
        if any(outcome.error is None for outcome in outcomes):
            progress.errors = 0
        elif outcomes:
            progress.errors += 1
        return messages

    def _shorten(self, progress: Progress) -> list[Message]:
        """What ``compact`` puts in the place of the dialogue; empty where it stays."""
        progress.doing = "compact()"
        history = None if progress.stop else self.compact()
        if history is None:
            return []
        progress.kept, progress.since = list(history), len(progress.messages)
        if not history or not all(isinstance(message, Message) for message in history):
            raise TypeError(f"compact() must return Message objects, at least one, or None, got {history!r:.200}")
        return progress.kept

    def close_episode(self) -> None:
        """End the running episode and release what its toolsets hold; the environment itself stays open."""
        if self._progress is not None:
            self._progress.close()
        self._progress = None
        self._early = PureCalls()

    def _info(
        self,
        progress: Progress,
        new: Sequence[Message],
        parsed: ParsedTurn | None = None,
        history: Sequence[Message] = (),
    ) -> dict[str, Any]:
        return {
            "messages": [message.to_openai() for message in new],
            "history": [message.to_openai() for message in history],
            "tools": self._schemas_of(progress),
            "tool_calls": [call.to_openai() for call in parsed.calls] if parsed else [],
            "parse_error": parsed.error if parsed else "",
            "task_id": progress.task.id,
            "turn": progress.turn,
            "rewards": dict(progress.rewards),
            "stop_reason": str(progress.stop),
            "failure": progress.failure,
            "failure_kind": str(progress.failure_kind) if progress.failure else "",
        }

    def _schemas_of(self, progress: Progress) -> list[Any]:
        """The schemas of the tools, parsed once an episode; callers keep infos, so each has a list of its own."""
        text = self._tools_json
        if progress.turn == 0 or self._schemas[0] != text:
            self._schemas = (text, json.loads(text))
        return list(self._schemas[1])

    @cached_property
    def _tools_json(self) -> str:
        return json.dumps([tool.schema for tool in self.offered_tools])

    def _started(self) -> Progress:
        if self._progress is None:
            raise ResetNeeded("no episode has begun; call reset() first")
        return self._progress


def _text(messages: Sequence[Message]) -> str:
    return "\n\n".join([message.content for message in messages])


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _FAILURE_LENGTH else line[: _FAILURE_LENGTH - 3] + "..."
