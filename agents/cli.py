"""Entry point of the ``turntree`` command.

What the user can put right is said in one line with the fix, exit status 2; a
traceback is left to bugs of ours.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NoReturn

from turntree.agents.errors import AgentError, MissingExtra
from turntree.agents.rollout import describe
from turntree.envs.errors import EnvError
from turntree.rewards import RewardError


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line.

    Args:
        arguments: Words after ``turntree``; ``None`` takes them from ``sys.argv``.

    Raises:
        SystemExit: Always; 0 for success, 2 for wrong input.
    """
    try:
        try:
            from turntree.agents.commands import app
        except ModuleNotFoundError as error:
            if error.name not in ("typer", "rich"):
                raise
            raise MissingExtra("the turntree command", "cli") from error
        app(args=None if arguments is None else list(arguments), prog_name="turntree")
    except (AgentError, EnvError, RewardError) as error:
        _fail(" ".join(str(error).split()))
    except (OSError, ValueError) as error:
        _fail(describe(error))


def _fail(message: str) -> NoReturn:
    sys.stderr.write(f"turntree: {message}\n")
    raise SystemExit(2)


if __name__ == "__main__":
    main()
