"""The keyed operator: `keyed(...)`, its plan on the driver, its tasks in the workers.

Job authors import `keyed` from the package's root; Spark runs `task`. The folder cannot be called
`keyed`: the package's attribute of that name is the function.
"""
