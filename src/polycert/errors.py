"""The one exception type that means: the caller can fix this."""


class PolycertError(ValueError):
    """A request that cannot be met; the message is one sentence that says what to do."""
