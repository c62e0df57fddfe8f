"""The keys file: what it may say, and that one which cannot be right is refused in one line that shows no key."""

import hashlib
from pathlib import Path

import pytest

from gateway.core.names import ANONYMOUS, LaneName, TenantName
from gateway.core.tenant import TenantTerms
from gateway.keys_file import MOST_BYTES, read_keys_file

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
            weight = 2
            cap_blocks = 4000
            cap_requests = 32
            queue_share = 0.25
            lanes = ["batch", "standard"]
            priority = 1
            may_set_priority = true
            """,
        )
    )
    team = keys.find(b"one-key")
    assert team is not None
    lanes = (LaneName("batch"), LaneName("standard"))
    assert team == TenantTerms(TenantName("team-a"), 2, 4000, 32, 0.25, lanes, 1, may_set_priority=True)
    assert keys.find(b"other-key") == team
    for stranger in (b"", b"one-ke", b"one-key ", ONE.encode(), bytes.fromhex(ONE)):
        assert keys.find(stranger) is None
    assert keys.anonymous is None


def test_what_a_tenant_is_not_given_it_does_not_have(tmp_path: Path) -> None:
    keys = read_keys_file(read(tmp_path, f'[tenants.a]\nkeys = ["{ONE}"]\npriority = -3\n'))
    assert keys.find(b"one-key") == TenantTerms(TenantName("a"), priority=-3)


def test_callers_without_a_key_may_have_terms_of_their_own(tmp_path: Path) -> None:
    keys = read_keys_file(read(tmp_path, "[anonymous]\npriority = -1\n"))
    assert keys.anonymous == TenantTerms(ANONYMOUS, priority=-1)


def terms(line: str) -> str:
    """A tenant with one key and this line."""
    return f'[tenants.a]\nkeys = ["{ONE}"]\n{line}'


PROBLEMS: dict[str, tuple[str | bytes, str]] = {
    "nothing": ("", "nobody could call"),
    "no TOML": ("[tenants.a\nkeys = s3cr3t", "is not TOML (at line 1"),
    "a key in clear": ('[tenants.a]\nkeys = ["s3cr3t"]', "key 1 is no SHA-256 in hex"),
    "a number as key": ("[tenants.a]\nkeys = [7]", "key 1 is no SHA-256"),
    "no keys": ("[tenants.a]\nweight = 1", "tenants.a: keys is a list of at least one SHA-256"),
    "an empty list": ("[tenants.a]\nkeys = []", "keys is a list of at least one"),
    "a misspelt limit": (terms("prioritty = 1"), "'prioritty' is not known here"),
    "a key in the place of a name": (terms("s3cr3t = 1"), "one member is not known here"),
    "another table": ("[tenant.a]\nkeys = []", "'tenant' is not known here"),
    "one key twice": (terms(f'[tenants.b]\nkeys = ["{ONE}"]'), "tenants.b: key 1 stands twice"),
    "a name that no label takes": (f'[tenants."a b"]\nkeys = ["{ONE}"]', "a tenant's name has letters"),
    "anonymous with a key": (f'[tenants.anonymous]\nkeys = ["{ONE}"]', "who has no key is in the table [anonymous]"),
    "a priority that is none": (terms('priority = "high"'), "priority is a whole number"),
    "true as priority": (terms("priority = true"), "priority is a whole number"),
    "a priority without end": (terms("priority = 1000000000000"), "priority is a whole number from"),
    "a right that is none": (terms("may_set_priority = 1"), "may_set_priority is true or false"),
    "no weight": (terms("weight = 0"), "the weight of tenant a must be a number above 0"),
    "no number as weight": (terms("weight = nan"), "the weight of tenant a must be a number above 0"),
    "a share above all": (terms("queue_share = 1.5"), "the queue share of tenant a"),
    "half a block": (terms("cap_blocks = 0.5"), "cap_blocks is a whole number"),
    "lanes without names": (terms("lanes = [7]"), "lanes is a list"),
    "lanes that are none": (terms('lanes = "batch"'), "lanes is a list"),
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
