"""The process in which a local tokenizer counts: `python -m gateway.tokens.worker PATH`.

A process, because a template holds Python's lock while it is filled in, and because what takes too long can be ended. It
reads requests from its standard input, each after its length in four bytes, and answers each with one line of JSON; it ends
when its input does, and so never outlives the gateway. It gives way to everybody else on the machine.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

from gateway.tokens.chat_template import CannotRender
from gateway.tokens.tokenizer import Tokenizer

_NICENESS: Final = 5


def main(path: str, requests: BinaryIO, answers: BinaryIO) -> int:
    """Serve until the input ends. Returns the process's exit code."""
    os.nice(_NICENESS)
    try:
        tokenizer = Tokenizer(Path(path))
    except ValueError as error:
        _tell(answers, {"error": str(error)})
        return 1
    _tell(answers, {"template": tokenizer.has_template, "pieces": tokenizer.cuts_at_marks})
    while len(head := requests.read(4)) == 4:
        length = int.from_bytes(head, "big")
        body = requests.read(length)
        if len(body) != length:
            break
        _tell(answers, _answer(tokenizer, body))
    return 0


def _answer(tokenizer: Tokenizer, body: bytes) -> dict[str, Any]:
    try:
        asked = json.loads(body)
        if (chat := asked.get("chat")) is not None:
            return {"tokens": [tokenizer.count_chat(chat)]}
        return {"tokens": [tokenizer.count_text(text) for text in asked["texts"]]}
    except CannotRender as error:
        return {"why": str(error)}
    except Exception as error:  # a caller's body must not end the process for everybody, whatever the library raises
        return {"why": type(error).__name__}


def _tell(answers: BinaryIO, answer: Mapping[str, Any]) -> None:
    answers.write(json.dumps(answer).encode() + b"\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.stdin.buffer, sys.stdout.buffer))
