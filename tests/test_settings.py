"""The settings as a whole: what is read, what ends the start, and what is said about it."""

import importlib.util
import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest
from pydantic import ValidationError

from gateway.core.names import BackendName
from gateway.core.request import MediaKind
from gateway.setting_checks import SettingsError, describe, load_settings
from gateway.settings import Settings

A, B = BackendName("a"), BackendName("b")


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith("KVGATE_")]:
        monkeypatch.delenv(name)


def problems_of(
    monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str], flags: Mapping[str, str] | None = None
) -> tuple[str, ...]:
    """The lines that end the start with these variables."""
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    with pytest.raises(SettingsError) as caught:
        load_settings(flags)
    return caught.value.problems


def test_without_any_variable_the_documented_defaults_hold() -> None:
    settings = load_settings()
    assert settings.backends == ()
    assert (settings.host, settings.port, settings.admin_host, settings.admin_port) == ("127.0.0.1", 8700, "127.0.0.1", 8701)
    assert (settings.engine.of(A), settings.kv_blocks.of(A), settings.share.of(A)) == ("auto", None, 1.0)
    assert str(settings.reserve.of(A)) == "5%"
    assert (settings.default_output, settings.overlong, settings.ask_usage) == ("context", "pass", "auto")
    assert (settings.mode, settings.commitment, settings.policy) == ("enforce", "auto", "fifo")
    assert (settings.queue_requests, settings.queue_timeout_s, settings.backfill_passes) == (1024, 60, 16)
    assert (settings.connect_timeout_s, settings.upload_timeout_s, settings.send_timeout_s) == (5, 30, 60)
    assert (settings.first_token_timeout_s, settings.stall_timeout_s, settings.total_timeout_s) == (300, 300, 3600)
    assert (settings.max_body_bytes, settings.drain_delay_s, settings.drain_timeout_s) == (33554432, 0, 30)
    assert (settings.admin_token, settings.backend_key, settings.backend_keys_file, settings.ca_file) == (
        None,
        None,
        None,
        None,
    )
    assert (settings.pass_through, settings.log_level, settings.log_format, settings.workers) == ((), "info", "auto", 1)
    assert settings.remarks() == ()


def test_a_setting_may_differ_between_backends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVGATE_BACKENDS", "a=http://gpu1,b=http://gpu2")
    monkeypatch.setenv("KVGATE_KV_BLOCKS", "a=100,b=200")
    monkeypatch.setenv("KVGATE_ENGINE", "b=static")
    monkeypatch.setenv("KVGATE_RESERVE", "10,b=2%")
    settings = load_settings()
    assert (settings.kv_blocks.of(A), settings.kv_blocks.of(B)) == (100, 200)
    assert (settings.engine.of(A), settings.engine.of(B)) == ("auto", "static")
    assert (str(settings.reserve.of(A)), str(settings.reserve.of(B))) == ("10", "2%")


def test_a_flag_comes_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVGATE_PORT", "9000")
    monkeypatch.setenv("KVGATE_ADMIN_PORT", "off")
    settings = load_settings({"KVGATE_PORT": "0"})
    assert (settings.port, settings.admin_port) == (0, None)


def test_an_empty_variable_is_one_that_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVGATE_QUEUE_TIMEOUT", "")
    monkeypatch.setenv("KVGATE_ADMIN_TOKEN", "")
    monkeypatch.setenv("KVGATE_LANES", "")
    settings = load_settings()
    assert (settings.queue_timeout_s, settings.admin_token) == (60, None)


def test_settings_cannot_be_changed_afterwards() -> None:
    with pytest.raises(ValidationError):
        load_settings().port = 1


def test_code_may_pass_values_by_their_names() -> None:
    assert Settings(port=0, queue_timeout_s=1.5).queue_timeout_s == 1.5


def test_an_unknown_name_is_told_the_nearest_right_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert problems_of(monkeypatch, {"KVGATE_BACKEND": "http://gpu1", "kvgate_port": "1", "KVGATE_QUEUETIMEOUT": "1"}) == (
        "KVGATE_BACKEND is not a setting; the nearest is KVGATE_BACKENDS",
        "KVGATE_QUEUETIMEOUT is not a setting; the nearest is KVGATE_QUEUE_TIMEOUT",
        "kvgate_port is not a setting; the nearest is KVGATE_PORT",
    )


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("KVGATE_COMMITMENT", "hope", "not one of auto, strict, forecast"),
        ("KVGATE_ITL_TARGET", "0ms", "leaves no time at all"),
        ("KVGATE_STATE_FILE", "/no/such/folder/evidence.json", "cannot be written"),
        ("KVGATE_KV_DTYPE", "fp3", "'fp3' is not a KV dtype known here"),
        ("KVGATE_TP", "0", "'0' is not a whole number of at least 1"),
        ("KVGATE_PP", "two", "'two' is neither a number of stages nor the layers of each"),
        ("KVGATE_MEMORY", "80", "'80' is 80 bytes, which no card's memory is counted in: write its unit, like 24GiB"),
        ("KVGATE_TOKENIZER", "/nowhere/tokenizer.json", "'/nowhere/tokenizer.json' cannot be read"),
        ("KVGATE_MEDIA_TOKENS", "many", "'many' is not a whole number"),
        ("KVGATE_MEDIA_TOKENS", "picture:5", "names no kind of media: image, audio, video, document"),
        ("KVGATE_MODEL_CONFIG", "/nowhere/config.json", "'/nowhere/config.json' cannot be read"),
        ("KVGATE_ENGINE", "vlm", "'vlm' is not one of auto, vllm, sglang, dynamo, llama_cpp, tgi, transformers, static"),
        ("KVGATE_MODEL_CONFIG", "x" * 300, "cannot be read: File name too long"),
        ("KVGATE_TOKENIZER", "x" * 300, "cannot be read: File name too long"),
        ("KVGATE_STATE_FILE", "x" * 300, "cannot be written: File name too long"),
        ("KVGATE_ENGINE_METRICS", "host:9090/metrics", "'host:9090/metrics' is not the URL of a page"),
        ("KVGATE_ENGINE_METRICS", "http://me:secret@host/metrics", "'host/metrics' is not the URL of a page"),
        ("KVGATE_POLICY", "whim", "'whim' is not one of fifo, priority, deadline, size"),
        ("KVGATE_WORKERS", "2", "2 is refused: every process would hand out the whole budget by itself"),
        ("KVGATE_PORT", "70000", "'70000' is not a port"),
        ("KVGATE_PORT", "off", "'off' is not a port"),
        ("KVGATE_ADMIN_PORT", "no", "'no' is not a port: it is a number from 0 to 65535, or off"),
        ("KVGATE_HOST", "127.0.0.1:8700", "is not an address to listen on"),
        ("KVGATE_HOST", "http://localhost", "is not an address to listen on"),
        ("KVGATE_KV_BLOCKS", "0", "'0' is not a whole number of at least 1"),
        ("KVGATE_BLOCK_TOKENS", "16.0", "'16.0' is not a whole number of at least 1"),
        ("KVGATE_SHARE", "1.5", "'1.5' is not a share"),
        ("KVGATE_SHARE", "0", "'0' is not a share"),
        ("KVGATE_SHARE", "nan", "'nan' is not a share"),
        ("KVGATE_RESERVE", "half", "'half' is not a reserve"),
        ("KVGATE_RESERVE", "100%", "'100%' is not a reserve"),
        ("KVGATE_DEFAULT_OUTPUT", "none", "'none' is neither context nor require nor a number of tokens"),
        ("KVGATE_QUEUE_REQUESTS", "-1", "'-1' is not a whole number of at least 0"),
        ("KVGATE_STALL_TIMEOUT", "0s", "'0s' leaves no time at all"),
        ("KVGATE_MAX_BODY", "0", "'0' would let no body through"),
        ("KVGATE_BACKEND_KEYS_FILE", "/nonexistent/keys", "'/nonexistent/keys' cannot be read: No such file or directory"),
        ("KVGATE_CA_FILE", __file__, "holds no certificate in PEM form"),
        ("KVGATE_PASS_THROUGH", "v1/rerank", "'v1/rerank' is not the path of a route"),
        ("KVGATE_LOG_LEVEL", "loud", "'loud' is not one of debug, info, warning, error"),
    ],
)
def test_a_value_that_cannot_be_right_ends_the_start_with_one_line(
    monkeypatch: pytest.MonkeyPatch, name: str, text: str, reason: str
) -> None:
    (problem,) = problems_of(monkeypatch, {name: text})
    assert problem.startswith(f"{name}: ")
    assert reason in problem
    assert "\n" not in problem


def test_all_problems_are_told_together_under_the_name_that_was_used(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = problems_of(
        monkeypatch,
        {"KVGATE_LANES": "/nonexistent/lanes", "KVGATE_MODUS": "observe", "KVGATE_SHARE": "2", "KVGATE_MODE": "watch"},
        flags={"KVGATE_PORT": "x"},
    )
    assert [problem.split(" ")[0] for problem in problems] == [
        "KVGATE_MODUS",
        "--port:",
        "KVGATE_SHARE:",
        "KVGATE_MODE:",
        "KVGATE_LANES:",
    ]


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        (
            {"KVGATE_KV_BLOCKS": "10", "KVGATE_RESERVE": "10"},
            "the reserve of 10 (10 blocks) leaves nothing of a budget of 10 blocks",
        ),
        ({"KVGATE_SEATS": "c=4"}, "KVGATE_SEATS names 'c', and no backend has that name (a, b)"),
        ({"KVGATE_PORT": "8701"}, "KVGATE_PORT and KVGATE_ADMIN_PORT are both 8701"),
        ({"KVGATE_PORT": "8701", "KVGATE_HOST": "0.0.0.0"}, "KVGATE_PORT and KVGATE_ADMIN_PORT are both 8701"),
    ],
)
def test_settings_that_cannot_both_be_true_end_the_start(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], reason: str
) -> None:
    problems = problems_of(monkeypatch, {"KVGATE_BACKENDS": "a=http://gpu1,b=http://gpu2", **variables})
    assert reason in problems[0]


@pytest.mark.parametrize(
    "variables",
    [
        {"KVGATE_KV_BLOCKS": "10", "KVGATE_RESERVE": "9"},
        {"KVGATE_KV_BLOCKS": "1", "KVGATE_RESERVE": "99%"},
        {"KVGATE_KV_BLOCKS": "10", "KVGATE_RESERVE": "2GiB"},  # how many blocks that is, only the engine can tell
        {"KVGATE_PORT": "0", "KVGATE_ADMIN_PORT": "0"},
        {"KVGATE_PORT": "8701", "KVGATE_HOST": "127.0.0.2"},
    ],
)
def test_what_may_be_true_is_left_to_the_backend_or_the_system(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, text in {"KVGATE_BACKENDS": "a=http://gpu1", **variables}.items():
        monkeypatch.setenv(name, text)
    load_settings()


def test_a_key_for_a_backend_that_is_not_there_ends_the_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("a=s3cret\nc=s3cret\n")
    (problem,) = problems_of(monkeypatch, {"KVGATE_BACKENDS": "a=http://gpu1", "KVGATE_BACKEND_KEYS_FILE": str(path)})
    assert problem == "KVGATE_BACKEND_KEYS_FILE has a key for 'c', and no backend has that name"


def test_a_secret_is_shown_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVGATE_ADMIN_TOKEN", "s3cret")
    monkeypatch.setenv("KVGATE_BACKEND_KEY", "s3cret")
    monkeypatch.setenv("KVGATE_BACKENDS", "a=http://user:s3cret@gpu1")
    settings = load_settings()
    assert settings.backend_key is not None
    assert settings.backend_key.get_secret_value() == "s3cret"
    assert "s3cret" not in f"{settings!r} {describe(settings)!r} {settings.remarks()!r}"
    problems = problems_of(monkeypatch, {"KVGATE_ADMIN_TOKEN": "s3cret\u00e9", "KVGATE_BACKEND_KEY": "s3cret\n2"})
    assert "s3cret" not in " ".join(problems)


def test_what_kubernetes_sets_for_a_service_of_our_name_is_not_taken_for_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Service called kvgate puts KVGATE_PORT=tcp://... and more into every pod of its namespace."""
    for name, text in {
        "KVGATE_PORT": "tcp://10.0.0.1:8700",
        "KVGATE_ADMIN_PORT": "tcp://10.0.0.2:8701",
        "KVGATE_SERVICE_HOST": "10.0.0.1",
        "KVGATE_SERVICE_PORT_HTTP": "8700",
        "KVGATE_PORT_8700_TCP": "tcp://10.0.0.1:8700",
        "KVGATE_ADMIN_PORT_8701_TCP_ADDR": "10.0.0.2",
    }.items():
        monkeypatch.setenv(name, text)
    settings = load_settings()
    assert (settings.port, settings.admin_port) == (8700, 8701)
    assert {row.origin for row in describe(settings)} == {"default"}


def test_what_is_allowed_and_yet_worth_a_line_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVGATE_BACKENDS", "a=http://user:s3cret@gpu1")
    monkeypatch.setenv("KVGATE_ADMIN_HOST", "0.0.0.0")
    monkeypatch.setenv("KVGATE_PASS_THROUGH", "/v1/rerank")
    key, path, admin = load_settings().remarks()
    assert "'a' is not used: give its key with KVGATE_BACKEND_KEY" in key
    assert "/v1/rerank goes on without being counted" in path
    assert "KVGATE_ADMIN_TOKEN" in admin
    monkeypatch.setenv("KVGATE_ADMIN_TOKEN", "t")
    assert len(load_settings().remarks()) == 2


def test_every_setting_is_described_with_value_and_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVGATE_QUEUE_TIMEOUT", "90000ms")
    flags = {"KVGATE_ADMIN_PORT": "off"}
    rows = {row.name: row for row in describe(load_settings(flags), flags)}
    assert (rows["KVGATE_QUEUE_TIMEOUT"].value, rows["KVGATE_QUEUE_TIMEOUT"].default) == ("90s", "60s")
    assert rows["KVGATE_QUEUE_TIMEOUT"].origin == "environment"
    assert (rows["KVGATE_ADMIN_PORT"].value, rows["KVGATE_ADMIN_PORT"].origin) == ("off", "flag")
    assert rows["KVGATE_HOST"].origin == "default"
    assert all(row.meaning for row in rows.values())


def test_what_is_shown_can_be_set_again(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "KVGATE_BACKENDS": "a=http://gpu1/v1,http://gpu2:8000",
        "KVGATE_RESERVE": "3,a=1GiB",
        "KVGATE_SHARE": "50%",
        "KVGATE_ENGINE": "a=static",
        "KVGATE_SEATS": "a=4,gpu2:8000=8",
        "KVGATE_DEFAULT_OUTPUT": "512",
        "KVGATE_STALL_TIMEOUT": "1.5s",
        "KVGATE_MAX_BODY": "10MB",
        "KVGATE_ADMIN_PORT": "off",
        "KVGATE_PASS_THROUGH": "/v1/rerank,/score",
    }.items():
        monkeypatch.setenv(name, text)
    settings = load_settings()
    for row in describe(settings):
        monkeypatch.setenv(row.name, row.value)
    assert load_settings() == settings


@pytest.mark.parametrize("name", ["KVGATE_SWAP_SPACE", "KVGATE_CPU_OFFLOAD", "KVGATE_HOST_MEMORY", "KVGATE_KV_OFFLOADING_SIZE"])
def test_memory_of_the_host_is_no_budget_and_who_gives_it_is_told_why(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    (problem,) = problems_of(monkeypatch, {name: "64GiB"})
    assert "memory of the host is no KV budget" in problem


@pytest.mark.parametrize(
    ("config", "variables", "sentence"),
    [
        ({"model_type": "llama", "num_hidden_layers": 4}, {}, "num_attention_heads"),
        (
            {"model_type": "whisper", "decoder_layers": 2, "decoder_attention_heads": 2, "d_model": 64},
            {},
            "planned, not served",
        ),
        ("plain", {"KVGATE_PP": "3+3"}, "hold 6 layers together, and the model has 4"),
        ("plain", {"KVGATE_MEMORY": "80GiB"}, "needs KVGATE_WEIGHTS"),
    ],
)
def test_a_model_s_config_that_cannot_be_weighed_with_ends_the_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, config: object, variables: dict[str, str], sentence: str
) -> None:
    plain = {"model_type": "llama", "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64}
    (tmp_path / "config.json").write_text(json.dumps(plain if config == "plain" else config))
    given = {"KVGATE_BACKENDS": "a=http://gpu1", "KVGATE_MODEL_CONFIG": str(tmp_path), **variables}
    (problem,) = problems_of(monkeypatch, given)
    assert sentence in problem


def test_memory_without_a_model_is_not_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"KVGATE_BACKENDS": "a=http://gpu1", "KVGATE_MEMORY": "a=80GiB"}
    (problem,) = problems_of(monkeypatch, given)
    assert "needs KVGATE_MODEL_CONFIG" in problem


def test_a_tokenizer_without_the_extra_that_reads_it_ends_the_start(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tokenizers" else found(name))
    given = {"KVGATE_BACKENDS": "a=http://gpu1,b=http://gpu2", "KVGATE_TOKENIZER": f"b={tmp_path}"}
    (problem,) = problems_of(monkeypatch, given)
    assert "pip install 'kvgate[tokenizer]'" in problem
    assert "no tokenizers here" in problem


@pytest.mark.parametrize("name", ["folder", "file"])
def test_a_tokenizer_is_named_by_its_folder_or_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text("{}")
    path = tmp_path if name == "folder" else file
    monkeypatch.setenv("KVGATE_BACKENDS", "a=http://gpu1,b=http://gpu2")
    monkeypatch.setenv("KVGATE_TOKENIZER", f"a={path}")
    settings = load_settings()
    assert (settings.tokenizer.of(A), settings.tokenizer.of(B)) == (path, None)


def test_what_media_cost_may_be_given_for_all_kinds_or_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVGATE_BACKENDS", "a=http://gpu1,b=http://gpu2")
    monkeypatch.setenv("KVGATE_MEDIA_TOKENS", "1500,b=image:576 audio:750")
    settings = load_settings()
    assert settings.media_tokens.of(A).by_kind == dict.fromkeys(
        (MediaKind.IMAGE, MediaKind.AUDIO, MediaKind.VIDEO, MediaKind.DOCUMENT), 1500
    )
    assert settings.media_tokens.of(B).by_kind == {MediaKind.IMAGE: 576, MediaKind.AUDIO: 750}
    (row,) = [row for row in describe(settings) if row.name == "KVGATE_MEDIA_TOKENS"]
    assert row.value.endswith("b=image:576 audio:750")
