"""Operator state: what a subtask keeps beside the state of its keys, and who is told of versions.

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
        """A list whose elements are split evenly when the parallelism changes.

        The lists of all subtasks, one after another in their order, are cut into as many as there
        are subtasks now; of ``n`` elements each gets ``n // parallelism``, the first
        ``n % parallelism`` one more. With the same parallelism each subtask keeps its own list.
        """

    @abc.abstractmethod
    def get_union_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """A list of which every subtask sees the elements of all subtasks, as they were opened.

        What a subtask writes is its own part: ``clear`` and ``update`` replace it, ``add`` appends
        to it, and a part that is not written stays. So the list does not multiply from batch to
        batch unless a subtask writes what belongs to the others.
        """

    @abc.abstractmethod
    def get_broadcast_state(self, descriptor: MapStateDescriptor[K, V]) -> MapState[K, V]:
        """A map that each subtask has a whole copy of.

        Every subtask must make the same changes to it. When the parallelism changes, subtask ``i``
        gets the copy of the subtask ``i % (old parallelism)``.
        """


class InitializationContext(abc.ABC):
    """What ``initialize_state`` receives."""

    is_restored: bool
    """Whether an earlier version of this operator was opened: in every micro-batch but the first
    one of its life."""
    operator_state_store: OperatorStateStore
    keyed_state_store: RuntimeContext
    """Declares keyed states, as the context of ``open`` does, and is the same object."""

    @property
    @abc.abstractmethod
    def raw_inputs(self) -> Sequence[BinaryIO]:
        """The byte streams that this subtask takes over, in the order of the old subtasks.

        Each stream that an old subtask wrote goes to exactly one subtask: to its own with the same
        parallelism, else as the elements of an evenly split list would.
        """

    @property
    @abc.abstractmethod
    def raw_keyed_inputs(self) -> Mapping[int, BinaryIO]:
        """Key group → the byte stream that was written for it, for the groups of this subtask."""


class SnapshotContext(abc.ABC):
    """What ``snapshot_state`` receives."""

    version: int
    """The version that is being made; 0 where nothing is stored."""

    @property
    @abc.abstractmethod
    def raw_output(self) -> BinaryIO:
        """The byte stream of this subtask, for the next batch's ``raw_inputs``.

        A function that neither reads nor writes such a stream keeps what was stored; one that only
        reads them ends them.
        """

    @abc.abstractmethod
    def raw_keyed_output(self, key_group: int) -> BinaryIO:
        """The byte stream of one key group, for the next batch's ``raw_keyed_inputs``.

        It ends and stays as ``raw_output`` does, all groups together. Raises `ValueError` for a key
        group that the subtask does not own.
        """


class CheckpointedFunction(abc.ABC):
    """A function that has operator state."""

    @abc.abstractmethod
    def initialize_state(self, context: InitializationContext) -> None:
        """Declare states and take over what they hold; called first, in every micro-batch."""

    @abc.abstractmethod
    def snapshot_state(self, context: SnapshotContext) -> None:
        """Put into the states what the version is to hold; called after the last record.

        No row can be given out any more.
        """


class ListCheckpointed(abc.ABC):
    """A function with one evenly split list, of values of the plain kinds."""

    @abc.abstractmethod
    def snapshot_state(self, version: int) -> Sequence[Any]:
        """The list to be stored in ``version``; ``None`` is no element."""

    @abc.abstractmethod
    def restore_state(self, state: list[Any]) -> None:
        """Take over this subtask's part; called first, if an earlier version was opened."""


class CheckpointListener(abc.ABC):
    """A function that is told when a version is final."""

    @abc.abstractmethod
    def notify_checkpoint_complete(self, version: int) -> None:
        """The micro-batch that made ``version`` is committed, its output included.

        Spark starts a micro-batch only after it has committed the one before; no worker can know it
        earlier. So this is called in every subtask of the next micro-batch, on that batch's copy of
        the function, after ``open`` and before the first record. It is best effort: the last
        version of a stopped query is told when the query goes on, and never if it does not; a batch
        that is tried again tells the same version again; versions of batches that were skipped are
        never told. Within a run of the query versions do not go down, and one that is told covers
        the lower ones. What it raises fails the batch, and revokes nothing.
        """
