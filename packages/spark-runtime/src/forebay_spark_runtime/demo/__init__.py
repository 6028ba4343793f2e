"""``forebay demo``: a year of real flights through a keyed function, on this machine.

`carried` is the function it runs, the rest is the stage: the flights (`flights`), the directory
(`place`), Spark (`spark`), what is shown (`screen`), what is killed (`kill`) and what the result
is compared with (`check`). `story` tells the whole of it.
"""
