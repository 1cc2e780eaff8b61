"""Base class of all environments: a Gymnasium environment whose observations and actions are text.

Authors implement ``task`` and ``reply``, and ``start`` if the opening is more than the task's prompt. The base class
parses tool calls, runs the tools and enforces all limits except those counted in tokens. If a tool or ``reply``
raises, the episode is truncated as a failure; only the user's Ctrl-C is raised to the caller. Invariant: an episode
ends exactly once, either terminated (by the task) or truncated (by a limit or a failure), never both.
"""

from __future__ import annotations

import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any, ClassVar, TypeVar

import gymnasium

from turntree.envs.errors import ResetNeeded
from turntree.envs.failure import FailureKind, describe, kind_of
from turntree.envs.limits import Limits
from turntree.envs.message import Message, Reply, Role, ToolCall
from turntree.envs.parsers import DEFAULT_FORMAT, ParsedTurn, ToolParser, get_parser, read_turn
from turntree.envs.progress import EnvStop, Progress, Stopwatch
from turntree.envs.running.containment import contain
from turntree.envs.running.executor import ToolExecutor
from turntree.envs.running.memo import ResultMemo, after_call, after_words, beginning
from turntree.envs.running.pure_calls import PureCall, PureCalls
from turntree.envs.running.snapshots import Snapshots
from turntree.envs.spaces import Unicode
from turntree.envs.task import Context, Task, chosen_task
from turntree.envs.tools.tool import Tool, with_methods
from turntree.envs.tools.tool_run import answer, prepare, prepare_ahead
from turntree.envs.tools.toolset import Toolset, all_tools, owners_of

logger = logging.getLogger(__name__)

_Toolset = TypeVar("_Toolset", bound=Toolset)

_FAILURE_LENGTH = 500


class Env(Snapshots, gymnasium.Env[str, str], ABC):
    """Base of all environments.

    ``info`` of ``reset`` and ``step`` always has the same keys, and its values are JSON:

    - ``messages``: new messages of this step, in OpenAI's format; the policy's own turns are not repeated
    - ``history``: the messages that replace the dialogue if ``compact`` has shortened it, in OpenAI's format; else
      empty
    - ``tools``: OpenAI schemas of the tools
    - ``tool_calls``: calls parsed from the action, in OpenAI's format
    - ``parse_error``: the error message shown to the policy if a tool call could not be parsed; else empty
    - ``task_id``, ``turn`` (turns of the policy so far)
    - ``rewards``: named reward components, summed over the episode so far
    - ``stop_reason``: empty while the episode runs, else ``done``, ``max_turns``, ``max_tool_calls``,
      ``max_seconds``, ``max_errors`` or ``failure``
    - ``failure``: one line, empty unless ``stop_reason`` is ``failure``
    - ``failure_kind``: the part that failed (``FailureKind``), empty unless ``stop_reason`` is ``failure``
    """

    metadata: dict[str, Any] = {"render_modes": ["ansi"], "render_fps": 1}
    tools: tuple[Tool, ...] = ()  #: Tools of the policy; methods decorated with ``@tool`` are added automatically.
    toolsets: tuple[Toolset, ...] = ()  #: Groups of tools with state. Every episode uses its own copies of these.
    #: Runs the tools, by default without a deadline. Environments may share one; set it before ``reset``.
    executor: ToolExecutor = ToolExecutor()
    #: Cache of the results of deterministic tools; ``None`` disables it. Set it before ``reset``.
    memo: ResultMemo | None = None
    num_tasks: int | None = None  #: Number of tasks; ``None`` means unlimited.
    default_limits: ClassVar[Limits] = Limits()  #: Limits of an episode if the constructor gets no ``limits``.
    #: Seconds after which a running ``reset`` or ``step`` fails the episode; not enforced with ``step_inline``.
    step_seconds: float = 3600.0
    #: Set it if ``reset``, ``step`` and all tools take microseconds: the environment's step is then fast enough to run
    #: in the event loop instead of a thread. Not inherited, because a subclass may add code that blocks.
    step_inline: bool = False
    #: Set it if the messages of ``start`` or ``default_system_prompt`` describe the tools and how to call them, so that
    #: turntree does not describe them again. Not inherited by a subclass that adds tools.
    describes_tools: bool = False
    #: Example call that shows the call format to the policy; ``None`` generates an example for the first tool.
    example_call: ClassVar[ToolCall | None] = None
    # Snapshots leave these out, because they do not belong to the state of an episode.
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
        # The flags below hold for one class only. A subclass may differ, so each class must set them again.
        cls.tools = with_methods(cls, cls.tools)
        if len(cls.tools) > len(super(cls, cls).tools):  # type: ignore[misc]  # one of the bases is Env
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
            limits: Limits of an episode; ``None`` uses ``default_limits``.
            tool_format: How the policy writes tool calls, see ``get_parser``; ``None`` uses the format of the model's
                chat template, or ``hermes`` if the template has none.
            system_prompt: First message; ``None`` uses ``default_system_prompt()``, an empty text means no system
                prompt.
            describes_tools: Whether the messages already describe the tools; ``None`` uses the class attribute, or
                ``False`` if ``system_prompt`` is given.
            step_seconds: Overrides the class attribute.
            render_mode: ``ansi`` or ``None``.

        Raises:
            UnknownParser: If ``tool_format`` is unknown.
            ValueError: If ``render_mode`` is unknown, or ``step_seconds`` is not positive.
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
        self._schemas: tuple[str, list[Any]] = ("", [])  # JSON of the tools' schemas, and the parsed schemas
        self._progress: Progress | None = None
        self._early = PureCalls()  # speculative tool calls

    @abstractmethod
    def task(self, index: int) -> Task:
        """Return the task with this index; every process must return the same task."""

    def start(self, task: Task) -> Sequence[Message]:
        """Open the dialogue after the system prompt; by default with ``task.prompt`` as the user's message."""
        return [Message(role=Role.USER, content=task.prompt)]

    @abstractmethod
    def reply(self, message: Message) -> Reply:
        """Answer a turn of the policy that calls no tool."""

    def compact(self) -> Sequence[Message] | None:
        """Shorten the dialogue before the policy's next turn; the default keeps the dialogue.

        Called after every turn that does not end the episode, including turns answered by tools. ``self.dialogue``
        holds the messages that the policy would see.

        Returns:
            The messages that replace the dialogue, including the system prompt; ``None`` keeps the dialogue.
        """
        return None

    def solution(self) -> Sequence[str]:
        """Return turns that earn the current task's full reward, for ``turntree attack``; hidden from the policy.

        May be empty if the answer alone solves the task: the attack writes ``Task.answer`` in common forms itself.
        """
        return ()

    def default_system_prompt(self) -> str:
        """Return the system prompt for callers that give no ``system_prompt``; empty for no system prompt."""
        return ""

    @property
    def system_prompt(self) -> str:
        """The first message of every dialogue; empty if there is none."""
        return self.default_system_prompt() if self._system_prompt is None else self._system_prompt

    @property
    def call_format(self) -> str:
        """The format of tool calls: ``tool_format`` if given, else the format of the model's chat template."""
        return self.tool_format or self._model_format

    def prefer_format(self, name: str) -> None:
        """Read and write tool calls in this format, unless ``tool_format`` was given.

        ``rollout`` calls this before ``reset`` with the format of the model's chat template.

        Raises:
            UnknownParser: If there is no such format.
        """
        if name != self._model_format:
            get_parser(name)
            self._model_format = name
            vars(self).pop("parser", None)

    @cached_property
    def parser(self) -> ToolParser:
        """The parser and writer of tool calls."""
        return get_parser(self.call_format, self.offered_tools)

    @property
    def wants_special_tokens(self) -> bool:
        """Whether the text for ``step`` must include special tokens, because the format writes calls with them."""
        return bool(getattr(self.parser, "special_tokens", False))

    @cached_property
    def offered_tools(self) -> tuple[Tool, ...]:
        """All tools that the model may call: ``tools`` and the tools of ``toolsets``."""
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
        """The dialogue so far, including the policy's turns."""
        return tuple(self._started().messages)

    @property
    def dialogue(self) -> tuple[Message, ...]:
        """The messages that the policy sees: ``messages``, or the shortened dialogue and everything after it."""
        return self._started().seen

    @property
    def step_part(self) -> str:
        """The code that the step runs now, ``reply()`` or a tool, to name it in a failure; empty before any step."""
        return self._progress.doing if self._progress is not None else ""

    def toolset(self, kind: type[_Toolset]) -> _Toolset:
        """Return the running episode's own copy of one of ``toolsets``.

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
            options: ``{"task": Task}`` or ``{"index": int}``; without either, ``self.np_random`` draws the task.

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
            action: The raw text of the turn, including tool calls.

        Returns:
            The new messages as text, the reward, terminated, truncated and ``info``.

        Raises:
            ResetNeeded: Before ``reset`` or after the end of the episode.
        """
        progress = self._started()
        if progress.stop:
            raise ResetNeeded(f"the episode has ended ({progress.stop}); call reset() before step()")
        if not isinstance(action, str):
            raise TypeError(f"an action must be a str, the text of one turn, got {type(action).__name__}: {action!r}")
        parsed = read_turn(action, self.parser, self.call_format, self.offered_tools)
        # If calls are written with special tokens, keep only the other text: chat templates render the calls again.
        content = parsed.content if self.wants_special_tokens else action
        message = Message(role=Role.ASSISTANT, content=content, tool_calls=parsed.calls)
        progress.messages.append(message)
        progress.turn += 1
        history: list[Message] = []
        try:
            reply, history = contain(partial(self._answered, message, parsed, progress))
        except Exception as error:  # the only place where an infrastructure failure becomes a stop reason
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
        """Return speculative tool calls: calls of ``pure`` tools that the unfinished turn is likely to make.

        Calling a returned object runs the tool, in any thread. The first ``step`` whose turn makes the same call uses
        the result. A call that an earlier invocation has returned is left out.

        Args:
            action: The predicted text of the turn, in the form that ``step`` takes.

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
        """Return the dialogue so far as text in mode ``ansi``, or ``None`` without a render mode."""
        if self.render_mode is None:
            gymnasium.logger.warn("render() needs a mode: make the environment with render_mode='ansi'")
            return None
        messages = self._progress.messages if self._progress else []
        return "\n\n".join(f"[{message.role}] {message.content}" for message in messages)

    def _answered(self, message: Message, parsed: ParsedTurn, progress: Progress) -> tuple[Reply, list[Message]]:
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
            # The digest of this call and all earlier calls and turns is the key of the call's result in the cache.
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
        for call, outcome in zip(allowed, outcomes, strict=False):  # calls after a failure have no outcome
            # A tool that was late because the episode ran out of time is a limit, not a failure.
            if outcome.late and progress.seconds_left(self.limits) == 0:
                progress.stop = EnvStop.MAX_SECONDS
                return messages
            if outcome.error is not None and outcome.failed:
                progress.doing, progress.failure_kind = f"tool {call.name!r}", FailureKind.TOOL
                raise outcome.error
            messages.append(answer(call, outcome))
        if len(allowed) < len(calls):
            progress.stop = EnvStop.MAX_TOOL_CALLS
        # max_errors counts consecutive failed turns; a turn with at least one successful call has not failed.
        if any(outcome.error is None for outcome in outcomes):
            progress.errors = 0
        elif outcomes:
            progress.errors += 1
        return messages

    def _shorten(self, progress: Progress) -> list[Message]:
        progress.doing = "compact()"
        history = None if progress.stop else self.compact()
        if history is None:
            return []
        progress.kept, progress.since = list(history), len(progress.messages)
        if not history or not all(isinstance(message, Message) for message in history):
            raise TypeError(f"compact() must return None or at least one Message, got {history!r:.200}")
        return progress.kept

    def close_episode(self) -> None:
        """End the running episode and release the resources of its toolsets; the environment itself stays open."""
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
        # The JSON is parsed once per episode. Callers keep ``info``, so every ``info`` gets its own list.
        text = self._tools_json
        if progress.turn == 0 or self._schemas[0] != text:
            self._schemas = (text, json.loads(text))
        return list(self._schemas[1])

    @cached_property
    def _tools_json(self) -> str:
        return json.dumps([tool.schema for tool in self.offered_tools])

    def _started(self) -> Progress:
        if self._progress is None:
            raise ResetNeeded("no episode is running; call reset() first")
        return self._progress


def _text(messages: Sequence[Message]) -> str:
    return "\n\n".join([message.content for message in messages])


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _FAILURE_LENGTH else line[: _FAILURE_LENGTH - 3] + "..."
