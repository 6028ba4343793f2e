"""``forebay demo``: a year of real flights through a keyed function, on this machine.

`run` is one run of the demo and `carried_delay` is the function that it runs. The other modules
prepare the flights (`flights`) and the directory (`directory`), start Spark (`spark`), print to the
terminal (`screen`), kill workers (`kill`) and compute the expected result (`check`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay_state_api.lazy_names import import_on_first_use

if TYPE_CHECKING or not import_on_first_use(__name__):
    from forebay_spark_runtime.demo.flights import (
        Flights as Flights,
        SCHEMA as SCHEMA,
        airlines as airlines,
    )
