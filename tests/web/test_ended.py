"""What requests that have ended add to the metrics."""

from msgspec.structs import replace

from gateway.core.demand import Usage
from gateway.core.geometry import Weighing
from gateway.core.offer import CountKind
from gateway.core.outcomes import Outcome
from gateway.metrics import Metrics
from gateway.web.ended import Ended, add_ended, line_of
from support.samples import sample


def one(outcome: Outcome = Outcome.COMPLETED, *, was_granted: bool = True, usage: Usage | None = None) -> Ended:
    return Ended(
        request_id="r-1",
        trace_id=None,
        parent_id=None,
        dialect="openai_chat",
        outcome=outcome,
        phase="streaming",
        reason=None,
        status=200,
        error=None,
        model="m",
        tenant="anonymous",
        lane="standard",
        pool="a",
        backend="a",
        stream=True,
        counted_tokens=320,
        count_kind=CountKind.BOUND,
        cap_tokens=480,
        written_cap_tokens=None,
        sequences=1,
        blocks=50,
        charged_blocks=50,
        released_blocks=50,
        would_have=None,
        prompt_tokens=usage.prompt_tokens if usage is not None else None,
        output_tokens=usage.output_tokens if usage is not None else None,
        cached_tokens=None,
        truncated=False,
        arrived=100.0,
        body_read=100.25,
        joined=100.25,
        granted=100.75 if was_granted else None,
        sent=100.75,
        head=100.875,
        first_token=101.0,
        upstream_ended=110.75,
        ended=112.0 if was_granted else 100.75,
        waited_s=0.5,
        gaps_s=[0.01, 0.02],
        prompts=1,
        are_counted=True,
        weighing=Weighing(16, 8_192),
        has_cap=True,
    )


def ended(outcome: Outcome = Outcome.COMPLETED, *, was_granted: bool = True, usage: Usage | None = None) -> Metrics:
    """After one request that ended so."""
    metrics = Metrics("test")
    add_ended(metrics, [one(outcome, was_granted=was_granted, usage=usage)])
    return metrics


def test_an_answer_with_its_usage_is_measured_in_every_respect() -> None:
    metrics = ended(usage=Usage(160, 160))
    expected = {
        "kvgate_requests_total": ({"model": "m", "outcome": "completed"}, 1),
        "kvgate_tenant_requests_total": ({"tenant": "anonymous", "outcome": "completed"}, 1),
        "kvgate_request_seconds_sum": ({"model": "m"}, 12.0),
        "kvgate_queue_wait_seconds_sum": ({"lane": "standard", "outcome": "granted"}, 0.5),
        "kvgate_time_to_first_token_seconds_sum": ({"model": "m"}, 1.0),
        "kvgate_upstream_first_token_seconds_sum": ({"model": "m"}, 0.25),
        "kvgate_inter_token_seconds_count": ({"model": "m"}, 2),
        "kvgate_prompt_tokens_total": ({"model": "m"}, 160),
        "kvgate_output_tokens_total": ({"model": "m"}, 160),
        "kvgate_prompt_estimate_ratio_sum": ({"model": "m"}, 2.0),
        "kvgate_waste_block_seconds_total": ({"cause": "cap_above_truth", "tenant": "anonymous"}, 300.0),
    }
    for name, (labels, value) in expected.items():
        assert sample(metrics, name, **labels) == value, name


def test_a_wait_has_the_end_that_the_request_had() -> None:
    for outcome, said in (
        (Outcome.TIMEOUT_QUEUE, "timeout"),
        (Outcome.CLIENT_GONE_QUEUED, "client_gone"),
        (Outcome.REFUSED_QUEUE_FULL, "refused"),
    ):
        metrics = ended(outcome, was_granted=False)
        assert sample(metrics, "kvgate_queue_wait_seconds_count", lane="standard", outcome=said) == 1


def test_without_usage_nothing_is_said_of_tokens_and_waste() -> None:
    metrics = ended()
    assert sample(metrics, "kvgate_prompt_tokens_total", model="m") is None
    assert sample(metrics, "kvgate_waste_block_seconds_total", cause="cap_above_truth", tenant="anonymous") is None


def without_instants(metrics: Metrics) -> list[str]:
    return sorted(line for line in metrics.exposition().decode().splitlines() if "_created" not in line)


def test_requests_that_are_added_together_bring_what_each_would_bring() -> None:
    """Alike or not: by model, outcome, tenant, lane, with and without a grant, a wait, a first token, a usage."""
    usage = Usage(160, 160)
    plain = replace(one(usage=usage), first_token=None, gaps_s=())
    requests = [
        *(one(usage=usage), one(usage=usage), one(), plain, replace(plain, model="n"), replace(plain, tenant="t")),
        *(replace(plain, lane="long", waited_s=2.0), replace(plain, prompts=2), replace(plain, are_counted=False)),
        *(replace(plain, prompt_tokens=0), replace(plain, ended=100.5), replace(plain, waited_s=None)),
        *(replace(plain, weighing=None), replace(plain, released_blocks=None), replace(plain, upstream_ended=None)),
        *(one(outcome, was_granted=was_granted) for outcome in Outcome for was_granted in (True, False)),
        plain,
    ]
    together, each = Metrics("test"), Metrics("test")
    add_ended(together, requests)
    for request in requests:
        add_ended(each, [request])
    assert without_instants(together) == without_instants(each)


def test_its_line_has_durations_between_instants_that_came() -> None:
    line = line_of(one(usage=Usage(160, 160)))
    assert (line.upload_ms, line.count_ms, line.queue_ms, line.total_ms) == (250.0, 0.0, 500, 12_000.0)
    assert (line.head_ms, line.ttft_ms, line.upstream_ms) == (125.0, 1_000.0, 10_000.0)
    assert (line.prompt_tokens_counted, line.count, line.truncated) == (320, "bound", None)
    gone = line_of(replace(one(), body_read=None, joined=None, granted=None, sent=None, first_token=None, counted_tokens=None))
    assert (gone.upload_ms, gone.count_ms, gone.queue_ms, gone.head_ms, gone.ttft_ms, gone.upstream_ms) == (
        *(None, None, 0, None, None, None),
    )
    assert gone.prompt_tokens_counted is None
