"""Operator state, which belongs to a subtask and not to a key, and notifications of versions.

Any function may be one of these as well::

    class BufferingSink(KeyedProcessFunction, CheckpointedFunction):
        def initialize_state(self, context):
            descriptor = ListStateDescriptor("buffered", str)
            self.checkpointed = context.operator_state_store.get_list_state(descriptor)
            self.buffered = list(self.checkpointed.get())

        def snapshot_state(self, context):
            self.checkpointed.update(self.buffered)

The life of a function in a micro-batch: ``initialize_state`` → ``open`` →
``notify_checkpoint_complete`` → records → ``snapshot_state`` → ``close``. All are plain methods.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

if TYPE_CHECKING:
    from forebay_state_api.job.context import RuntimeContext
    from forebay_state_api.job.descriptors import ListStateDescriptor, MapStateDescriptor
    from forebay_state_api.job.states import ListState, MapState

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


class OperatorStateStore(abc.ABC):
    """The operator's states that belong to no key. What they hold is in memory, in each subtask.

    A state is declared in ``initialize_state`` or ``open``, by the same name and way in every
    subtask; asking for it again gives the same object. One name in two ways, or as another type
    than it was declared with, raises `ConfigurationError`; stored in another way or as a type that
    cannot be read, `StateMigrationError`. A descriptor with a TTL is refused. Their asynchronous
    methods are done when they return. A state that is not declared any more is kept.
    """

    @abc.abstractmethod
    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """Return a list whose elements are split evenly when the parallelism changes.

        The lists of all subtasks are concatenated in order and split among the current subtasks; of
        ``n`` elements each gets ``n // parallelism``, the first ``n % parallelism`` subtasks one
        more. With the same parallelism each subtask keeps its own list.
        """

    @abc.abstractmethod
    def get_union_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """Return a list in which every subtask sees all subtasks' elements, as they were opened.

        A subtask writes only its own part: ``clear`` and ``update`` replace it, ``add`` appends to
        it, and a part that is not written stays. So the list does not multiply from batch to batch
        unless a subtask writes elements that belong to others.
        """

    @abc.abstractmethod
    def get_broadcast_state(self, descriptor: MapStateDescriptor[K, V]) -> MapState[K, V]:
        """Return a map of which each subtask has a complete copy.

        Every subtask must make the same changes to it. When the parallelism changes, subtask ``i``
        gets the copy of the subtask ``i % (old parallelism)``.
        """


class InitializationContext(abc.ABC):
    """The argument of ``initialize_state``."""

    is_restored: bool
    """Whether an earlier version of this operator was opened: true in every micro-batch but its
    first."""
    operator_state_store: OperatorStateStore
    keyed_state_store: RuntimeContext
    """Declares keyed states; the same object as the context of ``open``."""

    @property
    @abc.abstractmethod
    def raw_inputs(self) -> Sequence[BinaryIO]:
        """The byte streams assigned to this subtask, in the order of the old subtasks.

        Each stream of an old subtask goes to exactly one subtask: with the same parallelism to the
        same subtask, otherwise like the elements of an evenly split list.
        """

    @property
    @abc.abstractmethod
    def raw_keyed_inputs(self) -> Mapping[int, BinaryIO]:
        """Key group → the byte stream written for it, for the groups of this subtask."""


class SnapshotContext(abc.ABC):
    """The argument of ``snapshot_state``."""

    version: int
    """The version that is being made; 0 if nothing is stored."""

    @property
    @abc.abstractmethod
    def raw_output(self) -> BinaryIO:
        """The byte stream of this subtask, for the next batch's ``raw_inputs``.

        A function that neither reads nor writes such streams keeps the stored bytes; a function
        that only reads them removes them.
        """

    @abc.abstractmethod
    def raw_keyed_output(self, key_group: int) -> BinaryIO:
        """Return the byte stream of one key group, for the next batch's ``raw_keyed_inputs``.

        The rule of ``raw_output`` applies to all groups together. Raises `ValueError` for a key
        group that the subtask does not own.
        """


class CheckpointedFunction(abc.ABC):
    """A function that has operator state."""

    @abc.abstractmethod
    def initialize_state(self, context: InitializationContext) -> None:
        """Declare states and read their content; called first, in every micro-batch."""

    @abc.abstractmethod
    def snapshot_state(self, context: SnapshotContext) -> None:
        """Update the states for the version to be stored; called after the last record.

        It cannot emit rows.
        """


class ListCheckpointed(abc.ABC):
    """A function with one evenly split list, of values of the plain kinds."""

    @abc.abstractmethod
    def snapshot_state(self, version: int) -> Sequence[Any]:
        """Return the list to store in ``version``; ``None`` is not allowed as an element."""

    @abc.abstractmethod
    def restore_state(self, state: list[Any]) -> None:
        """Restore this subtask's part; called first, if an earlier version was opened."""


class CheckpointListener(abc.ABC):
    """A function that is notified when a version is committed."""

    @abc.abstractmethod
    def notify_checkpoint_complete(self, version: int) -> None:
        """Handle the commit of the micro-batch that made ``version``, which includes its output.

        Spark starts a micro-batch only after it has committed the previous one; workers cannot know
        it earlier. So this is called in every subtask of the next micro-batch, on that batch's copy
        of the function, after ``open`` and before the first record. It is best effort: the last
        version of a stopped query is reported when the query continues, and never if it does not; a
        retried batch reports the same version again; versions of skipped batches are never
        reported. Within a run of the query versions never decrease, and a version includes the
        lower ones. An exception fails the batch, and revokes nothing.
        """
