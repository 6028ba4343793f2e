"""``forebay demo``: a year of real flights through a keyed function, on this machine.

`run` is one run of the demo and `carried_delay` is the function that it runs. The other modules
prepare the flights (`flights`) and the directory (`directory`), start Spark (`spark`), print to the
terminal (`screen`), kill workers (`kill`) and compute the expected result (`check`).
"""
