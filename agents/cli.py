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
        with _speaking(sys.argv[1:] if words is None else words):
            status = app(args=words, prog_name="turntree", standalone_mode=False)
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None
    except Exception as error:
        if isinstance(error.__cause__, KeyboardInterrupt):  # older versions of typer call this an abortion
            raise SystemExit(_INTERRUPTED) from None
        message = _misuse(error) or _to_put_right(error)
        if message is None:
            raise
        sys.stderr.write(f"turntree: {message}\n")
        raise SystemExit(2) from error
    raise SystemExit(status or 0)


def _speaking(words: list[str]) -> AbstractContextManager[None]:
    if words[:1] not in (["eval"], ["bench"]):
        return nullcontext()
    from turntree.agents.progress import speaking

    return speaking(f"turntree {words[0]} begins")


def _misuse(error: Exception) -> str | None:
    # The exception's class depends on the typer version, which bundles click or uses the installed one.
    message_of, at = getattr(error, "format_message", None), getattr(error, "ctx", None)
    if message_of is None:
        return None
    if type(error).__name__ == "NoArgsIsHelpError":  # no word at all: the whole help
        return f"a command is missing\n{message_of()}"
    command = at.command_path if at is not None else "turntree"
    return f"{' '.join(message_of().split()).removesuffix('.')}; see `{command} --help`"


def _to_put_right(error: Exception) -> str | None:
    from turntree.agents.errors import AgentError, in_words
    from turntree.envs.errors import EnvError
    from turntree.envs.failure import describe
    from turntree.rewards import RewardError

    while isinstance(error, ExceptionGroup):  # of tasks that ran at once; the first one says enough
        error = error.exceptions[0]
    if isinstance(error, AgentError | EnvError | RewardError):
        return " ".join(str(error).split())
    if isinstance(error, OSError):
        return in_words(error)
    return describe(error) if isinstance(error, ValueError) else None


if __name__ == "__main__":
    main()
