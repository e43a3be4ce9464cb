"""The exceptions for mistakes of the caller's. Standard library only."""


class UsageError(ValueError):
    """A mistake of the caller's: what was given, what is allowed, what to do, in one sentence.

    The command line prints the sentence and exits with 2.
    """


class TooLarge(UsageError):
    """What was asked for does not fit into the memory of the device."""


class Busy(UsageError):
    """The device is being measured by another run."""


def unknown(kind: str, given: object, allowed: list[str]) -> UsageError:
    """The error for a name that no table has."""
    return UsageError(f"unknown {kind} {given!r}: choose one of {', '.join(allowed)}")
