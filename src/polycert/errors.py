"""The exception for what a caller can correct, and the warning for what a caller should know."""

LONGEST = 2000  # characters of a message, which may quote a file


class PolycertError(ValueError):
    """A request that cannot be met; the message is one sentence, on one line, that says what to do."""

    def __init__(self, message: str) -> None:
        sentence = " ".join(message.split())
        super().__init__(sentence if len(sentence) <= LONGEST else f"{sentence[:LONGEST]}…")


class PolycertWarning(UserWarning):
    """The result is right, but something was left out; the message is one sentence that says what."""


def reason(error: BaseException) -> str:
    """The first line of an error's message, or the name of its type if it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
