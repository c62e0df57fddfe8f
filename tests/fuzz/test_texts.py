"""Texts from operators and engines: settings, addresses, pages of metrics. Each is read, or told in words what is wrong."""

import json
import math
import random
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import ValidationError

from fuzz.mutation import try_all
from gateway import setting_values as values
from gateway.backend_settings import parse_addresses, parse_per_backend
from gateway.backends.exposition import read_exposition
from gateway.backends.roster import clean_url
from gateway.core.reserve import Reserve
from gateway.dialects.json_edit import members, set_member
from gateway.setting_names import is_service_link, name_problems
from gateway.settings import Settings
from gateway.units import parse_bytes, parse_duration, show_bytes, show_duration

SECRET = "hunter2-pass"

# What the operator may write -> the reader, and samples of it.
READERS: dict[str, tuple[Callable[[str], Any], list[bytes]]] = {
    "durations": (parse_duration, [b"500ms", b"60s", b"5m", b"1.5h", b"30"]),
    "timeouts": (values.timeout, [b"500ms", b"60s", b"0s"]),
    "sizes": (parse_bytes, [b"32MiB", b"10MB", b"512KiB", b"1048576"]),
    "reserves": (Reserve.parse, [b"10", b"5%", b"2GiB", b"0.5%", b"12 blocks"]),
    "shares": (values.share, [b"1", b"0.5", b"50%"]),
    "ports": (values.port_or_off, [b"8700", b"0", b"off"]),
    "hosts": (values.host, [b"127.0.0.1", b"[::1]", b"localhost", b"::"]),
    "numbers": (values.whole_number(at_least=1), [b"1024", b"1"]),
    "outputs": (values.default_output, [b"context", b"require", b"256"]),
    "engines": (values.engine, [b"auto", b"vllm", b"llama_cpp"]),
    "paths": (values.paths, [b"/tokenize,/v1/x", b"/a", b""]),
    "per backend": (lambda text: parse_per_backend(text, values.whole_number(at_least=1), None), [b"64", b"a=64,b=32,7"]),
    "addresses": (parse_addresses, [b"http://h:8000", b"a=http://h:1/v1,b=https://[::1]:2/x", b"http://u:p@h/"]),
}
WORDS = (
    b"=",
    b"://",
    b"@",
    b"%",
    b",",
    b"http://",
    b"e9",
    b"inf",
    b"\xd9\xa3",
    b"\xc2\xb2",
    b"]",
    b"[",
    b"#",
    b"?",
    b"\\",
    b"_",
)


@pytest.mark.parametrize("name", READERS)
def test_what_an_operator_writes_is_read_or_refused_in_one_sentence(name: str, fuzz_inputs: int) -> None:
    read, samples = READERS[name]

    def check(data: bytes, _: random.Random) -> None:
        told = "read"
        try:
            read(data.decode("utf-8", "surrogateescape"))
        except ValueError as error:
            told = str(error)
        assert told

    try_all(name, fuzz_inputs, samples, check, words=WORDS)


def test_a_duration_and_a_size_are_shown_as_they_are_read_again(fuzz_inputs: int) -> None:
    units: tuple[tuple[Callable[[str], Any], Callable[[Any], str]], ...] = (
        (parse_duration, show_duration),
        (parse_bytes, show_bytes),
    )

    def check(data: bytes, _: random.Random) -> None:
        text = data.decode("utf-8", "replace")
        for read, show in units:
            try:
                value = read(text)
            except ValueError:
                continue
            assert value >= 0
            assert math.isfinite(value)
            assert math.isclose(read(show(value)), value, rel_tol=1e-9)

    try_all("shown units", fuzz_inputs, [*READERS["durations"][1], *READERS["sizes"][1]], check, words=WORDS)


def test_the_password_in_a_url_is_never_told(fuzz_inputs: int) -> None:
    def check(data: bytes, _: random.Random) -> None:
        text = data.decode("utf-8", "replace")
        if SECRET not in text or set("\r\n\t") & set(text):  # urlsplit drops these, and joins what stood around them
            return
        try:
            told = "".join(f"{address!r}{address}{clean_url(address.url)}" for address in parse_addresses(text))
        except ValueError as error:
            told = str(error)
        before, __, behind = text.partition("://")[2].partition(SECRET)
        # Where it stands within the user info, by RFC 3986; elsewhere it is a host or a path, which may be told.
        if text.count(SECRET) == 1 and not set("/?#,\\") & set(before) and "@" in re.split("[/?#,\\\\]", behind)[0]:
            assert SECRET not in told

    samples = [b"http://user:%b@h:8000/v1" % SECRET.encode(), b"a=https://%b@h" % SECRET.encode()]
    try_all("passwords", fuzz_inputs, samples, check, words=(b"@", b":", b"/", b"#", b"?", b"[", b"]"))


SETTINGS = sorted(
    (str(field.validation_alias), str(field.default)) for field in Settings.model_fields.values() if field.validation_alias
)


def test_whatever_a_setting_says_only_a_validation_error_ends_the_start(fuzz_inputs: int) -> None:
    def check(data: bytes, dice: random.Random) -> None:
        name, default = dice.choice(SETTINGS)
        text = data.decode("utf-8", "surrogateescape").replace("\x00", "")
        try:
            settings = Settings(**{name: text or default})  # type: ignore[arg-type]
        except ValidationError as error:
            told = str(error)
        else:
            told = f"{settings!r}{settings.remarks()}"
        assert SECRET not in told or name not in ("KVGATE_ADMIN_TOKEN", "KVGATE_BACKEND_KEY")

    samples = [default.encode() for _, default in SETTINGS if default] + [b"http://h:1", b"a=b,c=d", SECRET.encode()]
    try_all("settings", max(100, fuzz_inputs // 10), samples, check, words=WORDS)


def test_every_name_is_a_setting_or_is_told_the_nearest_one(fuzz_inputs: int) -> None:
    known = [name for name, _ in SETTINGS]

    def check(data: bytes, dice: random.Random) -> None:
        name, value = data.decode("utf-8", "replace"), dice.choice(("1", "tcp://10.0.0.1:80", ""))
        problems = name_problems({name: value}, known)
        assert len(problems) <= 1
        is_service_link(name, value)

    samples = [name.encode() for name in known] + [b"KVGATE_PORT_80_TCP", b"KVGATE_LANES", b"PATH"]
    try_all("names of settings", fuzz_inputs, samples, check)


PAGE = b"""# HELP vllm:num_requests_running Number of requests.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:kv_cache_usage_perc{engine="0",model_name="a \\"b\\" \\\\ c\\nd"} 0.25 1700000000
vllm:num_preemptions_total{engine="0"} 1e3
vllm:cache_config_info{block_size="32",engine="0",num_gpu_blocks="65"} 1.0
process_start_time_seconds 1.79603167318e+09
llamacpp:requests_processing 1
"""
WANTED = ("vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:cache_config_info", "process_start_time_seconds")


def test_any_page_of_metrics_is_read_as_far_as_it_makes_sense(fuzz_inputs: int) -> None:
    def check(data: bytes, __: random.Random) -> None:
        page = read_exposition(data.decode("utf-8", "replace"), WANTED)
        for sample in page.samples:
            assert sample.name in WANTED
            assert math.isfinite(sample.value)
        for name in WANTED:
            page.total(name, "vllm:none")

    words = (b"NaN", b"+Inf", b"{", b'="', b'"} 1', b"# {} 1", b'\\"', b"vllm:num_requests_running 1\n")
    try_all("pages of metrics", fuzz_inputs, [PAGE, *PAGE.splitlines()], check, words=words)


def test_a_sound_page_is_read_as_prometheus_reads_it() -> None:
    ours = {
        (sample.name, tuple(sorted(sample.labels.items())), sample.value)
        for sample in read_exposition(PAGE.decode(), WANTED).samples
    }
    theirs = {
        (sample.name, tuple(sorted(sample.labels.items())), sample.value)
        for family in text_string_to_metric_families(PAGE.decode())
        for sample in family.samples
        if sample.name in WANTED
    }
    assert ours == theirs


def test_members_of_any_json_object_are_found_where_another_reader_finds_them(fuzz_inputs: int) -> None:
    reader = json.JSONDecoder(parse_int=str, parse_float=str, object_pairs_hook=tuple)

    def check(data: bytes, dice: random.Random) -> None:
        try:
            pairs = reader.decode(data.decode())
            msgspec.json.decode(data)  # by which the dialects read first; it refuses half a surrogate pair, and NaN
        except (ValueError, UnicodeDecodeError, RecursionError):
            return
        if not data.strip().startswith(b"{"):
            return
        found = list(members(data))
        assert [member.key for member in found] == [key for key, _ in pairs]
        for member, (_, value) in zip(found, pairs, strict=True):
            assert reader.decode(data[member.start : member.end].decode()) == value
        key = dice.choice(("max_tokens", "a", "new"))
        edited = dict(reader.decode(set_member(data, key, b"7").decode()))
        assert edited == {**dict(pairs), key: "7"}

    samples = [
        b'{"a":1,"b":"x\\"y","c":[1,{"a":2}],"max_tokens":null}',
        b' { "a" : "\\\\" , "a" : {} , "\\u0061b":[ "]" , "}" ] }\n',
        b'{"x":{"y":{"z":"{[\\"]}"}},"max_tokens":-1.5e3,"t":true}',
        '{"é中😀":"\\ud83d\\ude00","a":""}'.encode(),
        b"{}",
    ]
    try_all("json objects", fuzz_inputs, samples, check)
