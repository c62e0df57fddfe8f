"""The pure core: no await, no I/O, no logging, no clock. Time arrives as the argument `now`."""
