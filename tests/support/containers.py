"""A container image built from the machine's static busybox, so that tests download nothing."""

import io
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

IMAGE = "turntree-test-busybox"
_COMMANDS = ("sh", "wget", "sed", "cat", "sleep", "ls", "mkdir", "rm", "chmod", "head", "kill", "echo", "test", "id")


def docker(*words: str, given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["docker", *words], input=given, capture_output=True, check=False)


def running() -> list[str]:
    listed = docker("ps", "--all", "--filter", f"ancestor={IMAGE}", "--format", "{{.Names}}")
    assert listed.returncode == 0, listed.stderr
    return listed.stdout.decode().split()


@pytest.fixture(scope="module")
def busybox_image() -> Iterator[str]:
    busybox = shutil.which("busybox")
    if shutil.which("docker") is None or docker("info").returncode:
        pytest.skip("no docker here that runs containers")
    if busybox is None or b"/ld-linux" in Path(busybox).read_bytes()[:4096]:  # the loader that a dynamic one names
        pytest.skip("no static busybox here to make an image of (Debian: busybox-static)")
    layers = io.BytesIO()
    with tarfile.open(fileobj=layers, mode="w") as tar:
        tar.add(Path(busybox).resolve(), "bin/busybox")
        for name in _COMMANDS:
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    made = docker("import", "-", IMAGE, given=layers.getvalue())
    assert made.returncode == 0, made.stderr
    yield IMAGE
    docker("rmi", IMAGE)
