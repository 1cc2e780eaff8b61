"""What a running training tells: its phases until a step has ended, its steps, and where it stands when it is stopped.

Not here: starting and stopping verl (``launch``), and how the records are written (``records``).
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

from turntree.agents.verl.records.lost_steps import LostSteps
from turntree.agents.verl.records.phases import Phase, PhaseReader
from turntree.agents.verl.records.recording import RunFolder
from turntree.agents.verl.records.step_reports import StepReader, StepReport


class Progress:
    """Follows the records of one training.

    Args:
        folder: Folder of the run.
        step: Steps that the run had before.
        on_step: Called after every training step.
        on_phase: Called when a phase begins, until the first step has ended, and when verl is being stopped.
    """

    def __init__(
        self, folder: RunFolder, step: int, on_step: Callable[[StepReport], None], on_phase: Callable[[Phase], None]
    ) -> None:
        self.step = step
        self.lost = LostSteps(folder)
        self._folder = folder
        self._on_step, self._on_phase = on_step, on_phase
        self._began = perf_counter()
        self.restart()

    def restart(self) -> None:
        """Begin anew, as verl is about to be started."""
        self._steps, self._phases = StepReader(self._folder), PhaseReader(self._folder, self._began)
        self._stepped = False

    def tell(self, words: str) -> None:
        """Tell a phase of this process."""
        self._on_phase(self._phases.phase(words))

    def look(self) -> None:
        """Tell what is new."""
        for phase in self._phases.new():
            if not self._stepped:
                self._on_phase(phase)
        for report in self._steps.new():
            self._stepped = True
            self.step = report.step
            self.lost.see(report.step, report.metrics)
            self._on_step(report)

    def __str__(self) -> str:
        return f"after step {self.step}" if self.step else "before the first step had ended"
