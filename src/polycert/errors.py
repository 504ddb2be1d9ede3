"""The one exception type that means: the caller can fix this; and the one warning: the caller should know this."""

LONGEST = 2000  # characters of a sentence: what it quotes from a file may have no end


class PolycertError(ValueError):
    """A request that cannot be met; the message is one sentence, on one line, that says what to do."""

    def __init__(self, message: str) -> None:
        sentence = " ".join(message.split())
        super().__init__(sentence if len(sentence) <= LONGEST else f"{sentence[:LONGEST]}…")


class PolycertWarning(UserWarning):
    """What was left out, or not done, although the result is right; one sentence."""


def reason(error: BaseException) -> str:
    """What another library's error says first, to be part of a sentence."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
