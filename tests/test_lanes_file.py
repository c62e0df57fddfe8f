"""The lanes file is read whole or refused with one sentence that names the lane and the key."""

from fractions import Fraction
from pathlib import Path

import pytest

from gateway.core.lane_table import LaneTerms
from gateway.core.names import LaneName
from gateway.lanes_file import read_lanes
from gateway.setting_checks import SettingsError, load_settings

WHOLE = """
[lanes.talk]
weight = 4
cap = "60%"
queue = 200
deadline = "10s"
header = true

[lanes.batch]
weight = 0.5
cap = 2000
open = false

[lanes.long]
above = "25%"

[lanes.huge]
above = 100000
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "lanes.toml"
    path.write_text(text)
    return path


def test_every_key_arrives(tmp_path: Path) -> None:
    assert read_lanes(written(tmp_path, WHOLE)).lanes == (
        LaneTerms(LaneName("talk"), weight=4.0, cap_share=Fraction(3, 5), max_requests=200, deadline_s=10.0, by_header=True),
        LaneTerms(LaneName("batch"), weight=0.5, cap_blocks=2000, is_open=False),
        LaneTerms(LaneName("long"), above_share=Fraction(1, 4)),
        LaneTerms(LaneName("huge"), above_tokens=100_000),
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it holds no lane"),
        ("lanes = 3", "it holds no lane"),
        ("[lane.talk]", "'lane' is not understood"),
        ("[lanes.talk]\nwieght = 2", "the lane talk has no key 'wieght'"),
        ("[lanes.talk]\nweight = 0", "weight of the lane talk: 0 is not a number above 0"),
        ("[lanes.talk]\nweight = inf", "weight of the lane talk: inf is not a number above 0"),
        ("[lanes.talk]\nweight = true", "weight of the lane talk: True is not a number above 0"),
        ('[lanes.talk]\ncap = "0%"', "cap of the lane talk: '0%' is not a part"),
        ('[lanes.talk]\ncap = "1/2"', "cap of the lane talk: '1/2' is not a part"),
        ("[lanes.talk]\ncap = 0.5", "cap of the lane talk: 0.5 is not a whole number of at least 1"),
        ("[lanes.talk]\nqueue = 0", "queue of the lane talk: 0 is not a whole number of at least 1"),
        ("[lanes.talk]\ndeadline = 10", "deadline of the lane talk: 10 is not a time above 0"),
        ('[lanes.talk]\ndeadline = "0s"', "deadline of the lane talk: '0s' is not a time above 0"),
        ('[lanes.talk]\nheader = "yes"', "header of the lane talk: 'yes' is neither true nor false"),
        ("[lanes.talk]\nopen = false", "no lane takes ordinary requests"),
        ('[lanes.long]\nabove = "25%"', "no lane takes ordinary requests"),
        ('[lanes."a b"]', "'a b' cannot be the name of a lane"),
        ("[lanes]\ntalk = 1", "the lane talk is not a table"),
        ("[lanes.talk", "this is not TOML"),
        ("\n".join(f"[lanes.n{number}]" for number in range(33)), "33 lanes are too many"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ValueError) as caught:
        read_lanes(written(tmp_path, text))
    assert str(caught.value).startswith(says)


def test_bytes_that_are_no_text_are_refused_too(tmp_path: Path) -> None:
    path = tmp_path / "lanes.toml"
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="this is not TOML"):
        read_lanes(path)


def test_a_file_that_makes_no_sense_ends_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVGATE_LANES", str(written(tmp_path, "[lanes.talk]\nweight = -1")))
    with pytest.raises(SettingsError) as caught:
        load_settings()
    assert caught.value.problems == ("KVGATE_LANES: weight of the lane talk: -1 is not a number above 0",)
