"""The environment, read once into one frozen Settings and checked before anything starts.

Every variable has one name, one default and one meaning, and they stand in this file. A name that is not here ends the
start and is told the nearest right one. All problems are reported together, one line each; a secret is never part of a
line. An empty variable is one that is not set.
"""

from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, PlainValidator, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from gateway import setting_values as values
from gateway.backend_settings import BackendAddress, PerBackend, parse_addresses
from gateway.core.reserve import Reserve
from gateway.setting_names import is_service_link
from gateway.setting_values import MediaTokens
from gateway.units import parse_duration

T = TypeVar("T")
EngineChoice = Literal["auto", "vllm", "sglang", "dynamo", "llama_cpp", "tgi", "transformers", "static"]


def _read(parse: Callable[[str], Any]) -> PlainValidator:
    """Text goes through `parse`, whose sentence is the error; a value that code passes is taken as it is."""
    return PlainValidator(lambda given: parse(given) if isinstance(given, str) else given)


def _setting(variable: str, default: str, meaning: str) -> Any:
    return Field(default=default, validation_alias=variable, description=meaning)


Duration = Annotated[float, _read(parse_duration)]
Timeout = Annotated[float, _read(values.timeout)]
Size = Annotated[int, _read(values.body_bytes)]
Port = Annotated[int, _read(values.port)]
Count = Annotated[int, _read(values.whole_number(at_least=0))]
AtLeastOne = Annotated[int, _read(values.whole_number(at_least=1))]
Secret = Annotated[SecretStr | None, _read(values.secret)]
BytesPerBackend = Annotated[PerBackend[int | None], _read(values.per_backend(values.card_bytes, None))]
BlocksPerBackend = Annotated[PerBackend[int | None], _read(values.per_backend(values.whole_number(at_least=1), None))]


class Settings(BaseSettings):
    """Everything that an operator can choose. Seconds end in _s, bytes in _bytes; None means that it is off or not given."""

    model_config = SettingsConfigDict(
        frozen=True,
        case_sensitive=True,
        enable_decoding=False,
        env_ignore_empty=True,
        extra="ignore",
        populate_by_name=True,
        validate_default=True,
        hide_input_in_errors=True,
    )

    backends: Annotated[tuple[BackendAddress, ...], _read(parse_addresses)] = _setting(
        "KVGATE_BACKENDS", "", "inference servers: url or name=url, comma-separated; the only thing one must set"
    )
    host: Annotated[str, _read(values.host)] = _setting("KVGATE_HOST", "127.0.0.1", "address of the inference routes")
    port: Port = _setting("KVGATE_PORT", "8700", "port of the inference routes; 0 picks a free one and prints it")
    admin_host: Annotated[str, _read(values.host)] = _setting(
        "KVGATE_ADMIN_HOST", "127.0.0.1", "address of metrics, state and operations"
    )
    admin_port: Annotated[int | None, _read(values.port_or_off)] = _setting(
        "KVGATE_ADMIN_PORT", "8701", "port of metrics, state and operations; 0 picks a free one, off turns it off"
    )

    engine: Annotated[PerBackend[EngineChoice], _read(values.per_backend(values.engine, "auto"))] = _setting(
        "KVGATE_ENGINE",
        "auto",
        "the software behind a backend: auto, vllm, sglang, dynamo, llama_cpp, tgi, transformers or static; per backend",
    )
    engine_metrics: Annotated[PerBackend[str | None], _read(values.per_backend(values.page_url, None))] = _setting(
        "KVGATE_ENGINE_METRICS",
        "",
        "URL of the engine's own /metrics where that is not the backend's: of the worker behind a frontend; per backend",
    )
    kv_blocks: BlocksPerBackend = _setting(
        "KVGATE_KV_BLOCKS", "", "usable KV blocks, instead of what the engine tells; per backend"
    )
    block_tokens: BlocksPerBackend = _setting("KVGATE_BLOCK_TOKENS", "", "tokens in one block; per backend")
    max_context: BlocksPerBackend = _setting(
        "KVGATE_MAX_CONTEXT", "", "most tokens of one sequence, prompt and output; per backend"
    )
    seats: BlocksPerBackend = _setting("KVGATE_SEATS", "", "sequences that the engine runs at once; per backend")
    reserve: Annotated[PerBackend[Reserve], _read(values.per_backend(Reserve.parse, Reserve.parse("5%")))] = _setting(
        "KVGATE_RESERVE", "5%", "part of the budget that is never granted: blocks, percent or GiB; per backend"
    )
    model_config_path: Annotated[PerBackend[Path | None], _read(values.per_backend(values.model_files, None))] = _setting(
        "KVGATE_MODEL_CONFIG", "", "a model's config.json or folder, to weigh requests exactly; per backend"
    )
    kv_dtype: Annotated[PerBackend[str], _read(values.per_backend(values.kv_dtype, "auto"))] = _setting(
        "KVGATE_KV_DTYPE", "auto", "how the engine stores keys and values: auto, bf16, fp8, nvfp4, ...; per backend"
    )
    tp: Annotated[PerBackend[int], _read(values.per_backend(values.whole_number(at_least=1), 1))] = _setting(
        "KVGATE_TP", "1", "tensor-parallel ranks of the engine; per backend"
    )
    pp: Annotated[PerBackend[str], _read(values.per_backend(values.stages, "1"))] = _setting(
        "KVGATE_PP", "1", "pipeline stages of the engine, or the layers of each: 16+32; per backend"
    )
    tokenizer: Annotated[PerBackend[Path | None], _read(values.per_backend(values.tokenizer_files, None))] = _setting(
        "KVGATE_TOKENIZER",
        "",
        "a model's tokenizer.json, or the folder with it and its chat template, to count prompts exactly; per backend",
    )
    media_tokens: Annotated[PerBackend[MediaTokens], _read(values.per_backend(values.media_tokens, MediaTokens()))] = _setting(
        "KVGATE_MEDIA_TOKENS", "", "most tokens of one part that is no text: 1500, or image:1500 audio:750; per backend"
    )
    memory: BytesPerBackend = _setting("KVGATE_MEMORY", "", "memory of one card, to compute a budget from; per backend")
    weights: BytesPerBackend = _setting(
        "KVGATE_WEIGHTS", "", "weights on one card; without it the index beside the config is an estimate; per backend"
    )
    runtime: BytesPerBackend = _setting(
        "KVGATE_RUNTIME", "", "what else the engine takes of one card: activations, graphs, libraries; per backend"
    )
    share: Annotated[PerBackend[float], _read(values.per_backend(values.share, 1.0))] = _setting(
        "KVGATE_SHARE", "1", "part of each budget that this process may hold, above 0 and at most 1; per backend"
    )

    default_output: Annotated[int | Literal["context", "require"], _read(values.default_output)] = _setting(
        "KVGATE_DEFAULT_OUTPUT",
        "context",
        "where no output cap is sent: context (as far as the engine lets it), tokens, or require",
    )
    overlong: Annotated[Literal["pass", "refuse"], _read(values.one_of("pass", "refuse"))] = _setting(
        "KVGATE_OVERLONG", "pass", "prompt and cap beyond the context where the engine would take it: pass or refuse"
    )
    ask_usage: Annotated[Literal["auto", "on", "off"], _read(values.one_of("auto", "on", "off"))] = _setting(
        "KVGATE_ASK_USAGE", "auto", "ask the engine for a stream's usage: auto (where it is known to take it), on or off"
    )

    mode: Annotated[Literal["enforce", "observe"], _read(values.one_of("enforce", "observe"))] = _setting(
        "KVGATE_MODE", "enforce", "observe admits everything and says what would have waited or been refused"
    )
    commitment: Annotated[Literal["auto", "strict", "forecast"], _read(values.one_of("auto", "strict", "forecast"))] = _setting(
        "KVGATE_COMMITMENT",
        "auto",
        "how much of a demand must be free: strict (all), auto (what past answers say, while the engine does not preempt), or"
        " forecast (that also where it does not show its preemptions)",
    )
    state_file: Annotated[Path | None, _read(values.written_file)] = _setting(
        "KVGATE_STATE_FILE", "off", "file in which evidence about answers outlives the process, or off"
    )
    guards: Annotated[Literal["on", "off"], _read(values.one_of("on", "off"))] = _setting(
        "KVGATE_GUARDS", "on", "limits on unanswered prompts and on the gap between tokens: on or off"
    )
    itl_target_s: Annotated[float | None, _read(values.target)] = _setting(
        "KVGATE_ITL_TARGET", "", "gap between tokens to stay below; without one three times that of the lightly loaded engine"
    )
    ttft_target_s: Annotated[float | None, _read(values.target)] = _setting(
        "KVGATE_TTFT_TARGET", "", "what will probably have no first token by then is refused at once; without one, nothing is"
    )

    queue_requests: Count = _setting("KVGATE_QUEUE_REQUESTS", "1024", "requests that may wait")
    queue_timeout_s: Duration = _setting("KVGATE_QUEUE_TIMEOUT", "60s", "longest wait, from the arrival of the head")
    backfill_passes: Count = _setting("KVGATE_BACKFILL_PASSES", "16", "requests that may pass a head of line that does not fit")
    backfill_age_s: Duration = _setting("KVGATE_BACKFILL_AGE", "30s", "nobody passes a head of line that is older")
    policy: Annotated[Literal["fifo", "priority", "deadline", "size"], _read(values.policy)] = _setting(
        "KVGATE_POLICY", "fifo", "order within a line: fifo, priority, deadline or size"
    )
    lanes_file: Annotated[Path | None, _read(values.readable_file)] = _setting(
        "KVGATE_LANES", "", "TOML file of lanes: weights, caps, limits; without one standard, and long on large backends"
    )

    early_commit_s: Annotated[float | None, _read(values.duration_or_off)] = _setting(
        "KVGATE_EARLY_COMMIT", "off", "a stream that waits in line for so long is answered early, with comments; or off"
    )

    connect_timeout_s: Timeout = _setting("KVGATE_CONNECT_TIMEOUT", "5s", "to connect to a backend")
    upload_timeout_s: Timeout = _setting("KVGATE_UPLOAD_TIMEOUT", "30s", "for a client to send its whole request")
    first_token_timeout_s: Timeout = _setting("KVGATE_FIRST_TOKEN_TIMEOUT", "300s", "from sending to a stream's first token")
    stall_timeout_s: Timeout = _setting("KVGATE_STALL_TIMEOUT", "300s", "between two reads of a stream from the engine")
    send_timeout_s: Timeout = _setting("KVGATE_SEND_TIMEOUT", "60s", "a client that takes no byte for so long is gone")
    total_timeout_s: Timeout = _setting("KVGATE_TOTAL_TIMEOUT", "3600s", "from sending to the end of the answer")

    max_body_bytes: Size = _setting("KVGATE_MAX_BODY", "32MiB", "largest request body")
    max_bodies_bytes: Size = _setting("KVGATE_MAX_BODIES", "1GiB", "bodies of all requests in hand; beyond, newcomers get 429")
    max_header_bytes: Size = _setting("KVGATE_MAX_HEADER_BYTES", "64KiB", "all header fields of a request")
    max_headers: AtLeastOne = _setting("KVGATE_MAX_HEADERS", "128", "header fields of a request")
    max_url_bytes: Size = _setting("KVGATE_MAX_URL", "8KiB", "longest target of a request")
    header_timeout_s: Timeout = _setting("KVGATE_HEADER_TIMEOUT", "10s", "for a client to send the head of a request")
    idle_timeout_s: Timeout = _setting("KVGATE_IDLE_TIMEOUT", "75s", "a client's connection without a request is closed")
    max_pipelined: Count = _setting("KVGATE_MAX_PIPELINED", "8", "requests taken behind one that is not answered yet")
    max_connections: Annotated[int | None, _read(values.number_or("auto"))] = _setting(
        "KVGATE_MAX_CONNECTIONS", "auto", "clients' connections; auto: as many as the open-file limit allows, at most 16384"
    )
    max_connections_per_address: Annotated[int | None, _read(values.number_or("off"))] = _setting(
        "KVGATE_MAX_CONNECTIONS_PER_ADDRESS", "off", "of those, from one address; behind a proxy all come from one"
    )
    drain_delay_s: Duration = _setting("KVGATE_DRAIN_DELAY", "0s", "after SIGTERM, time in which only /ready changes")
    drain_timeout_s: Duration = _setting("KVGATE_DRAIN_TIMEOUT", "30s", "after that, time for running requests to end")

    admin_token: Secret = _setting("KVGATE_ADMIN_TOKEN", "", "needed for writes on the admin port off loopback")
    keys_file: Annotated[Path | None, _read(values.readable_file)] = _setting(
        "KVGATE_KEYS_FILE", "", "TOML file of callers' keys (hashed) and their tenants; without one everybody is anonymous"
    )
    tenant_labels: Count = _setting(
        "KVGATE_TENANT_LABELS", "100", "tenants that metrics show by name; those that come later are other"
    )
    backend_key: Secret = _setting(
        "KVGATE_BACKEND_KEY", "", "bearer key for the backends: for probes, and for callers without one"
    )
    backend_keys_file: Annotated[Path | None, _read(values.readable_file)] = _setting(
        "KVGATE_BACKEND_KEYS_FILE", "", "file of lines name=key, for backends with different keys"
    )
    ca_file: Annotated[Path | None, _read(values.certificate_file)] = _setting(
        "KVGATE_CA_FILE", "", "PEM file of certificate authorities trusted for https backends"
    )
    pass_through: Annotated[tuple[str, ...], _read(values.paths)] = _setting(
        "KVGATE_PASS_THROUGH", "", "paths that go on without being counted, comma-separated"
    )
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], _read(values.one_of("debug", "info", "warning", "error"))
    ] = _setting("KVGATE_LOG_LEVEL", "info", "debug, info, warning or error")
    log_format: Annotated[Literal["auto", "text", "json"], _read(values.one_of("auto", "text", "json"))] = _setting(
        "KVGATE_LOG_FORMAT", "auto", "text, json, or auto: text on a terminal, else json"
    )
    workers: Annotated[int, _read(values.workers)] = _setting("KVGATE_WORKERS", "1", "processes; this version runs one")

    @model_validator(mode="before")
    @classmethod
    def _drop_service_links(cls, given: dict[str, Any]) -> dict[str, Any]:
        """Kubernetes puts KVGATE_PORT=tcp://... into every pod beside a Service named kvgate: no operator said that."""
        return {name: value for name, value in given.items() if not is_service_link(name, value)}

    def remarks(self) -> tuple[str, ...]:
        """What is allowed and yet worth a line at start."""
        said = [
            f"the user info in the URL of the backend {address.name!r} is not used: give its key with KVGATE_BACKEND_KEY"
            for address in self.backends
            if address.user_info_cut
        ]
        said += [
            f"KVGATE_PASS_THROUGH: {path} goes on without being counted; what it takes from the KV cache is nobody's budget"
            for path in self.pass_through
        ]
        if self.admin_port is not None and not is_loopback(self.admin_host) and self.admin_token is None:
            said.append(
                f"the admin port listens on {self.admin_host} without KVGATE_ADMIN_TOKEN: all there may read, nobody may write"
            )
        return tuple(said)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens on `host`."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"
