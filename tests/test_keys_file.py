"""The keys file: what it may say, and that one which cannot be right is refused in one line that shows no key."""

import hashlib
from pathlib import Path

import pytest

from gateway.keys_file import MOST_BYTES, Identity, read_keys_file

ONE, OTHER = (hashlib.sha256(key).hexdigest() for key in (b"one-key", b"other-key"))


def read(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "keys.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_key_is_found_by_its_digest_and_by_nothing_else(tmp_path: Path) -> None:
    keys = read_keys_file(
        read(
            tmp_path,
            f"""
            [tenants.team-a]
            keys = ["{ONE}", "{OTHER.upper()}"]
            priority = 1
            max_priority = 5
            lanes = ["batch"]
            """,
        )
    )
    team = keys.find(b"one-key")
    assert team is not None
    assert (team.tenant, team.priority, team.max_priority, team.lanes) == ("team-a", 1, 5, {"batch"})
    assert keys.find(b"other-key") == team
    for stranger in (b"", b"one-ke", b"one-key ", ONE.encode(), bytes.fromhex(ONE)):
        assert keys.find(stranger) is None
    assert keys.anonymous is None


def test_what_a_tenant_is_not_given_it_does_not_have(tmp_path: Path) -> None:
    keys = read_keys_file(read(tmp_path, f'[tenants.a]\nkeys = ["{ONE}"]\npriority = -3\n'))
    found = keys.find(b"one-key")
    assert found is not None
    assert (found.priority, found.max_priority, found.lanes) == (-3, -3, frozenset())


def test_callers_without_a_key_may_have_terms_of_their_own(tmp_path: Path) -> None:
    keys = read_keys_file(read(tmp_path, "[anonymous]\npriority = -1\n"))
    assert isinstance(keys.anonymous, Identity)
    assert (keys.anonymous.tenant, keys.anonymous.priority) == ("anonymous", -1)


PROBLEMS = {
    "nothing": ("", "nobody could call"),
    "no TOML": ("[tenants.a\nkeys = s3cr3t", "is not TOML (at line 1"),
    "a key in clear": ('[tenants.a]\nkeys = ["s3cr3t"]', "key 1 is no SHA-256 in hex"),
    "a number as key": ("[tenants.a]\nkeys = [7]", "key 1 is no SHA-256"),
    "no keys": ("[tenants.a]\nweight = 1", "tenants.a: keys is a list of at least one SHA-256"),
    "an empty list": ("[tenants.a]\nkeys = []", "keys is a list of at least one"),
    "a misspelt limit": (f'[tenants.a]\nkeys = ["{ONE}"]\nprioritty = 1', "'prioritty' is not known here"),
    "a key in the place of a name": (f'[tenants.a]\nkeys = ["{ONE}"]\ns3cr3t = 1', "one member is not known here"),
    "another table": ("[tenant.a]\nkeys = []", "'tenant' is not known here"),
    "one key twice": (f'[tenants.a]\nkeys = ["{ONE}"]\n[tenants.b]\nkeys = ["{ONE}"]', "tenants.b: key 1 stands twice"),
    "a name that no label takes": (f'[tenants."a b"]\nkeys = ["{ONE}"]', "a tenant's name has letters"),
    "anonymous with a key": (f'[tenants.anonymous]\nkeys = ["{ONE}"]', "who has no key is in the table [anonymous]"),
    "a priority that is none": (f'[tenants.a]\nkeys = ["{ONE}"]\npriority = "high"', "priority is a whole number"),
    "true as priority": (f'[tenants.a]\nkeys = ["{ONE}"]\npriority = true', "priority is a whole number"),
    "less at most than it has": (
        f'[tenants.a]\nkeys = ["{ONE}"]\npriority = 2\nmax_priority = 1',
        "max_priority is a whole number",
    ),
    "lanes that are none": (f'[tenants.a]\nkeys = ["{ONE}"]\nlanes = "batch"', "lanes is a list"),
    "tenants that are none": ("tenants = 7", "tenants is not a table"),
    "not UTF-8": (b"\xff\xfe", "is not UTF-8"),
    "too large": (b"#" * (MOST_BYTES + 1), "is larger than"),
    "nested": (b"a=" + b"[" * 100_000, "is nested too deeply"),
}


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_file_that_cannot_be_right_is_refused_in_one_line_without_a_key(tmp_path: Path, name: str) -> None:
    text, words = PROBLEMS[name]
    with pytest.raises(ValueError) as refused:
        read_keys_file(read(tmp_path, text))
    said = str(refused.value)
    assert words in said
    assert "\n" not in said
    assert "s3cr3t" not in said
    assert ONE not in said
