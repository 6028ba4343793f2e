"""Faults that the default kit does not find, each with the reason."""

from __future__ import annotations

from .planting import missed
from .sqlite_backend import SqliteBackend, SqliteTable
from .value_faults import StoresNoValuesOver64KiB


@missed("a value of 16 MiB would cost every backend a second")
class StoresNoValuesOver16MiB(StoresNoValuesOver64KiB):
    limit = 1 << 24


@missed("a batch of 100,000 keys costs more than the rest of its part")
class AnswersEightyThousandKeys(SqliteTable):
    def get_many(self, namespace, keys):
        return super().get_many(namespace, keys[:80_000]) + [None] * max(0, len(keys) - 80_000)


@missed("the kit cannot see how large the copies of a process are")
class HasABudgetForEachOperator(SqliteBackend):
    def keep(self, kept):
        own = self.address(self.opening)
        others = {at: one for at, one in self.kept_databases.items() if at != own}
        self.kept_databases.clear()
        super().keep(kept)
        self.kept_databases.update(others)


@missed("two hundred commits with many cells each take half a minute")
class ForgetsTheOldestFileAfterTwoHundred(SqliteBackend):
    @classmethod
    def files_of(cls, opening):
        found = super().files_of(opening)
        return found[1:] if len(found) > 200 else found
