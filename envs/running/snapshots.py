"""The state of a running episode as bytes, and environments that go on from it.

Invariant: what no episode changes is shared and never written.
"""

from __future__ import annotations

import copy
import pickle
from typing import Any, ClassVar, Self

from turntree.envs.errors import SnapshotError


class Snapshots:
    """Snapshots of an environment; its attributes are the state, but for ``static_attributes``."""

    static_attributes: ClassVar[frozenset[str]] = frozenset()
    """Attributes that no episode changes; snapshots omit them."""
    forkable: bool = False
    """The author's assertion that a step has no effect outside the environment, so that copies of a running episode
    may try steps that it may never take (``fork``). Every class makes it for itself."""
    _progress: Any

    def close_episode(self) -> None:
        """Release what the running episode holds."""

    def snapshot(self) -> bytes:
        """The state of the running episode, the random generator included.

        It is a pickle: restore only those that you have taken yourself. It holds every attribute that is not
        among ``static_attributes``.
        """
        return pickle.dumps((type(self).__qualname__, self._dynamic_attributes()))

    def restore(self, state: bytes) -> None:
        """Restore a snapshot taken by an environment made with the same arguments.

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
        for attribute in self._dynamic_attributes():
            delattr(self, attribute)
        vars(self).update(attributes)

    def fork(self, state: bytes) -> Self:
        """Another environment, in the state of a snapshot of this one; it shares what no episode changes.

        Its episode is closed by ``close_episode``; ``close`` is for what it shares.

        Raises:
            SnapshotError: If this class is not ``forkable``, or as ``restore``.
        """
        if not self.forkable:
            raise SnapshotError(
                f"{type(self).__qualname__} is not forkable: its steps may have effects outside it; set forkable = "
                "True in the class if they have none"
            )
        fork = copy.copy(self)
        fork._progress = None  # its toolsets belong to this episode, and restore() closes what is running
        fork.restore(state)
        return fork

    def _dynamic_attributes(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in self.static_attributes}
