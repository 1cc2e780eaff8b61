from __future__ import annotations

from collections.abc import Callable, Collection
from time import perf_counter

from turntree.agents.progress import SILENCE
from turntree.agents.verl.records.phases import Phase, PhaseReader
from turntree.agents.verl.records.recording import RunFolder
from turntree.agents.verl.records.step_checks import FailedSteps, LearningWarnings
from turntree.agents.verl.records.step_reports import StepReader, StepReport


class Progress:
    """Report a running training's phases and steps from its records.

    Args:
        step: Last step before the run began or resumed.
        steps: Total steps of the training; ``None`` if the configuration gives epochs instead.
        tools: Returns the names of the environment's tools.
        on_phase: Called when a phase begins until the first step has ended, when verl is being stopped, and with the
            current activity after ``SILENCE`` seconds without news.
    """

    def __init__(
        self,
        folder: RunFolder,
        step: int,
        steps: int | None,
        on_step: Callable[[StepReport], None],
        on_phase: Callable[[Phase], None],
        tools: Callable[[], Collection[str]],
    ) -> None:
        self.step = step
        self._of_total = "" if steps is None else f" of {steps}"
        self.lost = FailedSteps(folder)  #: steps whose episodes all failed
        self._folder, self._tools = folder, tools
        self._on_step, self._on_phase = on_step, on_phase
        self._started = self._reported = perf_counter()
        self._phase = ""
        self.restart()

    def restart(self) -> None:
        """Reset all readers, because verl is started again."""
        self._steps, self._phases = StepReader(self._folder), PhaseReader(self._folder, self._started)
        self._learning = LearningWarnings(self._folder, self._tools)
        self._stepped = False

    def tell(self, words: str) -> None:
        """Report the start of a phase of this process."""
        self._phase, self._reported = words, perf_counter()
        self._on_phase(self._phases.phase(words))

    def look(self) -> None:
        """Report the phases and steps since the last call."""
        for phase in self._phases.new():
            if not self._stepped:
                self._phase, self._reported = phase.words, perf_counter()
                self._on_phase(phase)
        for report in self._steps.new():
            self._stepped, self._reported = True, perf_counter()
            self.step = report.step
            self.lost.see(report.step, report.metrics)
            self._on_step(report)
            self._learning.see(report.step, report.metrics)
        if perf_counter() - self._reported >= SILENCE:
            self._reported = perf_counter()
            step = f"step {self.step + 1}{self._of_total}"
            self._on_phase(self._phases.phase(f"still in {step}" if self._stepped else f"still: {self._phase}"))

    def __str__(self) -> str:
        return f"after step {self.step}" if self.step else "before the first step had ended"
