"""Programs that query a policy with OpenAI's protocol and the standard library alone, without turntree."""

import json
import os
import sys
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

Messages = list[dict[str, Any]]
RELEASED = threading.Event()  #: releases ``hangs``
ANSWERS: list[int] = []  #: statuses that programs received after an error


class Policy:
    def __init__(self, base_url: str, api_key: str, model: str) -> None:
        self.base_url, self.model = base_url, model
        self.headers = {"Authorization": f"Bearer {api_key}", "Content-Type": "application/json"}

    def ask(self, messages: Messages, **fields: Any) -> dict[str, Any]:
        body = json.dumps({"model": self.model, "messages": messages, **fields}).encode()
        request = urllib.request.Request(f"{self.base_url}/chat/completions", body, self.headers)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=300) as answer:
            message: dict[str, Any] = json.load(answer)["choices"][0]["message"]
        return message

    def said(self, messages: Messages, text: str, **fields: Any) -> str:
        # Appends a user's text and the answer to the dialogue.
        messages.append(user(text))
        messages.append(self.ask(messages, **fields))
        return str(messages[-1]["content"])


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def checks_twice(prompt: str, base_url: str, api_key: str, model: str = "policy") -> str:
    """Ask, ask whether the answer is right, and return the second answer."""
    policy, messages = Policy(base_url, api_key, model), []
    policy.said(messages, prompt)
    return policy.said(messages, "Are you sure?")


async def awaits(prompt: str, base_url: str, api_key: str) -> str:
    return checks_twice(prompt, base_url, api_key)


def delegates(prompt: str, base_url: str, api_key: str) -> str:
    """Ask, let two sub-agents work at the same time, and continue with their answers."""
    policy, messages = Policy(base_url, api_key, "policy"), []
    policy.said(messages, prompt)
    with ThreadPoolExecutor(2) as pool:
        notes = [*pool.map(lambda part: policy.ask([user(f"part {part}")])["content"], "ab")]
    return policy.said(messages, f"They say {notes[0]} and {notes[1]}.")


def delegates_and_breaks(prompt: str, task_id: str, base_url: str, api_key: str) -> str:
    """As ``delegates``; task 3 crashes."""
    return (crashes if task_id.endswith("/3") else delegates)(prompt, base_url, api_key)


def forgets(prompt: str, base_url: str, api_key: str) -> str:
    """Change an earlier message in the second request: a branch."""
    policy, messages = Policy(base_url, api_key, "policy"), []
    policy.said(messages, prompt)
    other = [*messages]
    policy.said(messages, "Are you sure?")
    return policy.said(other, "Why?")


def crashes(prompt: str, base_url: str, api_key: str) -> str:
    Policy(base_url, api_key, "policy").ask([user(prompt)])
    raise RuntimeError("the disk is full")


def exits(prompt: str, base_url: str, api_key: str) -> str:
    Policy(base_url, api_key, "policy").ask([user(prompt)])
    sys.exit(0)


def silent() -> str:
    return "#### 4"


def silent_after_a_turn(prompt: str, base_url: str, api_key: str) -> str:
    Policy(base_url, api_key, "policy").ask([user(prompt)])
    return "#### none"


def hangs(prompt: str, base_url: str, api_key: str) -> str:
    """Never answer in time; a thread asks once more after the episode has ended."""
    policy = Policy(base_url, api_key, "policy")
    policy.ask([user(prompt)])

    def asks_late() -> None:
        RELEASED.wait(300)
        try:
            policy.ask([user("more")])
        except urllib.error.HTTPError as error:
            ANSWERS.append(error.code)
        except OSError:
            ANSWERS.append(0)

    threading.Thread(target=asks_late, daemon=True).start()
    RELEASED.wait(300)
    return "#### 4"


def spins(prompt: str, base_url: str, api_key: str) -> str:
    """Never return, whatever is raised."""
    Policy(base_url, api_key, "policy").ask([user(prompt)])
    ANSWERS.append(threading.get_ident())
    for _ in range(3):
        try:
            while True:
                pass
        except BaseException:
            ANSWERS.append(0)
    while True:
        pass


def asks_many(prompt: str, base_url: str, api_key: str) -> str:
    return str(Policy(base_url, api_key, "policy").ask([user(prompt)], n=20)["content"])


def begins_too_long(prompt: str, base_url: str, api_key: str) -> str:
    return str(Policy(base_url, api_key, "policy").ask([user("word " * 5000)])["content"])


def ends_itself(prompt: str, base_url: str, api_key: str) -> str:
    """Score and end the program's own session, then raise."""
    policy = Policy(base_url, api_key, "policy")
    policy.ask([user(prompt)])
    for path, method, body in (("/reward", "POST", b'{"failure": "x"}'), ("", "DELETE", None)):
        request = urllib.request.Request(f"{base_url}/sessions/episode{path}", body, policy.headers, method=method)
        try:
            urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=300)
        except urllib.error.HTTPError as error:
            ANSWERS.append(error.code)
    raise RuntimeError("it is over")


def shrugs(prompt: str, base_url: str, api_key: str) -> str:
    policy = Policy(base_url, api_key, "policy")
    policy.ask([user(prompt)])
    try:
        return str(policy.ask([user(prompt), {"role": "assistant", "content": "no"}, user("and now?")])["content"])
    except urllib.error.HTTPError as error:
        ANSWERS.append(error.code)
        return "I do not know"


def repeats(prompt: str, base_url: str, api_key: str) -> str:
    """Retry after each error, as clients do."""
    policy = Policy(base_url, api_key, "policy")
    while True:
        try:
            return str(policy.ask([user(prompt)])["content"])
        except urllib.error.HTTPError as error:
            ANSWERS.append(error.code)


def talks(prompt: str, base_url: str, api_key: str, rounds: int = 100) -> str:
    """Continue until a request is refused."""
    policy, messages = Policy(base_url, api_key, "policy"), []
    for _ in range(rounds):
        said = policy.said(messages, prompt)
    return said


def main() -> None:
    """As a command: the prompt comes on standard input, the rest in environment variables."""
    prompt = sys.stdin.read()
    assert prompt == os.environ.get("TASK_PROMPT", prompt)
    sys.stdout.write("thinking\n" if "--loud" in sys.argv else "")
    answer = checks_twice(prompt, os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"])
    if "--fail" in sys.argv:
        sys.exit(f"{os.environ['TASK_ID']} has no answer")
    sys.stdout.write(answer + "\n")


if __name__ == "__main__":
    main()
