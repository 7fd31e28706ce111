"""Errors of batches that break their contract."""


class DataProtoError(AssertionError, ValueError):
    """A batch breaks its contract; the message names the key and the shapes.

    It is both an AssertionError and a ValueError, so that code written for either catches it.
    """


class DataProtoKeyError(DataProtoError, KeyError):
    """A column or metadata key that does not exist; the message names the existing ones."""

    # KeyError would print the message as a quoted literal.
    __str__ = BaseException.__str__
