"""Several processes that train one network through MXNet's parameter server (ps-lite).

`launch` plans, starts and watches them; `node` is the process of one role, and `group`
is a worker among the others. `figure` draws their records.
"""
