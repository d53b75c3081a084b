# TEMPORARY and never committed: names until d2lpar.workers.node is used everywhere.
from d2lpar.workers.node import (  # noqa: F401
    WorkerInfo as Place,
    report_alive as show_life,
    resume_after_restart,
    worker_info as place,
)
