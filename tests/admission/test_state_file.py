"""Evidence that outlives the process: read if it can be, replaced whole, and never in the way of a start."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from gateway.admission.state_file import StateFile
from gateway.core.commitment import Ending, Evidence
from gateway.core.names import PoolName, TicketId
from gateway.core.ticket import Need, Ticket
from support.manual_clock import ManualClock
from support.tickets import A


def ask(family: str) -> Ticket:
    return Ticket(TicketId(1), PoolName("p"), {A: Need(9)}, 0.0, 60.0, family=family)


def learned(family: str = "llama on vllm 0.32", tokens: int = 120) -> Evidence:
    evidence = Evidence()
    for _ in range(100):
        evidence.learn(ask(family), tokens, Ending.FINISHED)
    return evidence


def test_the_next_process_begins_where_the_last_one_was(tmp_path: Path) -> None:
    path = tmp_path / "evidence.json"
    StateFile(path, learned(), ManualClock()).write()
    again = Evidence()
    StateFile(path, again, ManualClock()).read()
    lengths = again.lengths_for(ask("llama on vllm 0.32"))
    assert lengths is not None
    assert lengths.expected(0) == 120
    assert again.lengths_for(ask("llama on vllm 0.33")) is None
    assert again.lengths_for(ask("mistral on vllm 0.32")) is None
    assert [entry.name for entry in tmp_path.iterdir()] == ["evidence.json"], "nothing half written is left"


@pytest.mark.parametrize(
    "content", [b"", b"{", b"null", b"\xff\xfe\x00", b'{"kvgate_evidence": 99, "classes": []}', b'{"other": 1}', b"[" * 100_000]
)
def test_a_torn_or_foreign_file_is_left_out_with_one_line(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "evidence.json"
    path.write_bytes(content)
    evidence = Evidence()
    StateFile(path, evidence, ManualClock()).read()
    assert evidence.families() == frozenset()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "is left out" in caplog.text


def test_every_cut_of_a_file_is_survived(tmp_path: Path) -> None:
    path = tmp_path / "evidence.json"
    StateFile(path, learned(), ManualClock()).write()
    whole = path.read_bytes()
    for cut in range(0, len(whole), 7):
        path.write_bytes(whole[:cut])
        evidence = Evidence()
        StateFile(path, evidence, ManualClock()).read()
        assert evidence.families() == frozenset()


def test_no_file_yet_is_no_trouble(tmp_path: Path) -> None:
    StateFile(tmp_path / "evidence.json", Evidence(), ManualClock()).read()


def test_a_file_that_cannot_be_written_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gone = StateFile(tmp_path / "gone" / "evidence.json", learned(), ManualClock())
    gone.write()
    gone.write()
    assert len(caplog.records) == 1


def test_what_is_written_is_a_record_and_holds_no_content_of_anybody(tmp_path: Path) -> None:
    path = tmp_path / "evidence.json"
    StateFile(path, learned(), ManualClock()).write()
    record = json.loads(path.read_bytes())
    assert set(record) == {"kvgate_evidence", "classes"}
    assert {key for entry in record["classes"] for key in entry} == {"class", "completions", "bins"}


class Beside:
    """Something else that is kept."""

    def __init__(self, content: object) -> None:
        self.content = content

    def record(self) -> dict[str, Any]:
        return {"content": self.content}

    def take(self, record: object) -> None:
        if not isinstance(record, dict) or record["content"] == "bad":
            raise ValueError("it cannot be read")
        self.content = record["content"]


def test_what_stands_beside_the_evidence_is_kept_with_it(tmp_path: Path) -> None:
    path = tmp_path / "evidence.json"
    StateFile(path, learned(), ManualClock(), beside={"ratios": Beside(7)}).write()
    again, beside = Evidence(), Beside(None)
    StateFile(path, again, ManualClock(), beside={"ratios": beside}).read()
    assert beside.content == 7
    assert again.has_family("llama on vllm 0.32")
    # An older version's file has none, and a version that knows none reads the rest.
    StateFile(path, Evidence(), ManualClock()).read()
    StateFile(path, learned(), ManualClock()).write()
    StateFile(path, Evidence(), ManualClock(), beside={"ratios": beside}).read()
    assert beside.content == 7


def test_a_part_that_cannot_be_read_leaves_the_evidence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "evidence.json"
    StateFile(path, learned(), ManualClock(), beside={"ratios": Beside("bad")}).write()
    again, beside = Evidence(), Beside(5)
    StateFile(path, again, ManualClock(), beside={"ratios": beside}).read()
    assert beside.content == 5
    assert again.has_family("llama on vllm 0.32")
    assert "the ratios in the state file" in caplog.text
