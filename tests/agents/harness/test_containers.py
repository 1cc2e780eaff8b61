"""Needs ``docker`` (Docker or Podman) and a static ``busybox``, from which the image is built without a download."""

from typing import Any

from containers import running
from gateways import SpokenEngine
from machine_speed import eventually, patience

from turntree.agents.episodes.episode import Episode, StopReason
from turntree.agents.harness.env import HarnessEnv
from turntree.agents.harness.play import PROGRAM_ANSWER
from turntree.agents.loop.renderer import Renderer
from turntree.agents.loop.rollout import rollout
from turntree.envs import Limits
from turntree.envs.failure import FailureKind

ASKS = """
ask() {
  wget -q -O - --header "Authorization: Bearer $OPENAI_API_KEY" --header "Content-Type: application/json" \
    --post-data '{"model": "policy", "messages": [{"role": "user", "content": "Say it."}]}' \
    "$OPENAI_BASE_URL/chat/completions"
}
ask | sed 's/.*"content": *"\\([^"]*\\)".*/\\1/'
"""


def env(command: list[str], image: str, seconds: float = 60) -> HarnessEnv:
    limits = Limits(max_turns=8, max_context_tokens=2000)
    return HarnessEnv(
        env="turntree/Arithmetic-v0", command=command, image=image, limits=limits, seconds=patience(seconds)
    )


async def play(played: HarnessEnv, chatml: Any, renderer: Renderer) -> Episode:
    engine = SpokenEngine(chatml, say=lambda _: f"#### {played.task(3).answer}")
    return await rollout(played, engine, renderer, index=3, seed=7)


async def test_a_container_asks_the_policy_and_its_answer_is_graded(chatml, renderer, busybox_image):
    episode = await play(env(["sh", "-c", ASKS], busybox_image), chatml, renderer)
    assert (episode.stop_reason, episode.failure, episode.reward) == (StopReason.DONE, "", 1.0)
    assert [str(message.role) for message in episode.messages] == ["user", "assistant"]
    assert not running()


async def test_a_container_is_given_the_prompt_and_no_file_of_this_machine(chatml, renderer, busybox_image, tmp_path):
    note = tmp_path / "note"
    note.write_text("of this machine")
    script = f"""{ASKS.rstrip()} > /asked
        [ "$(cat)" = "$1" ] && echo "the prompt"
        cat {note} || echo "no note"
    """
    episode = await play(env(["sh", "-c", script, "sh", "{prompt}"], busybox_image), chatml, renderer)
    assert episode.task.metadata[PROGRAM_ANSWER] == "the prompt\nno note", episode.failure


async def test_a_container_ends_with_its_episode(chatml: Any, renderer: Renderer, busybox_image: str) -> None:
    episode = await play(env(["sh", "-c", "echo begun >&2; sleep 600"], busybox_image, seconds=5), chatml, renderer)
    assert (episode.masked, episode.failure_kind) == (True, FailureKind.TIMEOUT)
    eventually(lambda: not running(), 30)
