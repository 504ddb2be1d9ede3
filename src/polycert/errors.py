"""The one exception type that means: the caller can fix this."""


class PolycertError(ValueError):
    """A request that cannot be met; the message is one sentence, on one line, that says what to do."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


def reason(error: BaseException) -> str:
    """What another library's error says first, to be part of a sentence."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
