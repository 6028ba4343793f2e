"""Every error that Forebay raises, grouped by who must act.

One root, `ForebayError`; below it the job's author (`ConfigurationError`, `StateAccessError`,
`StateMigrationError`, `ColumnValueError`, `FunctionError`, `OutputSchemaError`), the operator of
the job (`CorruptStateError`, `StorageError`, `NoThreadError`, `FencedError`), readers of state from
outside (`VersionGoneError`, `AbandonedTimelineError`), and the author of a plugin (`PluginError`).
Misuse for which Python has an exception stays a `ValueError` or a `TypeError`.
"""

from __future__ import annotations

import attrs

from forebay_state_api.user_frames import encodable, users_frames

__all__ = [
    "AbandonedTimelineError",
    "ColumnValueError",
    "ConfigurationError",
    "CorruptStateError",
    "FencedError",
    "ForebayError",
    "FunctionError",
    "IncompatibleTypeError",
    "Location",
    "NoThreadError",
    "OutputSchemaError",
    "PluginError",
    "StateAccessError",
    "StateMigrationError",
    "StorageError",
    "UnknownPluginError",
    "VersionGoneError",
]


@attrs.frozen(kw_only=True)
class Location:
    """The location in a job that an error names; parts that it does not name are ``None``."""

    operator: str
    """The operator's uid, or the name of an ordered wait."""
    function: str | None = None
    """The class and the method of the user's function, as in ``Totals.process_element``."""
    key: str | None = None
    """The ``repr`` of the current key."""
    batch_id: int | None = None
    partition: str | None = None
    """The number of the subtask; of an ordered wait, the partition of its input."""


class ForebayError(Exception):
    """The root of all errors raised by Forebay."""

    location: Location | None = None
    """The location in the job, on errors that ``forebay_spark_runtime.why`` returns."""

    def __str__(self) -> str:
        """Return the message, with escapes for characters that UTF-8 cannot encode."""
        return encodable(self._message())

    def _message(self) -> str:
        """Return the message as it was raised."""
        return super().__str__()


class ConfigurationError(ForebayError):
    """A setting, an argument or a combination of them is invalid.

    Who acts: the job's author. Nothing was read or written when it is raised.
    """


class UnknownPluginError(ConfigurationError):
    """No installed plugin has the requested name.

    The message lists the installed names, and the ``pip install`` line for a known one.
    """


class PluginError(ForebayError):
    """A plugin could not be loaded, or conflicts with another plugin or the contract.

    Who acts: the person who installed the plugin, or its author.
    """


class StateAccessError(ForebayError):
    """State was used where that is not possible: without a current key, or after its batch ended.

    Who acts: the job's author.
    """


class StateMigrationError(ForebayError):
    """Stored state does not match the job's current declaration.

    Who acts: the job's author. The message names the state, the stored and the declared type, and
    the remedy. The stored state is unchanged.
    """


class IncompatibleTypeError(StateMigrationError):
    """Values of the stored type cannot be read as the declared type.

    Who acts: the job's author. Declare the stored type again, or use a state with another name.
    """

    def __init__(self, stored: str, declared: str, reason: str) -> None:
        """Name both types, as text."""
        super().__init__(stored, declared, reason)
        self.stored = stored
        self.declared = declared
        self.reason = reason

    def _message(self) -> str:
        """Return both types and the reason."""
        return f"stored as {self.stored}, declared as {self.declared}: {self.reason}"


class ColumnValueError(ForebayError):
    """A stored value has no place in the columns of a batch function.

    Who acts: the job's author. A function on single records reads the value, and may replace it;
    the message names state, key and value.
    """


class CorruptStateError(ForebayError):
    """Data read from storage differ from what was written, or are incomplete.

    Operator action: the message names the object, the state and the version. Restore the object
    from a copy, or start the query from an older checkpoint; see the how-to on recovery.
    """


class StorageError(ForebayError):
    """Storage could not be reached, or refused a request.

    Operator action: check the address, the credentials and the free space that the message names.
    Nothing was committed by the attempt that saw it.
    """

    def __init__(self, message: str = "", *, transient: bool = False) -> None:
        """``transient`` means that the same request may succeed a little later."""
        super().__init__(message)
        self.transient = transient


class NoThreadError(ForebayError):
    """The process could not start a thread that it needs. The same may succeed a little later.

    Operator action: raise the limit that the message names. Nothing was committed by the attempt.
    """


class FencedError(ForebayError):
    """A newer run of the query owns the state; this one must stop.

    Operator action: one of two drivers (or copies of one checkpoint) is running by mistake. The
    newer run continues; stop the older one, or give the copy its own state directory.
    """


class VersionGoneError(ForebayError):
    """A reader opens, or goes on from, a version that the janitor has deleted.

    Who acts: the reader. Open a newer version, or start again from its content.
    """


class AbandonedTimelineError(ForebayError):
    """A reader goes on from a version of a timeline that the query has left.

    Who acts: the reader. Undo the abandoned changes, or start again; the message names both
    versions.
    """

    def __init__(self, message: str, abandoned: str, newest: str) -> None:
        """``abandoned`` and ``newest`` are positions, ``<version>@<run>``."""
        super().__init__(message, abandoned, newest)
        self.abandoned = abandoned
        self.newest = newest

    def _message(self) -> str:
        """Return the message without the fields."""
        return str(self.args[0])


class FunctionError(ForebayError):
    """The user's function raised; its exception is the ``__cause__``.

    The message names the function, the operator's uid, the key, the batch id and the partition, and
    ends with the frames of user code in the exception's traceback.
    """

    _frames = ""

    def _message(self) -> str:
        """Return the message, with the user's frames below it.

        The frames are stored at the first call, because Spark removes the cause.
        """
        if not self._frames and self.__cause__ is not None:
            self._frames = users_frames(self.__cause__)
        return super()._message() + self._frames


class OutputSchemaError(ForebayError):
    """A row that a function returned does not match the declared output schema.

    Who acts: the job's author. The message names the column, the value and the function.
    """
