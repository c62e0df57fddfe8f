"""Whole numbers rounded up, and the one check that a number is a whole one."""


def ceil_div(amount: int, unit: int) -> int:
    """amount / unit, rounded up. amount >= 0, unit >= 1."""
    return -(-amount // unit)


def round_up(amount: int, unit: int) -> int:
    """The smallest multiple of `unit` that is not below `amount`."""
    return ceil_div(amount, unit) * unit


def is_whole(value: object, *, at_least: int) -> bool:
    """Whether `value` is an integer from `at_least` on. True is no number, and neither is 8.0."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= at_least
