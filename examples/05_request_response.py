"""A main loop in another process answers requests; an error comes back as the error it was.

Run it: python examples/05_request_response.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from typing import Any

import postroad
from postroad.errors import RequestFailed
from postroad.sessions import MainLoop, MainLoopClient, PromptResponse, Session


@postroad.event(name="examples.review-request")
class ReviewRequest:
    file: str


class Reviewer:
    """Stands in for the adapter of a language model."""

    def evaluate(self, prompt: str, *, session: Session, **limits: Any) -> PromptResponse[str]:
        if not prompt.endswith(".py"):
            raise ValueError(f"{prompt} is not Python")
        return PromptResponse("review", output=f"{prompt}: line 7 is never reached")


class ReviewLoop(MainLoop[ReviewRequest, str]):
    def create_prompt(self, request: ReviewRequest) -> str:
        return request.file

    def create_session(self) -> Session:
        return Session(tags={"loop": "review"})


def ask(url: str) -> None:
    with (
        subprocess.Popen([sys.executable, __file__, url], stdin=subprocess.PIPE),
        postroad.connect(url) as backend,
        MainLoopClient.connect(backend) as client,
    ):
        print(client.submit(ReviewRequest("main.py"), timeout=30).response.output)
        try:
            client.submit(ReviewRequest("notes.txt"), timeout=30)
        except RequestFailed as failed:
            print("failed, because:", repr(failed.__cause__))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        with postroad.connect(sys.argv[1]) as backend, ReviewLoop.serve(backend, adapter=Reviewer()):
            sys.stdin.read()
    else:
        with tempfile.TemporaryDirectory() as directory:
            ask(f"sqlite:///{directory}/postroad.db")
