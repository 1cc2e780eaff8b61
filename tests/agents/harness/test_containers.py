"""Programs in containers: a container asks the policy, sees nothing else of this machine, and ends with its episode.

Needs a ``docker`` that runs containers (Docker, or Podman under that name) and a static ``busybox``, which becomes the
image: nothing is downloaded.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gateways import SpokenEngine
from machine_speed import eventually, patience

from turntree.agents.episodes.episode import Episode, StopReason
from turntree.agents.harness.env import HarnessEnv
from turntree.agents.harness.play import PROGRAM_ANSWER
from turntree.agents.loop.renderer import Renderer
from turntree.agents.loop.rollout import rollout
from turntree.envs import Limits
from turntree.envs.failure import FailureKind

IMAGE = "turntree-test-busybox"
ASKS = """
ask() {
  wget -q -O - --header "Authorization: Bearer $OPENAI_API_KEY" --header "Content-Type: application/json" \
    --post-data '{"model": "policy", "messages": [{"role": "user", "content": "Say it."}]}' \
    "$OPENAI_BASE_URL/chat/completions"
}
ask | sed 's/.*"content": *"\\([^"]*\\)".*/\\1/'
"""


def docker(*words: str, given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["docker", *words], input=given, capture_output=True, check=False)


def running() -> list[str]:
    """Names of the containers of these tests."""
    listed = docker("ps", "--all", "--filter", f"ancestor={IMAGE}", "--format", "{{.Names}}")
    assert listed.returncode == 0, listed.stderr
    return listed.stdout.decode().split()


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    busybox = shutil.which("busybox")
    if shutil.which("docker") is None or docker("info").returncode:
        pytest.skip("no docker here that runs containers")
    if busybox is None or b"/ld-linux" in Path(busybox).read_bytes()[:4096]:  # the loader that a dynamic one names
        pytest.skip("no static busybox here to make an image of (Debian: busybox-static)")
    layers = io.BytesIO()
    with tarfile.open(fileobj=layers, mode="w") as tar:
        tar.add(Path(busybox).resolve(), "bin/busybox")
        for name in ("sh", "wget", "sed", "cat", "sleep"):
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    made = docker("import", "-", IMAGE, given=layers.getvalue())
    assert made.returncode == 0, made.stderr
    yield IMAGE
    docker("rmi", IMAGE)


def env(command: list[str], image: str, seconds: float = 60) -> HarnessEnv:
    limits = Limits(max_turns=8, max_context_tokens=2000)
    return HarnessEnv(
        env="turntree/Arithmetic-v0", command=command, image=image, limits=limits, seconds=patience(seconds)
    )


async def play(played: HarnessEnv, chatml: Any, renderer: Renderer) -> Episode:
    """Its third task, by a policy that knows the answer."""
    engine = SpokenEngine(chatml, say=lambda _: f"#### {played.task(3).answer}")
    return await rollout(played, engine, renderer, index=3, seed=7)


async def test_a_container_asks_the_policy_and_its_answer_is_judged(
    chatml: Any, renderer: Renderer, image: str
) -> None:
    episode = await play(env(["sh", "-c", ASKS], image), chatml, renderer)
    assert (episode.stop_reason, episode.failure, episode.reward) == (StopReason.DONE, "", 1.0)
    assert [str(message.role) for message in episode.messages] == ["user", "assistant"]
    assert not running()


async def test_a_container_is_given_the_prompt_and_no_file_of_this_machine(
    chatml: Any, renderer: Renderer, image: str, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    note.write_text("of this machine")
    script = f"""{ASKS.rstrip()} > /asked
        [ "$(cat)" = "$1" ] && echo "the prompt"
        cat {note} || echo "no note"
    """
    episode = await play(env(["sh", "-c", script, "sh", "{prompt}"], image), chatml, renderer)
    assert episode.task.metadata[PROGRAM_ANSWER] == "the prompt\nno note", episode.failure


async def test_a_container_ends_with_its_episode(chatml: Any, renderer: Renderer, image: str) -> None:
    episode = await play(env(["sh", "-c", "echo begun >&2; sleep 600"], image, seconds=5), chatml, renderer)
    assert (episode.masked, episode.failure_kind) == (True, FailureKind.TIMEOUT)
    eventually(lambda: not running(), 30)
