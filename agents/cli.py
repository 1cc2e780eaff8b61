"""Entry point of the ``turntree`` command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

_INTERRUPTED = 130  #: exit status after Ctrl-C, 128 + SIGINT, as in a shell


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line.

    Args:
        arguments: Words after ``turntree``; ``None`` takes them from ``sys.argv``.

    Raises:
        SystemExit: Always; 0 for success, 1 for a failed check, 2 for an error that the user can fix, 130 after Ctrl-C.
    """
    from turntree.agents.commands.app import app

    try:
        words = None if arguments is None else list(arguments)
        with _startup_messages(sys.argv[1:] if words is None else words):
            status = app(args=words, prog_name="turntree", standalone_mode=False)
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None
    except Exception as error:
        # Older typer versions raise Abort from KeyboardInterrupt.
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise SystemExit(_INTERRUPTED) from None
        message = _usage_message(error) or _user_error_message(error)
        if message is None:
            raise
        sys.stderr.write(f"turntree: {message}\n")
        raise SystemExit(2) from error
    raise SystemExit(status or 0)


def _startup_messages(words: list[str]) -> AbstractContextManager[None]:
    if words[:1] not in (["eval"], ["bench"]):
        return nullcontext()
    from turntree.agents.progress import startup_messages

    return startup_messages(f"turntree {words[0]} is starting")


def _usage_message(error: Exception) -> str | None:
    # The exception's class depends on the typer version, which bundles click or uses the installed one.
    message_of, at = getattr(error, "format_message", None), getattr(error, "ctx", None)
    if message_of is None:
        return None
    # Without arguments, print the whole help.
    if type(error).__name__ == "NoArgsIsHelpError":
        return f"missing command\n{message_of()}"
    command = at.command_path if at is not None else "turntree"
    return f"{' '.join(message_of().split()).removesuffix('.')}; see `{command} --help`"


def _user_error_message(error: Exception) -> str | None:
    from turntree.agents.errors import AgentError, explain_os_error
    from turntree.envs.errors import EnvError
    from turntree.envs.failure import describe
    from turntree.rewards import RewardError

    # Concurrent tasks raise their errors as a group; report only the first error.
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, AgentError | EnvError | RewardError):
        return " ".join(str(error).split())
    if isinstance(error, OSError):
        return explain_os_error(error)
    return describe(error) if isinstance(error, ValueError) else None


if __name__ == "__main__":
    main()
