"""Faults that confuse keys, user keys, namespaces or names of states."""

from __future__ import annotations

import fnmatch
import struct
import unicodedata
import zlib

import attrs

from forebay_state_api.contract.changes import ABSENT
from forebay_testing.backends.alike_names import AlikeNameTests
from forebay_testing.backends.stored_limits import StoredLimitTests

from .planting import caught_by
from .sqlite_backend import SqliteBackend, SqliteTable

KEYS = AlikeNameTests.test_keys_that_are_alike_are_apart
USER_KEYS = AlikeNameTests.test_user_keys_that_are_alike_are_apart
NAMESPACES = AlikeNameTests.test_namespaces_that_are_alike_are_apart
STATES = AlikeNameTests.test_states_with_names_that_are_alike_are_apart


class ChangesKeys(SqliteTable):
    """A table that stores another key than the one that it is given."""

    def packed_key(self, key):
        return super().packed_key(self.changed(key))


class ChangesTextKeys(ChangesKeys):
    def changed(self, key):
        return self.changed_text(key) if isinstance(key, str) else key


@caught_by(KEYS, "text-point")
class KeysWithoutCase(ChangesTextKeys):
    changed_text = staticmethod(str.lower)


@caught_by(KEYS, "text-list")
class KeysCutAtNul(ChangesTextKeys):
    @staticmethod
    def changed_text(key):
        return key.partition("\0")[0]


@caught_by(KEYS, "text-point")
class KeysInNormalForm(ChangesTextKeys):
    @staticmethod
    def changed_text(key):
        return unicodedata.normalize("NFC", key)


@caught_by(KEYS, "text-map")
class KeysWithoutTrailingBlanks(ChangesTextKeys):
    changed_text = staticmethod(str.rstrip)


@caught_by(KEYS, "text-point")
class KeysOf255Characters(ChangesTextKeys):
    @staticmethod
    def changed_text(key):
        return key[:255]


@caught_by(StoredLimitTests.test_long_keys_and_user_keys_are_apart, "3000")
class KeysOf1024Characters(ChangesTextKeys):
    @staticmethod
    def changed_text(key):
        return key[:1024]


@caught_by(KEYS, "text-point")
class KeysOfNumbersAsNumbers(ChangesTextKeys):
    @staticmethod
    def changed_text(key):
        return str(int(key)) if key.isdecimal() else key


@caught_by(KEYS, "text-point")
class TheEmptyKeyIsNoKey(SqliteTable):
    def set_point(self, namespace, key, group, value):
        if key != "":
            super().set_point(namespace, key, group, value)


@caught_by(KEYS, "text-point")
class FindsKeysByTheirChecksum(SqliteTable):
    def packed_key(self, key):
        packed = super().packed_key(key)
        seen = self.database.__dict__.setdefault("seen", {})
        return seen.setdefault((zlib.crc32(packed[1:]), len(packed)), packed)

    def set_point(self, namespace, key, group, value):
        seen = self.database.__dict__.setdefault("seen", {})
        packed = SqliteTable.packed_key(self, key)
        seen.setdefault((zlib.crc32(key.encode()), 0), packed)
        first = seen[zlib.crc32(key.encode()), 0]
        super().set_point(namespace, self.spec.key.unpack_one(first), group, value)


@caught_by(KEYS, "int-point")
class IntKeysOf32Bits(ChangesKeys):
    def changed(self, key):
        return key & 0xFFFFFFFF if isinstance(key, int) else key


@caught_by(KEYS, "float-point")
class FloatKeysOf32Bits(ChangesKeys):
    def changed(self, key):
        if not isinstance(key, float) or abs(key) > 1e38:
            return key
        return struct.unpack("<f", struct.pack("<f", key))[0]


@caught_by(KEYS, "bytes-point")
class BytesKeysAsAscii(ChangesKeys):
    def changed(self, key):
        return bytes(one & 0x7F for one in key) if isinstance(key, bytes) else key


@caught_by(KEYS, "pair-point")
class JoinsTheColumnsOfAKey(ChangesKeys):
    def changed(self, key):
        if not isinstance(key, tuple):
            return key
        return "|".join(key).partition("|")[0], "|".join(key).partition("|")[2]


@caught_by(KEYS, "text-point")
class DeletesByPattern(SqliteTable):
    def set_point(self, namespace, key, group, value):
        if value is ABSENT and isinstance(key, str) and any(sign in key for sign in "*?["):
            keys = [one for page in self.keys(namespace, 1000) for one in page]
            for other in fnmatch.filter(keys, key):
                super().set_point(namespace, other, group, value)
        super().set_point(namespace, key, group, value)


class ChangesUserKeys(SqliteTable):
    def packed_entry(self, address):
        return super().packed_entry(self.changed(address) if isinstance(address, str) else address)


@caught_by(USER_KEYS, "text-map")
class UserKeysWithoutCase(ChangesUserKeys):
    changed = staticmethod(str.casefold)


@caught_by(USER_KEYS, "text-sorted map")
class UserKeysCutAtNul(ChangesUserKeys):
    @staticmethod
    def changed(address):
        return address.partition("\0")[0]


@caught_by(USER_KEYS, "text-map")
class UserKeysWithCompatibleForms(ChangesUserKeys):
    @staticmethod
    def changed(address):
        return unicodedata.normalize("NFKC", address)


@caught_by(USER_KEYS, "text-map")
class UserKeysWithoutInvisibleSigns(ChangesUserKeys):
    @staticmethod
    def changed(address):
        return "".join(one for one in address if unicodedata.category(one) != "Cf")


class ChangesNamespaces(SqliteTable):
    def packed_namespace(self, namespace):
        return super().packed_namespace(self.changed(namespace))


@caught_by(NAMESPACES, "point")
class NamespacesWithoutCase(ChangesNamespaces):
    @staticmethod
    def changed(namespace):
        return namespace.upper() if isinstance(namespace, str) else namespace


@caught_by(NAMESPACES, "list")
class NamespacesAsText(ChangesNamespaces):
    @staticmethod
    def changed(namespace):
        return None if namespace is None else str(namespace)


@caught_by(NAMESPACES, "map")
class NamespacesOf64Characters(ChangesNamespaces):
    @staticmethod
    def changed(namespace):
        return namespace[:64] if isinstance(namespace, str) else namespace


@caught_by(NAMESPACES, "point")
class TheEmptyNamespaceIsTheDefault(ChangesNamespaces):
    @staticmethod
    def changed(namespace):
        return namespace or None


@caught_by(NAMESPACES, "point")
class KeysOfAnyNamespace(SqliteTable):
    def keys(self, namespace, page_size):
        names = [one for changes in self.export(1000) for one in changes.points]
        yield from super().keys(names[0] if names else None, page_size)


class ChangesNames(SqliteBackend):
    def table(self, spec):
        return super().table(attrs.evolve(spec, name=self.changed(spec.name)))


@caught_by(STATES)
class StateNamesWithoutCase(ChangesNames):
    changed = staticmethod(str.lower)


@caught_by(STATES)
class StateNamesOf32Characters(ChangesNames):
    @staticmethod
    def changed(name):
        return name[:32]


@caught_by(STATES)
class StateNamesAsWords(ChangesNames):
    @staticmethod
    def changed(name):
        return "".join(one if one.isalnum() else "_" for one in name)
