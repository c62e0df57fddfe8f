"""The straight line of a request: read, count, weigh, admit, send, relay, end.

`travel` reads from top to bottom, one call into one room a step. It promises that every request whose head was parsed ends
in exactly one outcome, one log line, and nothing held, whatever ends it: an answer, an error of ours, the engine's, or
the client's departure in any phase, which reaches this task as its cancellation.
"""

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Any

from gateway.admission.grant import Grant
from gateway.batched import Cancellable, last_step, step
from gateway.core.errors import GatewayError, InvalidRequest, Rejected, UpstreamFailed, UpstreamStage
from gateway.core.names import BackendName
from gateway.core.offer import CountKind, PromptCount
from gateway.core.outcomes import Outcome
from gateway.core.request import InferenceRequest
from gateway.core.ticket import Need, Ticket
from gateway.dialects.dialect import Dialect
from gateway.relay.downstream import AsgiDownstream, Client, Receive, Send
from gateway.relay.stream import Answer
from gateway.relay.upstream import UpstreamExchange
from gateway.web.asked import EXPECT
from gateway.web.big_bodies import LIMIT_BYTES
from gateway.web.error_answers import ErrorAnswer, Headers, answer_to
from gateway.web.expectation import refuse_unread
from gateway.web.in_band import goes_under_a_stream, tell_in_band
from gateway.web.inference_head import InferenceHead
from gateway.web.journal import GONE_IN, Journal, Phase
from gateway.web.own_headers import own_headers, truncation
from gateway.web.reports import can_be_told, learn_from
from gateway.web.returning import says_it_returns
from gateway.web.rooms import Rooms
from gateway.web.running import shutting_down
from gateway.web.tickets import ticket_of
from gateway.web.upload import read_upload
from gateway.web.waiting_words import WaitingWords
from gateway.web.weigh import find_pool, reweigh, weigh, weigh_anew, weigh_at_once

log = logging.getLogger("kvgate.web")

# The members of an enum are found by name each time, which costs as much as a call: these are asked for every request.
_QUEUED, _STREAMING, _BOUND = Phase.QUEUED, Phase.STREAMING, CountKind.BOUND
_COMPLETED, _GATEWAY_ERROR = Outcome.COMPLETED, Outcome.GATEWAY_ERROR


async def serve_request(rooms: Rooms, dialect: Dialect, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
    """Serve one call of an inference route, as an ASGI application would."""
    task = asyncio.current_task()
    assert task is not None, "an ASGI server calls its application in a task"
    head = InferenceHead(dialect, scope.get("query_string", b""), scope["headers"])
    await serve_client(rooms, head, AsgiDownstream(receive, send), task)


async def serve_client(rooms: Rooms, head: InferenceHead, client: Client, task: Cancellable) -> None:
    """Serve one call of an inference route. task: the one in which this runs."""
    journal = Journal(head.dialect.name, rooms.tally, rooms.metrics, rooms.recent, rooms.clock.now())
    rooms.open_requests.add(journal)
    line = Line(rooms, head, client, journal, task)
    outcome = _GATEWAY_ERROR
    try:
        try:
            rooms.running.add(line)
            outcome = await line.travel()
        except asyncio.CancelledError:
            if not line.is_cut:
                raise
            # A drain has come to its end before there is an answer: it is refused like a request that comes now.
            task.uncancel()
            outcome = await line.answer_error(shutting_down())
        except GatewayError as error:
            outcome = await line.answer_error(error)
        except Exception as error:
            log.exception("a request failed inside the gateway", extra={"fields": {"request_id": journal.request_id}})
            outcome = await line.answer_error(error)
    except asyncio.CancelledError:
        if journal.gone_in is None:
            outcome = Outcome.DRAINED
            raise
        # The client's departure cancelled us: that is the end of the request, not of the task.
        task.uncancel()
    finally:
        client.unwatch()
        rooms.running.discard(line)
        ended_at = rooms.clock.now()
        await last_step()
        rooms.open_requests.discard(journal)
        learn_from(rooms, journal)
        journal.end(line.outcome_of(outcome), ended_at)
        line.close()


class Line:
    """One request on its way, its steps in the order in which they happen. What need not wait on its way waits for nothing."""

    __slots__ = (
        "_answer", "_asked", "_body", "_client", "_dialect", "_first_arrived", "_head", "_head_sent", "_journal",
        "_left_with_all", "_onward_body", "_patience_s", "_rooms", "_runs_on", "_taken_bytes", "_task", "_words",
        "is_cut",
    )  # fmt: skip

    def __init__(self, rooms: Rooms, head: InferenceHead, client: Client, journal: Journal, task: Cancellable) -> None:
        self._rooms = rooms
        self._head = head
        self._dialect = head.dialect
        self._client = client
        self._journal = journal
        self._asked = head.asked
        journal.trace = head.trace
        self._patience_s = head.patience_s
        self._first_arrived = journal.timeline.arrived
        self._body = b""  # as it came, for as long as the request may still be refused for the time being
        self._onward_body = b""  # as it goes on, until it is sent: answers take long, and bodies are large
        self._words: WaitingWords | None = None
        self._head_sent = False
        self._left_with_all: Outcome | None = None
        self._runs_on = False
        self._answer: Answer | None = None
        self._taken_bytes = 0  # of the room for bodies
        self._task = task
        self.is_cut = False  # by the end of a drain, before there was an answer
        client.on_gone(self._client_left)

    async def travel(self) -> Outcome:
        """The whole way.

        Raises GatewayError while nothing was sent to the client; cancelled when the client leaves, or is told no more.
        """
        rooms, client, journal, dialect = self._rooms, self._client, self._journal, self._dialect
        choices = rooms.choices
        terms = journal.terms = rooms.callers.identify(self._head.credentials)
        if EXPECT in self._asked:
            refuse_unread(rooms)
        limit_bytes, take = choices.max_body_bytes, self._take_room
        self._body = self._onward_body = client.whole_body(limit_bytes, take) or await read_upload(
            client, self._head.headers, take, limit_bytes=limit_bytes, timeout_s=choices.upload_timeout_s
        )
        client.watch()
        journal.timeline.body_read = rooms.clock.now()
        read, is_large = dialect.read_request, len(self._body) > LIMIT_BYTES
        request = journal.request = await rooms.big_bodies.read(read, self._body) if is_large else read(self._body)
        if request.priority is not None and not terms.may_set_priority:
            self._onward_body = await rooms.big_bodies.read(dialect.limit_priority, self._body, terms.priority)

        journal.phase = _QUEUED
        pool = journal.pool = rooms.roster.pool_for(request.model) or await find_pool(rooms, request.model)
        weighed = journal.weighed = weigh_at_once(rooms, pool, request) or await weigh(rooms, pool, request)
        if self._asked and says_it_returns(self._asked):
            await self._find_first_try()
        await step()
        ticket = ticket_of(journal, choices, self._asked, first_arrived=self._first_arrived, patience_s=self._patience_s)
        journal.lane = ticket.lane
        is_bounded = weighed.count.kind is _BOUND
        try:
            if is_bounded:
                rooms.recount.note(ticket, request, self._recounted)
            now = journal.timeline.joined = rooms.clock.now()
            grant = rooms.controller.join(ticket, now)
            if grant is None:
                grant = await self._wait_in_line(ticket)
                now = rooms.clock.now()
            try:
                self._body = b""
                if self._words is not None:
                    self._words.stop()
                journal.granted(grant, now)
                exchange, hide_usage = await self._send(request, grant)
                return await self._relay(exchange, request, grant, hide_usage=hide_usage)
            finally:
                grant.release()
        finally:
            if is_bounded:
                rooms.recount.forget(ticket.id)

    def _take_room(self, size_bytes: int) -> None:
        self._rooms.body_room.take(size_bytes)
        self._taken_bytes += size_bytes

    async def _wait_in_line(self, ticket: Ticket) -> Grant:
        try:
            return await self._rooms.controller.wait(ticket, on_queued=self._queued)
        finally:
            self._rooms.waiters.forget(ticket.id)

    async def _find_first_try(self) -> None:
        """Who was refused and comes back as it was told stands where its first try would stand."""
        rooms = self._rooms
        mark = await rooms.big_bodies.read(rooms.returning.mark, self._body, self._head.credentials)
        first_arrived = rooms.returning.arrived(mark, now=rooms.clock.now())
        self._first_arrived = first_arrived if first_arrived is not None else self._first_arrived

    def _queued(self, ticket: Ticket) -> None:
        rooms, request = self._rooms, self._journal.request
        self._journal.in_line()
        rooms.waiters.note(ticket.id, self._weigh_anew)
        rooms.recount.somebody_waits(ticket)
        if rooms.choices.early_commit_s is not None and request is not None and request.stream:
            self._words = WaitingWords(
                self._client,
                self._dialect,
                rooms.clock,
                after_s=rooms.choices.early_commit_s,
                own_headers=self._own_headers,
                standing=lambda: rooms.controller.standing(ticket.id),
            )

    @property
    def _is_committed(self) -> bool:
        """The head is out, and nothing of the engine's answer yet."""
        return self._words is not None and self._words.have_begun and not self._head_sent

    def _recounted(self, count: PromptCount) -> Mapping[BackendName, Need]:
        """The exact count has come, in line or while the request runs."""
        request, weighed = self._journal.request, self._journal.weighed
        assert request is not None
        assert weighed is not None
        self._journal.recount = count
        counted = reweigh(weighed, request, count, self._rooms.choices)
        if self._rooms.controller.is_waiting(self._journal.ticket_id):
            self._journal.weighed = counted
        return counted.offers

    def _weigh_anew(self, changed: BackendName) -> Mapping[BackendName, Need] | None:
        """The engine of a backend has become another while the request is in line."""
        request, weighed = self._journal.request, self._journal.weighed
        assert request is not None
        assert weighed is not None
        is_its_own = any(view.name == changed for view in weighed.pool.backends)
        if not is_its_own or not self._rooms.controller.is_waiting(self._journal.ticket_id):
            return None
        weighed = self._journal.weighed = weigh_anew(self._rooms, weighed, request)
        return weighed.offers

    async def _send(self, request: InferenceRequest, grant: Grant) -> tuple[UpstreamExchange, bool]:
        """The exchange that begins, and whether its usage was asked for by us alone. Raises UpstreamFailed."""
        rooms, journal, dialect = self._rooms, self._journal, self._dialect
        assert journal.weighed is not None
        body, self._onward_body = self._onward_body, b""
        offer = journal.offer = journal.weighed.offers[grant.backend]
        if offer.cap_to_write is not None:
            body = await rooms.big_bodies.read(dialect.write_cap, body, offer.cap_to_write)
        hide_usage = False
        if request.stream and not request.wants_usage and rooms.choices.asks_usage_of(rooms.roster.view(grant.backend).rules):
            ask, is_large = dialect.ask_usage, len(body) > LIMIT_BYTES
            asked = await rooms.big_bodies.read(ask, body, request) if is_large else ask(body, request)
            hide_usage, body = asked is not body, asked

        upstream = rooms.upstreams[grant.backend]
        journal.timeline.sent = rooms.clock.now()
        try:
            call = upstream.call(self._head, body, key_was_ours=rooms.callers.are_known)
            exchange = upstream.pool.send_at_once(call) or await upstream.pool.send_written(call)
        except UpstreamFailed as failure:
            if failure.stage is UpstreamStage.CONNECT:
                rooms.roster.note_connect_refused(grant.backend)
            raise
        return exchange, hide_usage

    async def _relay(self, exchange: UpstreamExchange, request: InferenceRequest, grant: Grant, *, hide_usage: bool) -> Outcome:
        rooms, journal, dialect = self._rooms, self._journal, self._dialect
        # Such an engine computes a plain answer to its end although its client has left: so long the hold stays.
        is_stream, clocks, now = request.stream, rooms.choices.clocks, rooms.clock.now
        self._runs_on = not is_stream and rooms.roster.view(grant.backend).rules.runs_on_when_left
        running = rooms.controller.follow(grant, is_stream=is_stream)
        answer = self._answer = Answer(
            exchange, self._client, dialect, grant, running, is_stream, clocks, journal.timeline, now, journal.token_gaps
        )
        rooms.watchdog.watch(answer)
        outcome: Outcome | None = None
        try:
            head = await answer.read_head()
            rooms.roster.note_alive(grant.backend)
            is_committed = self._words is not None and self._is_committed
            if is_committed and not goes_under_a_stream(head):
                journal.status = 200
                outcome = await tell_in_band(exchange, head, self._client, dialect)
                return outcome
            journal.status = head.status
            watcher = journal.watcher = answer.watcher(head, hide_usage=hide_usage)
            journal.phase = _STREAMING
            self._head_sent = True
            told_at_end = partial(truncation, journal) if can_be_told(request) else None
            own_headers = None if is_committed else self._own_headers()
            outcome = await answer.relay(head, watcher, own_headers, told_at_end=told_at_end)
        finally:
            rooms.watchdog.unwatch(answer)
            answer.close()
            if outcome is None and answer.is_told_whole:
                outcome = self._left_with_all = Outcome.COMPLETED
            answer.ended(outcome)
        return outcome

    def outcome_of(self, outcome: Outcome) -> Outcome:
        """How the request has ended, which has come to `outcome`."""
        journal = self._journal
        if journal.gone_in is not None:
            # Who has left is told nothing more, so whatever happened since is not how this request ended.
            outcome = self._left_with_all or GONE_IN[journal.gone_in]
        offer, watcher = journal.offer, journal.watcher
        is_capped = offer is not None and offer.cap_to_write is not None
        if is_capped and outcome is _COMPLETED and watcher is not None and watcher.hit_cap:
            return Outcome.CAPPED
        return outcome

    def cut(self, stage: UpstreamStage) -> None:
        """A drain has come to its end."""
        if self._answer is not None:
            self._answer.cut(stage)
        elif self._journal.gone_in is None:
            self.is_cut = True
            self._task.cancel()

    def _client_left(self) -> None:
        self._journal.gone_in = self._journal.phase
        if not self._runs_on:
            self._task.cancel()

    def _own_headers(self) -> Headers:
        return own_headers(self._journal, self._rooms.controller, self._rooms.clock.now)

    def close(self) -> None:
        """The request has ended, however it did: its body is needed no more, and nothing more is said."""
        self._rooms.body_room.give_back(self._taken_bytes)
        if self._words is not None:
            self._words.stop()
            self._words = None

    async def answer_error(self, error: Exception) -> Outcome:
        """Tell the caller, in its dialect, why there is no answer."""
        journal = self._journal
        self._rooms.running.discard(self)
        self._client.on_gone(None)
        if self._words is not None:
            self._words.stop()
        answer = self._error_answer(error)
        if journal.gone_in is not None:
            return answer.outcome
        journal.status = answer.status
        journal.error = str(error) if isinstance(error, UpstreamFailed) else answer.facts.message
        if isinstance(error, InvalidRequest | Rejected):
            journal.reason = error.reason
        if self._head_sent:
            # The status is out already: only a broken end can still tell.
            self._client.abort()
            return answer.outcome
        if self._is_committed:
            journal.status = 200
            await self._client.write_body(self._dialect.error_event(answer.in_band))
            await self._client.finish()
            return answer.outcome
        if isinstance(error, Rejected) and self._body:
            await self._remember(answer)
        body = self._dialect.error_body(answer.facts)
        await self._client.write_head(answer.status, [*answer.head_for(body), *self._own_headers()])
        await self._client.write_body(body)
        await self._client.finish()
        return answer.outcome

    async def _remember(self, answer: ErrorAnswer) -> None:
        """A refusal that says when to come back is remembered, for the caller that does."""
        rooms, told_wait_s = self._rooms, answer.told_wait_s
        if told_wait_s is not None:
            mark = await rooms.big_bodies.read(rooms.returning.mark, self._body, self._head.credentials)
            now = rooms.clock.now()
            rooms.returning.refused(mark, arrived=self._first_arrived, told_wait_s=told_wait_s, now=now)

    def _error_answer(self, error: Exception) -> ErrorAnswer:
        left_s = None
        if self._patience_s is not None:
            left_s = self._journal.timeline.arrived + self._patience_s - self._rooms.clock.now()
        return answer_to(error, patience_left_s=left_s, jitter=self._rooms.jitter)
