"""How long one step of the pretend engine takes.

A decode step reads all weights once, whatever the batch, and each sequence's cache; a prefill computes. So
step = fixed + per sequence x sequences + per prefill token x prompt tokens in it. The defaults are an 8B model in bf16 on
an A10G (600 GB/s, 125 TFLOPS of which some 60 % are reached): 16 GB of weights are read in 27 ms, the 128 KiB per token of a
1,000-token cache in 0.2 ms, and 16 GFLOP per prompt token take 0.2 ms. The shape, not the last digit, is what matters:
recomputing a preempted sequence costs its whole context again, and everybody's next token waits for it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds, before `speed` divides them. speed: how many times faster than the modelled machine, above 0."""

    step_s: float = 0.027
    sequence_s: float = 0.0002
    prefill_token_s: float = 0.0002
    speed: float = 1.0

    def __post_init__(self) -> None:
        if self.speed <= 0 or min(self.step_s, self.sequence_s, self.prefill_token_s) < 0:
            raise ValueError("a pace has a speed above 0 and no negative time")

    def duration_s(self, *, sequences: int, prefill_tokens: int) -> float:
        """Seconds of a step that runs `sequences` and computes `prefill_tokens` tokens of prompts among them."""
        work_s = self.step_s + self.sequence_s * sequences + self.prefill_token_s * prefill_tokens
        return work_s / self.speed
