"""Charged = what a request has + what such requests still produced. And strict, wherever that is not known."""

import random

import pytest

from gateway.core.book import Book
from gateway.core.commitment import Ending, Evidence, ForecastCommitment
from gateway.core.commitment.forecast import COLD_TOKENS
from gateway.core.decisions import Granted, Mode, Queued
from gateway.core.geometry import Weighing
from gateway.core.ledger import Budget
from gateway.core.names import PoolName, TicketId
from gateway.core.policies.fifo import FifoPolicy
from gateway.core.queue import QueueLimits
from gateway.core.ticket import Need, Ticket
from support.tickets import A, ids, tid

BLOCK = 16
CONTEXT = 8_192
WEIGHING = Weighing(BLOCK, CONTEXT)


def ask(number: int, *, prompt: int = 100, cap: int | None = None, samples: int = 1) -> Ticket:
    """A request as the straight line makes it: an absent cap is one whole context at worst."""
    worst = WEIGHING.sequence_blocks(CONTEXT if cap is None else prompt + cap)
    need = Need(samples * worst, samples, prompt, CONTEXT if cap is None else cap, WEIGHING)
    return Ticket(
        TicketId(number), PoolName("p"), {A: need}, 0.0, 1e9, prompt_tokens=prompt, cap_tokens=cap, family="llama on vllm"
    )


class Bench:
    """A book over one backend that shows its preemptions."""

    def __init__(self, blocks: int = 10_240, *, reserve: int = 512, preemptions: int | None = 0, pinned: bool = False) -> None:
        self.evidence = Evidence()
        self.book = Book(
            mode=Mode.ENFORCE,
            commitment=ForecastCommitment(self.evidence, pinned=pinned),
            policy=FifoPolicy,
            limits=QueueLimits(),
        )
        self.book.set_backend(A, budget=Budget(blocks, reserve), serving=True, now=0.0)
        self.book.read_engine(A, preemptions, overrun_fails_all=False, now=0.0)
        self.number = 0

    def has_seen(self, *tokens: int, cap: int | None = None) -> None:
        for each in tokens:
            self.book.learn(ask(0, cap=cap), each, Ending.FINISHED, now=0.0)

    def join(self, *, prompt: int = 100, cap: int | None = None, samples: int = 1) -> Granted | None:
        self.number += 1
        decision = self.book.join(ask(self.number, prompt=prompt, cap=cap, samples=samples), now=0.0)
        return decision if isinstance(decision, Granted) else None

    def fill(self, *, prompt: int = 100, cap: int | None = None) -> int:
        """Join until one has to wait; how many were granted."""
        granted = 0
        while self.join(prompt=prompt, cap=cap) is not None:
            granted += 1
        return granted

    @property
    def charged(self) -> int:
        return self.book.snapshot(now=0.0).backends[A].charged_blocks

    @property
    def limit(self) -> int | None:
        return self.book.snapshot(now=0.0).backends[A].limit_blocks


@pytest.mark.parametrize(("prompt", "tokens"), [(1, 1), (100, 156), (100, 157), (100, 158), (2_000, 900), (31, 2)])
@pytest.mark.parametrize("cap", [None, 4_096])
def test_a_history_of_one_length_is_charged_exactly(prompt: int, tokens: int, cap: int | None) -> None:
    bench = Bench()
    bench.has_seen(*[tokens] * 100, cap=cap)
    granted = bench.join(prompt=prompt, cap=cap)
    assert granted is not None
    assert granted.charged_blocks == WEIGHING.sequence_blocks(prompt + tokens)
    for progress in range(1, tokens, max(tokens // 5, 1)):
        bench.book.progress(granted.ticket.id, progress, now=1.0)
        assert bench.charged == WEIGHING.sequence_blocks(prompt + tokens)


def test_what_runs_counts_among_the_lengths_from_its_first_tokens_until_its_end() -> None:
    """Those that run past all that ended say that the next one may as well. Who has no token yet says nothing."""
    bench = Bench(blocks=200_000)
    bench.has_seen(*[100] * 200)
    running = [bench.join() for _ in range(400)]
    bench.has_seen(*[100] * 20)
    fresh = bench.join()
    assert fresh is not None
    assert fresh.charged_blocks == WEIGHING.sequence_blocks(200)

    for granted in running:
        assert granted is not None
        bench.book.progress(granted.ticket.id, 800, now=1.0)
    bench.has_seen(*[100] * 20)
    later = bench.join()
    assert later is not None
    assert later.charged_blocks > fresh.charged_blocks

    for granted in running:
        assert granted is not None
        bench.book.release(granted.ticket.id, now=2.0)
    bench.has_seen(*[100] * 20)
    last = bench.join()
    assert last is not None
    assert last.charged_blocks == fresh.charged_blocks


def test_it_is_never_charged_above_its_cap() -> None:
    bench = Bench()
    bench.has_seen(*[3_000] * 100)
    granted = bench.join(cap=200)
    assert granted is not None
    assert granted.charged_blocks == granted.worst_blocks
    bench.book.progress(granted.ticket.id, 100_000, now=1.0)
    assert bench.charged == granted.worst_blocks


def test_several_sequences_are_charged_as_so_many_and_teach_nothing() -> None:
    bench = Bench()
    bench.has_seen(*[300] * 100)
    granted = bench.join(samples=4)
    assert granted is not None
    assert granted.charged_blocks == 4 * WEIGHING.sequence_blocks(400)
    bench.book.release(granted.ticket.id, now=1.0)
    before = [each.completions for each in bench.evidence.seen()]
    bench.book.learn(granted.ticket, 9_000, Ending.FINISHED, now=1.0)
    assert [each.completions for each in bench.evidence.seen()] == before


def test_a_backend_of_which_only_the_worst_is_known_is_strict() -> None:
    bench = Bench()
    bench.has_seen(*[10] * 100)
    ticket = Ticket(TicketId(7), PoolName("p"), {A: Need(512)}, 0.0, 1e9, family="llama on vllm")
    granted = bench.book.join(ticket, now=0.0)
    assert isinstance(granted, Granted)
    assert granted.charged_blocks == 512


def test_what_fits_strictly_is_granted_whatever_the_margin() -> None:
    bench = Bench(blocks=1_000, reserve=20)
    assert bench.join(prompt=1, cap=CONTEXT - 1) is not None  # 512 of 980
    assert bench.join(prompt=1, cap=7_472) is not None  # and 467: 979, above nine tenths, and nothing is forecast
    assert bench.limit == 980


def test_forecasts_leave_the_headroom_free() -> None:
    bench = Bench(blocks=10_240, reserve=512)
    bench.has_seen(*[157] * 100)
    granted = bench.fill(prompt=100)
    assert granted == int(0.9 * 10_240) // 16
    assert bench.charged <= 0.9 * 10_240
    strict = Bench(preemptions=None)
    assert strict.fill(prompt=100) == (10_240 - 512) // 512


def test_more_headroom_never_lets_more_in() -> None:
    admitted = []
    for preemptions in (0, 1, 2, 3, 50):
        bench = Bench()
        bench.has_seen(*[int(random.Random(5).expovariate(1 / 400)) + 1 for _ in range(300)])
        for number in range(1, preemptions + 1):
            bench.book.read_engine(A, number, overrun_fails_all=False, now=2.0 * number)
        admitted.append(bench.fill(prompt=300))
    assert admitted == sorted(admitted, reverse=True)
    assert admitted[-1] == (10_240 - 512) // 512, "strict in the end"


def test_caps_sent_and_no_evidence_is_strict_to_the_ticket() -> None:
    draw = random.Random(6)
    forecast, strict = Bench(blocks=700, reserve=35), Bench(blocks=700, reserve=35, preemptions=None)
    live: list[int] = []
    for number in range(1, 3_000):
        now = float(number)
        if live and draw.random() < 0.5:
            gone = tid(live.pop(draw.randrange(len(live))))
            changes = [bench.book.release(gone, now=now) for bench in (forecast, strict)]
            live += ids(changes[0])
        elif live and draw.random() < 0.3:
            at = tid(draw.choice(live))
            tokens = draw.randrange(500)
            changes = [bench.book.progress(at, tokens, now=now) for bench in (forecast, strict)]
        else:
            ticket = ask(number, prompt=draw.randrange(1, 3_000), cap=draw.randrange(1, 4_000))
            one, other = (bench.book.join(ticket, now=now) for bench in (forecast, strict))
            assert one == other
            live += [number] if isinstance(one, Granted) else []
            continue
        assert changes[0] == changes[1]


# Without evidence


def test_an_absent_cap_without_evidence_is_charged_as_a_guess_that_grows() -> None:
    bench = Bench()
    granted = bench.join(prompt=100)
    assert granted is not None
    assert granted.charged_blocks == WEIGHING.sequence_blocks(100 + COLD_TOKENS)
    for progress in (10, 1_000, 3_000):
        bench.book.progress(granted.ticket.id, progress, now=1.0)
        assert bench.charged == WEIGHING.sequence_blocks(100 + progress + max(progress, COLD_TOKENS))


def test_guesses_fill_at_most_half_of_the_budget_and_strict_fills_the_rest() -> None:
    bench = Bench(blocks=10_240)
    each = WEIGHING.sequence_blocks(100 + COLD_TOKENS)
    granted = bench.fill(prompt=100)
    guessed = 10_240 // 2 // each
    assert granted == guessed + (9_216 - guessed * each) // 512
    assert bench.book.snapshot(now=0.0).backends[A].commitment.cold_blocks == guessed * each


def test_twenty_contexts_let_five_times_as_many_uncapped_chats_in_as_strict_would() -> None:
    assert Bench(blocks=20 * 512).fill(prompt=100) >= 4 * Bench(blocks=20 * 512, preemptions=None).fill(prompt=100)
    bench = Bench(blocks=20 * 512)
    bench.has_seen(*[int(random.Random(7).expovariate(1 / 300)) + 1 for _ in range(100)])
    assert bench.fill(prompt=100) >= 5 * Bench(blocks=20 * 512, preemptions=None).fill(prompt=100)


def test_the_first_preemption_ends_the_guessing_also_for_what_runs() -> None:
    bench = Bench()
    granted = bench.join()
    assert granted is not None
    assert granted.charged_blocks < granted.worst_blocks
    bench.book.read_engine(A, 1, overrun_fails_all=False, now=2.0)
    assert bench.charged == granted.worst_blocks
    assert bench.book.snapshot(now=0.0).backends[A].commitment.cold_blocks == 0
    assert bench.fill() == (10_240 - 512) // 512 - 1


def test_a_guess_needs_an_engine_that_shows_its_preemptions() -> None:
    bench = Bench(preemptions=None, pinned=True)
    granted = bench.join()
    assert granted is not None
    assert granted.charged_blocks == granted.worst_blocks
    bench.has_seen(*[50] * 100)
    known = bench.join()
    assert known is not None
    assert known.charged_blocks < known.worst_blocks


def test_a_guess_becomes_a_forecast_once_there_is_evidence() -> None:
    bench = Bench()
    granted = bench.join(prompt=100)
    assert granted is not None
    bench.has_seen(*[157] * 100)
    bench.book.progress(granted.ticket.id, 3, now=1.0)
    assert bench.charged == 16
    assert bench.book.snapshot(now=0.0).backends[A].commitment.cold_blocks == 0


# Changing one's mind


def test_who_waits_is_granted_when_evidence_makes_room() -> None:
    bench = Bench(blocks=460, reserve=0)
    assert bench.join(cap=7_000) is not None
    assert bench.join(cap=7_000) is None
    bench.has_seen(*[50] * 99, cap=7_000)
    changes = bench.book.learn(ask(0, cap=7_000), 50, Ending.FINISHED, now=1.0)
    assert ids(changes) == [], "what runs is charged as it was until more is known of it"
    assert ids(bench.book.progress(tid(1), 1, now=1.0)) == [2]


def test_strict_after_preemptions_charges_what_runs_its_worst_and_admits_nobody_until_it_drained() -> None:
    bench = Bench(blocks=2_000, reserve=0)
    bench.has_seen(*[157] * 100)
    assert bench.fill() > 20
    bench.book.read_engine(A, 10, overrun_fails_all=False, now=2.0)
    snapshot = bench.book.snapshot(now=2.0).backends[A]
    assert snapshot.charged_blocks == snapshot.worst_blocks > 2_000
    for number in range(1, bench.number - 3):
        assert bench.book.release(tid(number), now=3.0).granted == ()


def test_a_growing_charge_may_pass_the_limit_and_then_nobody_is_admitted() -> None:
    bench = Bench(blocks=1_000, reserve=0)
    bench.has_seen(*[157] * 100)
    granted = bench.fill()
    for number in range(1, granted + 1):
        bench.book.progress(tid(number), 200, now=1.0)
    assert bench.charged > 900
    assert isinstance(bench.book.join(ask(999), now=1.0), Queued)


def test_an_exact_count_shrinks_a_forecast_charge_although_the_worst_stays() -> None:
    bench = Bench()
    bench.has_seen(*[157] * 100)
    granted = bench.join(prompt=4_000)
    assert granted is not None
    exact = ask(1, prompt=1_000).needs
    assert bench.book.reweigh(granted.ticket.id, exact, now=1.0).released_blocks == granted.charged_blocks - bench.charged
    assert bench.charged == WEIGHING.sequence_blocks(1_157)


def test_outputs_four_times_as_long_from_one_moment_on_do_not_overrun_the_pool() -> None:
    """A pool on which tokens are really written, full at every instant; what does not fit then is a preemption."""
    draw = random.Random(8)
    bench = Bench(blocks=4_000, reserve=200)
    lengths: dict[int, int] = {}
    progress: dict[int, int] = {}
    overruns = ended = 0
    mean = 150.0
    bench.has_seen(*[int(draw.expovariate(1 / mean)) + 1 for _ in range(400)])
    for step in range(4_000):
        now = float(step)
        mean = 150.0 if step < 1_000 else 600.0
        while len(bench.book.snapshot(now=now).pools.get(PoolName("p"), {})) == 0 or not bench.book.has_waiting_for(A):
            bench.number += 1
            lengths[bench.number] = int(draw.expovariate(1 / mean)) + 1
            if isinstance(bench.book.join(ask(bench.number), now=now), Granted):
                progress[bench.number] = 0
        for number in list(progress):
            progress[number] += 1
            changes = None
            if progress[number] >= lengths[number]:
                del progress[number]
                ended += 1
                changes = bench.book.release(tid(number), now=now)
                bench.book.learn(ask(number), lengths[number], Ending.FINISHED, now=now)
            elif progress[number] % 32 == 0:
                changes = bench.book.progress(tid(number), progress[number], now=now)
            for granted in changes.granted if changes else ():
                progress[granted.ticket.id] = 0
        used = sum(WEIGHING.sequence_blocks(100 + tokens) for tokens in progress.values())
        overruns += used > 4_000
    assert ended > 1_000
    assert overruns == 0
