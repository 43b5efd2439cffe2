"""Driver of a box, inside its cell: a shell and an interpreter that live over many commands.

Runs as the box's own user beside whatever the box runs: nothing here is trusted by the service.
"""

DRIVER = "areal_judge.boxes.driver.main"
