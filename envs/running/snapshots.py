"""Snapshots of a running episode as bytes.

Invariant: state that no episode changes (such as the list of tasks) is shared by copies and not part of snapshots.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any, ClassVar, Self

from turntree.envs.errors import SnapshotError


class Snapshots:
    """Snapshots of an environment: all its attributes except ``static_attributes``."""

    #: attributes that no episode changes; not part of snapshots
    static_attributes: ClassVar[frozenset[str]] = frozenset()
    #: Set it if a step has no effect outside the environment. Then ``fork`` may copy a running episode to try steps.
    #: Not inherited, because a subclass may add such effects.
    forkable: bool = False
    _progress: Any

    def close_episode(self) -> None:
        """Release the resources of the running episode."""

    def snapshot(self) -> bytes:
        """Return the state of the running episode, including the random generator.

        The bytes are a pickle of every attribute except ``static_attributes``. Unpickling can run any code, so restore
        only snapshots that you have taken yourself.
        """
        return pickle.dumps((type(self).__qualname__, self._dynamic_attributes()))

    def restore(self, state: bytes) -> None:
        """Restore a snapshot taken by an environment with the same constructor arguments.

        Raises:
            SnapshotError: If ``state`` is no snapshot of this class.
        """
        try:
            name, attributes = pickle.loads(state)
        except (pickle.UnpicklingError, EOFError, ValueError, TypeError, AttributeError, ImportError) as error:
            raise SnapshotError(f"expected the bytes of snapshot(), got something else: {error}") from error
        if name != type(self).__qualname__:
            raise SnapshotError(f"expected a snapshot of {type(self).__qualname__}, got one of {name}")
        self.close_episode()
        # Also removes attributes that were first set after the snapshot.
        for attribute in self._dynamic_attributes():
            delattr(self, attribute)
        vars(self).update(attributes)

    def fork(self, state: bytes) -> Self:
        """Return a new environment in the state of a snapshot; ``static_attributes`` are shared with this one.

        End the new environment's episode with ``close_episode``. ``close`` would also release the shared attributes.

        Raises:
            SnapshotError: If this class is not ``forkable``, or ``state`` is no snapshot of it.
        """
        if not self.forkable:
            raise SnapshotError(
                f"{type(self).__qualname__} is not forkable: its steps may have effects outside it; set forkable = "
                "True in the class if they have none"
            )
        fork = copy.copy(self)
        fork._progress = None  # restore() closes a running episode, and this one belongs to the original
        fork.restore(state)
        return fork

    def _dynamic_attributes(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in self.static_attributes}
