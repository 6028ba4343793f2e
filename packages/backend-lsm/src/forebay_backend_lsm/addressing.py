"""Turns the engine's keys into cell keys and addresses, a whole batch at once.

A cell key begins with its *prefix*: the packed namespace and the packed key, each after its
length. In a map the packed user key follows, to the end. `docs/reference/lsm-file-format.md`
specifies the addresses.
"""

from __future__ import annotations

import abc
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from operator import itemgetter
from typing import Any, Final, Self

import attrs
import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from forebay_backend_lsm.files import Probes, address_of, addresses_of
from forebay_backend_lsm.files.cells import GROUP_SHIFT
from forebay_state_api.codecs import codec_for
from forebay_state_api.contract.backend import TableSpec

U8 = npt.NDArray[np.uint8]
U64 = npt.NDArray[np.uint64]
I64 = npt.NDArray[np.int64]

NAMESPACES: Final = codec_for(None, what="a namespace")
ENTRY_BITS: Final = 24
"""The lowest bits of an address in a map table, which come from the user key."""
_ORDER_BYTES: Final = ENTRY_BITS // 8
_HALF: Final = 40
_GROUP_SHIFT: Final = np.uint64(GROUP_SHIFT)
_HALF_SHIFT: Final = np.uint64(_HALF)
_ENTRY_SHIFT: Final = np.uint64(ENTRY_BITS)
_ONE_BYTE: Final = 128
_FIRST: Final = itemgetter(0)
_SECOND: Final = itemgetter(1)


class AddressedKeys:
    """A batch of cells to look up or write: addresses, and the keys that decide equality."""

    def __init__(self, addresses: U64, keys: list[bytes]) -> None:
        """Pair ``addresses`` and ``keys``, which are in the same order."""
        self.addresses: Final = addresses
        self.keys: Final = keys

    def __len__(self) -> int:
        return len(self.keys)

    @cached_property
    def probes(self) -> Probes:
        """The addresses, hashed for the look-up in filters."""
        return Probes.of(self.addresses)

    @cached_property
    def lengths(self) -> I64:
        """Bytes of each key."""
        return np.fromiter(map(len, self.keys), np.int64, len(self.keys))

    @cached_property
    def span(self) -> int:
        """The difference between the highest and the lowest address."""
        return int(np.ptp(self.addresses)) if len(self) else 0

    @cached_property
    def starts(self) -> I64:
        """The offset of each key in ``data``."""
        lengths = self.lengths
        return np.cumsum(lengths) - lengths

    @cached_property
    def data(self) -> U8:
        """All keys, joined."""
        return np.frombuffer(b"".join(self.keys), np.uint8)


@attrs.frozen(eq=False)
class Entries:
    """Cells of a map table, and their prefixes."""

    prefixes: AddressedKeys
    """The prefix of each cell, at the address of the prefix's `CellKind.CLEAR`."""
    cells: AddressedKeys

    @classmethod
    def of(
        cls,
        groups: npt.NDArray[Any],
        prefixes: list[bytes],
        user_keys: Sequence[bytes],
        *,
        ordered: bool = False,
    ) -> Self:
        """Combine prefixes and user keys into addresses and keys."""
        low = prefix_addresses(groups, prefixes)
        keys = [prefix + user_key for prefix, user_key in zip(prefixes, user_keys, strict=True)]
        if ordered:
            bits = np.fromiter(map(order_bits, user_keys), np.uint64, len(keys))
        else:
            hashes = np.fromiter(map(xxh3_64_intdigest, user_keys), np.uint64, len(keys))
            bits = hashes >> _HALF_SHIFT
        return cls(AddressedKeys(low, prefixes), AddressedKeys(low | bits, keys))


class CellKeys(abc.ABC):
    """The keys of cells whose addresses are computed one by one, or all at once."""

    def __len__(self) -> int:
        return len(self.groups)

    groups: Sequence[int]

    @abc.abstractmethod
    def addressed(self) -> AddressedKeys:
        """Return all keys with their addresses."""

    @abc.abstractmethod
    def one_by_one(self) -> Iterator[tuple[int, bytes]]:
        """Yield the address and the key of each; for few cells the faster way."""


@attrs.frozen
class PlainKeys(CellKeys):
    """Keys of cells of a point or list table."""

    groups: Sequence[int]
    prefixes: list[bytes]

    def addressed(self) -> AddressedKeys:
        return AddressedKeys(addresses_of(np.array(self.groups), self.prefixes), self.prefixes)

    def one_by_one(self) -> Iterator[tuple[int, bytes]]:
        return zip(map(address_of, self.groups, self.prefixes), self.prefixes, strict=True)


@attrs.frozen
class ClearKeys(CellKeys):
    """Keys of the clears of a map table."""

    groups: Sequence[int]
    prefixes: list[bytes]

    def addressed(self) -> AddressedKeys:
        addresses = prefix_addresses(np.array(self.groups), self.prefixes)
        return AddressedKeys(addresses, self.prefixes)

    def one_by_one(self) -> Iterator[tuple[int, bytes]]:
        return zip(map(prefix_address, self.groups, self.prefixes), self.prefixes, strict=True)


@attrs.frozen
class EntryKeys(CellKeys):
    """Keys of the entries of a map table."""

    groups: Sequence[int]
    prefixes: list[bytes]
    user_keys: list[bytes]
    ordered: bool

    def addressed(self) -> AddressedKeys:
        groups = np.array(self.groups)
        return Entries.of(groups, self.prefixes, self.user_keys, ordered=self.ordered).cells

    def one_by_one(self) -> Iterator[tuple[int, bytes]]:
        bits = order_bits if self.ordered else hash_bits
        for group, prefix, user_key in zip(self.groups, self.prefixes, self.user_keys, strict=True):
            yield prefix_address(group, prefix) | bits(user_key), prefix + user_key


class Addressing:
    """Computes the addresses of one table's cells. Thread-safe."""

    def __init__(self, spec: TableSpec) -> None:
        """``spec`` is the declaration, whose codecs pack the keys."""
        self._key = spec.key
        self._user_key = spec.user_key
        self._ordered = spec.ordered

    def prefixes(self, namespace: Any, keys: list[Any]) -> list[bytes]:
        """Return the prefix of each key."""
        heads = _heads(head_of(namespace))
        packed = self._key.pack_each(keys)
        try:
            return [heads[len(key)] + key for key in packed]
        except IndexError:
            head = head_of(namespace)
            return [head + varint(len(key)) + key for key in packed]

    def cells(self, namespace: Any, groups: npt.NDArray[Any], keys: list[Any]) -> AddressedKeys:
        """Address cells of a point or list table."""
        prefixes = self.prefixes(namespace, keys)
        return AddressedKeys(addresses_of(groups, prefixes), prefixes)

    def asked(self, namespace: Any, cells: Sequence[tuple[int, Any]]) -> AddressedKeys:
        """Address cells as `cells` does, given as (key group, key) pairs."""
        groups = np.fromiter(map(_FIRST, cells), np.uint64, len(cells))
        return self.cells(namespace, groups, [*map(_SECOND, cells)])

    def places(self, namespace: Any, cells: Sequence[tuple[int, Any]]) -> list[tuple[int, bytes]]:
        """Return the address and the key of each cell, as `asked` does; faster for few cells."""
        groups, keys = zip(*cells, strict=True)
        return [*PlainKeys(groups, self.prefixes(namespace, [*keys])).one_by_one()]

    def entry_places(
        self, namespace: Any, cells: Sequence[tuple[int, Any, Any]]
    ) -> tuple[list[tuple[int, bytes]], list[tuple[int, bytes]]]:
        """Return address and key of each entry and of its map's clear; faster for few cells."""
        groups, keys, addresses = zip(*cells, strict=True)
        prefixes = self.prefixes(namespace, [*keys])
        entries = self.entries_below(groups, prefixes, [*addresses])
        return [*entries.one_by_one()], [*ClearKeys(groups, prefixes).one_by_one()]

    def entries(self, namespace: Any, cells: Sequence[tuple[int, Any, Any]]) -> Entries:
        """Address cells of a map table, given as (key group, key, user key address)."""
        groups = np.fromiter([cell[0] for cell in cells], np.uint64, len(cells))
        prefixes = self.prefixes(namespace, [cell[1] for cell in cells])
        user_keys = self.user_keys([cell[2] for cell in cells])
        return Entries.of(groups, prefixes, user_keys, ordered=self._ordered)

    def entries_below(
        self, groups: Sequence[int], prefixes: list[bytes], addresses: list[Any]
    ) -> EntryKeys:
        """Return the keys of entries, given as key groups, prefixes and user key addresses."""
        return EntryKeys(groups, prefixes, self.user_keys(addresses), self._ordered)

    def user_keys(self, addresses: list[Any]) -> list[bytes]:
        """Pack the user keys, given by the addresses that the engine uses for them."""
        codec = self._user_key
        assert codec is not None
        original = codec.original
        return codec.pack_each(addresses if original is None else [*map(original, addresses)])

    def one(self, namespace: Any, group: int, key: Any) -> AddressedKeys:
        """Address the cell of one key in a list table."""
        (prefix,) = self.prefixes(namespace, [key])
        return AddressedKeys(np.array([address_of(group, prefix)], np.uint64), [prefix])

    def one_map(self, namespace: Any, group: int, key: Any) -> AddressedKeys:
        """Address the prefix of one key in a map table, at its lowest address."""
        (prefix,) = self.prefixes(namespace, [key])
        return AddressedKeys(prefix_addresses(np.array([group]), [prefix]), [prefix])


def order_bits(user_key: bytes) -> int:
    """Return the lowest bits of the address of an entry of an ordered map.

    They are the beginning of the packed user key, so addresses are in the order of user keys.
    """
    return int.from_bytes(user_key[:_ORDER_BYTES].ljust(_ORDER_BYTES, b"\0"))


def hash_bits(user_key: bytes) -> int:
    """Return the lowest bits of the address of an entry of a map that is not ordered."""
    return xxh3_64_intdigest(user_key) >> _HALF


def prefix_address(group: int, prefix: bytes) -> int:
    """Return the lowest address of a prefix in a map table."""
    return group << GROUP_SHIFT | xxh3_64_intdigest(prefix) >> _HALF << ENTRY_BITS


def prefix_addresses(groups: npt.NDArray[Any], prefixes: Sequence[bytes]) -> U64:
    """Return the lowest address of each prefix in a map table."""
    hashes = np.fromiter(map(xxh3_64_intdigest, prefixes), np.uint64, len(prefixes))
    shifted: U64 = groups.astype(np.uint64) << _GROUP_SHIFT
    return shifted | hashes >> _HALF_SHIFT << _ENTRY_SHIFT


def head_of(namespace: Any) -> bytes:
    """Return the bytes with which all prefixes of a namespace begin."""
    if namespace is None:
        return b"\0"
    packed = NAMESPACES.pack_one(namespace)
    return varint(len(packed)) + packed


def namespace_of(cell_key: bytes) -> Any:
    """Return the namespace in a cell key."""
    length, start = read_varint(cell_key, 0)
    return NAMESPACES.unpack_one(cell_key[start : start + length]) if length else None


def by_head(prefixes: list[bytes]) -> dict[bytes, list[bytes]]:
    """Sort prefixes by what `head_of` returns for their namespaces."""
    found: dict[bytes, list[bytes]] = {}
    default = [prefix for prefix in prefixes if not prefix[0]]
    if default:
        found[b"\0"] = default
    if len(default) < len(prefixes):
        for prefix in prefixes:
            if prefix[0]:
                length, start = read_varint(prefix, 0)
                found.setdefault(prefix[: start + length], []).append(prefix)
    return found


def keys_in(prefixes: list[bytes], start: int) -> list[bytes]:
    """Return the packed keys in prefixes, whose heads have ``start`` bytes."""
    return [
        prefix[start + 1 :] if prefix[start] < _ONE_BYTE else key_in(prefix) for prefix in prefixes
    ]


def prefix_of(cell_key: bytes) -> bytes:
    """Return the part of a cell key that holds namespace and key."""
    return cell_key[: _key_span(cell_key)[1]]


def key_in(cell_key: bytes) -> bytes:
    """Return the packed key in a cell key."""
    start, stop = _key_span(cell_key)
    return cell_key[start:stop]


def _key_span(cell_key: bytes) -> tuple[int, int]:
    length, start = read_varint(cell_key, 0)
    length, start = read_varint(cell_key, start + length)
    return start, start + length


@lru_cache(maxsize=16)
def _heads(head: bytes) -> list[bytes]:
    """Return ``head`` followed by each key length that takes one byte."""
    return [head + bytes((length,)) for length in range(_ONE_BYTE)]


def varint(number: int) -> bytes:
    """Encode a number, 7 bits a byte, lowest first; all bytes but the last have the top bit set."""
    out = bytearray()
    while number >= _ONE_BYTE:
        out.append(number & (_ONE_BYTE - 1) | _ONE_BYTE)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(data: bytes, start: int) -> tuple[int, int]:
    """Decode the number at ``start``; return it and the offset after it."""
    number = shift = 0
    while True:
        byte = data[start]
        start += 1
        number |= (byte & (_ONE_BYTE - 1)) << shift
        if byte < _ONE_BYTE:
            return number, start
        shift += 7
