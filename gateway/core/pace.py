"""Pace: how fast one backend is seen to work. What guards, predictions and guesses of progress go by.

It promises: fixed memory, no clock of its own, and None for what was not seen yet. Everything is learned from requests
that passed here: what others do to the engine shows in their gaps like everything else.
"""

import math
from typing import Final

# A window of gaps closes after so long and so many tokens: long enough to see many steps of the engine, short enough to act.
WINDOW_S: Final = 1.0
_WINDOW_TOKENS: Final = 32
# Windows fade within some five seconds: a few steps full of prompt stretch one window's gap to several times what a whole
# answer sees, and limits drawn from that left machines half idle.
_GAP_MEMORY_S: Final = 5.0
_KEPT: Final = 0.9  # of the past with each new sample: a memory of about ten samples
_KEPT_SHARE: Final = 0.98  # of about fifty answers
_LEAST_SHARE: Final = 0.02
_LIGHT_FORGETS: Final = 1.001  # per window: the lightly loaded gap is what was least, slowly forgotten
_LEAST_RATE_TOKENS: Final = 1024  # fewer prompt tokens say more about the length of a step than about the prefill rate


class Pace:
    """One backend. gap_s: seconds between two token-bearing events of a stream, over the last seconds. light_gap_s: that of
    a lightly loaded engine, the least of any window. prefill_tokens_per_s: prompt tokens computed.

    computed_share: prompt tokens that the engine had to compute, per prompt token that we counted; what its prefix cache had
    and what our bound was too high by are not computed. 1 until it is known.
    """

    def __init__(self) -> None:
        self.gap_s: float | None = None
        self.light_gap_s: float | None = None
        self.prefill_tokens_per_s: float | None = None
        self.computed_share = 1.0
        self._window_started: float | None = None
        self._seconds = 0.0
        self._tokens = 0
        self._faded_seconds = 0.0
        self._faded_tokens = 0.0
        self._counted = 0.0
        self._computed = 0.0
        self._plain_seconds = 0.0
        self._plain_tokens = 0.0
        self._bytes = 0.0
        self._byte_tokens = 0.0

    def saw_gaps(self, seconds: float, tokens: int, *, now: float) -> bool:
        """Streams took `seconds` in all for `tokens` more tokens. Returns whether a window closed, with a gap anew."""
        if self._window_started is None:
            self._window_started = now
        self._seconds += seconds
        self._tokens += tokens
        if now < self._window_started + WINDOW_S or self._tokens < _WINDOW_TOKENS:
            return False
        kept = math.exp((self._window_started - now) / _GAP_MEMORY_S)
        self._faded_seconds = self._faded_seconds * kept + self._seconds
        self._faded_tokens = self._faded_tokens * kept + self._tokens
        self.gap_s = self._faded_seconds / self._faded_tokens
        window_gap_s = self._seconds / self._tokens
        light_gap_s = self.light_gap_s * _LIGHT_FORGETS if self.light_gap_s is not None else window_gap_s
        self.light_gap_s = min(light_gap_s, window_gap_s)
        self._window_started, self._seconds, self._tokens = now, 0.0, 0
        return True

    def saw_first_token(self, tokens_ahead: float, seconds: float) -> None:
        """A first token came `seconds` after its grant; `tokens_ahead` of prompts, its own among them, were computed for it."""
        if tokens_ahead >= _LEAST_RATE_TOKENS and seconds > 0:
            rate = tokens_ahead / seconds
            known = self.prefill_tokens_per_s
            self.prefill_tokens_per_s = rate if known is None else known * _KEPT + rate * (1 - _KEPT)

    def saw_prompt(self, counted_tokens: int, prompt_tokens: int, cached_tokens: int) -> None:
        """A prompt that we counted as so many tokens was so many, of which the engine had some."""
        if counted_tokens > 0:
            computed = self._computed * _KEPT_SHARE
            if prompt_tokens > cached_tokens:
                computed += prompt_tokens - cached_tokens
            counted = self._counted * _KEPT_SHARE + counted_tokens
            self._computed, self._counted = computed, counted
            share = computed / counted
            if share < _LEAST_SHARE:
                share = _LEAST_SHARE
            elif share > 1.0:
                share = 1.0
            self.computed_share = share

    def saw_answer(self, *, output_tokens: int, text_bytes: int, seconds: float | None) -> None:
        """An answer of so many tokens had so many bytes of text. seconds: what it took, where it was not a stream."""
        if output_tokens < 1:
            return
        if text_bytes > 0:
            self._bytes = self._bytes * _KEPT_SHARE + text_bytes
            self._byte_tokens = self._byte_tokens * _KEPT_SHARE + output_tokens
        if seconds is not None:
            self._plain_seconds = self._plain_seconds * _KEPT + seconds
            self._plain_tokens = self._plain_tokens * _KEPT + output_tokens

    def progress(self, *, events: int, text_bytes: int, elapsed_s: float, sequences: int = 1) -> int:
        """Tokens that a running answer has, as far as can be told from outside: the largest of what was seen of it and
        of the time since it was sent, in which each of its sequences goes at half the pace at which others go."""
        tokens = events
        if text_bytes > 0 and self._byte_tokens > 0:
            by_bytes = int(text_bytes * self._byte_tokens / self._bytes)
            if by_bytes > tokens:
                tokens = by_bytes
        gap_s = self.gap_s
        if gap_s is None and self._plain_tokens > 0:
            gap_s = self._plain_seconds / self._plain_tokens
        if gap_s:
            by_time = int(elapsed_s / gap_s / 2) * sequences
            if by_time > tokens:
                tokens = by_time
        return tokens
